// The plain gRPC Generate service over a core::Generator.
#pragma once

#include "common/api/api_server.h"
#include "common/core/generator.h"
#include "common/rpc/generation.h"
#include "common/token/tokenizer.h"

#include <memory>

namespace tandem::serve {

struct GenerationSetup {
  /// Borrowed: checks keys, counts requests. Must outlive the server that uses the endpoint.
  const api::ApiServer* api = nullptr;
  api::ApiOptions options;
  std::shared_ptr<core::Generator> generator;
  std::shared_ptr<const token::Tokenizer> tokenizer;
};

std::shared_ptr<rpc::GenerationHandler> make_generation_endpoint(GenerationSetup setup);

}  // namespace tandem::serve
