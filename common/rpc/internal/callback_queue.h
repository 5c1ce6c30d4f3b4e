// What must hold for gRPC's callback API in this process.
#pragma once

namespace tandem::rpc::internal {

/// Keeps gRPC's callback threads for the life of the process. Call before the first channel or
/// server; cheap afterwards.
///
/// Why: gRPC 1.51 counts the channels and servers that use these threads and, when the last one
/// goes, joins them in the thread that let it go. Reactors let their channel go in OnDone, which
/// runs on such a thread: it would join itself and free the queue it is running on (seen under
/// ASan as a double free in nexting_thread).
void keep_callback_threads();

}  // namespace tandem::rpc::internal
