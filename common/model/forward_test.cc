// Batches through a small model: those that must be refused, and what a pass leaves.
#include "common/base/failpoint.h"
#include "common/model/testing/small_model.h"
#include "kernels/api/forwarding_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

using testing::ModelFolder;
using testing::options_for;
using testing::SmallBatch;

/// A pass of which logits() may be asked for any row.
Status keep_rows(Model& model, SmallBatch& small, ForwardOutput& output) {
  ForwardBatch batch = small.batch();
  batch.keep_rows = true;
  return model.forward(batch, output);
}

TEST(ModelForward, RefusesBatchesThatAreOutOfRange) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  options.dummy_weights = true;
  const auto loaded = Model::load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = **loaded;

  struct Row {
    const char* name;
    void (*bend)(SmallBatch&);
    const char* words;
  };

  const Row rows[] = {
      {"good", [](SmallBatch&) {}, nullptr},
      {"no tokens, no rows",
       [](SmallBatch& b) {
         b.ids.clear();
         b.positions.clear();
         b.sequence.clear();
         b.rows.clear();
       },
       nullptr},
      {"token id too large", [](SmallBatch& b) { b.ids[1] = 20; }, "token id of row 1 is 20"},
      {"token id negative", [](SmallBatch& b) { b.ids[0] = -1; }, "token id of row 0 is -1"},
      {"position", [](SmallBatch& b) { b.positions[2] = 64; }, "position of row 2 is 64"},
      {"position negative", [](SmallBatch& b) { b.positions[0] = -5; }, "position of row 0 is -5"},
      {"sequence", [](SmallBatch& b) { b.sequence[3] = 2; }, "sequence of row 3 is 2"},
      {"beyond the table", [](SmallBatch& b) { b.positions[3] = 2; }, "page index of row 3 is 1"},
      {"page id", [](SmallBatch& b) { b.second_pages[0] = 4; }, "page of row 3 is 4"},
      {"page id negative", [](SmallBatch& b) { b.first_pages[1] = -1; }, "page of row 2 is -1"},
      {"logit row", [](SmallBatch& b) { b.rows[0] = 4; }, "logit row of row 0 is 4"},
      {"too many rows", [](SmallBatch& b) { b.rows.assign(5, 0); }, "5 rows"},
      {"too many tokens", [](SmallBatch& b) { b.ids.assign(17, 0); }, "17 tokens"},
      {"too many sequences", [](SmallBatch& b) { b.pages.resize(4); }, "4 sequences"},
      {"lengths differ", [](SmallBatch& b) { b.positions.pop_back(); }, "3 positions"},
      {"no page size", [](SmallBatch& b) { b.page_size = 0; }, "pages of 0"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const std::int32_t first[] = {0};
    ForwardOutput output;
    SmallBatch before(model);
    ASSERT_TRUE(keep_rows(model, before, output).ok());
    ASSERT_TRUE(model.logits(first, output).ok());
    SmallBatch small(model);
    row.bend(small);
    const Status status = keep_rows(model, small, output);
    if (row.words == nullptr) {
      EXPECT_TRUE(status.ok()) << status.message();
      continue;
    }
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(row.words), std::string::npos) << status.message();
    EXPECT_FALSE(model.logits(first, output).ok()) << "of a batch that was refused";
  }
}

TEST(ModelForward, RowsAskedForLaterAreTheSame) {
  const ModelFolder folder;
  const auto loaded = Model::load(options_for(folder.path()));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = **loaded;
  SmallBatch small(model);
  ForwardOutput output;
  ASSERT_TRUE(keep_rows(model, small, output).ok());
  ASSERT_EQ(output.rows, 2U);
  const std::vector<float> last(output.row(1).begin(), output.row(1).end());
  const std::int32_t again[] = {3};
  ASSERT_TRUE(model.logits(again, output).ok());
  ASSERT_EQ(output.rows, 1U);
  EXPECT_EQ(std::memcmp(output.logits, last.data(), last.size() * sizeof(float)), 0);
  for (const float value : last)
    EXPECT_TRUE(std::isfinite(value));

  ASSERT_TRUE(model.forward(small.batch(), output).ok());
  EXPECT_EQ(std::memcmp(output.row(1).data(), last.data(), last.size() * sizeof(float)), 0);
  // Also where all rows went through the last layer.
  for (const std::vector<std::int32_t>& rows : {std::vector{2, 3}, {3, 2}, {3, 3}}) {
    small.rows = rows;
    ASSERT_TRUE(model.forward(small.batch(), output).ok());
    const Status status = model.logits(again, output);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_NE(status.message().find("keep_rows"), std::string::npos) << status.message();
  }
}

Result<std::unique_ptr<Model>> load_where_memory_is_slow(const LoadOptions& options) {
  TANDEM_CHECK(failpoint::configure("model.fill=sleep(50)").ok(), "failure points");
  auto model = Model::load(options);
  TANDEM_CHECK(failpoint::configure("").ok(), "failure points");
  return model;
}

TEST(ModelForward, LateWeightsComputeTheSame) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  const auto eager = Model::load(options);
  options.pack_late = true;
  const auto late = load_where_memory_is_slow(options);
  ASSERT_TRUE(eager.ok() && late.ok());
  EXPECT_EQ((*eager)->unpacked_bytes(), 0U);
  if (!folder.is_cached()) GTEST_SKIP() << "no page cache here that can be asked";
  const auto expect_same = [&] {
    ASSERT_TRUE((*eager)->pack_some().ok() && (*late)->pack_some().ok());
    SmallBatch first(**eager);
    SmallBatch second(**late);
    ForwardOutput want;
    ForwardOutput got;
    ASSERT_TRUE((*eager)->forward(first.batch(), want).ok());
    ASSERT_TRUE((*late)->forward(second.batch(), got).ok());
    const std::size_t count = want.rows * want.vocab_size;
    EXPECT_EQ(std::memcmp(want.logits, got.logits, count * sizeof(float)), 0);
    EXPECT_EQ(first.arena, second.arena) << "K and V";
  };
  expect_same();
  EXPECT_GT((*late)->unpacked_bytes(), 0U) << "one layer is packed, and the first pass packs none";
  while (*(*late)->pack_some())
    expect_same();
  EXPECT_EQ((*late)->unpacked_bytes(), 0U);
}

TEST(ModelForward, LateWeightsThatCannotBeReadFailThePassByName) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  options.pack_late = true;
  const auto loaded = load_where_memory_is_slow(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = **loaded;
  if (!folder.is_cached()) GTEST_SKIP() << "no page cache here that can be asked";
  const std::string file = folder.path() + "/model.safetensors";
  fs::copy_file(file, file + ".whole");
  // Matrices of layers; the embedding table, which is read in the mapping, lies before them.
  fs::resize_file(file, fs::file_size(file) - 500);
  SmallBatch small(model);
  ForwardOutput output;
  const Status failed = keep_rows(model, small, output);
  EXPECT_EQ(failed.code(), Code::kDataLoss);
  EXPECT_NE(failed.message().find("model.safetensors"), std::string::npos) << failed.message();
  const std::int32_t first[] = {0};
  EXPECT_FALSE(model.logits(first, output).ok()) << "of a pass that failed";
  fs::copy_file(file + ".whole", file, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(model.forward(small.batch(), output).ok());
}

class CountingObserver final : public LayerObserver {
 public:
  void on_layer_done(std::int64_t layer) override { layers.push_back(layer); }

  std::vector<std::int64_t> layers;
};

TEST(ModelForward, TellsOfEveryLayerAndRaisesProgress) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  options.dummy_weights = true;
  options.override_json = R"({"num_hidden_layers":3})";
  const auto loaded = Model::load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  SmallBatch small(**loaded);
  small.arena.resize(4 * (*loaded)->kv_layout(2).page_bytes());
  CountingObserver observer;
  ForwardBatch batch = small.batch();
  batch.observer = &observer;
  ForwardOutput output;
  ASSERT_TRUE((*loaded)->forward(batch, output).ok());
  EXPECT_EQ(observer.layers, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ((*loaded)->progress(), 3U);
}

/// The reference, which asks for packed rows where their count, their length and the weights' type
/// say so, and sees that it gets them there and nowhere else. Rows stay f32 all the same.
class AskingBackend final : public kernels::ForwardingBackend {
 public:
  AskingBackend() : ForwardingBackend(*kernels::select(kernels::Family::kReference, nullptr)) {}

  mutable int packed_count = 0;
  mutable int plain_count = 0;

  /// Neighbours in a layer, and the same weights of two layers, are of different types.
  [[nodiscard]] kernels::WeightFormat kept_format(kernels::WeightFormat /*wanted*/,
                                                  std::size_t /*k*/) const override {
    return ++kept_count_ % 3 == 0 ? kernels::DType::kBf16 : kernels::DType::kF32;
  }

  [[nodiscard]] std::size_t packed_rows_bytes(std::size_t rows,
                                              std::size_t k,
                                              kernels::WeightFormat weight) const override {
    return (rows + k / 8 + (weight == kernels::DType::kBf16 ? 1 : 0)) % 2 * rows * k;
  }

  [[nodiscard]] std::size_t packed_whole_rows_bytes(std::size_t rows,
                                                    std::size_t k,
                                                    kernels::WeightFormat weight) const override {
    return packed_rows_bytes(rows + 1, k, weight) == 0 ? 0 : rows * k;
  }

  void linear(const kernels::LinearArgs& args, kernels::ThreadPool& pool) const override {
    kernels::LinearArgs plain = args;
    plain.x_packed = nullptr;
    const std::size_t k = args.weight->k();
    const bool head = args.weight->n() == kVocabulary;
    const bool down = k == kInner;
    const auto format = args.weight->format();
    const std::size_t bytes = args.x_whole_rows ? packed_whole_rows_bytes(args.tokens, k, format)
                                                : packed_rows_bytes(args.tokens, k, format);
    check(args.x_packed, args.x, bytes > 0 && !head && (!down || gated_packed_));
    inner().linear(plain, pool);
  }

  void gated_linear(const kernels::GatedLinearArgs& args,
                    kernels::ThreadPool& pool) const override {
    kernels::GatedLinearArgs plain = args;
    plain.x_packed = nullptr;
    plain.y_packed = nullptr;
    const kernels::PackedWeight& weight = *args.weight;
    gated_packed_ = packed_whole_rows_bytes(args.tokens, weight.k(), weight.format()) > 0;
    check(args.x_packed, args.x, gated_packed_);
    inner().gated_linear(plain, pool);
  }

  void rms_norm(const kernels::RmsNormArgs& args, kernels::ThreadPool& pool) const override {
    kernels::RmsNormArgs plain = args;
    plain.y_packed = nullptr;
    if (args.y_packed != nullptr) {
      EXPECT_GT(packed_whole_rows_bytes(args.rows, args.dim, args.y_packed_for), 0U);
    }
    inner().rms_norm(plain, pool);
  }

  void attention(const kernels::AttentionArgs& args, kernels::ThreadPool& pool) const override {
    kernels::AttentionArgs plain = args;
    plain.out_packed = nullptr;
    inner().attention(plain, pool);
  }

  static constexpr std::size_t kVocabulary = 20;
  static constexpr std::size_t kInner = 24;

 private:
  void check(const std::byte* packed, const float* rows, bool wanted) const {
    EXPECT_EQ(packed, wanted ? reinterpret_cast<const std::byte*>(rows) : nullptr);
    ++(wanted ? packed_count : plain_count);
  }

  mutable int kept_count_ = 0;
  mutable bool gated_packed_ = false;
};

TEST(ModelForward, RowsArePackedWhereTheBackendSaysSoOfTheseRowsAndWeights) {
  const ModelFolder folder;
  const AskingBackend backend;
  LoadOptions options = options_for(folder.path());
  options.backend = &backend;
  options.dummy_weights = true;
  // Heads of 32: attention packs no shorter ones.
  options.override_json = R"({"num_hidden_layers":4,"hidden_size":64,"intermediate_size":24})";
  const auto loaded = Model::load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  SmallBatch small(**loaded);
  // Passes of other lengths, and last layers of other rows.
  for (const std::size_t tokens : {4U, 3U, 4U, 2U, 1U, 3U}) {
    SCOPED_TRACE(tokens);
    for (const std::int32_t first : {0, static_cast<std::int32_t>(tokens) - 1}) {
      small.ids.assign(tokens, 5);
      small.sequence.assign(tokens, 0);
      small.positions.resize(tokens);
      std::iota(small.positions.begin(), small.positions.end(), 0);
      small.rows.resize(tokens - static_cast<std::size_t>(first));
      std::iota(small.rows.begin(), small.rows.end(), first);
      ForwardOutput output;
      const Status status = (*loaded)->forward(small.batch(), output);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  EXPECT_GT(backend.packed_count, 50);
  EXPECT_GT(backend.plain_count, 50);
}

}  // namespace
}  // namespace tandem::model
