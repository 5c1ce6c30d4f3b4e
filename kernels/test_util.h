// Shared by the kernel tests: seeded random data, the families of this machine, weights, paged KV
// pools.
#pragma once

#include "kernels/api/backend.h"
#include "kernels/api/convert.h"
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/avx512/bf16.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/features.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::kernels::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// SplitMix64; the same numbers everywhere.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }

  /// Uniform in [-1, 1).
  float real() { return static_cast<float>(static_cast<double>(next() >> 11) * 0x1p-52 - 1.0); }

  std::vector<float> reals(std::size_t count, float scale = 1.0F) {
    std::vector<float> out(count);
    for (float& value : out)
      value = scale * real();
    return out;
  }

 private:
  std::uint64_t state_;
};

/// The orders of memory that are not this machine's.
inline std::array<cpu::ReadOrder, 2> other_orders() {
  using enum cpu::ReadOrder;
  switch (cpu::features().read_order) {
    case kOneStream:
      return {kSideBySide, kNextTile};
    case kNextTile:
      return {kOneStream, kSideBySide};
    case kSideBySide:
      break;
  }
  return {kOneStream, kNextTile};
}

inline cpu::Kernels with_order(cpu::ReadOrder order, cpu::Kernels kernels) {
  kernels.read_order = order;
  return kernels;
}

/// The families that this machine runs, without the reference; avx2 too, avx512 without VNNI and
/// avx512_bf16 without VBMI in both other orders of memory, amx on emulated tiles also with its
/// own vectors, and both amx and avx512_bf16 in plain code, which run everywhere.
inline std::vector<const Backend*> vector_backends() {
  static const CpuBackend kEmulated(Family::kAmx, cpu::kAmxNumerics, cpu::emulated_amx_kernels());
  static const CpuBackend kEmulatedBf16(
      Family::kAvx512Bf16, cpu::kBf16Numerics, cpu::emulated_bf16_kernels());
  std::vector<const Backend*> backends = {&kEmulated, &kEmulatedBf16};  // see in_plain_code
  for (const Family family : available_families()) {
    if (family != Family::kReference) backends.push_back(select(family, nullptr));
  }
#if defined(__x86_64__)
  static const auto kOrders = other_orders();
  const auto in_turn = [](Family family, std::string_view numerics, cpu::Kernels kernels) {
    return std::array{CpuBackend(family, numerics, with_order(kOrders[0], kernels)),
                      CpuBackend(family, numerics, with_order(kOrders[1], kernels))};
  };
  const auto add = [&](const std::array<CpuBackend, 2>& both) {
    for (const CpuBackend& backend : both)
      backends.push_back(&backend);
  };
  static const auto kYmm = in_turn(Family::kAvx2, CpuBackend::kNumerics, cpu::avx2_kernels());
  if (cpu::features().avx2) add(kYmm);
  static const auto kPlain = in_turn(Family::kAvx512, CpuBackend::kNumerics, cpu::avx512_kernels());
  if (cpu::features().avx512_vnni) add(kPlain);
  if (cpu::features().avx512_vbmi) {
    static const auto kNoVbmi =
        in_turn(Family::kAvx512Bf16, cpu::kBf16Numerics, cpu::avx512_bf16_kernels());
    add(kNoVbmi);
    static const CpuBackend kTiles(
        Family::kAmx, cpu::kAmxNumerics, cpu::emulated_amx_avx512_kernels());
    backends.push_back(&kTiles);
  }
#endif
  return backends;
}

/// Emulations and the portable family: the bits of others, slowly.
inline bool in_plain_code(const Backend& backend) {
  const std::vector<const Backend*> all = vector_backends();
  return backend.family() == Family::kGeneric || &backend == all[0] || &backend == all[1];
}

/// Whether products with bf16 weights round their inputs to bf16.
inline bool rounds_inputs(const Backend& backend) {
  return backend.family() == Family::kAmx || backend.family() == Family::kAvx512Bf16;
}

/// Whether `backend` rounds activations, to bf16 or to no less, for weights of this format and
/// others do not (to bytes: all do).
inline bool rounds_inputs(const Backend& backend, WeightFormat format) {
  if (format.scheme == WeightScheme::kInt8) return rounds_inputs(backend);
  return holds_bf16(format.scheme, format.dtype) && rounds_inputs(backend);
}

/// The format, or what stands for it where the family does not have it.
inline WeightFormat had(const Backend& backend, WeightFormat format, std::size_t k) {
  if (format.scheme != WeightScheme::kShortBf16) return format;
  return backend.kept_format(DType::kBf16, k);
}

inline const Backend& reference() {
  return *select(Family::kReference, nullptr);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// The same bits, or NaN in both.
inline bool same_or_nan(const float* a, const float* b, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) return false;
  }
  return true;
}

/// The rows at `index` of [rows, row] values, in that order.
inline std::vector<float> pick(const std::vector<float>& whole,
                               const std::vector<std::size_t>& index,
                               std::size_t row) {
  std::vector<float> out;
  for (const std::size_t i : index) {
    out.insert(out.end(),
               whole.begin() + static_cast<std::ptrdiff_t>(i * row),
               whole.begin() + static_cast<std::ptrdiff_t>((i + 1) * row));
  }
  return out;
}

/// A row-major matrix of some dtype, one byte off alignment where `misaligned`.
class Matrix {
 public:
  Matrix(std::size_t rows,
         std::size_t cols,
         DType dtype,
         const std::vector<float>& values,
         bool misaligned = false)
      : bytes_(rows * cols * dtype_bytes(dtype) + 64),
        offset_(misaligned ? 1 : 0),
        dtype_(dtype),
        rows_(rows),
        cols_(cols) {
    for (std::size_t i = 0; i < rows * cols; ++i)
      store_element(bytes_.data() + offset_, dtype, i, values[i]);
  }

  [[nodiscard]] MatrixView view() const {
    return {.data = bytes_.data() + offset_, .dtype = dtype_, .rows = rows_, .cols = cols_};
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t offset_;
  DType dtype_;
  std::size_t rows_;
  std::size_t cols_;
};

/// A paged KV pool of two layers (the tests use layer 1) with page tables that are shuffled on
/// purpose.
class Pool {
 public:
  struct Options {
    std::size_t page_size = 4;
    std::size_t kv_heads = 2;
    std::size_t head_dim = 32;
    DType dtype = DType::kF32;
    std::vector<std::size_t> lengths;  ///< positions of each sequence
    std::uint64_t seed = 1;
  };

  explicit Pool(const Options& options) {
    layer_ = {.base = nullptr,
              .page_stride_bytes = 0,
              .layer_offset_bytes = 0,
              .page_size = options.page_size,
              .kv_heads = options.kv_heads,
              .head_dim = options.head_dim,
              .dtype = options.dtype};
    layer_.page_stride_bytes = 2 * layer_.layer_bytes();
    layer_.layer_offset_bytes = layer_.layer_bytes();
    std::size_t pages = 0;
    for (const std::size_t length : options.lengths)
      pages += (length + options.page_size - 1) / options.page_size;
    std::vector<std::int32_t> ids(pages);
    for (std::size_t i = 0; i < pages; ++i)
      ids[i] = static_cast<std::int32_t>(i);
    Rng rng(options.seed);
    for (std::size_t i = pages; i > 1; --i)
      std::swap(ids[i - 1], ids[rng.below(i)]);
    // Every byte that no test writes is NaN: reading it must show.
    memory_.assign(pages * layer_.page_stride_bytes + 64, std::byte{0xff});
    layer_.base = memory_.data();
    std::size_t used = 0;
    tables_.reserve(options.lengths.size());
    for (const std::size_t length : options.lengths) {
      const std::size_t count = (length + options.page_size - 1) / options.page_size;
      tables_.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(used),
                           ids.begin() + static_cast<std::ptrdiff_t>(used + count));
      used += count;
      sequences_.push_back({.pages = tables_.back().data(), .page_count = count});
    }
  }

  [[nodiscard]] const KvLayer& layer() const { return layer_; }

  [[nodiscard]] const std::vector<std::byte>& memory() const { return memory_; }

  /// Marks a table entry as gone: using it would read far outside the pool.
  void drop_page(std::size_t sequence, std::size_t index) { tables_[sequence][index] = 1 << 24; }

  [[nodiscard]] RaggedTokens batch(const std::vector<std::int32_t>& sequence,
                                   const std::vector<std::int32_t>& position) const {
    return {.tokens = sequence.size(),
            .sequence = sequence.data(),
            .position = position.data(),
            .sequences = sequences_.data(),
            .sequence_count = sequences_.size()};
  }

 private:
  KvLayer layer_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<SequencePages> sequences_;
};

}  // namespace tandem::kernels::testing
