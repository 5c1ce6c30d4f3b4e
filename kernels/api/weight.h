// Weight matrices, as files hold them (MatrixView) and as a kernel family wants them
// (PackedWeight).
#pragma once

#include "kernels/api/dtype.h"

#include <cstddef>
#include <memory>

namespace tandem::kernels {

/// A borrowed row-major matrix [rows, cols]; `data` needs no alignment.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::size_t rows = 0;
  std::size_t cols = 0;
  /// Elements from one row to the next; 0 means cols.
  std::size_t row_stride = 0;
};

/// How the elements of a weight are kept, and what a product does with its inputs. Names in quotes
/// are those of the arguments.
enum class WeightScheme : std::uint8_t {
  kFloat,  ///< elements of a DType
  /// "int8wo": w = q * scale, q in [-127, 127], one f32 scale an output (largest |w| / 127). Inputs
  /// stay float, or each row becomes integers of 16 bits: y = scale * sum of x q.
  kInt8,
  /// "int4wo-128": w = scale * (step * q - offset), q in [0, 15]: kInt8Dynamic with 16 values per
  /// output and 128 inputs instead of 255. scale is that of kInt8; step (1 to 16) and offset
  /// (-127 to 127) are integers: the smallest step for which all weights of the group are within
  /// half a step of a value, or one less where the sum of squared errors is less; values lie around
  /// the group's middle, none beyond 127. Inputs become 8 bit as those of kInt8Dynamic, and sums
  /// are as exact.
  kInt4Group128,
  /// "w8a8_int8": weights as kInt8. Each row of inputs is rounded to bf16 and then becomes 8 bit
  /// with a scale of its own (largest |x| / 127): x times 1 / scale, to nearest, ties to even, as
  /// kernels of other servers make it. Products and sums are integers, exact: y = sum * scale of
  /// the output * scale of the row. A row that holds inf or NaN, or what rounds to inf, gives NaN.
  /// Where scale is below 2^-100 or above 2^100: quotients by scale, not products.
  kInt8Dynamic,
  /// bf16 in 12 bits each, every bit of it: products are those of bf16. What kFloat weights of bf16
  /// become where a backend keeps them so (Backend::kept_format); weights of unlike exponents do
  /// not fit (PackJob::misfit).
  kShortBf16,
};

/// Whether products with such a weight are those of bf16.
constexpr bool holds_bf16(WeightScheme scheme, DType dtype) {
  return scheme == WeightScheme::kShortBf16 ||
         (scheme == WeightScheme::kFloat && dtype == DType::kBf16);
}

/// Whether each row of inputs becomes integers of 8 bit with a scale of its own.
constexpr bool rounds_to_bytes(WeightScheme scheme) {
  return scheme == WeightScheme::kInt8Dynamic || scheme == WeightScheme::kInt4Group128;
}

constexpr bool is_quantized(WeightScheme scheme) {
  return rounds_to_bytes(scheme) || scheme == WeightScheme::kInt8;
}

/// Inputs (k) that share one step and offset in kInt4Group128; the last group may be shorter.
inline constexpr std::size_t kInt4Group = 128;

/// Largest k of any weight: a row of x in floats fits a thread's scratch.
inline constexpr std::size_t kMaxK = 240 * 1024;
/// Largest k of a quantised weight: 128 * 127 * k stays below 2^31.
inline constexpr std::size_t kMaxByteInputs = 131072;

/// What pack() makes of a matrix. A DType alone means floats of it.
struct WeightFormat {
  // Implicit on purpose: floats are the usual case.
  constexpr WeightFormat(DType element) : dtype(element) {}  // NOLINT(google-explicit-constructor)

  constexpr WeightFormat(WeightScheme kept)  // NOLINT(google-explicit-constructor)
      : dtype(kept == WeightScheme::kShortBf16 ? DType::kBf16 : DType::kF32), scheme(kept) {}

  DType dtype;  ///< of kFloat and kShortBf16
  WeightScheme scheme = WeightScheme::kFloat;

  friend constexpr bool operator==(const WeightFormat&, const WeightFormat&) = default;
};

enum class WeightLayout : std::uint8_t {
  /// [n][k]: the reference family. Quantised: [n] f32 scales, [n][k] bytes.
  kRowMajor,
  /// Panels of 16 outputs: f32 and f16 [n/16][k][16], bf16 [n/16][k/2][16][2] (pairs of k, the tile
  /// layout of AMX). n is padded to 16 and k of bf16 to 32, with zeros. Gaps between panels, and
  /// panels of other schemes: kernels/cpu/panels.h.
  kPanel16,
};

/// Bytes of `count` weights of `bytes` each in one PackedWeight: each starts at a multiple of 64.
constexpr std::size_t stacked_bytes(std::size_t count, std::size_t bytes) {
  return count == 1 ? bytes : count * ((bytes + 63) / 64 * 64);
}

/// A weight [n, k], or a stack of `count` of them (the experts of a layer), in a family's own
/// layout; owns its memory (64-byte aligned; on huge pages where the system gives them) unless
/// over() made it, movable, immutable once filled (Backend::fill). Only backends of the same
/// WeightLayout may use it.
class PackedWeight {
 public:
  PackedWeight() = default;
  PackedWeight(PackedWeight&&) = default;
  PackedWeight& operator=(PackedWeight&&) = default;
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;
  ~PackedWeight() = default;

  /// Uninitialised storage of `bytes` for each of `count` weights; data() is null when there is no
  /// memory for it.
  PackedWeight(WeightLayout layout,
               WeightFormat format,
               std::size_t n,
               std::size_t k,
               std::size_t bytes,
               std::size_t count = 1);

  /// Over `memory` of somebody else, which outlives it: `bytes`, 64-byte aligned.
  static PackedWeight over(std::byte* memory,
                           WeightLayout layout,
                           WeightFormat format,
                           std::size_t n,
                           std::size_t k,
                           std::size_t bytes);

  [[nodiscard]] WeightLayout layout() const { return layout_; }

  [[nodiscard]] WeightFormat format() const { return format_; }

  /// Element type of a float weight.
  [[nodiscard]] DType dtype() const { return format_.dtype; }

  [[nodiscard]] WeightScheme scheme() const { return format_.scheme; }

  /// Outputs.
  [[nodiscard]] std::size_t n() const { return n_; }

  /// Inputs.
  [[nodiscard]] std::size_t k() const { return k_; }

  /// Weights in the stack; 1 for all but Backend::pack_stack.
  [[nodiscard]] std::size_t count() const { return count_; }

  /// Memory held.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] const std::byte* data() const { return data_.get(); }

  /// Of weight `index` of the stack.
  [[nodiscard]] const std::byte* data(std::size_t index) const {
    return data_.get() + index * (bytes_ / count_);
  }

  [[nodiscard]] std::byte* mutable_data() { return data_.get(); }

  [[nodiscard]] std::byte* mutable_data(std::size_t index) {
    return data_.get() + index * (bytes_ / count_);
  }

 private:
  WeightLayout layout_ = WeightLayout::kRowMajor;
  WeightFormat format_ = DType::kF32;
  std::size_t n_ = 0;
  std::size_t k_ = 0;
  std::size_t count_ = 1;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> data_;  ///< maybe a part of what other weights have, too
};

}  // namespace tandem::kernels
