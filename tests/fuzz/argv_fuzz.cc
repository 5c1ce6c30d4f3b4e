// libFuzzer over the command line: ./dev fuzz argv.
#include "tests/fuzz/args_fuzz.h"

#include <cstddef>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer knows it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tandem::fuzz::feed_argv({data, size});
  return 0;
}
