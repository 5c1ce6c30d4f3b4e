// The program around a Worker: prefill-server and decode-server alike.
#pragma once

#include "common/args/options.h"

namespace tandem::worker {

/// Everything from argv to exit status. Call it first thing in main.
int worker_main(args::Program program, int argc, const char* const* argv);

}  // namespace tandem::worker
