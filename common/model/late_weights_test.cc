// Weights that are packed by passes: the same bits as packed ones in every state, and what happens
// when they cannot be read.
#include "common/model/late_weights.h"

#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/model/model.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::model {
namespace {

namespace fs = std::filesystem;
using kernels::DType;

// No tile, lane or chunk divides its sizes; matrices of 20 to 300 rows, so chunks of 16 rows cut
// all of them, and some between q, k and v or gate and up.
constexpr const char* kConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "vocab_size": 300, "hidden_size": 72,
  "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 20,
  "num_key_value_heads": 2, "max_position_embeddings": 64, "torch_dtype": "float32"})";

/// Random weights that it keeps, and reads until told not to.
class KeptSource final : public WeightSource, private kernels::ElementReader {
 public:
  explicit KeptSource(DType dtype) : random_(7, dtype) {}

  Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) override {
    TANDEM_TRY(SourceMatrix matrix, random_.matrix(name, shape));
    kept_.push_back(std::move(matrix.storage));
    matrix.view.data = kept_.back().data();
    matrix.storage = {};
    return matrix;
  }

  Result<std::vector<float>> vector(std::string_view name, std::int64_t size) override {
    return random_.vector(name, size);
  }

  kernels::ElementReader* reader() override { return this; }

  [[nodiscard]] Status take_read_status() override {
    return std::exchange(failed_, false) ? data_loss("the file is gone") : Status();
  }

  bool readable = true;
  std::chrono::milliseconds pause{0};

 private:
  void read(const std::byte* from, std::size_t bytes, std::byte* to) override {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    if (readable) {
      std::memcpy(to, from, bytes);
    } else {
      std::memset(to, 0, bytes);
      failed_ = true;
    }
  }

  DummySource random_;
  std::deque<std::vector<std::byte>> kept_;
  bool failed_ = false;
};

ModelConfig config() {
  auto parsed = parse_config(kConfig, "", "");
  TANDEM_CHECK(parsed.ok(), parsed.status().message());
  return std::move(*parsed);
}

kernels::ThreadPool& pool() {
  static kernels::ThreadPool one(1);
  return one;
}

/// The same weights packed at load, and late.
struct Both {
  Both(kernels::Family family, DType dtype)
      : backend(*kernels::select(family, nullptr)), eager(load(dtype, false)) {
    decoder = load(dtype, true);
    auto made = LateWeights::make(decoder, std::move(loading), backend, pool(), 1);
    TANDEM_CHECK(made.ok(), made.status().message());
    late = std::move(*made);
  }

  DecoderWeights load(DType dtype, bool is_late) {
    loading = std::make_unique<KeptSource>(dtype);
    source = loading.get();
    const ModelConfig parsed = config();
    auto loaded =
        load_decoder(parsed,
                     find_architecture(parsed.architecture)->weights,
                     *loading,
                     {.backend = &backend, .pool = &pool(), .dtype = dtype, .late = is_late});
    TANDEM_CHECK(loaded.ok(), loaded.status().message());
    return std::move(*loaded);
  }

  static std::vector<std::pair<const Linear*, Linear*>> pairs(const DecoderWeights& a,
                                                              DecoderWeights& b) {
    std::vector<std::pair<const Linear*, Linear*>> all;
    for (std::size_t i = 0; i < a.layers.size(); ++i) {
      all.emplace_back(&a.layers[i].qkv, &b.layers[i].qkv);
      all.emplace_back(&a.layers[i].output, &b.layers[i].output);
      all.emplace_back(&a.layers[i].gate_up, &b.layers[i].gate_up);
      all.emplace_back(&a.layers[i].down, &b.layers[i].down);
    }
    all.emplace_back(&a.lm_head, &b.lm_head);
    return all;
  }

  /// One product of each layer in both ways, with bias, gaps between rows and old values.
  void expect_same_bits() {
    constexpr std::size_t kTokens = 5;
    Random random(3);
    const auto floats = [&random](std::size_t count) {
      std::vector<float> values(count);
      for (float& value : values)
        value = static_cast<float>(random.uniform()) - 0.5F;
      return values;
    };
    for (const auto& [packed, unpacked] : pairs(eager, decoder)) {
      const std::size_t n = packed->weight->n();
      const std::vector<float> x = floats(kTokens * packed->weight->k());
      const std::vector<float> bias = floats(n);
      const std::vector<float> old = floats(kTokens * (n + 3));
      std::vector<float> want = old;
      std::vector<float> got = old;
      kernels::LinearArgs args{.x = x.data(),
                               .bias = bias.data(),
                               .y = got.data(),
                               .y_stride = n + 3,
                               .tokens = kTokens,
                               .accumulate = true};
      late->linear(*unpacked, args);
      args.weight = packed->weight.get();
      args.y = want.data();
      backend.linear(args, pool());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << n << " outputs, " << unpacked->filled << " filled";
    }
    for (std::size_t i = 0; i < eager.layers.size(); ++i) {
      const kernels::PackedWeight& weight = *eager.layers[i].gate_up.weight;
      Linear& unpacked = decoder.layers[i].gate_up;
      const std::vector<float> x = floats(kTokens * weight.k());
      const std::vector<float> bias = floats(weight.n());
      const std::vector<float> old = floats(kTokens * (weight.n() / 2 + 3));
      std::vector<float> want = old;
      std::vector<float> got = old;
      kernels::GatedLinearArgs args{.x = x.data(),
                                    .bias = bias.data(),
                                    .y = got.data(),
                                    .y_stride = weight.n() / 2 + 3,
                                    .tokens = kTokens};
      late->gated_linear(unpacked, args);
      args.weight = &weight;
      args.y = want.data();
      backend.gated_linear(args, pool());
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << "gate and up, " << unpacked.filled << " filled";
    }
  }

  const kernels::Backend& backend;
  std::unique_ptr<KeptSource> loading;  // until `late` has it
  KeptSource* source = nullptr;
  DecoderWeights eager;
  DecoderWeights decoder;
  std::unique_ptr<LateWeights> late;
};

TEST(LateWeights, ProductsHaveTheBitsOfPackedWeightsInEveryState) {
  for (const kernels::Family family : kernels::available_families()) {
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      SCOPED_TRACE(std::string(kernels::family_name(family)));
      Both both(family, dtype);
      std::size_t left = both.late->waiting_bytes();
      EXPECT_FALSE(both.late->done());
      both.late->begin_pass();
      both.expect_same_bits();
      EXPECT_TRUE(both.late->end_pass().ok());
      EXPECT_EQ(both.late->waiting_bytes(), left) << "the first pass fills nothing";
      // With a little more filled each time; a pass of its own would fill the rest.
      while (!both.late->done()) {
        ASSERT_TRUE(both.late->fill_some().ok());
        ASSERT_LT(both.late->waiting_bytes(), left);
        left = both.late->waiting_bytes();
        both.expect_same_bits();
      }
      EXPECT_EQ(left, 0U);
      for (const auto& [packed, filled] : Both::pairs(both.eager, both.decoder)) {
        EXPECT_EQ(
            std::memcmp(packed->weight->data(), filled->weight->data(), packed->weight->bytes()),
            0);
      }
    }
  }
}

TEST(LateWeights, FastMemoryIsFilledAtOnceAndSlowMemoryIsNot) {
  // On a machine with other work a try may take its memory for slow; hardly five of them.
  bool filled = false;
  for (int tries = 0; tries < 5 && !filled; ++tries) {
    Both fast(kernels::Family::kAuto, DType::kBf16);
    fast.source->pause = std::chrono::milliseconds(3);  // reading, not memory
    ASSERT_TRUE(fast.late->fill_while_fast().ok());
    fast.expect_same_bits();
    filled = fast.late->done();
  }
  EXPECT_TRUE(filled);

  Both slow(kernels::Family::kAuto, DType::kBf16);
  const std::size_t left = slow.late->waiting_bytes();
  ASSERT_TRUE(failpoint::configure("model.fill=sleep(50)").ok());
  const Status status = slow.late->fill_while_fast();
  ASSERT_TRUE(failpoint::configure("").ok());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_FALSE(slow.late->done());
  EXPECT_LT(slow.late->waiting_bytes(), left);
  slow.late->begin_pass();
  slow.expect_same_bits();
  ASSERT_TRUE(slow.late->end_pass().ok());

  Both gone(kernels::Family::kAuto, DType::kBf16);
  gone.source->readable = false;
  EXPECT_EQ(gone.late->fill_while_fast().code(), Code::kDataLoss);
}

TEST(LateWeights, PassesAfterTheFirstFillForGood) {
  Both both(kernels::Family::kAuto, DType::kBf16);
  both.late->begin_pass();
  ASSERT_TRUE(both.late->end_pass().ok());
  EXPECT_FALSE(both.late->done());
  // What a pass has time for is up to the machine; none takes for ever.
  for (int pass = 0; pass < 1000 && !both.late->done(); ++pass) {
    both.late->begin_pass();
    both.expect_same_bits();
    ASSERT_TRUE(both.late->end_pass().ok());
  }
  EXPECT_TRUE(both.late->done());
}

// Memory that is slow to come, or a disk: each pass fills a part of what is left, so few are
// needed.
TEST(LateWeights, SlowReadsDoNotMakeManyPasses) {
  Both both(kernels::Family::kAuto, DType::kF32);
  both.source->pause = std::chrono::milliseconds(8);  // most of a second for all
  int passes = 0;
  for (; passes < 100 && !both.late->done(); ++passes) {
    both.late->begin_pass();
    both.expect_same_bits();
    ASSERT_TRUE(both.late->end_pass().ok());
  }
  EXPECT_LE(passes, 4);
}

TEST(LateWeights, APassThatCannotReadFailsAndALaterOneMaySucceed) {
  Both both(kernels::Family::kAuto, DType::kBf16);
  ASSERT_TRUE(both.late->fill_some().ok());
  const std::size_t left = both.late->waiting_bytes();
  both.source->readable = false;
  for (int pass = 0; pass < 2; ++pass) {  // the second one would fill
    both.late->begin_pass();
    std::vector<float> x(2 * 72);
    std::vector<float> y(2 * 300);
    both.late->linear(both.decoder.lm_head, {.x = x.data(), .y = y.data(), .tokens = 2});
    EXPECT_EQ(both.late->end_pass().code(), Code::kDataLoss);
  }
  EXPECT_EQ(both.late->fill_some().code(), Code::kDataLoss);
  EXPECT_EQ(both.late->waiting_bytes(), left) << "what could not be read stays late";
  both.source->readable = true;
  both.late->begin_pass();
  both.expect_same_bits();
  EXPECT_TRUE(both.late->end_pass().ok());
}

// A router is f32 whatever the checkpoint has, and its Linear does not outlive the load.
TEST(LateWeights, OnlyLinearLayersThatAreKeptAsTheFileHasThemAreLate) {
  const ModelConfig parsed = config();
  const auto late_layers = [&](DType in_file, DType kept, Quantization quantization) {
    KeptSource source(in_file);
    auto loaded = load_decoder(parsed,
                               find_architecture(parsed.architecture)->weights,
                               source,
                               {.backend = kernels::select(kernels::Family::kAuto, nullptr),
                                .pool = &pool(),
                                .dtype = kept,
                                .quantization = quantization,
                                .late = true});
    TANDEM_CHECK(loaded.ok(), loaded.status().message());
    std::size_t count = loaded->lm_head.late.empty() ? 0 : 1;
    for (const LayerWeights& layer : loaded->layers) {
      for (const Linear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
        count += linear->late.empty() ? 0U : 1U;
    }
    return count;
  };
  EXPECT_EQ(late_layers(DType::kBf16, DType::kBf16, Quantization::kNone), 9U);
  EXPECT_EQ(late_layers(DType::kF32, DType::kF32, Quantization::kNone), 9U);
  EXPECT_EQ(late_layers(DType::kF16, DType::kF16, Quantization::kNone), 0U);
  EXPECT_EQ(late_layers(DType::kF32, DType::kBf16, Quantization::kNone), 0U);
  EXPECT_EQ(late_layers(DType::kBf16, DType::kBf16, Quantization::kInt8WeightOnly), 0U);
}

}  // namespace
}  // namespace tandem::model
