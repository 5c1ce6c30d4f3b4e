#include "bench/random_tokens.h"

#include "bench/limits.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace tandem::bench {
namespace {

using core::TokenId;
using engine::ForwardSlice;

/// Notes what it is given.
class Notebook final : public engine::Executor {
 public:
  Notebook() { info_.vocab_size = 1000; }

  [[nodiscard]] const engine::ExecutorInfo& info() const override { return info_; }

  Status bind_kv(std::byte* /*base*/, std::int64_t /*page_count*/) override { return {}; }

  Result<std::span<const float>> forward(std::span<const ForwardSlice> slices) override {
    seen.clear();
    for (const ForwardSlice& slice : slices) {
      std::vector<TokenId>& tokens = seen.emplace_back();
      for (const TokenId token : slice.tokens)
        tokens.push_back(token);
    }
    return std::span<const float>{};
  }

  std::vector<std::vector<TokenId>> seen;

 private:
  engine::ExecutorInfo info_;
};

ForwardSlice slice_of(const std::vector<TokenId>& tokens, std::int32_t first_position) {
  ForwardSlice slice;
  slice.tokens = tokens;
  slice.first_position = first_position;
  return slice;
}

TEST(RandomTokens, FeedsOthersThanWereSampled) {
  Notebook notebook;
  RandomTokens random(&notebook, 1);
  const std::vector<TokenId> repeated = {7};
  std::set<TokenId> fed;
  for (int step = 0; step < 48; ++step) {
    const ForwardSlice slices[] = {slice_of(repeated, 128 + step), slice_of(repeated, 128 + step)};
    random.begin();
    ASSERT_TRUE(random.forward(slices).ok());
    EXPECT_TRUE(random.decoded(2));
    EXPECT_DOUBLE_EQ(random.context(), 129 + step);
    for (const auto& tokens : notebook.seen)
      fed.insert(tokens.begin(), tokens.end());
  }
  EXPECT_GT(fed.size(), 85u);
  EXPECT_GE(*fed.begin(), 0);
  EXPECT_LT(*fed.rbegin(), 1000);
}

TEST(RandomTokens, AreTheSameInEachRun) {
  const std::vector<TokenId> sampled = {7};
  const ForwardSlice slice = slice_of(sampled, 1);
  std::vector<TokenId> runs[2];
  for (auto& run : runs) {
    Notebook notebook;
    RandomTokens random(&notebook, 5);
    for (int step = 0; step < 8; ++step) {
      ASSERT_TRUE(random.forward({&slice, 1}).ok());
      run.push_back(notebook.seen.front().front());
    }
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(RandomTokens, LeavesPromptsAlone) {
  Notebook notebook;
  RandomTokens random(&notebook, 1);
  const std::vector<TokenId> prompt = {1, 2, 3};
  const std::vector<TokenId> sampled = {7};
  const ForwardSlice slices[] = {slice_of(prompt, 0), slice_of(sampled, 5)};
  random.begin();
  ASSERT_TRUE(random.forward(slices).ok());
  EXPECT_EQ(notebook.seen.front(), prompt);
  EXPECT_FALSE(random.decoded(2)) << "a prompt is in it";
  EXPECT_FALSE(random.decoded(1));
  random.begin();
  ASSERT_TRUE(random.forward({&slices[1], 1}).ok());
  EXPECT_TRUE(random.decoded(1));
  EXPECT_FALSE(random.decoded(2)) << "a stream is missing";
}

// Products that the bound takes for slow ones would let a row pass its bound.
TEST(Limits, AttentionOverBf16IsBoundByWhatTheFamilyMultipliesItWith) {
  using kernels::DType;
  using kernels::Family;

  struct Row {
    Family family;
    DType kv;
    bool bf16;
  };

  const Row rows[] = {{Family::kAmx, DType::kBf16, true},
                      {Family::kAmx, DType::kF32, false},
                      {Family::kAvx512Bf16, DType::kBf16, true},
                      {Family::kAvx512Bf16, DType::kF16, false},
                      {Family::kAmx, DType::kFp8E5m2, true},
                      {Family::kAvx512Bf16, DType::kFp8E4m3, true},
                      {Family::kAvx512, DType::kFp8E4m3, false},
                      {Family::kAvx512, DType::kBf16, false},
                      {Family::kAvx2, DType::kBf16, false}};
  for (const Row& row : rows) {
    EXPECT_EQ(attention_multiplies_bf16(row.family, row.kv), row.bf16)
        << kernels::family_name(row.family) << " " << kernels::dtype_name(row.kv);
  }
}

}  // namespace
}  // namespace tandem::bench
