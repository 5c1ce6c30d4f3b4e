#include "kernels/cpu/panels.h"

#include "kernels/api/convert.h"

#include <algorithm>
#include <cstring>

namespace tandem::kernels::cpu {
namespace {

// Columns converted at a time: what is widened stays in the first-level cache.
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

/// Whether 16 rows are bf16 already and even, so that their words of two only change places.
bool only_moves(const Source& source, std::size_t k, DType store) {
  bool moves = store == DType::kBf16 && k % 2 == 0;
  for (std::size_t lane = 0; lane < kPanel && moves; ++lane)
    moves = source.row[lane] != nullptr && source.dtype[lane] == store;
  return moves;
}

/// The panel in order, from 16 rows at once: a model's start is mostly this.
void move_pairs(const Source& source, std::size_t k, std::byte* panel) {
  const std::byte* row[kPanel];
  std::copy(std::begin(source.row), std::end(source.row), row);
  for (std::size_t at = 0; at < k * 2; at += 4) {
    for (std::size_t lane = 0; lane < kPanel; ++lane)
      std::memcpy(panel + at * kPanel + lane * 4, row[lane] + at, 4);
  }
}

template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}

// q, scale and sum of one row. `wide` holds the row.
void pack_int8_lane(
    const float* wide, std::size_t lane, std::size_t k, const Kernels& kernels, std::byte* panel) {
  const float scale = kernels.int8_scale(wide, k);
  std::int32_t sum = 0;
  std::int8_t q[kStrip];
  for (std::size_t begin = 0; begin < k; begin += kStrip) {
    const std::size_t count = std::min(kStrip, k - begin);
    kernels.to_int8(wide + begin, count, scale, q);
    std::byte* to = panel + 128 + begin * kPanel + lane * 4;
    for (std::size_t i = 0; i < count; ++i) {
      put(to + i / 4 * 64 + i % 4, q[i]);
      sum += q[i];
    }
  }
  put(panel + lane * 4, scale);
  put(panel + 64 + lane * 4, sum * 128);
}

void pack_int4_lane(
    const float* wide, std::size_t lane, std::size_t k, const Kernels& kernels, std::byte* panel) {
  std::int8_t q[kInt4Group];
  for (std::size_t begin = 0; begin < k; begin += kInt4Group) {
    const std::size_t count = std::min(kInt4Group, k - begin);
    std::uint16_t affine[2];
    kernels.to_int4(wide + begin, count, q, affine);
    put(panel + lane * 4, affine[0]);
    put(panel + lane * 4 + 2, affine[1]);
    std::byte* to = panel + 64 + lane * 4;
    for (std::size_t i = 0; i < count; ++i) {
      to[i / 8 * 64 + i % 8 / 2] |= static_cast<std::byte>((q[i] & 15) << (i % 2 * 4));
    }
    panel += 64 + kInt4Group / 2 * kPanel;
  }
}

// `wide` takes k floats.
void pack_quantized(const Source& source,
                    std::size_t k,
                    WeightScheme scheme,
                    const Kernels& kernels,
                    float* wide,
                    std::byte* panel) {
  for (std::size_t lane = 0; lane < kPanel; ++lane) {
    if (source.row[lane] == nullptr) continue;
    kernels.widen_row(source.row[lane], source.dtype[lane], wide, k);
    if (scheme == WeightScheme::kInt4Group128) {
      pack_int4_lane(wide, lane, k, kernels, panel);
    } else {
      pack_int8_lane(wide, lane, k, kernels, panel);
    }
  }
}

}  // namespace

std::unique_ptr<PackedWeight> pack_panels(std::span<const MatrixView> parts,
                                          std::size_t count,
                                          WeightFormat store,
                                          const Kernels& kernels,
                                          ThreadPool& pool) {
  const std::size_t parts_each = parts.size() / count;
  std::size_t n = 0;
  for (const MatrixView& part : parts.first(parts_each))
    n += part.rows;
  const std::size_t k = parts.empty() ? 0 : parts[0].cols;
  const std::size_t bytes = panel_bytes(k, store);
  const std::size_t panels = panel_count(n);
  auto packed =
      std::make_unique<PackedWeight>(WeightLayout::kPanel16, store, n, k, panels * bytes, count);
  if (packed->data() == nullptr) return nullptr;
  pool.parallel_for(count * panels, [&](std::size_t task, std::size_t worker) {
    const std::size_t weight = task / panels;
    const std::size_t panel = task % panels;
    std::byte* to = packed->mutable_data(weight) + panel * bytes;
    const Source source = find_rows(parts.subspan(weight * parts_each, parts_each), panel * kPanel);
    if (store.scheme != WeightScheme::kFloat) {
      std::memset(to, 0, bytes);
      auto* wide = reinterpret_cast<float*>(pool.scratch(worker));
      pack_quantized(source, k, store.scheme, kernels, wide, to);
      return;
    }
    const bool padded = k % 32 != 0 || source.row[kPanel - 1] == nullptr;
    if (padded) std::memset(to, 0, bytes);
    if (only_moves(source, k, store.dtype)) return move_pairs(source, k, to);
    for (std::size_t lane = 0; lane < kPanel; ++lane) {
      if (source.row[lane] != nullptr) pack_lane(source, lane, k, store.dtype, kernels, to);
    }
  });
  return packed;
}

}  // namespace tandem::kernels::cpu
