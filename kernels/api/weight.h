// Weight matrices, as files hold them (MatrixView) and as a kernel family wants them
// (PackedWeight).
#pragma once

#include "kernels/api/dtype.h"

#include <cstddef>
#include <memory>
#include <new>

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

enum class WeightLayout : std::uint8_t {
  /// [n][k]: the reference family.
  kRowMajor,
  /// Panels of 16 outputs: f32 and f16 [n/16][k][16], bf16 [n/16][k/2][16][2] (pairs of k, the tile
  /// layout of AMX). n is padded to 16 and k of bf16 to 32, with zeros.
  kPanel16,
};

/// A weight [n, k] in a family's own layout; owns its memory (64-byte aligned), movable, immutable
/// once made by Backend::pack. Only backends of the same WeightLayout may use it.
class PackedWeight {
 public:
  PackedWeight() = default;

  /// Uninitialised storage of `bytes`; data() is null when there is no memory for it.
  PackedWeight(WeightLayout layout, DType dtype, std::size_t n, std::size_t k, std::size_t bytes);

  [[nodiscard]] WeightLayout layout() const { return layout_; }

  /// Stored element type.
  [[nodiscard]] DType dtype() const { return dtype_; }

  /// Outputs.
  [[nodiscard]] std::size_t n() const { return n_; }

  /// Inputs.
  [[nodiscard]] std::size_t k() const { return k_; }

  /// Memory held.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] const std::byte* data() const { return data_.get(); }

  [[nodiscard]] std::byte* mutable_data() { return data_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };

  WeightLayout layout_ = WeightLayout::kRowMajor;
  DType dtype_ = DType::kF32;
  std::size_t n_ = 0;
  std::size_t k_ = 0;
  std::size_t bytes_ = 0;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace tandem::kernels
