// How attention is cut into tiles for the pool.
#include "kernels/api/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/tasks.h"

#include <algorithm>
#include <atomic>
#include <optional>

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

// One op in tasks: some tokens with some kv heads, or some query heads of one.
class AttentionTasks {
 public:
  AttentionTasks(const AttentionArgs& args, const cpu::Kernels& kernels, ThreadPool& pool)
      : args_(args),
        kernels_(kernels),
        pool_(pool),
        dense_(args.heads * args.kv.head_dim),
        q_stride_(stride_or(args.q_stride, dense_)),
        group_(args.heads / args.kv.kv_heads),
        shape_(tile_shape(args, rows_of(args, kernels), pool.thread_count())),
        head_tiles_((group_ + shape_.heads - 1) / shape_.heads),
        columns_((args.kv.kv_heads + shape_.kv_heads - 1) / shape_.kv_heads * head_tiles_),
        token_tiles_((args.batch.tokens + shape_.tokens - 1) / shape_.tokens) {}

  void run() {
    if (shape_.tokens == 1) return run_tokens();
    pool_.parallel_for(count(),
                       [&](std::size_t task, std::size_t worker) { run_task(task, worker); });
  }

 private:
  class Turns;

  static std::size_t rows_of(const AttentionArgs& args, const cpu::Kernels& kernels) {
    if (kernels.attention_rows == nullptr) return cpu::kTileRows;
    return kernels.attention_rows(args.kv.dtype, args.kv.head_dim);
  }

  [[nodiscard]] std::size_t count() const { return token_tiles_ * columns_; }

  // The last tokens of a prompt see the most keys: they start first, so that no thread ends with
  // a big one.
  [[nodiscard]] std::size_t first_token(std::size_t task) const {
    return (token_tiles_ - 1 - task / columns_) * shape_.tokens;
  }

  // Tokens of one sequence.
  [[nodiscard]] cpu::AttentionTile tile(std::size_t task,
                                        std::size_t begin,
                                        std::size_t end,
                                        std::size_t worker) const {
    const KvLayer& kv = args_.kv;
    const std::size_t kv_head = task % columns_ / head_tiles_ * shape_.kv_heads;
    const std::size_t head_in_group = task % columns_ % head_tiles_ * shape_.heads;
    const std::size_t column = (kv_head * group_ + head_in_group) * kv.head_dim;
    const std::size_t heads = std::min(shape_.heads, group_ - head_in_group);
    const std::size_t kv_heads = std::min(shape_.kv_heads, kv.kv_heads - kv_head);
    const std::size_t row_bytes = kv.head_dim * dtype_bytes(kv.dtype);
    const std::size_t out_stride = stride_or(args_.out_stride, dense_);
    const bool packed = args_.out_packed != nullptr;
    std::byte* scratch = pool_.scratch(worker);
    auto* room = reinterpret_cast<float*>(scratch + ThreadPool::kScratchBytes - cpu::kAttentionOut);
    return {.q = args_.q + begin * q_stride_ + column,
            .q_stride = q_stride_,
            .out = packed ? room : args_.out + begin * out_stride + column,
            .out_stride = packed ? heads * kv_heads * kv.head_dim : out_stride,
            .position = args_.batch.position + begin,
            .tokens = end - begin,
            .heads = heads,
            .kv_heads = kv_heads,
            .pages = args_.batch.sequences[args_.batch.sequence[begin]].pages,
            .keys = cpu::kv_head_base(kv, kv_head),
            .kv_head_stride = kv.page_size * row_bytes,
            .value_offset = kv.layer_bytes() / 2,
            .page_stride_bytes = kv.page_stride_bytes,
            .row_bytes = row_bytes,
            .page_size = kv.page_size,
            .head_dim = kv.head_dim,
            .dtype = kv.dtype,
            .scale = args_.scale,
            .window = args_.window,
            .scratch = scratch};
  }

  void compute(const cpu::AttentionTile& tile) const {
    kernels_.attention(tile);
    if (args_.out_packed == nullptr) return;
    const auto from = static_cast<std::size_t>(tile.q - args_.q);
    kernels_.pack_part({.x = tile.out,
                        .x_stride = tile.out_stride,
                        .rows = tile.tokens,
                        .columns = tile.out_stride,
                        .to = args_.out_packed,
                        .k = dense_,
                        .row = from / q_stride_,
                        .column = from % q_stride_});
  }

  void run_task(std::size_t task, std::size_t worker) const {
    const std::size_t first = first_token(task);
    const std::size_t last = std::min(first + shape_.tokens, args_.batch.tokens);
    for (std::size_t begin = first; begin < last;) {
      std::size_t end = begin + 1;
      while (end < last && args_.batch.sequence[end] == args_.batch.sequence[begin])
        ++end;
      compute(tile(task, begin, end, worker));
      begin = end;
    }
  }

  void run_tokens();

  const AttentionArgs& args_;
  const cpu::Kernels& kernels_;
  ThreadPool& pool_;
  std::size_t dense_;  // floats of a token
  std::size_t q_stride_;
  std::size_t group_;  // query heads of a kv head
  TileShape shape_;
  std::size_t head_tiles_;
  std::size_t columns_;
  std::size_t token_tiles_;
};

// The tasks of one token that a thread has, one after the other. A kernel may claim the next one
// before it is done with this one.
class AttentionTasks::Turns : private cpu::NextTile {
 public:
  // `first`, and then what is left from `unclaimed` on.
  Turns(const AttentionTasks& tasks,
        std::size_t first,
        std::size_t worker,
        std::atomic<std::size_t>& unclaimed)
      : cpu::NextTile{.claim = &claim_next}, tasks_(tasks), worker_(worker), unclaimed_(unclaimed) {
    begin(first, &tile_);
  }

  // Null when there are no more.
  [[nodiscard]] const cpu::AttentionTile* tile() const { return tile_ ? &*tile_ : nullptr; }

  void go_on() {
    if (!claimed_) claim_next(*this);
    claimed_ = false;
    tile_ = next_;
  }

 private:
  void begin(std::size_t task, std::optional<cpu::AttentionTile>* tile) {
    const std::size_t token = tasks_.first_token(task);
    *tile = tasks_.tile(task, token, token + 1, worker_);
    (*tile)->next = this;
  }

  static const cpu::AttentionTile* claim_next(cpu::NextTile& next) {
    auto& self = static_cast<Turns&>(next);
    self.claimed_ = true;
    self.next_.reset();
    const std::size_t task = self.unclaimed_.fetch_add(1, std::memory_order_relaxed);
    if (task >= self.tasks_.count()) return nullptr;
    self.begin(task, &self.next_);
    return &*self.next_;
  }

  const AttentionTasks& tasks_;
  std::size_t worker_;
  std::atomic<std::size_t>& unclaimed_;
  bool claimed_ = false;
  std::optional<cpu::AttentionTile> tile_;
  std::optional<cpu::AttentionTile> next_;
};

void AttentionTasks::run_tokens() {
  const std::size_t threads = std::min(count(), pool_.thread_count());
  std::atomic<std::size_t> unclaimed = threads;
  pool_.parallel_for(threads, [&](std::size_t task, std::size_t worker) {
    Turns turns(*this, task, worker, unclaimed);
    while (const cpu::AttentionTile* tile = turns.tile()) {
      compute(*tile);
      turns.go_on();
    }
  });
}

}  // namespace

void CpuBackend::attention(const AttentionArgs& args, ThreadPool& pool) const {
  if (args.batch.tokens == 0 || args.heads == 0) return;
  AttentionTasks(args, kernels_, pool).run();
}

}  // namespace tandem::kernels
