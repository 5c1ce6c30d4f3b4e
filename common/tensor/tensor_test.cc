#include "common/tensor/dtype.h"
#include "common/tensor/host_buffer.h"
#include "common/tensor/tensor_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace tandem::tensor {
namespace {

struct RoundRow {
  const char* name;
  float value;
  std::uint16_t bf16;
  std::uint16_t f16;
};

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr RoundRow kRoundRows[] = {
    {"zero", 0.0F, 0x0000, 0x0000},
    {"minus zero", -0.0F, 0x8000, 0x8000},
    {"one", 1.0F, 0x3f80, 0x3c00},
    {"minus two", -2.0F, 0xc000, 0xc000},
    {"bf16 tie to even down", 1.00390625F, 0x3f80, 0x3c04},
    {"bf16 tie to even up", 1.01171875F, 0x3f82, 0x3c0c},
    {"f16 tie to even down", 2049.0F, 0x4500, 0x6800},
    {"f16 tie to even up", 2051.0F, 0x4500, 0x6802},
    {"largest f16", 65504.0F, 0x4780, 0x7bff},
    {"f16 overflow", 65520.0F, 0x4780, 0x7c00},
    {"f16 smallest subnormal", 0x1p-24F, 0x3380, 0x0001},
    {"f16 half of the smallest", 0x1p-25F, 0x3300, 0x0000},
    {"f16 above half of smallest", 0x1.8p-25F, 0x3340, 0x0001},
    {"f16 smallest normal", 0x1p-14F, 0x3880, 0x0400},
    {"f16 rounds up to normal", 0x1.ffep-15F, 0x3880, 0x0400},
    {"infinity", kInf, 0x7f80, 0x7c00},
    {"minus infinity", -kInf, 0xff80, 0xfc00},
    {"largest f32", 3.4028235e38F, 0x7f80, 0x7c00},
};

TEST(DTypeConversion, RoundsToNearestEven) {
  for (const RoundRow& row : kRoundRows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(f32_to_bf16(row.value), row.bf16);
    EXPECT_EQ(f32_to_f16(row.value), row.f16);
  }
}

TEST(DTypeConversion, EveryHalfSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = f16_to_f32(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(wide))));
    } else {
      ASSERT_EQ(f32_to_f16(wide), half) << bits;
    }
    const float brain = bf16_to_f32(half);
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(brain))));
    } else {
      ASSERT_EQ(f32_to_bf16(brain), half) << bits;
    }
  }
}

TEST(DType, Spellings) {
  EXPECT_EQ(parse_dtype("BF16").value(), DType::kBf16);
  EXPECT_EQ(parse_dtype("float16").value(), DType::kF16);
  EXPECT_EQ(parse_dtype("float32").value(), DType::kF32);
  const Result<DType> bad = parse_dtype("I64");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument);
  EXPECT_NE(bad.status().message().find("I64"), std::string::npos);
}

struct ShapeRow {
  const char* name;
  std::vector<std::uint64_t> dims;
  bool ok;
  std::uint64_t elements;
};

TEST(Shape, MakeChecksRankAndOverflow) {
  const ShapeRow rows[] = {
      {"scalar", {}, true, 1},
      {"matrix", {3, 4}, true, 12},
      {"empty", {0, 4}, true, 0},
      {"too many dimensions", {1, 1, 1, 1, 1, 1, 1}, false, 0},
      {"overflow", {1ULL << 32, 1ULL << 32}, false, 0},
      {"overflow behind zero", {0, 1ULL << 32, 1ULL << 32}, false, 0},
      {"one huge dimension", {std::numeric_limits<uint64_t>::max()}, false, 0},
  };
  for (const ShapeRow& row : rows) {
    SCOPED_TRACE(row.name);
    const Result<Shape> shape = Shape::make(row.dims);
    ASSERT_EQ(shape.ok(), row.ok);
    if (row.ok) {
      EXPECT_EQ(shape.value().element_count(), row.elements);
    }
  }
}

TEST(TensorView, RowsStayInside) {
  std::vector<float> data = {0, 1, 2, 3, 4, 5};
  const std::uint64_t dims[] = {3, 2};
  const TensorView view{.data = reinterpret_cast<const std::byte*>(data.data()),
                        .dtype = DType::kF32,
                        .shape = Shape::make(dims).value()};
  EXPECT_EQ(view.bytes(), 24U);
  const TensorView part = view.rows(1, 2).value();
  EXPECT_EQ(part.shape.str(), "[2, 2]");
  EXPECT_EQ(to_f32(part), (std::vector<float>{2, 3, 4, 5}));
  EXPECT_TRUE(view.rows(3, 0).ok());
  EXPECT_EQ(view.rows(2, 2).status().code(), Code::kOutOfRange);
  EXPECT_EQ(view.rows(1, ~0ULL).status().code(), Code::kOutOfRange);
  EXPECT_EQ(TensorView{}.rows(0, 1).status().code(), Code::kOutOfRange);
}

TEST(TensorView, WidensUnalignedHalves) {
  const std::uint16_t halves[] = {0x3f80, 0xc000};
  std::vector<std::byte> bytes(1 + sizeof(halves));
  std::memcpy(bytes.data() + 1, halves, sizeof(halves));
  const std::uint64_t dims[] = {2};
  const TensorView view{
      .data = bytes.data() + 1, .dtype = DType::kBf16, .shape = Shape::make(dims).value()};
  EXPECT_EQ(to_f32(view), (std::vector<float>{1.0F, -2.0F}));
}

TEST(HostBuffer, BeginsWithAHugePage) {
  constexpr std::uint64_t kHuge = std::uint64_t{2} << 20;
  for (const std::uint64_t bytes : {kHuge, kHuge + 1, 5 * kHuge - 4096}) {
    auto buffer = HostBuffer::allocate(
        {.bytes = bytes, .bytes_max = bytes, .purpose = "test", .huge_pages = true});
    ASSERT_TRUE(buffer.ok()) << buffer.status().message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % kHuge, 0U) << bytes;
    // All of it is there.
    for (std::uint64_t i = 0; i < bytes; i += 4096)
      buffer->data()[i] = std::byte{1};
    buffer->data()[bytes - 1] = std::byte{1};
  }
}

TEST(HostBuffer, AlignedZeroedAndBounded) {
  auto buffer = HostBuffer::allocate(
      {.bytes = 5000, .bytes_max = 5000, .purpose = "test", .huge_pages = true});
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % HostBuffer::kAlignment, 0U);
  EXPECT_EQ(buffer->size(), 5000U);
  for (std::size_t i = 0; i < 5000; ++i)
    ASSERT_EQ(buffer->data()[i], std::byte{0});
  const auto refused =
      HostBuffer::allocate({.bytes = 5001, .bytes_max = 5000, .purpose = "kv pool"});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("kv pool"), std::string::npos);
  const auto absurd = HostBuffer::allocate({.bytes = ~0ULL, .bytes_max = ~0ULL, .purpose = "x"});
  EXPECT_EQ(absurd.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(HostBuffer::allocate({.bytes = 0, .bytes_max = 0, .purpose = "x"}).value().size(), 0U);
}

TEST(HostBuffer, MovesItsMemory) {
  HostBuffer first = HostBuffer::allocate({.bytes = 64, .bytes_max = 64, .purpose = "a"}).value();
  std::byte* const data = first.data();
  HostBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  HostBuffer third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 64U);
}

}  // namespace
}  // namespace tandem::tensor
