// SGLang's bootstrap routes over a Directory: PUT and GET /route, POST /register_dp_rank, POST
// /query_dp_ranks, GET /health.
#pragma once

#include "common/bootstrap/directory.h"
#include "common/http/router.h"

#include <memory>

namespace tandem::bootstrap {

/// Adds the routes; `directory` is shared with them.
void add_routes(http::Router& router, const std::shared_ptr<Directory>& directory, bool metrics);

}  // namespace tandem::bootstrap
