// What libucs and libucm do to a process when they are loaded, prevented.
#include "common/transfer/transport.h"

#include <cstdlib>
#include <mutex>
#include <string>

namespace tandem::transfer {

void tame_ucx() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Read once, when the libraries are loaded (ucx_load.h); inherited by the processes that this
    // one starts. What the user has set stays,
    // but for the last two.
    ::setenv("UCX_HANDLE_ERRORS", "none", 0);
    ::setenv("UCX_MEM_EVENTS", "n", 0);
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
    ::setenv("UCX_LOG_LEVEL", "fatal", 0);
    ::setenv("UCX_TCP_MAX_IOV", std::to_string(kTcpListMax).c_str(), 0);
    // UCX's 8 KiB are a system call for every two pages of memory. Not the user's to change: UCX
    // does not tell the peer, and a piece that is longer than the peer's buffer overflows it.
    const std::string piece = std::to_string(kTcpPieceBytes >> 10U) + "k";
    ::setenv("UCX_TCP_TX_SEG_SIZE", piece.c_str(), 1);
    ::setenv("UCX_TCP_RX_SEG_SIZE", piece.c_str(), 1);
  });
}

}  // namespace tandem::transfer
