// A worker that computes nothing: speaks the session protocol and answers at once, so that what is
// left is the router's own cost.
#pragma once

#include "bench/router/read_tokens.h"

#include <cstdint>

namespace tandem::bench {

/// Serves until its parent dies or SIGTERM comes. Prints "GRPC_PORT HTTP_PORT" on stdout once both
/// listen: gRPC for a router, HTTP with a canned answer of the router's size for the direct
/// baseline. `step_us` > 0: a streaming request gets one token per step of that length; 0: as fast
/// as its client reads them, of whom no stream is more than kAheadTokens ahead: `read` says how far
/// the client is, a request's `seed` which of its connections it is. Requests that ask for at most
/// `whole_max` tokens get them in one event.
int run_fake_worker(int step_us, int whole_max, const ReadTokens& read);

/// About half of the bytes that the router writes ahead of a client before it merges tokens.
inline constexpr std::int32_t kAheadTokens = 128;

}  // namespace tandem::bench
