// libucp, loaded when it is first needed (private to the room).
#pragma once

#include "common/base/status.h"

namespace tandem::transfer {

/// Loads libucp once; later calls return the first verdict. unavailable with the loader's words
/// when it is missing, too old or lacks a function. No ucp_* function may be called before it is
/// ok.
///
/// Why not linked: libucs acts when it is loaded, before main. It installs handlers for SEGV, BUS,
/// ILL and FPE, and libucm patches mmap, madvise and brk inside libc, which crashes programs under
/// ThreadSanitizer when a thread ends. Only UCX_* variables turn that off, and only when they are
/// set before. So tame_ucx() sets them, and then the library is loaded.
Status load_ucx();

}  // namespace tandem::transfer
