// What two processes must agree on before KV may flow between them.
#pragma once

#include "common/base/status.h"

#include <cstdint>
#include <string>

namespace tandem::handoff {

/// Layout of the KV pages of one rank and identity of the model that fills them.
struct LayoutDescriptor {
  std::uint32_t layout_version = 1;  ///< 1: [page][layer][K|V][kv_head][slot][head_dim]
  std::uint32_t page_size = 0;       ///< tokens per page
  std::uint32_t layer_count = 0;     ///< of this rank
  std::uint32_t kv_head_count = 0;   ///< of this rank
  std::uint32_t head_dim = 0;
  std::string dtype{};                  ///< of KV: "f32", "bf16", "fp8_e4m3", ...
  std::uint64_t page_bytes = 0;         ///< bytes of one page that are sent
  std::uint64_t page_stride_bytes = 0;  ///< distance of pages in memory; may differ between peers
  std::uint32_t part_count = 1;         ///< layer groups that a page may be sent in, 1..16
  std::uint32_t tp_rank = 0, tp_size = 1;
  std::uint32_t dp_rank = 0, dp_size = 1;
  std::uint32_t pp_rank = 0, pp_size = 1;
  std::string model_digest{};
  std::string weight_dtype{};  ///< of weights that are not quantised
  std::string quantization{};  ///< of the weights: "none", "int8wo", ...
  std::string weight_version{};
  std::string numerics_family{};  ///< may differ: then equal bits are not promised
  friend bool operator==(const LayoutDescriptor&, const LayoutDescriptor&) = default;
};

inline constexpr std::uint32_t kPartCountMax = 16;

/// Fits into one piece over TCP, 512 KiB, with UCX's headers and ours.
inline constexpr std::uint64_t kRunBytes = 496U << 10U;

/// Parts of a piece that are worth taking from where they lie apart, without putting them together.
inline constexpr std::uint64_t kListPartBytes = 32U << 10U;

/// Bytes of part `part` within each page: layers are dealt to parts as evenly as possible.
struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

ByteRange part_bytes(const LayoutDescriptor& layout,
                     std::uint32_t first_part,
                     std::uint32_t part_count);

/// The fewest parts of a page of which none is longer than `bytes_max`, or the most there may be.
/// Pre: sizes that pass validate(), but for part_count.
std::uint32_t part_count_for(const LayoutDescriptor& layout, std::uint64_t bytes_max);

/// Sizes that make sense by themselves; the message names the field.
Status validate(const LayoutDescriptor& layout);

/// Ok, or failed_precondition with one sentence that names the first field that differs and both
/// values, e.g. "page_size: prefill has 16, decode has 32". numerics_family, dp ranks and
/// page_stride_bytes may differ.
Status check_compatible(const LayoutDescriptor& prefill, const LayoutDescriptor& decode);

/// Which share of the KV one prefill rank sends to one decode rank.
struct TransferPlan {
  std::uint32_t layer_begin = 0, layer_end = 0;      ///< within the prefill rank's layers
  std::uint32_t kv_head_begin = 0, kv_head_end = 0;  ///< within the prefill rank's heads
  std::uint64_t page_bytes = 0;
  std::uint32_t part_count = 1;
  bool same_numerics = true;
  std::uint64_t hash = 0;  ///< over everything above and both layouts; both sides compare it
};

/// The plan for a compatible pair, or why there is none. Equal TP and PP sizes only in this
/// version: each rank sends whole pages to its twin.
Result<TransferPlan> make_plan(const LayoutDescriptor& prefill, const LayoutDescriptor& decode);

}  // namespace tandem::handoff
