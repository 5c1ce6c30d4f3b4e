// Status to and from gRPC's: the codes are the same numbers.
#pragma once

#include "common/base/status.h"

#include <grpcpp/support/status.h>

namespace tandem::rpc::internal {

inline grpc::Status to_grpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(static_cast<int>(status.code())), status.message()};
}

inline Status from_grpc(const grpc::Status& status) {
  if (status.ok()) return {};
  const int code = static_cast<int>(status.error_code());
  const bool known = code > 0 && code <= static_cast<int>(Code::kUnauthenticated);
  return {known ? static_cast<Code>(code) : Code::kUnknown, status.error_message()};
}

}  // namespace tandem::rpc::internal
