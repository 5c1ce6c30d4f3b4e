// libFuzzer over the config file: ./dev fuzz yaml.
#include "tests/fuzz/args_fuzz.h"

#include <cstddef>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer knows it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tandem::fuzz::feed_yaml({data, size});
  return 0;
}
