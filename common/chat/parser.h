// Template source to tree.
#pragma once

#include "common/base/status.h"
#include "common/chat/ast.h"

#include <string_view>

namespace tandem::chat {

/// Errors: invalid_argument "line N: what was expected, what was found"; unimplemented for parts of
/// Jinja that need a loader (import, include, extends).
Result<Body> parse_template(std::string_view source);

}  // namespace tandem::chat
