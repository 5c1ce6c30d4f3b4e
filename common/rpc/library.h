// gRPC's own threads, for as long as a program runs.
#pragma once

namespace tandem::rpc {

/// Made before and ended after everything else of this room, and after serve::Signals: its threads
/// inherit the mask. Its end waits for the threads that
/// gRPC keeps for timers and cleaning up: without it some of them still run, or are just ending,
/// while the process exits.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

}  // namespace tandem::rpc
