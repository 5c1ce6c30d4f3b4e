// libFuzzer over one feed: ./dev fuzz NAME.
#include "tests/fuzz/feeds.h"

#include <cstddef>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer knows it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tandem::fuzz::TANDEM_FUZZ_FEED({data, size});
  return 0;
}
