#include "kernels/cpu/cpu_backend.h"

#include "kernels/api/convert.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/tasks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>

namespace tandem::kernels {
namespace {

// Where K and V of a token lie.
struct Slot {
  std::byte* k;  ///< of its first head; V lies value_offset bytes behind
  std::size_t value_offset;
  std::size_t head_stride;
  std::size_t row_bytes;
};

Slot slot_of(const RaggedTokens& batch, std::size_t token, const KvLayer& kv) {
  const SequencePages& sequence = batch.sequences[batch.sequence[token]];
  const auto position = static_cast<std::size_t>(batch.position[token]);
  const auto page = static_cast<std::size_t>(sequence.pages[position / kv.page_size]);
  const std::size_t row_bytes = kv.head_dim * dtype_bytes(kv.dtype);
  return {.k = cpu::kv_head_base(kv, 0) + page * kv.page_stride_bytes +
               position % kv.page_size * row_bytes,
          .value_offset = kv.layer_bytes() / 2,
          .head_stride = kv.page_size * row_bytes,
          .row_bytes = row_bytes};
}

// A token's heads of K and V into its slot.
void write_token(const cpu::Kernels& kernels,
                 const float* k,
                 const float* v,
                 const Slot& slot,
                 const KvLayer& kv) {
  for (std::size_t head = 0; head < kv.kv_heads; ++head) {
    std::byte* row = slot.k + head * slot.head_stride;
    kernels.narrow_row(k + head * kv.head_dim, kv.dtype, row, kv.head_dim);
    kernels.narrow_row(v + head * kv.head_dim, kv.dtype, row + slot.value_offset, kv.head_dim);
  }
}

void ask_for(const void* from, std::size_t bytes) {
  const auto* lines = static_cast<const std::byte*>(from);
  for (std::size_t at = 0; at < bytes; at += 64)
    __builtin_prefetch(lines + at);
}

// How far ahead of their turn heads are asked for: hardware alone follows no further than to the
// end of a page of 4 KiB.
constexpr std::size_t kHeadsAheadBytes = 4096;

// Tasks of another worker's share from which on some of it is taken, where whoever takes it may
// have to pack its rows first.
constexpr std::uint32_t kWorthTaking = 3;

// fn(task, worker) for all tasks. Each worker has a range of its own, so that neighbours, which
// share rows of x and ask for each other's panels, are seldom met by two workers; then it takes
// from the others' ranges as long as `worth_taking` tasks of one are left.
template <class Fn>
void for_ranges(ThreadPool& pool, std::size_t tasks, std::uint32_t worth_taking, Fn fn) {
  struct Range {
    std::atomic<std::uint32_t> next;
    std::uint32_t end;
  };

  Range ranges[ThreadPool::kMaxThreads];
  const std::size_t count = std::min(pool.thread_count(), tasks);
  for (std::size_t i = 0; i < count; ++i) {
    ranges[i].next.store(static_cast<std::uint32_t>(tasks * i / count), std::memory_order_relaxed);
    ranges[i].end = static_cast<std::uint32_t>(tasks * (i + 1) / count);
  }
  pool.parallel_for(count, [&](std::size_t own, std::size_t worker) {
    for (std::size_t i = 0; i < count; ++i) {
      Range& range = ranges[(own + i) % count];
      const std::uint32_t keep = i == 0 ? 0 : worth_taking - 1;
      while (range.next.load(std::memory_order_relaxed) + keep < range.end) {
        const std::uint32_t task = range.next.fetch_add(1, std::memory_order_relaxed);
        if (task >= range.end) break;
        fn(task, worker);
      }
    }
  });
}

// Products of rows of x with the first `columns` outputs of a weight, and with as many others for
// each further stream.
struct Product {
  const float* x;
  std::size_t x_stride;
  const std::byte* x_packed;  ///< as the product reads them, or as 8 bit; or null
  const std::byte* x_halves;  ///< as bf16, to be packed; or null
  std::size_t tokens;
  const PackedWeight& weight;
  std::size_t columns;
  std::size_t streams;
};

// What Kernels::shares_rows or Kernels::takes_gated says. Without inputs there is nothing to pack,
// and no product.
bool allows(bool (*rows_are_fit)(std::size_t, WeightScheme, DType),
            std::size_t rows,
            const PackedWeight& weight) {
  return weight.k() > 0 && rows_are_fit != nullptr &&
         rows_are_fit(rows, weight.scheme(), weight.dtype());
}

// See Kernels::takes_packed.
bool takes_packed(const cpu::Kernels& kernels,
                  std::size_t rows,
                  std::size_t k,
                  WeightFormat weight) {
  return kernels.takes_packed != nullptr &&
         kernels.takes_packed(rows, k, weight.scheme, weight.dtype);
}

// Whether rows that came packed for such a weight are LinearBlock::x_halves.
bool come_as_halves(const cpu::Kernels& kernels, const PackedWeight& weight, bool whole_rows) {
  return rounds_to_bytes(weight.scheme()) ? !whole_rows : kernels.packs_by_row;
}

// Bytes that a value takes in whole rows that are packed for such a weight.
std::size_t packed_value_bytes(WeightFormat weight) {
  return rounds_to_bytes(weight.scheme) ? 1 : 2;
}

// Where a row, on tiles the first of one, of rows begins that are packed for such a weight.
template <class Byte>
Byte* packed_row(Byte* rows, std::size_t row, std::size_t k, WeightFormat weight) {
  if (rows == nullptr) return nullptr;
  return rows + row * k * packed_value_bytes(weight);
}

// Scales of so many rows that are packed as integers: behind them. Else null.
template <class Float, class Byte>
Float* packed_scales(Byte* packed, std::size_t rows, std::size_t k, WeightFormat weight) {
  if (packed == nullptr || !is_quantized(weight.scheme)) return nullptr;
  return reinterpret_cast<Float*>(
      packed_row(packed, cpu::round_up(rows, cpu::kPackedRows), k, weight));
}

// The block's rows, packed by all workers.
void pack_together(const cpu::LinearBlock& block, const cpu::Kernels& kernels, ThreadPool& pool) {
  constexpr std::size_t kRows = 16;
  const std::size_t tiles = (block.rows + kRows - 1) / kRows;
  const std::size_t tasks = std::min(tiles, pool.thread_count() * cpu::kTasksPerThread);
  pool.parallel_for(tasks, [&](std::size_t task, std::size_t) {
    const std::size_t begin = tiles * task / tasks * kRows;
    const std::size_t end = std::min(tiles * (task + 1) / tasks * kRows, block.rows);
    kernels.pack_rows(block, begin, end);
  });
}

// How a product is cut: rows of a block, and panels of a task.
struct Cut {
  std::size_t rows;
  std::size_t panels;
};

// Rows of a block, and as many panels as leave all workers at work.
Cut cut_of(const Product& product,
           std::size_t rows,
           const cpu::Kernels& kernels,
           const ThreadPool& pool) {
  const std::size_t row_blocks = (product.tokens + rows - 1) / rows;
  const std::size_t panels = cpu::panel_count(product.columns);
  const std::size_t macs = rows * product.weight.k() * panels * cpu::kPanel * product.streams;
  return {.rows = rows,
          .panels = cpu::panel_step(
              cpu::most_tasks(pool, rows, kernels.many_rows_tasks), row_blocks, macs, panels)};
}

// See Kernels::rows_in_parts; of rows that came packed, where `rows` would be a block. Nothing
// unless that leaves every thread two tasks with at least half of the panels: a task brings its
// rows to the caches for each part.
std::optional<Cut> cut_in_parts(const Product& product,
                                std::size_t rows,
                                const cpu::Kernels& kernels,
                                const ThreadPool& pool) {
  const PackedWeight& weight = product.weight;
  if (kernels.rows_in_parts == nullptr || product.streams != 1 || product.tokens <= rows)
    return std::nullopt;
  const std::size_t fit = kernels.rows_in_parts(weight.k(), weight.scheme(), weight.dtype());
  if (fit == 0) return std::nullopt;
  rows = cpu::round_up(cpu::even_rows(product.tokens, fit, kernels), cpu::kPackedRows);
  const std::size_t row_blocks = (product.tokens + rows - 1) / rows;
  const std::size_t all = cpu::panel_count(product.columns);
  for (const std::size_t panels : {cpu::kPartPanels, cpu::kPartPanels / 2}) {
    const std::size_t tasks = row_blocks * ((all + panels - 1) / panels);
    if (tasks >= 2 * pool.thread_count()) return Cut{.rows = rows, .panels = panels};
  }
  return std::nullopt;
}

// fn(block, first row) for all of the product in tasks, whose rows each worker packs for itself, or
// in one block that all of them have packed.
template <class Fn>
void run_blocks(const Product& product,
                const Cut& cut,
                bool shared,
                const cpu::Kernels& kernels,
                ThreadPool& pool,
                Fn fn) {
  const PackedWeight& weight = product.weight;
  const std::size_t k = weight.k();
  const std::size_t panels = cpu::panel_count(product.columns);
  const std::size_t rows = cut.rows;
  const std::size_t row_blocks = (product.tokens + rows - 1) / rows;
  const std::size_t step = cut.panels;
  const std::size_t columns = (panels + step - 1) / step;
  // 1 + the block of rows that each worker packed last.
  std::uint32_t packed[ThreadPool::kMaxThreads];
  std::fill_n(packed, pool.thread_count(), 0U);
  const bool packs_none = shared || (product.x_packed != nullptr && !kernels.packs_by_row);
  const cpu::LinearBlock all = {.x = product.x,
                                .x_stride = product.x_stride,
                                .rows = product.tokens,
                                .weight = weight.data(),
                                .panel_bytes = cpu::panel_bytes(k, weight.format()),
                                .scheme = weight.scheme(),
                                .dtype = weight.dtype(),
                                .k = k,
                                .n = weight.n(),
                                .panel_begin = 0,
                                .panel_end = panels,
                                .bias = nullptr,
                                .y = nullptr,
                                .y_stride = 0,
                                .accumulate = false,
                                .scratch = nullptr,
                                .packed = packs_none,
                                .x_rows = nullptr,
                                .y_rows = nullptr,
                                .row_scale = nullptr,
                                .rows_room = shared ? pool.shared_scratch() : nullptr,
                                .y_packed = nullptr,
                                .up = nullptr,
                                .next = nullptr,
                                .read_order = kernels.read_order,
                                .x_scales = nullptr,
                                .x_halves = product.x_halves};
  const auto* scales =
      packed_scales<const float>(product.x_packed, product.tokens, k, weight.format());
  if (shared) pack_together(all, kernels, pool);
  const auto run = [&](std::size_t task, std::size_t worker) {
    const std::size_t row = task / columns * rows;
    const auto mark = static_cast<std::uint32_t>(task / columns + 1);
    const std::size_t panel = task % columns * step;
    cpu::LinearBlock block = all;
    block.x += row * product.x_stride;
    block.rows = std::min(rows, product.tokens - row);
    block.panel_begin = panel;
    block.panel_end = std::min(panel + step, panels);
    block.scratch = reinterpret_cast<float*>(pool.scratch(worker));
    block.packed = all.packed || packed[worker] == mark;
    packed[worker] = mark;
    if (product.x_halves != nullptr)
      block.x_halves = packed_row(product.x_halves, row, k, DType::kBf16);
    if (product.x_packed != nullptr) {
      const std::byte* rows_of_x = packed_row(product.x_packed, row, k, weight.format());
      if (kernels.packs_by_row) {
        block.x_bytes = rows_of_x;
      } else {
        // Only read, since they are packed.
        block.rows_room = const_cast<std::byte*>(rows_of_x);
      }
      block.x_scales = scales == nullptr ? nullptr : scales + row;
    }
    fn(block, row);
  };
  for_ranges(pool, row_blocks * columns, row_blocks > 1 ? kWorthTaking : 1, run);
}

// fn(block, first row) for all of the product in tasks; fn says where outputs go. fn may change the
// block.
template <class Fn>
void for_blocks(const Product& product, const cpu::Kernels& kernels, ThreadPool& pool, Fn fn) {
  const PackedWeight& weight = product.weight;
  if (product.tokens == 0 || product.columns == 0) return;
  std::size_t rows = cpu::row_block(product.tokens, weight, kernels);
  // To whole tiles.
  if (!kernels.packs_by_row && (product.x_packed != nullptr || product.x_halves != nullptr))
    rows = cpu::round_up(rows, cpu::kPackedRows);
  if (product.x_packed != nullptr) {
    const Cut cut =
        cut_in_parts(product, rows, kernels, pool).value_or(cut_of(product, rows, kernels, pool));
    return run_blocks(product, cut, false, kernels, pool, fn);
  }
  // Fewer blocks than workers: several would pack the same rows.
  if ((product.tokens + rows - 1) / rows >= pool.thread_count() ||
      !allows(kernels.shares_rows, rows, weight))
    return run_blocks(product, cut_of(product, rows, kernels, pool), false, kernels, pool, fn);
  for (std::size_t begin = 0; begin < product.tokens; begin += rows) {
    Product part = product;
    part.x += begin * product.x_stride;
    part.x_halves = packed_row(product.x_halves, begin, weight.k(), DType::kBf16);
    part.tokens = std::min(rows, product.tokens - begin);
    run_blocks(part,
               cut_of(part, part.tokens, kernels, pool),
               allows(kernels.shares_rows, part.tokens, weight),
               kernels,
               pool,
               [&](cpu::LinearBlock& block, std::size_t row) { fn(block, begin + row); });
  }
}

}  // namespace

WeightFormat CpuBackend::kept_format(WeightFormat wanted, std::size_t k) const {
  const bool shorter = wanted == WeightFormat(DType::kBf16) && kernels_.shorten != nullptr &&
                       k > 0 && k <= cpu::kMostShortK;
  return shorter ? WeightScheme::kShortBf16 : wanted;
}

void CpuBackend::fill(std::span<PackJob> jobs, ThreadPool& pool) const {
  cpu::fill_panels(jobs, kernels_, pool);
}

std::size_t CpuBackend::packed_bytes(std::size_t n, std::size_t k, WeightFormat store) const {
  return cpu::panel_count(n) * cpu::panel_bytes(k, store);
}

std::size_t CpuBackend::packed_rows_bytes(std::size_t rows,
                                          std::size_t k,
                                          WeightFormat weight) const {
  if (weight.scheme == WeightScheme::kInt8 || !takes_packed(kernels_, rows, k, weight)) return 0;
  return cpu::round_up(rows, cpu::kPackedRows) * k * dtype_bytes(DType::kBf16);
}

std::size_t CpuBackend::packed_whole_rows_bytes(std::size_t rows,
                                                std::size_t k,
                                                WeightFormat weight) const {
  if (!is_quantized(weight.scheme)) return packed_rows_bytes(rows, k, weight);
  if (!takes_packed(kernels_, rows, k, weight)) return 0;
  return cpu::round_up(rows, cpu::kPackedRows) * (k * packed_value_bytes(weight) + sizeof(float));
}

void CpuBackend::embedding(const EmbeddingArgs& args, ThreadPool& pool) const {
  const MatrixView& table = args.table;
  const std::size_t row_bytes = stride_or(table.row_stride, table.cols) * dtype_bytes(table.dtype);
  cpu::for_rows(pool, args.tokens, table.cols, [&](std::size_t token) {
    const auto* row = static_cast<const std::byte*>(table.data) +
                      static_cast<std::size_t>(args.ids[token]) * row_bytes;
    kernels_.widen_row(row, table.dtype, args.out + token * table.cols, table.cols);
  });
}

void CpuBackend::linear(const LinearArgs& args, ThreadPool& pool) const {
  const PackedWeight& weight = *args.weight;
  const std::size_t y_stride = stride_or(args.y_stride, weight.n());
  const bool as_halves = come_as_halves(kernels_, weight, args.x_whole_rows);
  const Product product = {.x = args.x,
                           .x_stride = stride_or(args.x_stride, weight.k()),
                           .x_packed = as_halves ? nullptr : args.x_packed,
                           .x_halves = as_halves ? args.x_packed : nullptr,
                           .tokens = args.tokens,
                           .weight = weight,
                           .columns = weight.n(),
                           .streams = 1};
  for_blocks(product, kernels_, pool, [&](cpu::LinearBlock& block, std::size_t row) {
    block.bias = args.bias;
    block.y = args.y + row * y_stride;
    block.y_stride = y_stride;
    block.accumulate = args.accumulate;
    kernels_.linear(block);
  });
}

void CpuBackend::gated_linear(const GatedLinearArgs& args, ThreadPool& pool) const {
  const std::size_t dim = args.weight->n() / 2;
  const std::size_t y_stride = stride_or(args.y_stride, dim);
  const bool as_halves = come_as_halves(kernels_, *args.weight, true);
  const Product product = {.x = args.x,
                           .x_stride = stride_or(args.x_stride, args.weight->k()),
                           .x_packed = as_halves ? nullptr : args.x_packed,
                           .x_halves = as_halves ? args.x_packed : nullptr,
                           .tokens = args.tokens,
                           .weight = *args.weight,
                           .columns = dim,
                           .streams = 2};
  for_blocks(product, kernels_, pool, [&](cpu::LinearBlock& block, std::size_t row) {
    const std::size_t end = std::min(block.panel_end * cpu::kPanel, dim);
    if (dim % cpu::kPanel == 0 && allows(kernels_.takes_gated, block.rows, *args.weight)) {
      block.n = dim;
      block.up = block.weight + dim / cpu::kPanel * block.panel_bytes;
      block.bias = args.bias;
      block.y = args.y + row * y_stride;
      block.y_stride = y_stride;
      block.y_packed = packed_row(args.y_packed, row, dim, DType::kBf16);
      kernels_.linear(block);
      return;
    }
    // As many columns at a time as keep gate and up, the latter not aligned, in the room.
    const std::size_t panels = cpu::kGatedFloats / block.rows / 2 / cpu::kPanel - 1;
    const std::size_t step =
        (block.rows > 64 ? std::min<std::size_t>(panels, 8) : panels) / 2 * 2 * cpu::kPanel;
    for (std::size_t column = block.panel_begin * cpu::kPanel; column < end; column += step) {
      const std::size_t count = std::min(step, end - column);
      gated_columns(args, block, row, column, count);
      block.packed = true;
    }
  });
}

// y[row..., column...] = silu(gate) * up of the block's rows. On tiles that take both weights at
// once, a last block of few rows may come here alone.
void CpuBackend::gated_columns(const GatedLinearArgs& args,
                               cpu::LinearBlock block,
                               std::size_t row,
                               std::size_t column,
                               std::size_t count) const {
  float* room = block.scratch + cpu::kGatedAt;
  const std::size_t dim = args.weight->n() / 2;
  const std::size_t shift = (dim + column) % cpu::kPanel;
  const auto panels_of = [](std::size_t columns) {
    return cpu::panel_count(columns) * cpu::kPanel;
  };
  const std::size_t stride = panels_of(count) + panels_of(shift + count);
  const std::byte* weight = block.weight;
  for (const bool up : {false, true}) {
    // From the panel on that holds the first column.
    const std::size_t first = up ? dim + column - shift : column;
    const std::size_t then = up ? column + count : dim + column;
    block.next = weight + then / cpu::kPanel * block.panel_bytes;
    block.weight = weight + first / cpu::kPanel * block.panel_bytes;
    block.n = std::min(args.weight->n() - first, up ? shift + count : count);
    block.bias = args.bias == nullptr ? nullptr : args.bias + first;
    block.panel_begin = 0;
    block.panel_end = cpu::panel_count(block.n);
    block.y = up ? room + panels_of(count) : room;
    block.y_stride = stride;
    kernels_.linear(block);
    block.packed = true;
  }
  const std::size_t y_stride = stride_or(args.y_stride, dim);
  for (std::size_t r = 0; r < block.rows; ++r) {
    float* gate = room + r * stride;
    float* y = args.y_packed != nullptr ? gate : args.y + (row + r) * y_stride + column;
    kernels_.silu_mul_row(gate, gate + panels_of(count) + shift, y, count);
  }
  if (args.y_packed == nullptr) return;
  kernels_.pack_part({.x = room,
                      .x_stride = stride,
                      .rows = block.rows,
                      .columns = count,
                      .to = args.y_packed,
                      .k = dim,
                      .row = row,
                      .column = column});
}

void CpuBackend::rms_norm(const RmsNormArgs& args, ThreadPool& pool) const {
  const std::size_t x_stride = stride_or(args.x_stride, args.dim);
  auto* scales = packed_scales<float>(args.y_packed, args.rows, args.dim, args.y_packed_for);
  cpu::for_rows(pool, args.rows, args.dim, [&](std::size_t row, std::size_t worker) {
    const float* x = args.x + row * x_stride;
    float* y = args.y_packed == nullptr ? args.y + row * stride_or(args.y_stride, args.dim)
                                        : reinterpret_cast<float*>(pool.scratch(worker));
    kernels_.norm_row(
        {.x = x,
         .next = row + 1 < args.rows ? x + x_stride : nullptr,
         .residual = args.residual == nullptr ? nullptr : args.residual + row * args.dim,
         .weight = args.weight,
         .y = y,
         .dim = args.dim,
         .eps = args.eps});
    if (args.y_packed == nullptr) return;
    kernels_.pack_part({.x = y,
                        .x_stride = 0,
                        .rows = 1,
                        .columns = args.dim,
                        .to = args.y_packed,
                        .k = args.dim,
                        .row = row,
                        .column = 0,
                        .scheme = args.y_packed_for.scheme,
                        .scales = scales});
  });
}

void CpuBackend::head_norm(const HeadNormArgs& args, ThreadPool& pool) const {
  const std::size_t dense = args.heads * args.head_dim;
  cpu::for_rows(pool, args.tokens, dense, [&](std::size_t token) {
    for (std::size_t head = 0; head < args.heads; ++head) {
      float* x = args.x + token * stride_or(args.x_stride, dense) + head * args.head_dim;
      kernels_.norm_row({.x = x,
                         .next = nullptr,
                         .residual = nullptr,
                         .weight = args.weight,
                         .y = x,
                         .dim = args.head_dim,
                         .eps = args.eps});
    }
  });
}

void CpuBackend::rope(const RopeArgs& args, ThreadPool& pool) const {
  const std::size_t dense = args.heads * args.head_dim;
  const std::size_t half = stride_or(args.rotary_dim, args.head_dim) / 2;
  cpu::for_rows(pool, args.tokens, dense, [&](std::size_t token) {
    const std::size_t row = static_cast<std::size_t>(args.positions[token]) * half;
    for (std::size_t head = 0; head < args.heads; ++head) {
      kernels_.rope_head(
          {.x = args.x + token * stride_or(args.x_stride, dense) + head * args.head_dim,
           .cos = args.cos + row,
           .sin = args.sin + row,
           .half = half});
    }
  });
}

void CpuBackend::silu_mul(const SiluMulArgs& args, ThreadPool& pool) const {
  const std::size_t in_stride = stride_or(args.in_stride, args.dim);
  const std::size_t out_stride = stride_or(args.out_stride, args.dim);
  cpu::for_rows(pool, args.tokens, args.dim * 4, [&](std::size_t token) {
    kernels_.silu_mul_row(args.gate + token * in_stride,
                          args.up + token * in_stride,
                          args.out + token * out_stride,
                          args.dim);
  });
}

void CpuBackend::write_kv(const WriteKvArgs& args, ThreadPool& pool) const {
  const std::size_t dense = args.kv.kv_heads * args.kv.head_dim;
  cpu::for_rows(pool, args.batch.tokens, dense * 2, [&](std::size_t token) {
    write_token(kernels_,
                args.k + token * stride_or(args.k_stride, dense),
                args.v + token * stride_or(args.v_stride, dense),
                slot_of(args.batch, token, args.kv),
                args.kv);
  });
}

void CpuBackend::prepare_heads(const PrepareHeadsArgs& args, ThreadPool& pool) const {
  const std::size_t dim = args.kv.head_dim;
  const std::size_t touched = (args.heads + 2 * args.kv.kv_heads) * dim;
  cpu::for_rows(pool, args.batch.tokens, touched, [&](std::size_t token) {
    const std::size_t row = static_cast<std::size_t>(args.batch.position[token]) * (dim / 2);
    const auto ask_ahead = [&](const float* x) {
      ask_for(reinterpret_cast<const std::byte*>(x) + kHeadsAheadBytes, dim * sizeof(float));
    };
    const auto rotate = [&](float* x, const float* norm, std::size_t heads) {
      for (std::size_t head = 0; head < heads; ++head, x += dim) {
        ask_ahead(x);
        if (norm != nullptr) {
          kernels_.norm_row({.x = x,
                             .next = nullptr,
                             .residual = nullptr,
                             .weight = norm,
                             .y = x,
                             .dim = dim,
                             .eps = args.eps});
        }
        kernels_.rope_head({.x = x, .cos = args.cos + row, .sin = args.sin + row, .half = dim / 2});
      }
    };
    float* k = args.k + token * args.stride;
    const float* v = args.v + token * args.stride;
    const Slot slot = slot_of(args.batch, token, args.kv);
    rotate(args.q + token * args.stride, args.q_norm, args.heads);
    for (std::size_t head = 0; head < args.kv.kv_heads; ++head) {
      const std::byte* to = slot.k + head * slot.head_stride;
      ask_for(to, slot.row_bytes);
      ask_for(to + slot.value_offset, slot.row_bytes);
      ask_ahead(v + head * dim);
    }
    rotate(k, args.k_norm, args.kv.kv_heads);
    write_token(kernels_, k, v, slot, args.kv);
  });
}

LogSoftmaxStats CpuBackend::log_softmax_stats(std::span<const float> logits) const {
  LogSoftmaxStats stats{.max = kernels_.max(logits.data(), logits.size()), .log_sum = 0};
  if (stats.max == -std::numeric_limits<float>::infinity()) return stats;
  stats.log_sum = std::log(kernels_.exp_sum(logits.data(), logits.size(), stats.max));
  return stats;
}

}  // namespace tandem::kernels
