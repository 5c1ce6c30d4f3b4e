#include "common/rpc/library.h"

#include <grpc/grpc.h>

namespace tandem::rpc {

Library::Library() {
  grpc_init();
}

Library::~Library() {
  grpc_shutdown_blocking();
}

}  // namespace tandem::rpc
