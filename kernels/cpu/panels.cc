#include "kernels/cpu/panels.h"

#include "kernels/api/convert.h"

#include <algorithm>
#include <cstring>

namespace tandem::kernels::cpu {
namespace {

// Columns converted at a time: the strip of 16 rows stays in the first-level cache while it is
// transposed.
constexpr std::size_t kStrip = 256;

struct Source {
  const std::byte* row[kPanel];  // null: padding
  DType dtype[kPanel];
};

Source find_rows(std::span<const MatrixView> parts, std::size_t first) {
  Source source{};
  std::size_t begin = 0;
  for (const MatrixView& part : parts) {
    const std::size_t stride = stride_or(part.row_stride, part.cols) * dtype_bytes(part.dtype);
    for (std::size_t lane = 0; lane < kPanel; ++lane) {
      const std::size_t row = first + lane;
      if (row < begin || row >= begin + part.rows) continue;
      source.row[lane] = static_cast<const std::byte*>(part.data) + (row - begin) * stride;
      source.dtype[lane] = part.dtype;
    }
    begin += part.rows;
  }
  return source;
}

template <class Element>
void scatter(const Element* from,
             std::byte* panel,
             std::size_t lane,
             std::size_t k,
             std::size_t count,
             DType store) {
  auto* to = reinterpret_cast<Element*>(panel);
  for (std::size_t i = 0; i < count; ++i)
    to[panel_index(lane, k + i, store)] = from[i];
}

void pack_lane(const Source& source,
               std::size_t lane,
               std::size_t k,
               DType store,
               const Kernels& kernels,
               std::byte* panel) {
  alignas(64) float wide[kStrip];
  alignas(64) std::uint16_t narrow[kStrip];
  for (std::size_t begin = 0; begin < k; begin += kStrip) {
    const std::size_t count = std::min(kStrip, k - begin);
    const DType dtype = source.dtype[lane];
    const std::byte* from = source.row[lane] + begin * dtype_bytes(dtype);
    if (dtype == store && store != DType::kF32) {
      std::memcpy(
          narrow, from, count * sizeof(narrow[0]));  // the bits as they are, NaN payloads too
      scatter(narrow, panel, lane, begin, count, store);
      continue;
    }
    kernels.widen_row(from, dtype, wide, count);
    if (store == DType::kF32) {
      scatter(wide, panel, lane, begin, count, store);
    } else {
      kernels.narrow_row(wide, store, narrow, count);
      scatter(narrow, panel, lane, begin, count, store);
    }
  }
}

}  // namespace

std::unique_ptr<PackedWeight> pack_panels(std::span<const MatrixView> parts,
                                          DType store,
                                          const Kernels& kernels,
                                          ThreadPool& pool) {
  std::size_t n = 0;
  for (const MatrixView& part : parts)
    n += part.rows;
  const std::size_t k = parts.empty() ? 0 : parts[0].cols;
  const std::size_t bytes = panel_bytes(k, store);
  const std::size_t panels = panel_count(n);
  auto packed = std::make_unique<PackedWeight>(WeightLayout::kPanel16, store, n, k, panels * bytes);
  if (packed->data() == nullptr) return nullptr;
  pool.parallel_for(panels, [&](std::size_t panel, std::size_t) {
    std::byte* to = packed->mutable_data() + panel * bytes;
    const Source source = find_rows(parts, panel * kPanel);
    const bool padded = k % 32 != 0 || source.row[kPanel - 1] == nullptr;
    if (padded) std::memset(to, 0, bytes);
    for (std::size_t lane = 0; lane < kPanel; ++lane) {
      if (source.row[lane] != nullptr) pack_lane(source, lane, k, store, kernels, to);
    }
  });
  return packed;
}

}  // namespace tandem::kernels::cpu
