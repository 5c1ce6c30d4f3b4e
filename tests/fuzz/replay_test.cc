// Every seed and every input that a fuzz program once found, in every build. They abort when a
// promise of parse() is broken.
#include "tests/fuzz/args_fuzz.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace tandem::fuzz {
namespace {

std::size_t replay(const std::string& name, void (*feed)(std::span<const std::uint8_t>)) {
  const std::filesystem::path folder =
      std::filesystem::path(TANDEM_SOURCE_DIR) / "tests" / "fuzz" / "corpus" / name;
  std::size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    std::ifstream stream(file.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(stream), {}};
    feed({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    ++count;
  }
  return count;
}

TEST(FuzzReplay, CommandLines) {
  EXPECT_GE(replay("argv", &feed_argv), 8U);
}

TEST(FuzzReplay, ConfigFiles) {
  EXPECT_GE(replay("yaml", &feed_yaml), 8U);
}

}  // namespace
}  // namespace tandem::fuzz
