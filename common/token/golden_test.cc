// Vectors of the tokenizers library for real vocabularies (../shared/golden/tokenizers).
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/token/detokenizer.h"
#include "common/token/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace tandem::token {
namespace {

std::filesystem::path shared_folder() {
  const char* set = std::getenv("TANDEM_SHARED_DIR");
  return set != nullptr ? set : std::filesystem::path(TANDEM_SOURCE_DIR) / ".." / "shared";
}

std::vector<std::int32_t> ids_of(const json::Field& row, std::string_view key) {
  const auto numbers = row.at(key)->as_ints(0, INT32_MAX).value();
  return {numbers.begin(), numbers.end()};
}

std::string text_of(const json::Field& row, std::string_view key) {
  return std::string(row.at(key)->as_string().value());
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = shared_folder() / "golden" / "tokenizers" / GetParam();
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "skipped: ../shared is not here";
    auto loaded = Tokenizer::load(folder_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = *loaded;
    auto vectors = json::parse_file(folder_ / "vectors.json");
    ASSERT_TRUE(vectors.ok()) << vectors.status().message();
    vectors_ = *vectors;
  }

  [[nodiscard]] std::vector<json::Field> rows(std::string_view key) const {
    const auto field = json::Field(vectors_).find(key);
    return field ? field->items().value() : std::vector<json::Field>();
  }

  std::filesystem::path folder_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  json::Value vectors_;
};

TEST_P(Golden, Encode) {
  ASSERT_FALSE(rows("encode").empty());
  for (const json::Field& row : rows("encode")) {
    SCOPED_TRACE(row.path() + " " + text_of(row, "text").substr(0, 60));
    const std::string text = text_of(row, "text");
    EXPECT_EQ(tokenizer_->encode(text, false), ids_of(row, "ids"));
    EXPECT_EQ(tokenizer_->encode(text, true), ids_of(row, "ids_with_special"));
    EXPECT_EQ(tokenizer_->decode(ids_of(row, "ids"), false), text_of(row, "decoded"));
    EXPECT_EQ(tokenizer_->decode(ids_of(row, "ids_with_special"), true),
              text_of(row, "decoded_skip_special"));
  }
}

TEST_P(Golden, Decode) {
  ASSERT_FALSE(rows("decode").empty());
  for (const json::Field& row : rows("decode")) {
    SCOPED_TRACE(row.path());
    EXPECT_EQ(tokenizer_->decode(ids_of(row, "ids"), false), text_of(row, "decoded"));
    EXPECT_EQ(tokenizer_->decode(ids_of(row, "ids"), true), text_of(row, "decoded_skip_special"));
  }
}

TEST_P(Golden, Stream) {
  ASSERT_FALSE(rows("stream").empty());
  for (const json::Field& row : rows("stream")) {
    SCOPED_TRACE(row.path());
    const auto ids = ids_of(row, "ids");
    const auto want = row.at("pieces")->as_strings().value();
    IncrementalDetokenizer detokenizer(tokenizer_);
    std::vector<std::string> pieces;
    for (const std::int32_t id : ids) {
      pieces.push_back(detokenizer.push(id));
    }
    if (!pieces.empty()) pieces.back() += detokenizer.finish();
    EXPECT_EQ(pieces, want);
  }
}

TEST_P(Golden, Peer) {
  for (const json::Field& row : rows("peer")) {
    SCOPED_TRACE(row.path() + " " + text_of(row, "text").substr(0, 60));
    EXPECT_EQ(tokenizer_->encode(text_of(row, "text"), false), ids_of(row, "ids"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Tokenizers,
    Golden,
    testing::Values("gpt-2", "qwen2", "llama-bpe", "deepseek-coder", "llama-spm"),
    [](const auto& param) {
      std::string name = param.param;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(GoldenModels, PromptIdsOfCompletions) {
  const auto models = shared_folder() / "golden" / "models";
  if (!std::filesystem::exists(models)) GTEST_SKIP() << "skipped: ../shared is not here";
  for (const char* name : {"llama", "qwen3", "deepseek_v3", "gemma2", "qwen2"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = Tokenizer::load(models / name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    const auto root = json::parse_file(models / name / "e2e.json");
    ASSERT_TRUE(root.ok());
    const auto cases = json::Field(*root).at("cases")->items().value();
    int checked = 0;
    for (const json::Field& row : cases) {
      SCOPED_TRACE(row.path());
      EXPECT_EQ((*tokenizer)->decode(ids_of(row, "output_ids"), true), text_of(row, "text"));
      if (text_of(row, "kind") != "completion") continue;
      ++checked;
      EXPECT_EQ((*tokenizer)->encode(text_of(row, "prompt"), false), ids_of(row, "prompt_ids"));
    }
    EXPECT_GT(checked, 0);
  }
}

TEST(GoldenModels, WordPieceIsRefusedByName) {
  const auto folder = shared_folder() / "golden" / "tokenizers" / "bert-bge";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "skipped: ../shared is not here";
  const auto loaded = Tokenizer::load(folder);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().message(),
            (folder / "tokenizer.json").string() +
                ": model.type: expected \"BPE\", found string \"WordPiece\"");
}

}  // namespace
}  // namespace tandem::token
