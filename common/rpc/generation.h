// Plain Generate for gRPC clients: the service over an abstract handler.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/rpc/server.h"

#include "proto/tandem/v1/generate.pb.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tandem::rpc {

/// One running call. Methods: any thread, none blocks.
class GenerationCall {
 public:
  virtual ~GenerationCall() = default;
  /// The request; valid as long as the call.
  [[nodiscard]] virtual const v1::GenerateRequest& request() const = 0;
  /// The call's deadline on this process's clock.
  [[nodiscard]] virtual std::optional<Time> deadline() const = 0;
  /// Metadata `authorization`, empty when absent.
  [[nodiscard]] virtual const std::string& authorization() const = 0;
  /// kUnavailable when the call is over; over the bound the call ends with kResourceExhausted.
  virtual Status write(v1::GenerateResponse&& response) = 0;
  /// Ends the call after what is queued. Once; later ones are ignored.
  virtual void finish(const Status& status) = 0;
};

using GenerationCallPtr = std::shared_ptr<GenerationCall>;

/// Callbacks come on gRPC threads and must not block.
class GenerationHandler {
 public:
  virtual ~GenerationHandler() = default;
  virtual void on_generate(const GenerationCallPtr& call) = 0;
  /// The client left, or the deadline passed: stop computing. Comes at most once, and not after
  /// finish was carried out.
  virtual void on_cancel(const GenerationCallPtr& call) = 0;
  virtual Result<v1::ModelInfo> model_info(const std::string& authorization) = 0;
  virtual Result<std::string> server_info_json(const std::string& authorization) = 0;
  virtual Status abort(const std::string& authorization, const v1::AbortRequest& request) = 0;
};

struct GenerationServiceOptions {
  std::size_t queued_bytes_max = 16U << 20U;
  std::uint32_t calls_max = 65536;
};

std::shared_ptr<Service> make_generation_service(std::shared_ptr<GenerationHandler> handler,
                                                 GenerationServiceOptions options = {});

}  // namespace tandem::rpc
