// Shape and TensorView: where a tensor lies and what it is. No ownership, no math.
#pragma once

#include "common/tensor/dtype.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem::tensor {

/// Up to kMaxRank dimensions, outermost first. A value; rank 0 is a scalar of one element.
class Shape {
 public:
  static constexpr std::size_t kMaxRank = 6;

  Shape() = default;

  /// Refuses more than kMaxRank dimensions and an element count that does not fit in 62 bits
  /// (shapes come from files). Zero-sized dimensions are allowed.
  static Result<Shape> make(std::span<const std::uint64_t> dims);

  [[nodiscard]] std::size_t rank() const { return rank_; }

  /// Pre: axis < rank().
  [[nodiscard]] std::uint64_t dim(std::size_t axis) const;

  [[nodiscard]] std::span<const std::uint64_t> dims() const { return {dims_.data(), rank_}; }

  [[nodiscard]] std::uint64_t element_count() const;

  /// "[3, 4]".
  [[nodiscard]] std::string str() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::uint64_t, kMaxRank> dims_{};
  std::size_t rank_ = 0;
};

/// A borrowed, dense, row-major tensor. `data` needs no alignment (weight files promise none).
struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  [[nodiscard]] std::uint64_t bytes() const { return shape.element_count() * dtype_bytes(dtype); }

  /// Rows [begin, begin + count) of the outermost dimension, borrowed from the same memory.
  /// kOutOfRange names the range and the shape; a scalar has no rows.
  [[nodiscard]] Result<TensorView> rows(std::uint64_t begin, std::uint64_t count) const;
};

/// All elements, widened to f32.
std::vector<float> to_f32(const TensorView& view);

}  // namespace tandem::tensor
