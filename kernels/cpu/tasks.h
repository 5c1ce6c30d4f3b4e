// How ops are cut into tasks for the pool. For portable files only (see simd/table.h).
#pragma once

#include "kernels/api/thread_pool.h"
#include "kernels/cpu/simd/table.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace tandem::kernels::cpu {

// Work below which waking another thread costs more than it saves, in elements touched or in
// multiply-adds.
inline constexpr std::size_t kElementsPerTask = 16 * 1024;
inline constexpr std::size_t kMacsPerTask = 256 * 1024;
// Tasks per thread, so that a thread that lost its core does not hold the others up for long.
inline constexpr std::size_t kTasksPerThread = 4;
// Up to so many rows a product takes the time of reading its weight, and every stream that is begun
// costs some of it: fewer tasks then (4 a thread took 1 to 4 % longer, with experts 12 %).
inline constexpr std::size_t kFewRows = 8;
inline constexpr std::size_t kTasksPerThreadOfFewRows = 2;
// Over so many rows a task that is left alone at the end costs more than cutting (docs/kernels.md).
inline constexpr std::size_t kManyRows = 128;

// Floats of a task's scratch from which on gated_linear keeps gate and up, behind what linear
// takes. Two panels of each, and a third of up where it is not aligned, must fit for most rows.
inline constexpr std::size_t kGatedAt = kTilesRoom / sizeof(float);
inline constexpr std::size_t kGatedFloats = ThreadPool::kScratchBytes / sizeof(float) - kGatedAt;
static_assert(kGatedFloats >= 2 * kMostRows * 3 * 2 * kPanel);
// The sums of a cut, and the cut: float_cuts.h.
static_assert(kPackedFloats + (kMostRows + 256) * kPanel <= kGatedAt);

/// Keys of a kv head in page 0.
inline std::byte* kv_head_base(const KvLayer& kv, std::size_t kv_head) {
  return kv.base + kv.layer_offset_bytes +
         kv_head * kv.page_size * kv.head_dim * dtype_bytes(kv.dtype);
}

/// Tasks that a large product is cut into, with `rows` rows for each panel; `of_many_rows` for each
/// thread where there are many.
inline std::size_t most_tasks(const ThreadPool& pool, std::size_t rows, std::size_t of_many_rows) {
  if (pool.thread_count() == 1) return 1;
  if (rows <= kFewRows) return pool.thread_count() * kTasksPerThreadOfFewRows;
  return pool.thread_count() * (rows > kManyRows ? of_many_rows : kTasksPerThread);
}

/// fn(row), or fn(row, worker), for all rows, in tasks of at least kElementsPerTask elements.
template <class Fn>
void for_rows(ThreadPool& pool, std::size_t rows, std::size_t elements_per_row, Fn fn) {
  const std::size_t most = pool.thread_count() * kTasksPerThread;
  const std::size_t tasks =
      std::clamp<std::size_t>(rows * elements_per_row / kElementsPerTask, 1, most);
  pool.parallel_for(tasks, [&](std::size_t task, std::size_t worker) {
    const std::size_t end = rows * (task + 1) / tasks;
    for (std::size_t row = rows * task / tasks; row < end; ++row) {
      if constexpr (std::is_invocable_v<Fn, std::size_t, std::size_t>) {
        fn(row, worker);
      } else {
        fn(row);
      }
    }
  });
}

/// Rows of a block where so many fit: whole register tiles, unless that left a last block so small
/// that reading the weight for it would cost more than its products.
inline std::size_t even_rows(std::size_t tokens, std::size_t fit, const Kernels& kernels) {
  const std::size_t most =
      fit >= kernels.row_step ? fit / kernels.row_step * kernels.row_step : fit;
  if (tokens <= most) return tokens;
  const std::size_t blocks = (tokens + most - 1) / most;
  const std::size_t even = (tokens + blocks - 1) / blocks;
  const std::size_t least = kernels.row_step % 16 == 0 ? 16 : 4;
  for (const std::size_t step : {kernels.row_step, least}) {
    const std::size_t whole = std::min((even + step - 1) / step * step, most);
    if (((tokens - 1) % whole + 1) * 2 >= whole) return whole;
  }
  return even;
}

/// How many rows of x one task packs for a weight: as many as fit.
inline std::size_t row_block(std::size_t tokens,
                             const PackedWeight& weight,
                             const Kernels& kernels) {
  std::size_t fit = kernels.most_rows == nullptr
                        ? 0
                        : kernels.most_rows(weight.k(), weight.scheme(), weight.dtype());
  if (fit == 0) {
    fit =
        std::clamp<std::size_t>(kPackedFloats / std::max<std::size_t>(weight.k(), 1), 1, kMostRows);
  }
  return even_rows(tokens, fit, kernels);
}

/// Panels for one task of a product in `parts` parts, each with `macs` multiply-adds over all
/// panels.
inline std::size_t panel_step(std::size_t most_tasks,
                              std::size_t parts,
                              std::size_t macs,
                              std::size_t panels) {
  const std::size_t wanted = std::min((most_tasks + parts - 1) / parts, macs / kMacsPerTask + 1);
  const std::size_t even = (panels + wanted - 1) / wanted;
  return (even + 3) / 4 * 4;
}

}  // namespace tandem::kernels::cpu
