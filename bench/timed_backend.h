// A backend that does nothing itself, but notes how long each op of another one took, and how much
// it had to read and multiply at least.
#pragma once

#include "bench/limits.h"
#include "common/base/near_code.h"
#include "kernels/api/forwarding_backend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::bench {

/// now_s() that costs next to nothing: the processor's counter of time, where it has one that
/// neither halts nor changes its pace. The system's clock reads memory of its own, which the
/// weights of the op before have pushed out of the caches.
class OpClock {
 public:
  OpClock() {
#if defined(__x86_64__)
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const bool invariant = __get_cpuid(0x80000007U, &a, &b, &c, &d) != 0 && (d & (1U << 8U)) != 0;
    if (invariant && !use_cpu_time) {
      const Both start = read_both();
      while (now_s() < start.seconds + 0.02) {
      }
      const Both end = read_both();
      seconds_per_tick_ =
          (end.seconds - start.seconds) / static_cast<double>(end.ticks - start.ticks);
    }
#endif
    // The best of some: whoever is interrupted meanwhile would count that.
    constexpr int kReadings = 200;
    for (int turn = 0; turn < 20; ++turn) {
      const double start = now();
      for (int i = 1; i < kReadings; ++i)
        (void)now();
      const double took = (now() - start) / kReadings;
      if (turn == 0 || took < reading_s_) reading_s_ = took;
    }
  }

  [[nodiscard]] double now() const {
#if defined(__x86_64__)
    if (seconds_per_tick_ > 0) return static_cast<double>(__rdtsc()) * seconds_per_tick_;
#endif
    return now_s();
  }

  /// What now() takes.
  [[nodiscard]] double reading_s() const {
    return reading_s_;
  }

 private:
#if defined(__x86_64__)
  struct Both {
    double seconds = 0;
    std::uint64_t ticks = 0;
  };

  /// Of several readings that in which the two are nearest.
  static Both read_both() {
    Both best;
    std::uint64_t least = ~std::uint64_t{0};
    for (int turn = 0; turn < 20; ++turn) {
      const std::uint64_t before = __rdtsc();
      const double seconds = now_s();
      const std::uint64_t after = __rdtsc();
      if (after - before >= least) continue;
      least = after - before;
      best = {.seconds = seconds, .ticks = before + least / 2};
    }
    return best;
  }
#endif

  double seconds_per_tick_ = 0;
  double reading_s_ = 0;
};

/// What all calls of one op together cost.
struct OpCost {
  double seconds = 0;
  double bytes = 0;       ///< weights or KV: what must come from memory
  double spared = 0;      ///< more, had bf16 weights not been kept in less (kShortBf16)
  double flops = 0;       ///< f32 operations
  double bf16_flops = 0;  ///< f32 sums of bf16 products, where the family has such products
  double int8_ops = 0;    ///< 8-bit operations
  double parameters = 0;  ///< of weights that a token meets
  int calls = 0;
};

/// What it does before and behind an op of a pass lies with what the model does there, which is
/// asked for ahead: its own waits for code would count as the model's.
class TimedBackend final : public kernels::ForwardingBackend {
 public:
  /// Borrows `inner`.
  explicit TimedBackend(const kernels::Backend& inner) : ForwardingBackend(inner) {}

  /// By op; linear layers by their size.
  [[nodiscard]] std::map<std::string, OpCost> costs() const {
    std::map<std::string, OpCost> out;
    for (const Row& row : rows_) {
      const std::string size =
          row.op.n == 0 ? "" : " " + std::to_string(row.op.n) + "x" + std::to_string(row.op.k);
      if (row.cost.calls > 0) out[std::string(row.op.name) + size] = row.cost;
    }
    return out;
  }

  void reset() {
    for (Row& row : rows_)
      row.cost = {};
    own_seconds_ = 0;
    first_start_ = 0;
    last_experts_.clear();
  }

  /// Of one layer of a mixture of experts, the mean of all layers; zeros without one.
  struct Experts {
    double read = 0;  ///< by one call
    double seen = 0;  ///< by any call
  };

  /// Of what was kept since forget_experts().
  [[nodiscard]] Experts experts() const {
    if (experts_seen_.empty()) return {};
    double seen = 0;
    for (const auto& [layer, ids] : experts_seen_)
      seen += static_cast<double>(ids.size());
    return {.read = experts_read_ / expert_calls_,
            .seen = seen / static_cast<double>(experts_seen_.size())};
  }

  /// Adds those of the calls since reset().
  void keep_experts() {
    for (const auto& [layer, ids] : last_experts_) {
      experts_seen_[layer].insert(ids.begin(), ids.end());
      experts_read_ += static_cast<double>(ids.size());
      ++expert_calls_;
    }
  }

  void forget_experts() {
    experts_seen_.clear();
    experts_read_ = 0;
    expert_calls_ = 0;
  }

  /// What a cost is noted under. `name` is of a literal.
  struct Op {
    std::string_view name = {};
    std::size_t n = 0;  ///< of a linear layer
    std::size_t k = 0;

    bool operator==(const Op&) const = default;
  };

  void embedding(const kernels::EmbeddingArgs& args, kernels::ThreadPool& pool) const override {
    timed(
        {.name = "embedding"}, [&] { inner().embedding(args, pool); }, uncounted);
  }

  TANDEM_BETWEEN_OPS void linear(const kernels::LinearArgs& args,
                                 kernels::ThreadPool& pool) const override {
    timed_as([&] { return linear_op("linear", *args.weight); },
             [&] { inner().linear(args, pool); },
             [&](OpCost& cost) { count_linear(*args.weight, args.tokens, cost); });
  }

  TANDEM_BETWEEN_OPS void gated_linear(const kernels::GatedLinearArgs& args,
                                       kernels::ThreadPool& pool) const override {
    timed_as([&] { return linear_op("gated linear", *args.weight); },
             [&] { inner().gated_linear(args, pool); },
             [&](OpCost& cost) { count_linear(*args.weight, args.tokens, cost); });
  }

  TANDEM_BETWEEN_OPS void rms_norm(const kernels::RmsNormArgs& args,
                                   kernels::ThreadPool& pool) const override {
    timed(
        {.name = "norm"}, [&] { inner().rms_norm(args, pool); }, uncounted);
  }

  void head_norm(const kernels::HeadNormArgs& args, kernels::ThreadPool& pool) const override {
    timed(
        {.name = "norm"}, [&] { inner().head_norm(args, pool); }, uncounted);
  }

  void rope(const kernels::RopeArgs& args, kernels::ThreadPool& pool) const override {
    timed(
        {.name = "rope"}, [&] { inner().rope(args, pool); }, uncounted);
  }

  void silu_mul(const kernels::SiluMulArgs& args, kernels::ThreadPool& pool) const override {
    timed(
        {.name = "silu_mul"}, [&] { inner().silu_mul(args, pool); }, uncounted);
  }

  TANDEM_BETWEEN_OPS void route(const kernels::RouteArgs& args,
                                kernels::ThreadPool& pool) const override {
    timed(
        {.name = "route"}, [&] { inner().route(args, pool); }, uncounted);
  }

  TANDEM_BETWEEN_OPS void expert_mlp(const kernels::ExpertMlpArgs& args,
                                     kernels::ThreadPool& pool) const override {
    timed(
        {.name = "expert_mlp"},
        [&] { inner().expert_mlp(args, pool); },
        [&](OpCost& cost) { count_experts(args, cost); });
  }

  void write_kv(const kernels::WriteKvArgs& args, kernels::ThreadPool& pool) const override {
    timed(
        {.name = "write_kv"}, [&] { inner().write_kv(args, pool); }, uncounted);
  }

  TANDEM_BETWEEN_OPS void prepare_heads(const kernels::PrepareHeadsArgs& args,
                                        kernels::ThreadPool& pool) const override {
    timed(
        {.name = "prepare_heads"}, [&] { inner().prepare_heads(args, pool); }, uncounted);
  }

  TANDEM_BETWEEN_OPS void attention(const kernels::AttentionArgs& args,
                                    kernels::ThreadPool& pool) const override {
    timed(
        {.name = "attention"},
        [&] { inner().attention(args, pool); },
        [&](OpCost& cost) { count_attention(args, cost); });
  }

  /// Adds what fn() takes to the costs of `op`, and what count(OpCost&) says.
  template <class Fn, class Count>
  [[gnu::always_inline]] void timed(Op op, Fn fn, Count count) const {
    timed_as([&] { return op; }, fn, count);
  }

  /// The same, where to name the op is to look at what fn() reads: not before it.
  template <class Name, class Fn, class Count>
  [[gnu::always_inline]] void timed_as(Name name, Fn fn, Count count) const {
    const double start = op_clock_.now();
    fn();
    note(start, op_clock_.now(), name, count);
  }

  /// Time that all this noting took since reset(): nobody else's.
  [[nodiscard]] double own_seconds() const { return own_seconds_; }

  /// The clock of what follows.
  [[nodiscard]] const OpClock& op_clock() const { return op_clock_; }

  /// When the first op since reset() began, and when the last one was noted.
  [[nodiscard]] double first_start() const { return first_start_; }

  [[nodiscard]] double last_end() const { return last_end_; }

 private:
  /// Apart from the code around an op: what it waits for is its own time, and is left out.
  template <class Name, class Count>
  [[gnu::noinline]] void note(double start, double end, Name name, Count count) const {
    if (first_start_ == 0) first_start_ = start;
    OpCost& cost = cost_of(name());
    cost.seconds += end - start;
    ++cost.calls;
    count(cost);
    last_end_ = op_clock_.now();
    own_seconds_ += last_end_ - end + op_clock_.reading_s();
  }

  static void uncounted(OpCost& /*cost*/) {}

  void count_experts(const kernels::ExpertMlpArgs& args, OpCost& cost) const {
    const std::size_t rows = args.tokens * args.top_k;
    // Only the experts that some token has are read.
    const std::set<std::int32_t> chosen(args.ids, args.ids + rows);
    last_experts_.emplace_back(args.gate, chosen);
    for (const kernels::PackedWeight* weight : {args.gate, args.up, args.down}) {
      cost.bytes += static_cast<double>(chosen.size() * weight->bytes() / weight->count());
      cost.spared += static_cast<double>(chosen.size()) * spared_of(*weight);
      cost.parameters += static_cast<double>(args.top_k) * matrix_size(*weight);
      count_products(*weight, 2.0 * static_cast<double>(rows) * matrix_size(*weight), cost);
    }
  }

  void count_attention(const kernels::AttentionArgs& args, OpCost& cost) const {
    const kernels::RaggedTokens& batch = args.batch;
    const double row = static_cast<double>(args.kv.head_dim);
    const bool as_bf16 = attention_multiplies_bf16(inner().family(), args.kv.dtype);
    for (std::size_t t = 0; t < batch.tokens; ++t) {
      const double visible = static_cast<double>(batch.position[t]) + 1;
      double& flops = as_bf16 ? cost.bf16_flops : cost.flops;
      flops += 4 * visible * row * static_cast<double>(args.heads);
      // A sequence's pages are read once for all of its tokens in the batch.
      if (t + 1 < batch.tokens && batch.sequence[t + 1] == batch.sequence[t]) continue;
      cost.bytes += 2 * visible * row * static_cast<double>(args.kv.kv_heads) *
                    static_cast<double>(kernels::dtype_bytes(args.kv.dtype));
    }
  }

  static Op linear_op(const char* name, const kernels::PackedWeight& weight) {
    return {.name = name, .n = weight.n(), .k = weight.k()};
  }

  void count_linear(const kernels::PackedWeight& weight, std::size_t tokens, OpCost& cost) const {
    const double ops = 2.0 * static_cast<double>(tokens) * matrix_size(weight);
    cost.bytes += tokens == 0 ? 0 : static_cast<double>(weight.bytes());
    cost.spared += tokens == 0 ? 0 : spared_of(weight);
    cost.parameters += matrix_size(weight);
    count_products(weight, ops, cost);
  }

  static double matrix_size(const kernels::PackedWeight& weight) {
    return static_cast<double>(weight.n()) * static_cast<double>(weight.k());
  }

  /// Of one weight of a stack.
  [[nodiscard]] double spared_of(const kernels::PackedWeight& weight) const {
    if (weight.scheme() != kernels::WeightScheme::kShortBf16) return 0;
    const std::size_t plain = inner().packed_bytes(weight.n(), weight.k(), kernels::DType::kBf16);
    return static_cast<double>(plain) -
           static_cast<double>(weight.bytes()) / static_cast<double>(weight.count());
  }

  void count_products(const kernels::PackedWeight& weight, double ops, OpCost& cost) const {
    if (kernels::rounds_to_bytes(weight.scheme())) {
      cost.int8_ops += ops;
    } else if (multiplies_bf16(inner().family(), weight.format())) {
      cost.bf16_flops += ops;
    } else {
      cost.flops += ops;
    }
  }

  struct Row {
    Op op;
    OpCost cost = {};
  };

  OpCost& cost_of(const Op& op) const {
    for (Row& row : rows_) {
      if (row.op == op) return row.cost;
    }
    return rows_.emplace_back(Row{.op = op}).cost;
  }

  OpClock op_clock_;
  mutable std::vector<Row> rows_;  ///< of few ops
  mutable double own_seconds_ = 0;
  mutable double first_start_ = 0;
  mutable double last_end_ = 0;
  mutable std::vector<std::pair<const kernels::PackedWeight*, std::set<std::int32_t>>>
      last_experts_;
  std::map<const kernels::PackedWeight*, std::set<std::int32_t>> experts_seen_;
  double experts_read_ = 0;
  double expert_calls_ = 0;
};

}  // namespace tandem::bench
