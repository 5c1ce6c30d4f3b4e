#include "common/rpc/library.h"

#include <absl/synchronization/mutex.h>
#include <grpc/grpc.h>

namespace tandem::rpc {

Library::Library() {
  // Debian builds Abseil so that each of gRPC's locks looks for cycles among all of them.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  grpc_init();
}

Library::~Library() {
  grpc_shutdown_blocking();
}

}  // namespace tandem::rpc
