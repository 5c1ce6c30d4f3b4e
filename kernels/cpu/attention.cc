// How attention is cut into tiles for the pool.
#include "kernels/api/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/tasks.h"

#include <algorithm>

namespace tandem::kernels {
namespace {

static_assert(cpu::kAttentionRoom + cpu::kAttentionOut <= ThreadPool::kScratchBytes);
static_assert(cpu::kPackedFloats * sizeof(float) <= cpu::kAttentionRoom);
static_assert(cpu::kTileRows * kMaxHeadDim * sizeof(float) <= cpu::kAttentionOut);

// What one tile of attention takes: tokens, kv heads, and query heads of each of these.
struct TileShape {
  std::size_t tokens;
  std::size_t kv_heads;
  std::size_t heads;
};

// Whether tasks of these sizes leave threads idle at the end: the longest one, or one more each for
// some.
bool uneven(const RaggedTokens& batch, std::size_t columns, std::size_t threads) {
  std::size_t total = 0;
  std::size_t longest = 0;
  for (std::size_t t = 0; t < batch.tokens; ++t) {
    const auto size = static_cast<std::size_t>(batch.position[t]) + 1;
    total += size;
    longest = std::max(longest, size);
  }
  const std::size_t tasks = batch.tokens * columns;
  const std::size_t rounds = (tasks + threads - 1) / threads;
  // In units of 1 / columns of a token's heads.
  const std::size_t time = std::max(longest, rounds * total / batch.tokens);
  return time * threads * 10 > total * columns * 11;
}

// A batch where hardly any neighbours share a sequence (decode) gets one token a tile, with as many
// kv heads as leave all threads at work: memory is faster the more of them are read together.
TileShape tile_shape(const AttentionArgs& args, std::size_t rows, std::size_t threads) {
  const std::size_t group = args.heads / args.kv.kv_heads;
  const std::size_t heads = std::min(group, cpu::kTileRows);
  std::size_t neighbours = 0;
  for (std::size_t t = 1; t < args.batch.tokens; ++t) {
    neighbours += args.batch.sequence[t] == args.batch.sequence[t - 1] ? 1U : 0U;
  }
  if (neighbours * 2 >= args.batch.tokens) {
    // Smaller tiles where large ones would leave threads idle.
    const std::size_t columns = args.kv.kv_heads * ((group + heads - 1) / heads);
    const std::size_t tasks = threads == 1 ? 1 : threads * cpu::kTasksPerThread;
    while (rows > 2 * cpu::kTileRows && args.batch.tokens * heads * columns < rows * tasks)
      rows /= 2;
    return {.tokens = std::max<std::size_t>(1, rows / heads), .kv_heads = 1, .heads = heads};
  }
  if (heads < group) return {.tokens = 1, .kv_heads = 1, .heads = heads};
  std::size_t kv_heads = std::min(args.kv.kv_heads, cpu::kTileRows / heads);
  while (kv_heads > 1) {
    const std::size_t columns = (args.kv.kv_heads + kv_heads - 1) / kv_heads;
    if (columns * args.batch.tokens >= threads * cpu::kTasksPerThread) break;
    if (!uneven(args.batch, columns, threads)) break;
    kv_heads = (kv_heads + 1) / 2;
  }
  return {.tokens = 1, .kv_heads = kv_heads, .heads = heads};
}

}  // namespace

void CpuBackend::attention(const AttentionArgs& args, ThreadPool& pool) const {
  const KvLayer& kv = args.kv;
  if (args.batch.tokens == 0 || args.heads == 0) return;
  const std::size_t dense = args.heads * kv.head_dim;
  const std::size_t group = args.heads / kv.kv_heads;
  const std::size_t rows = kernels_.attention_rows == nullptr
                               ? cpu::kTileRows
                               : kernels_.attention_rows(kv.dtype, kv.head_dim);
  const TileShape shape = tile_shape(args, rows, pool.thread_count());
  const std::size_t head_tiles = (group + shape.heads - 1) / shape.heads;
  const std::size_t columns = (kv.kv_heads + shape.kv_heads - 1) / shape.kv_heads * head_tiles;
  const std::size_t token_tiles = (args.batch.tokens + shape.tokens - 1) / shape.tokens;

  const std::size_t out_stride = stride_or(args.out_stride, dense);
  pool.parallel_for(token_tiles * columns, [&](std::size_t task, std::size_t worker) {
    std::byte* scratch = pool.scratch(worker);
    auto* room = reinterpret_cast<float*>(scratch + ThreadPool::kScratchBytes - cpu::kAttentionOut);
    // The last tokens of a prompt see the most keys: they start first, so that no thread ends with
    // a big one.
    const std::size_t first = (token_tiles - 1 - task / columns) * shape.tokens;
    const std::size_t last = std::min(first + shape.tokens, args.batch.tokens);
    const std::size_t kv_head = task % columns / head_tiles * shape.kv_heads;
    const std::size_t head_in_group = task % columns % head_tiles * shape.heads;
    const std::size_t head = kv_head * group + head_in_group;
    for (std::size_t begin = first; begin < last;) {
      const std::int32_t sequence = args.batch.sequence[begin];
      std::size_t end = begin + 1;
      while (end < last && args.batch.sequence[end] == sequence)
        ++end;
      const std::size_t row_bytes = kv.head_dim * dtype_bytes(kv.dtype);
      const std::size_t heads = std::min(shape.heads, group - head_in_group);
      const std::size_t kv_heads = std::min(shape.kv_heads, kv.kv_heads - kv_head);
      // Of a token.
      const std::size_t floats = heads * kv_heads * kv.head_dim;
      const bool packed = args.out_packed != nullptr;
      kernels_.attention(
          {.q = args.q + begin * stride_or(args.q_stride, dense) + head * kv.head_dim,
           .q_stride = stride_or(args.q_stride, dense),
           .out = packed ? room : args.out + begin * out_stride + head * kv.head_dim,
           .out_stride = packed ? floats : out_stride,
           .position = args.batch.position + begin,
           .tokens = end - begin,
           .heads = heads,
           .kv_heads = kv_heads,
           .pages = args.batch.sequences[sequence].pages,
           .keys = cpu::kv_head_base(kv, kv_head),
           .kv_head_stride = kv.page_size * row_bytes,
           .value_offset = kv.layer_bytes() / 2,
           .page_stride_bytes = kv.page_stride_bytes,
           .row_bytes = row_bytes,
           .page_size = kv.page_size,
           .head_dim = kv.head_dim,
           .dtype = kv.dtype,
           .scale = args.scale,
           .window = args.window,
           .scratch = scratch});
      if (packed) {
        kernels_.pack_part({.x = room,
                            .x_stride = floats,
                            .rows = end - begin,
                            .columns = floats,
                            .to = args.out_packed,
                            .k = dense,
                            .row = begin,
                            .column = head * kv.head_dim});
      }
      begin = end;
    }
  });
}

}  // namespace tandem::kernels
