// Weights that are packed by passes: the same bits as packed ones in every state, and what happens
// when they cannot be read.
#include "common/model/late_weights.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/model/model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::model {
namespace {

using kernels::DType;

// No tile, lane or chunk divides its sizes; matrices of 20 to 300 rows, so chunks of 16 rows cut
// all of them, and some between q, k and v or gate and up.
constexpr const char* kConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "vocab_size": 300, "hidden_size": 72,
  "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 20,
  "num_key_value_heads": 2, "max_position_embeddings": 64, "torch_dtype": "float32"})";

/// Random weights that it keeps, and reads until told not to. Nothing else moves the clock.
class KeptSource final : public WeightSource, private kernels::ElementReader {
 public:
  /// `wild`: weights of the layers' last products have exponents all over.
  KeptSource(DType dtype, FakeClock& clock, bool wild = false)
      : random_(7, dtype), clock_(clock), wild_(wild) {}

  Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) override {
    TANDEM_TRY(SourceMatrix matrix, random_.matrix(name, shape));
    if (wild_ && name.find("down_proj") != std::string_view::npos) {
      // Below 2, so that sums stay finite.
      Random random(5);
      for (std::size_t i = 0; i < matrix.storage.size(); ++i)
        matrix.storage[i] = static_cast<std::byte>(random.next() & (i % 2 == 0 ? 0xffU : 0xbfU));
    }
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
  std::size_t bytes_read = 0;
  /// Nanoseconds that a byte takes when so many were read before it; empty: none.
  std::function<std::int64_t(std::size_t)> byte_ns;

 private:
  void read(const std::byte* from, std::size_t bytes, std::byte* to) override {
    if (byte_ns) clock_.advance(nanoseconds(byte_ns(bytes_read)) * static_cast<int>(bytes));
    bytes_read += bytes;
    if (readable) {
      std::memcpy(to, from, bytes);
    } else {
      std::memset(to, 0, bytes);
      failed_ = true;
    }
  }

  DummySource random_;
  FakeClock& clock_;
  bool wild_;
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
  Both(kernels::Family family, DType dtype, bool wild = false)
      : backend(*kernels::select(family, nullptr)), eager(load(dtype, false, wild)) {
    decoder = load(dtype, true, wild);
    auto made = LateWeights::make(decoder, std::move(loading), backend, pool(), 1, clock);
    TANDEM_CHECK(made.ok(), made.status().message());
    late = std::move(*made);
  }

  DecoderWeights load(DType dtype, bool is_late, bool wild) {
    loading = std::make_unique<KeptSource>(dtype, clock, wild);
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

  FakeClock clock;
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

// Where bf16 is kept in less, weights that do not fit are packed once more, as they are.
TEST(LateWeights, WeightsThatDoNotFitBecomePlain) {
  for (const kernels::Family family : kernels::available_families()) {
    SCOPED_TRACE(std::string(kernels::family_name(family)));
    Both both(family, DType::kBf16, true);
    const kernels::WeightFormat kept = both.backend.kept_format(DType::kBf16, 72);
    while (!both.late->done()) {
      ASSERT_TRUE(both.late->fill_some().ok());
      both.expect_same_bits();
    }
    for (const auto& [packed, filled] : Both::pairs(both.eager, both.decoder)) {
      const bool wild =
          packed == &both.eager.layers[0].down || packed == &both.eager.layers[1].down;
      EXPECT_EQ(filled->weight->format(), wild ? kernels::WeightFormat(DType::kBf16) : kept);
      ASSERT_EQ(packed->weight->format(), filled->weight->format());
      EXPECT_EQ(
          std::memcmp(packed->weight->data(), filled->weight->data(), packed->weight->bytes()), 0);
    }
  }
}

/// What is read after the trials goes into new memory, so it stands for what that takes. On the
/// family that every machine has: others pack rows in other sizes.
TEST(LateWeights, FastMemoryIsFilledAtOnceAndSlowMemoryIsNot) {
  Both one(kernels::Family::kGeneric, DType::kBf16);
  ASSERT_TRUE(one.late->fill_some().ok());
  const std::size_t piece = one.source->bytes_read;
  const std::size_t trials = LateWeights::kTrials * piece;
  const std::size_t all = [&] {
    while (!one.late->done())
      EXPECT_TRUE(one.late->fill_some().ok());
    return one.source->bytes_read;
  }();
  constexpr std::int64_t kTrial = 1000;
  const auto bytes_filled = [&](std::int64_t first_trial, std::int64_t fill) {
    Both both(kernels::Family::kGeneric, DType::kBf16);
    both.source->byte_ns = [=](std::size_t before) {
      if (before < piece) return first_trial;
      return before < trials ? kTrial : fill;
    };
    EXPECT_TRUE(both.late->fill_while_fast().ok());
    const std::size_t filled = both.source->bytes_read - trials;
    EXPECT_EQ(both.late->done(), filled == all);
    both.late->begin_pass();
    both.expect_same_bits();
    EXPECT_TRUE(both.late->end_pass().ok());
    return filled;
  };
  EXPECT_EQ(bytes_filled(kTrial, kTrial), all) << "slow is what is read, not memory";
  EXPECT_EQ(bytes_filled(kTrial, 2 * kTrial), all) << "new memory is cleared at least";
  // 15 ms more than twice the time of the trials: at 7 pieces of 2.3 ms.
  EXPECT_EQ(bytes_filled(kTrial, 3 * kTrial), 7 * piece);
  EXPECT_EQ(bytes_filled(100 * kTrial, 3 * kTrial), 7 * piece) << "the first trial says little";
  EXPECT_EQ(bytes_filled(kTrial, 100 * kTrial), piece) << "some is filled to know";

  Both gone(kernels::Family::kGeneric, DType::kBf16);
  gone.source->readable = false;
  EXPECT_EQ(gone.late->fill_while_fast().code(), Code::kDataLoss);
}

TEST(LateWeights, PassesAfterTheFirstFillForGood) {
  Both both(kernels::Family::kGeneric, DType::kBf16);
  both.source->byte_ns = [](std::size_t) { return 1000; };  // 222 ms for all
  both.late->begin_pass();
  ASSERT_TRUE(both.late->end_pass().ok());
  EXPECT_EQ(both.source->bytes_read, 0U);
  both.late->begin_pass();
  both.expect_same_bits();
  ASSERT_TRUE(both.late->end_pass().ok());
  // The pass before packed nothing in vain: 100 ms, and the piece that was begun by then.
  std::size_t filled = 0;
  for (const auto& [packed, late] : Both::pairs(both.eager, both.decoder))
    filled += late->filled * packed->weight->k() * 2;
  EXPECT_GE(filled, 100'000U);
  EXPECT_LE(filled, 104'000U);
  both.late->begin_pass();
  both.expect_same_bits();
  ASSERT_TRUE(both.late->end_pass().ok());
  EXPECT_TRUE(both.late->done());
}

// Memory that is slow to come, or a disk: a pass fills as long as the one before it packed in vain,
// so few are needed, however slow reads are. The first one packed all.
TEST(LateWeights, SlowReadsDoNotMakeManyPasses) {
  Both both(kernels::Family::kGeneric, DType::kF32);
  both.source->byte_ns = [](std::size_t) { return 10'000; };  // seconds for all
  int passes = 0;
  for (; passes < 100 && !both.late->done(); ++passes) {
    both.late->begin_pass();
    both.expect_same_bits();
    ASSERT_TRUE(both.late->end_pass().ok());
  }
  EXPECT_EQ(passes, 2);
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
    FakeClock clock;
    KeptSource source(in_file, clock);
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
