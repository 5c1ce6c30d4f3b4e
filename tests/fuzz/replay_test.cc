// Every seed and every input that a fuzz program once found, in every build. Feeds abort when a
// promise is broken.
#include "tests/fuzz/feeds.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace tandem::fuzz {
namespace {

std::size_t replay(const std::string& name, void (*feed)(Bytes)) {
  const std::filesystem::path folder =
      std::filesystem::path(TANDEM_SOURCE_DIR) / "tests" / "fuzz" / "corpus" / name;
  std::size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    // A feed that aborts says nothing of what it was fed.
    std::cerr << file.path().string() << std::endl;
    std::ifstream stream(file.path(), std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(stream), {}};
    feed({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    ++count;
  }
  return count;
}

struct Row {
  const char* name;
  void (*feed)(Bytes);
  std::size_t count;  ///< of seeds
};

constexpr Row kRows[] = {
    {"argv", &feed_argv, 12},
    {"config", &feed_config, 15},
    {"http", &feed_http, 11},
    {"index", &feed_index, 8},
    {"json", &feed_json, 16},
    {"request", &feed_request, 15},
    {"response", &feed_response, 13},
    {"safetensors", &feed_safetensors, 7},
    {"sides", &feed_sides, 13},
    {"template", &feed_template, 10},
    {"text", &feed_text, 5},
    {"tokenizer", &feed_tokenizer, 9},
    {"wire", &feed_wire, 17},
    {"words", &feed_words, 5},
    {"yaml", &feed_yaml, 15},
};

class FuzzReplay : public testing::TestWithParam<Row> {};

TEST_P(FuzzReplay, SeedsKeepThePromises) {
  const Row& row = GetParam();
  row.feed({});
  EXPECT_EQ(replay(row.name, row.feed), row.count);
}

INSTANTIATE_TEST_SUITE_P(Feeds, FuzzReplay, testing::ValuesIn(kRows), [](const auto& seeds) {
  return std::string(seeds.param.name);
});

}  // namespace
}  // namespace tandem::fuzz
