#include "kernels/cpu/unit_check.h"

#include "kernels/api/thread_pool.h"
#include "kernels/cpu/simd/quant.h"

#include <cstring>
#include <vector>

namespace tandem::kernels::cpu {
namespace {

/// The same numbers wherever it runs.
class Numbers {
 public:
  std::uint32_t next() {
    state_ = state_ * 1664525U + 1013904223U;
    return state_ >> 16;
  }

  /// A bf16 of any sign, with exponents from `lowest` to 127.
  std::uint16_t bf16(std::uint32_t lowest) {
    const std::uint32_t sign = next() & 0x8000U;
    const std::uint32_t exponent = lowest + next() % (128 - lowest);
    return static_cast<std::uint16_t>(sign | (exponent << 7) | (next() & 0x7fU));
  }

 private:
  std::uint32_t state_ = 1;
};

}  // namespace

bool same_products(const Kernels& a, const Kernels& b, WeightScheme scheme) {
  constexpr std::size_t kRows = 16;  // a whole tile; one row may go another way
  constexpr std::size_t kK = 64;
  constexpr std::size_t kTries = 16;
  const bool bytes = scheme == WeightScheme::kInt8Dynamic;
  Numbers numbers;
  // A panel: of bf16, or scales and bytes.
  constexpr std::size_t kWords = kK * kPanel;
  alignas(64) std::uint16_t weight[kWords] = {};
  constexpr std::size_t kByteWords = (kByteHeaderBytes + kK * kPanel) / 2;
  static_assert(kByteWords <= kWords);
  float x[kRows * kK];
  const ThreadPool pool(1);  // for its scratch
  for (std::size_t tries = 0; tries < kTries; ++tries) {
    // Exponents from near one down to where products vanish, so that both roundings, the order of
    // the two products and subnormals all show.
    const std::uint32_t lowest = tries % 4 == 0   ? 120
                                 : tries % 4 == 1 ? 100
                                 : tries % 4 == 2 ? 60
                                                  : 0;
    if (bytes) {
      for (std::size_t i = kByteHeaderBytes / 2; i < kByteWords; ++i)
        weight[i] = static_cast<std::uint16_t>(numbers.next());
      for (std::size_t i = 0; i < kPanel; ++i)
        weight[2 * i + 1] = 0x3f80;  // one
    } else {
      for (auto& bits : weight)
        bits = numbers.bf16(lowest);
    }
    for (auto& value : x)
      value = bf16_to_f32(numbers.bf16(lowest));
    const auto same = [&](std::size_t rows) {
      float y[2][kRows * kPanel] = {};
      for (int i = 0; i < 2; ++i) {
        (i == 0 ? a : b)
            .linear({.x = x,
                     .x_stride = kK,
                     .rows = rows,
                     .weight = reinterpret_cast<const std::byte*>(weight),
                     .panel_bytes = bytes ? kByteWords * 2 : sizeof(weight),
                     .scheme = scheme,
                     .dtype = DType::kBf16,
                     .k = kK,
                     .n = kPanel,
                     .panel_begin = 0,
                     .panel_end = 1,
                     .bias = nullptr,
                     .y = y[i],
                     .y_stride = kPanel,
                     .accumulate = false,
                     .scratch = reinterpret_cast<float*>(pool.scratch(0)),
                     .packed = false,
                     .x_rows = nullptr,
                     .y_rows = nullptr,
                     .row_scale = nullptr,
                     .rows_room = nullptr,
                     .y_packed = nullptr,
                     .up = nullptr,
                     .next = nullptr});
      }
      return std::memcmp(y[0], y[1], sizeof(y[0])) == 0;
    };
    if (!same(kRows)) return false;
    // Of 8-bit inputs no unit of this kind is asked, and other code knows no weight of -128.
    if (!bytes && !same(1)) return false;
  }
  return true;
}

bool same_attention(const Kernels& a, const Kernels& b) {
  constexpr std::size_t kTokens = 20;
  constexpr std::size_t kHeads = 2;
  constexpr std::size_t kDim = 40;  // of the second 32, a part
  constexpr std::size_t kPageSize = 16;
  constexpr std::size_t kFirst = kKeyBlock - 7;
  constexpr std::size_t kPages = (kFirst + kTokens + kPageSize - 1) / kPageSize;
  constexpr std::int32_t kWindow = 30;  // what is before takes time only
  constexpr std::size_t kRowBytes = kDim * sizeof(std::uint16_t);
  constexpr std::size_t kPageBytes = 2 * kPageSize * kRowBytes;
  Numbers numbers;
  // Exponents as those of products: scores of some units, of which exp tells each rounding.
  std::vector<std::uint16_t> keys(kPages * kPageBytes / sizeof(std::uint16_t) + 32);
  for (std::uint16_t& bits : keys)
    bits = numbers.bf16(110);
  float q[kTokens * kHeads * kDim];
  for (float& value : q)
    value = bf16_to_f32(numbers.bf16(110));
  std::int32_t pages[kPages];
  for (std::size_t page = 0; page < kPages; ++page)
    pages[page] = static_cast<std::int32_t>(kPages - 1 - page);
  std::int32_t position[kTokens];
  for (std::size_t token = 0; token < kTokens; ++token)
    position[token] = static_cast<std::int32_t>(kFirst + token);
  const ThreadPool pool(1);  // for its scratch
  const auto same = [&](std::size_t first, std::size_t tokens) {
    float out[2][kTokens * kHeads * kDim] = {};
    for (int i = 0; i < 2; ++i) {
      (i == 0 ? a : b)
          .attention({.q = q + first * kHeads * kDim,
                      .q_stride = kHeads * kDim,
                      .out = out[i],
                      .out_stride = kHeads * kDim,
                      .position = position + first,
                      .tokens = tokens,
                      .heads = kHeads,
                      .kv_heads = 1,
                      .pages = pages,
                      .keys = reinterpret_cast<const std::byte*>(keys.data()),
                      .kv_head_stride = kPageSize * kRowBytes,
                      .value_offset = kPageSize * kRowBytes,
                      .page_stride_bytes = kPageBytes,
                      .row_bytes = kRowBytes,
                      .page_size = kPageSize,
                      .head_dim = kDim,
                      .dtype = DType::kBf16,
                      .scale = 1,
                      .window = kWindow,
                      .scratch = pool.scratch(0)});
    }
    return std::memcmp(out[0], out[1], sizeof(out[0])) == 0;
  };
  return same(0, kTokens) && same(kTokens - 1, 1);
}

}  // namespace tandem::kernels::cpu
