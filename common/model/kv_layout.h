// How one model's keys and values lie in memory: page-major, one arena for all layers.
#pragma once

#include "kernels/api/dtype.h"
#include "kernels/api/ops.h"

#include <cstddef>
#include <cstdint>

namespace tandem::model {

/// `[page][layer][K|V][kv_head][slot][head_dim]`: a page is one contiguous block, and a range of
/// heads of a layer's K or V is contiguous too.
struct KvLayout {
  std::size_t page_size = 0;  ///< Tokens in a page.
  std::size_t layer_count = 0;
  std::size_t kv_head_count = 0;
  std::size_t head_dim = 0;
  kernels::DType dtype = kernels::DType::kF32;

  /// One head of one layer's K (or V) of a page.
  [[nodiscard]] constexpr std::size_t head_bytes() const {
    return page_size * head_dim * kernels::dtype_bytes(dtype);
  }

  /// K and V of one layer of a page.
  [[nodiscard]] constexpr std::size_t layer_bytes() const {
    return 2 * kv_head_count * head_bytes();
  }

  [[nodiscard]] constexpr std::size_t page_bytes() const { return layer_count * layer_bytes(); }

  /// Of all layers, for one token.
  [[nodiscard]] constexpr std::size_t token_bytes() const { return page_bytes() / page_size; }

  /// As the kernels want it; `base` is page 0 of the arena.
  [[nodiscard]] constexpr kernels::KvLayer layer(std::byte* base, std::size_t index) const {
    return {.base = base,
            .page_stride_bytes = page_bytes(),
            .layer_offset_bytes = index * layer_bytes(),
            .page_size = page_size,
            .kv_heads = kv_head_count,
            .head_dim = head_dim,
            .dtype = dtype};
  }

  friend constexpr bool operator==(const KvLayout&, const KvLayout&) = default;
};

}  // namespace tandem::model
