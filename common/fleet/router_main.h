// The program around a Fleet: router.
#pragma once

namespace tandem::fleet {

/// Everything from argv to exit status. Call it first thing in main.
int router_main(int argc, const char* const* argv);

}  // namespace tandem::fleet
