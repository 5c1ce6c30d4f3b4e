// Activations that go packed from op to op: products of them have the bits that f32 in between
// gives.
#include "kernels/attention_world.h"
#include "kernels/test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <vector>

namespace tandem::kernels {
namespace {

using testing::Filled;
using testing::Matrix;
using testing::Rng;
using testing::World;

/// Room for packed rows. Not-a-numbers at first: rows that fill up a tile meet no other row.
class Room {
 public:
  explicit Room(std::size_t bytes)
      : data_(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64}))) {
    std::memset(data_.get(), 0xff, bytes);
  }

  [[nodiscard]] std::byte* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{64}); }
  };

  std::unique_ptr<std::byte, Free> data_;
};

std::unique_ptr<PackedWeight> random_weight(const Backend& backend,
                                            std::size_t n,
                                            std::size_t k,
                                            WeightFormat format,
                                            Rng& rng,
                                            ThreadPool& pool) {
  const Matrix source(n, k, DType::kF32, rng.reals(n * k));
  const MatrixView view = source.view();
  return backend.pack({&view, 1}, format, pool);
}

/// Those that take rows packed for such weights.
std::vector<const Backend*> backends(WeightFormat format) {
  std::vector<const Backend*> some;
  for (const Backend* backend : testing::vector_backends()) {
    if (backend->packed_whole_rows_bytes(64, 64, format) > 0) some.push_back(backend);
  }
  return some;
}

/// Whether packed rows are tiles, of 16 rows; else row lies behind row.
bool in_tiles(const Backend& backend) {
  return backend.family() == Family::kAmx;
}

struct Case {
  std::size_t tokens;
  std::size_t hidden;
  std::size_t inner;
  std::size_t threads;
};

// Of tiles: last ones that are not whole; several blocks of rows, the last one of less than a tile
// or of few tiles; blocks of few rows alone; more threads than blocks; k in parts (rows of 3,000
// inputs and more, several blocks of them), of one panel to more than kPartPanels.
constexpr Case kCases[] = {
    {33, 32, 64, 1},
    {47, 96, 32, 2},
    {300, 64, 160, 3},
    {130, 8192, 32, 2},
    {65, 8192, 32, 1},
    {785, 4096, 64, 2},
    {512, 5120, 32, 1},
    {460, 3104, 544, 1},
    {40, 12288, 96, 2},
    {49, 32, 16384, 2},
    {17, 96, 64, 2},
    {32, 3104, 160, 2},
    {24, 32, 16384, 3},
    {9, 64, 96, 2},
    {200, 64, 64, 2},
    {13, 96, 64, 1},
};

// As kCases for rows of half the bytes: the first one for plain code, too; blocks of 512 rows at
// most; last blocks of two tiles, of one, of a single row.
constexpr Case kByteCases[] = {
    {47, 128, 64, 2},
    {300, 64, 192, 3},
    {785, 4096, 64, 2},
    {65, 16384, 64, 1},
    {40, 24576, 64, 2},
    {33, 32768, 64, 2},
    {17, 192, 128, 2},
    {32, 4096, 192, 3},
    {9, 128, 64, 2},
    {21, 64, 128, 1},
};

// The same of the rows that gate and up write.
constexpr Case kInnerByteCases[] = {
    {785, 64, 4096, 2},
    {530, 64, 1088, 3},
    {513, 64, 2048, 1},
    {65, 64, 16384, 1},
    {40, 64, 24576, 2},
    {17, 64, 192, 2},
    {32, 128, 4096, 3},
    {10, 64, 320, 2},
};

// As kCases for norms that leave integers of 16 bits.
constexpr Case kFixedCases[] = {
    {47, 128, 64, 2},
    {300, 64, 192, 3},
    {785, 4096, 64, 2},
    {65, 8192, 64, 1},
    {40, 16384, 64, 2},
    {17, 192, 128, 2},
    {32, 4096, 192, 3},
    {21, 64, 128, 1},
};

constexpr WeightScheme kByteSchemes[] = {WeightScheme::kInt8Dynamic, WeightScheme::kInt4Group128};

/// All weights for which any rows come packed.
constexpr WeightFormat kPackedFormats[] = {DType::kBf16,
                                           WeightScheme::kShortBf16,
                                           WeightScheme::kInt8Dynamic,
                                           WeightScheme::kInt4Group128};

/// norm(x), the MLP and one more product behind it, with weights of `format`, but of `down_format`
/// at the MLP's end: packed from op to op they have the bits of f32 in between.
void expect_bits_of_floats(std::span<const Case> cases,
                           WeightFormat format,
                           WeightFormat down_format) {
  const bool bytes = rounds_to_bytes(format.scheme);
  for (const Backend* backend : backends(format)) {
    for (const Case& c : cases) {
      if (in_tiles(*backend) && c.tokens <= 16) continue;
      const bool takes_inner = backend->packed_rows_bytes(64, 64, down_format) > 0;
      if (testing::in_plain_code(*backend) && c.tokens * c.hidden * c.inner > 2'000'000) continue;
      SCOPED_TRACE(std::to_string(c.tokens) + " tokens of " + std::to_string(c.hidden) + ", " +
                   std::to_string(c.inner));
      ThreadPool pool(c.threads);
      Rng rng(c.tokens);
      const auto gate_up = random_weight(*backend, 2 * c.inner, c.hidden, format, rng, pool);
      const auto beside = random_weight(*backend, c.inner + 8, c.hidden, format, rng, pool);
      const auto down = random_weight(*backend, c.hidden, c.inner, down_format, rng, pool);
      const std::vector<float> x = rng.reals(c.tokens * c.hidden);
      const std::vector<float> scale = rng.reals(c.hidden);
      const std::vector<float> bias = rng.reals(2 * c.inner, 0.1F);
      const auto outputs = [&](bool packed) {
        const std::size_t normed_bytes =
            backend->packed_whole_rows_bytes(c.tokens, c.hidden, format);
        const std::size_t inner_bytes = backend->packed_rows_bytes(c.tokens, c.inner, down_format);
        EXPECT_GE(normed_bytes, c.tokens * (bytes ? c.hidden + sizeof(float) : c.hidden * 2));
        EXPECT_GE(inner_bytes, takes_inner ? c.tokens * c.inner * 2 : 0);
        const Room normed_room(normed_bytes);
        const Room inner_room(inner_bytes);
        std::byte* normed_packed = packed ? normed_room.data() : nullptr;
        std::byte* inner_packed = packed && takes_inner ? inner_room.data() : nullptr;
        std::vector<float> normed(packed ? 0 : c.tokens * c.hidden);
        std::vector<float> inner(inner_packed != nullptr ? 0 : c.tokens * c.inner);
        backend->rms_norm({.x = x.data(),
                           .weight = scale.data(),
                           .y = normed.data(),
                           .y_packed = normed_packed,
                           .y_packed_for = format,
                           .rows = c.tokens,
                           .dim = c.hidden},
                          pool);
        backend->gated_linear({.x = normed.data(),
                               .x_packed = normed_packed,
                               .weight = gate_up.get(),
                               .bias = bias.data(),
                               .y = inner.data(),
                               .y_packed = inner_packed,
                               .tokens = c.tokens},
                              pool);
        std::vector<float> y = x;
        backend->linear({.x = inner.data(),
                         .x_packed = inner_packed,
                         .weight = down.get(),
                         .y = y.data(),
                         .tokens = c.tokens,
                         .accumulate = true},
                        pool);
        y.resize(y.size() + c.tokens * beside->n());
        backend->linear({.x = normed.data(),
                         .x_packed = normed_packed,
                         .x_whole_rows = true,
                         .weight = beside.get(),
                         .y = y.data() + x.size(),
                         .tokens = c.tokens},
                        pool);
        return y;
      };
      EXPECT_TRUE(testing::same_bits(outputs(true), outputs(false)));
    }
  }
}

TEST(PackedRows, NormAndMlpHaveTheBitsOfFloatsBetweenThem) {
  expect_bits_of_floats(kCases, DType::kBf16, DType::kBf16);
  expect_bits_of_floats(kCases, WeightScheme::kShortBf16, WeightScheme::kShortBf16);
}

TEST(PackedRows, NormAsBytesHasTheBitsOfFloatsBehindIt) {
  for (const WeightScheme scheme : kByteSchemes)
    expect_bits_of_floats(kByteCases, scheme, scheme);
}

TEST(PackedRows, NormAsIntegersOfTwoBytesHasTheBitsOfFloatsBehindIt) {
  expect_bits_of_floats(kFixedCases, WeightScheme::kInt8, WeightScheme::kInt8);
}

TEST(PackedRows, BytesOfMlpHaveTheBitsOfFloatsBetweenThem) {
  for (const WeightScheme scheme : kByteSchemes)
    expect_bits_of_floats(kInnerByteCases, scheme, scheme);
}

TEST(PackedRows, EachProductHasItsOwnWay) {
  constexpr Case kMixed[] = {{33, 64, 128, 2}, {300, 128, 64, 3}};
  expect_bits_of_floats(kMixed, WeightScheme::kInt8Dynamic, DType::kBf16);
  expect_bits_of_floats(kMixed, DType::kBf16, WeightScheme::kInt4Group128);
}

// Rows of zeros, of magnitudes whose scale has no inverse, and of subnormals.
TEST(PackedRows, SmallAndLargeRowsHaveTheBitsOfFloats) {
  constexpr std::size_t kTokens = 40;
  constexpr std::size_t kK = 128;
  constexpr float kEach[] = {0.0F, -0.0F, 1e-35F, 1e-39F, 1e-44F, -3e-36F};
  ThreadPool pool(2);
  for (const WeightScheme scheme : kByteSchemes) {
    for (const float large : {1.0F, 3e36F}) {
      std::vector<float> of_others;
      for (const Backend* backend : backends(scheme)) {
        Rng rng(5);
        const auto weight = random_weight(*backend, 48, kK, scheme, rng, pool);
        std::vector<float> x = rng.reals(kTokens * kK);
        for (std::size_t row = 0; row < std::size(kEach); ++row) {
          for (std::size_t i = 0; i < kK; ++i)
            x[row * 7 * kK + i] = i % 3 == 0 ? kEach[row] : -kEach[row];
        }
        std::vector<float> scale(kK, 1.0F);
        scale[77] = large;
        const auto output = [&](const std::byte* packed, bool whole, const std::vector<float>& f) {
          std::vector<float> y(kTokens * 48);
          backend->linear({.x = f.data(),
                           .x_packed = packed,
                           .x_whole_rows = whole,
                           .weight = weight.get(),
                           .y = y.data(),
                           .tokens = kTokens},
                          pool);
          return y;
        };
        // With this eps small rows stay small.
        RmsNormArgs norm = {
            .x = x.data(), .weight = scale.data(), .rows = kTokens, .dim = kK, .eps = 1.0F};
        std::vector<float> normed(kTokens * kK);
        norm.y = normed.data();
        backend->rms_norm(norm, pool);
        const std::vector<float> wanted = output(nullptr, false, normed);
        if (of_others.empty()) of_others = wanted;
        EXPECT_TRUE(testing::same_bits(wanted, of_others)) << "all families have the same";
        for (const bool whole : {true, false}) {
          const WeightFormat as = whole ? WeightFormat(scheme) : WeightFormat(DType::kBf16);
          const Room room(backend->packed_rows_bytes(kTokens, kK, scheme));
          norm.y_packed = room.data();
          norm.y_packed_for = as;
          backend->rms_norm(norm, pool);
          EXPECT_TRUE(testing::same_bits(output(room.data(), whole, {}), wanted)) << large << whole;
        }
      }
    }
  }
}

TEST(PackedRows, NanAndInfStayInTheirRow) {
  constexpr std::size_t kTokens = 40;
  constexpr std::size_t kHidden = 128;
  ThreadPool pool(2);
  std::vector<WeightFormat> formats(std::begin(kPackedFormats), std::end(kPackedFormats));
  formats.push_back(WeightScheme::kInt8);
  for (const WeightFormat format : formats) {
    for (const Backend* backend : backends(format)) {
      Rng rng(3);
      const auto gate_up = random_weight(*backend, 2 * kHidden, kHidden, format, rng, pool);
      const auto down = random_weight(*backend, kHidden, kHidden, format, rng, pool);
      std::vector<float> x = rng.reals(kTokens * kHidden);
      x[7 * kHidden + 127] = std::numeric_limits<float>::quiet_NaN();
      x[39 * kHidden] = std::numeric_limits<float>::infinity();
      const std::vector<float> scale(kHidden, 1.0F);
      const Room normed(backend->packed_whole_rows_bytes(kTokens, kHidden, format));
      const std::size_t inner_bytes = backend->packed_rows_bytes(kTokens, kHidden, format);
      const Room inner_room(inner_bytes);
      std::byte* inner_packed = inner_bytes > 0 ? inner_room.data() : nullptr;
      std::vector<float> inner(kTokens * kHidden);
      backend->rms_norm({.x = x.data(),
                         .weight = scale.data(),
                         .y_packed = normed.data(),
                         .y_packed_for = format,
                         .rows = kTokens,
                         .dim = kHidden},
                        pool);
      backend->gated_linear({.x_packed = normed.data(),
                             .weight = gate_up.get(),
                             .y = inner.data(),
                             .y_packed = inner_packed,
                             .tokens = kTokens},
                            pool);
      std::vector<float> y(kTokens * kHidden);
      backend->linear({.x = inner.data(),
                       .x_packed = inner_packed,
                       .weight = down.get(),
                       .y = y.data(),
                       .tokens = kTokens},
                      pool);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t token = i / kHidden;
        ASSERT_EQ(std::isnan(y[i]), token == 7 || token == 39) << i;
      }
    }
  }
}

// Of rows that come as bf16 each element counts, wherever in its tile.
TEST(PackedRows, OneElementThatIsNotFiniteSpoilsItsRowOfBytes) {
  constexpr std::size_t kTokens = 40;
  constexpr std::size_t kK = 128;
  constexpr std::size_t kN = 16;
  ThreadPool pool(2);
  for (const WeightScheme scheme : kByteSchemes) {
    for (const Backend* backend : backends(scheme)) {
      Rng rng(4);
      const auto weight = random_weight(*backend, kN, kK, scheme, rng, pool);
      const std::size_t bytes = backend->packed_rows_bytes(kTokens, kK, scheme);
      const Room room(bytes);
      auto* halves = reinterpret_cast<std::uint16_t*>(room.data());
      constexpr std::uint16_t kOne = 0x3f80;
      std::fill_n(halves, bytes / sizeof(std::uint16_t), kOne);
      const auto at = [&](std::size_t row, std::size_t column) -> std::uint16_t& {
        if (!in_tiles(*backend)) return halves[row * kK + column];
        // A tile of 16 rows after the other, 32 columns at a time.
        return halves[row / 16 * 16 * kK + column / 32 * 16 * 32 + row % 16 * 32 + column % 32];
      };
      at(0, 77) = 0x7fc0;   // NaN
      at(9, 127) = 0x7f80;  // inf
      at(15, 32) = 0xff80;  // -inf
      at(39, 0) = 0xff81;   // NaN
      std::vector<float> y(kTokens * kN);
      backend->linear(
          {.x_packed = room.data(), .weight = weight.get(), .y = y.data(), .tokens = kTokens},
          pool);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const std::size_t token = i / kN;
        ASSERT_EQ(std::isnan(y[i]), token == 0 || token == 9 || token == 15 || token == 39) << i;
      }
    }
  }
}

TEST(PackedRows, AttentionHasTheBitsOfFloatsBehindIt) {
  for (const Backend* backend : backends(WeightScheme::kInt8Dynamic)) {
    for (const std::size_t head_dim : {32, 128, 160}) {
      for (const DType dtype : {DType::kBf16, DType::kF32, DType::kFp8E4m3}) {
        ThreadPool pool(dtype == DType::kBf16 ? 2 : 3);
        World world;
        world.heads = 6;
        world.kv = {.head_dim = head_dim, .dtype = dtype, .lengths = {70, 1, 3, 40}};
        const Filled filled(world);
        filled.write(*backend, pool);
        // Prompts, and tokens alone of every sequence in turn.
        std::vector<std::size_t> index = filled.all();
        for (std::size_t i = 0; i < 9; ++i)
          index.insert(index.end(), {i, 70, 73 - i % 3, 74 + 4 * i});
        const Filled::Some tokens = filled.some(index);
        // Queries as they lie between keys and values.
        const std::size_t stride = filled.row() + 64;
        std::vector<float> q(index.size() * stride);
        for (std::size_t t = 0; t < index.size(); ++t)
          std::copy_n(&tokens.q[t * filled.row()], filled.row(), &q[t * stride]);
        Rng rng(head_dim);
        for (const WeightFormat format : kPackedFormats) {
          if (backend->packed_rows_bytes(64, 64, format) == 0) continue;
          const auto weight = random_weight(*backend, 48, filled.row(), format, rng, pool);
          const auto output = [&](bool packed) {
            const std::size_t bytes =
                backend->packed_rows_bytes(index.size(), filled.row(), format);
            EXPECT_GE(bytes, index.size() * filled.row() * 2);
            const Room room(bytes);
            std::byte* mixed = packed ? room.data() : nullptr;
            std::vector<float> out(packed ? 0 : index.size() * filled.row());
            backend->attention({.q = q.data(),
                                .q_stride = stride,
                                .out = out.data(),
                                .out_packed = mixed,
                                .batch = filled.pool.batch(tokens.sequence, tokens.position),
                                .kv = filled.pool.layer(),
                                .heads = world.heads,
                                .scale = 0.2F},
                               pool);
            std::vector<float> y(index.size() * 48);
            backend->linear({.x = out.data(),
                             .x_packed = mixed,
                             .weight = weight.get(),
                             .y = y.data(),
                             .tokens = index.size()},
                            pool);
            return y;
          };
          EXPECT_TRUE(testing::same_bits(output(true), output(false))) << head_dim;
        }
      }
    }
  }
}

// What families take them for, and from how many rows on.
TEST(PackedRows, OnlyWhereProductsRoundTheirInputs) {
  for (const Backend* backend : testing::vector_backends()) {
    const std::size_t few = in_tiles(*backend) ? 16 : 8;
    for (const WeightFormat format : kPackedFormats) {
      const bool bytes = rounds_to_bytes(format.scheme);
      const bool takes = backend->packed_rows_bytes(64, 64, format) > 0;
      const std::size_t each = bytes ? 64 + sizeof(float) : 128;
      EXPECT_EQ(backend->packed_rows_bytes(64, 64, format), takes ? 64 * 128 : 0);
      EXPECT_EQ(backend->packed_whole_rows_bytes(64, 64, format), takes ? 64 * each : 0);
      const bool has = testing::had(*backend, format, 64) == format;
      const bool vnni = backend == select(Family::kAvx512, nullptr) && cpu::features().avx512_vnni;
      EXPECT_EQ(takes, has && (testing::rounds_inputs(*backend) || (bytes && vnni)));
      for (const std::size_t k : {std::size_t{0}, bytes ? std::size_t{96} : std::size_t{72}}) {
        EXPECT_EQ(backend->packed_rows_bytes(64, k, format), 0U);
        EXPECT_EQ(backend->packed_whole_rows_bytes(64, k, format), 0U) << "not whole lines";
      }
      for (const std::size_t rows : {std::size_t{1}, few}) {
        EXPECT_EQ(backend->packed_rows_bytes(rows, 64, format), 0U) << "each worker packs them";
        EXPECT_EQ(backend->packed_whole_rows_bytes(rows, 64, format), 0U);
      }
      EXPECT_EQ(backend->packed_rows_bytes(few + 1, 64, format) > 0, takes);
    }
    for (const DType dtype : {DType::kF32, DType::kF16}) {
      EXPECT_EQ(backend->packed_rows_bytes(64, 64, dtype), 0U);
      EXPECT_EQ(backend->packed_whole_rows_bytes(64, 64, dtype), 0U);
    }
    // Only what makes whole rows knows what all of a row's values share.
    EXPECT_EQ(backend->packed_rows_bytes(64, 64, WeightScheme::kInt8), 0U);
    EXPECT_EQ(backend->packed_whole_rows_bytes(64, 64, WeightScheme::kInt8),
              in_tiles(*backend) ? 64 * (128 + sizeof(float)) : 0);
    EXPECT_EQ(backend->packed_whole_rows_bytes(few, 64, WeightScheme::kInt8), 0U);
    EXPECT_EQ(backend->packed_whole_rows_bytes(64, 96, WeightScheme::kInt8), 0U);
  }
  EXPECT_EQ(testing::reference().packed_rows_bytes(64, 64, DType::kBf16), 0U);
  EXPECT_GE(backends(DType::kBf16).size(), 2U) << "emulations run everywhere";
}

}  // namespace
}  // namespace tandem::kernels
