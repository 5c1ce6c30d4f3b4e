// A model through the engine, against what the machine can do: JSON lines. First the limits, then a
// row per load with tokens per second and the share of the bound, then what each op took of the
// fastest step and its share of its own bound (the longer of reading and multiplying).
//
// A run is a prompt, or 48 steps of a decode from the prompts' end on, as other programs take them;
// there are as many as the budget allows, three at least (one of a decode that takes long). "value"
// is tokens over the whole time of the middle run, "best" those of the fastest step, which "ms" is
// of; "target" is the bound of the middle run, with bf16 weights of two bytes each as others have
// them: where ours are kept in less, "share_as_kept" is that of the bound of what is read.
// "parameters_target" of a prompt is the bound as ../shared/bench/PEERS.md counts it: all tokens
// times all parameters, the head too, without attention; "share_by_parameters" is that of it.
// Prompts and the tokens that streams go on with are random (random_tokens.h), so that experts
// vary. "experts_read" of a mixture of experts: how many of a layer a step reads, the mean, of how
// many "experts_seen" in the row; the bound counts those that each step really reads. "note" says
// where a row is beyond its bound.
//
// "sample" is from logits to tokens. "outside ops" is what no op takes of the middle step of a
// decode, in the engine before its first op and after its last one, and between ops, less what
// reading the clock takes.
//   engine_bench [--model DIR] [--dummy] [--threads N] [--family NAME] [--quantization NAME]...
//                [--kv-cache-dtype NAME] [--page-size N] [--context N]... [--streams N]...
//                [--row ROW]... [--budget SECONDS] [--share-pages]
// --dummy makes random weights from config.json alone (bench/models holds some). Rows of another
// model than the shipped one begin with its folder's name. --quantization none, int8wo, int4wo-128
// or w8a8_int8; several give one set of rows each. --kv-cache-dtype fp8_e5m2 or fp8_e4m3, or a
// --page-size other than 16: their rows say so. --share-pages: the pool is as a prefill worker has
// it, memory that other processes can map.
#include "common/engine/engine.h"

#include "bench/bounds.h"
#include "bench/engine_flags.h"
#include "bench/limits.h"
#include "bench/random_tokens.h"
#include "bench/timed_backend.h"
#include "common/base/clock.h"
#include "common/engine/model_executor.h"
#include "common/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tandem::bench {
namespace {

/// A step's time outside of ops: in the engine before the first op and after the last one, and
/// between ops.
struct Outside {
  double before = 0;
  double between = 0;
  double after = 0;

  [[nodiscard]] double sum() const { return before + between + after; }
};

/// What a step of 32 streams may take outside of ops.
constexpr double kOutsideTargetUs = 30;

/// One step's time and what it went to.
struct Step {
  double seconds = 1e30;
  std::map<std::string, OpCost> costs;
};

/// A prompt, or some steps of a decode.
struct Run {
  double seconds = 0;
  double bound_s = 0;
  double kept_bound_s = 0;        ///< as weights are kept
  double parameters_bound_s = 0;  ///< of a prompt
  double tokens = 0;
};

/// Steps of a decode that make a run, as the programs have them that we compare with.
constexpr std::int32_t kSteps = 48;
constexpr std::size_t kRuns = 3;
/// A run of a decode that takes longer, with its prompts, is the only one.
constexpr double kLongRunS = 20;

/// Of prompts and of the tokens that follow them.
constexpr std::uint64_t kSeed = 1;

/// Notes how long the rows of logits took that became tokens. They must be read at least.
class TimedExecutor final : public engine::Executor {
 public:
  TimedExecutor(model::Model* model, std::int32_t page_size, TimedBackend* backend)
      : model_(model, page_size), inner_(&model_, kSeed), backend_(backend) {}

  RandomTokens& fed() { return inner_; }

  [[nodiscard]] const engine::ExecutorInfo& info() const override { return inner_.info(); }

  /// Takes all of the memory now, as it is in a server that has served so much before; llama.cpp
  /// clears its own when it starts. Else 32 streams that begin a page each take 60 MB from
  /// the system in that step.
  Status bind_kv(std::byte* base, std::int64_t page_count) override {
    std::memset(base, 0, static_cast<std::size_t>(page_count) * info().page_bytes);
    return inner_.bind_kv(base, page_count);
  }

  Result<std::span<const float>> forward(std::span<const engine::ForwardSlice> slices) override {
    return inner_.forward(slices);
  }

  [[nodiscard]] std::size_t worker_count() const override { return inner_.worker_count(); }

  void run_tasks(std::size_t count, Task task, void* context) override {
    const double row_bytes = static_cast<double>(info().vocab_size) * sizeof(float);
    backend_->timed(
        {.name = "sample"},
        [&] { inner_.run_tasks(count, task, context); },
        [&](OpCost& cost) { cost.bytes += static_cast<double>(count) * row_bytes; });
  }

 private:
  engine::ModelExecutor model_;
  RandomTokens inner_;
  TimedBackend* backend_;
};

class Bench {
 public:
  Bench(const Flags& flags, TimedBackend& backend, kernels::ThreadPool& pool)
      : flags_(flags), backend_(backend), pool_(pool) {}

  Status run(model::Quantization quantization) {
    quantization_ = quantization;
    model::LoadOptions load;
    load.folder = flags_.folder;
    load.dummy_weights = flags_.dummy;
    load.quantization = quantization;
    load.kv_dtype = flags_.kv_dtype;
    load.backend = &backend_;
    load.pool = &pool_;
    load.limits.token_count_max = 4096;
    const double start = now_s();
    TANDEM_TRY(model_, model::Model::load(load));
    fmt::print(R"({{"bench": "load", "weights": "{}", "seconds": {:.2f}, "weight_bytes": {}}})"
               "\n",
               weights_name(),
               now_s() - start,
               model_->memory_plan(16).weight_bytes);
    measure();
    for (const Load& row : flags_.rows) {
      if (&row != flags_.rows.data()) rest();
      runs_.clear();
      outsides_.clear();
      contexts_ = 0;
      backend_.forget_experts();
      if (row.streams == 0) {
        TANDEM_TRY(prefill(row.context));
      } else {
        TANDEM_TRY(decode(row.context, row.streams));
      }
    }
    engine_.reset();
    model_.reset();
    return {};
  }

 private:
  /// Until the machine has taken what the row before freed (limits.cc, kept_memory); what small
  /// models free is not worth it.
  void rest() {
    constexpr std::int64_t kMuch = std::int64_t{64} << 20;
    engine_.reset();
    if (static_cast<std::int64_t>(model_->memory_plan(16).weight_bytes) < kMuch) return;
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }

  /// The limits, again for each model: neighbours come and go, and a smaller model finds more of
  /// itself in the caches.
  void measure() {
    limits_ = measure_limits(backend_, pool_, 0.3, model_->memory_plan(16).weight_bytes);
    // All products with bytes are those of its weights.
    if (quantization_ == model::Quantization::kInt4WeightOnly128) {
      limits_.int8_gop_s = limits_.int4_gop_s;
    }
    fmt::print(
        R"({{"bench": "limits", "family": "{}", "threads": {}, "clock": "{}", )"
        R"("read_gb_s": {:.1f}, "fma_gflop_s": {:.0f}, "bf16_gflop_s": {:.0f}, "int8_gop_s": {:.0f}}})"
        "\n",
        kernels::family_name(backend_.family()),
        pool_.thread_count(),
        use_cpu_time ? "cpu" : "wall",
        limits_.read_gb_s,
        limits_.fma_gflop_s,
        limits_.bf16_gflop_s,
        limits_.int8_gop_s);
  }

  /// "NAME " of a model that was asked for.
  [[nodiscard]] std::string model_name() const {
    if (flags_.folder == TANDEM_DEMO_MODEL) return "";
    return std::filesystem::path(flags_.folder + "/").parent_path().filename().string() + " ";
  }

  /// With the type of keys and values, and the size of pages, where they were asked for.
  [[nodiscard]] std::string weights_name() const {
    std::string name(quantization_ == model::Quantization::kNone
                         ? kernels::dtype_name(model_->dtype())
                         : model::quantization_name(quantization_));
    if (flags_.kv_dtype) name += fmt::format(" kv {}", kernels::dtype_name(*flags_.kv_dtype));
    if (flags_.page_size != kPageSize) name += fmt::format(" pages of {}", flags_.page_size);
    return name;
  }

  Status make_engine(std::int64_t tokens) {
    engine_.reset();
    executor_ = std::make_unique<TimedExecutor>(model_.get(), flags_.page_size, &backend_);
    engine::EngineOptions options;
    options.max_total_tokens = tokens;
    options.page_size = flags_.page_size;
    options.chunked_prefill_size = 2048;
    // The second run of a prompt must not be served from the cache.
    options.disable_radix_cache = true;
    options.share_pages = flags_.share_pages;
    TANDEM_TRY(engine_, engine::Engine::create(options, executor_.get()));
    return {};
  }

  Status submit(std::int32_t prompt, std::int32_t output) {
    core::Request request;
    request.id = {++next_id_};
    const auto vocabulary = static_cast<std::uint64_t>(executor_->info().vocab_size);
    for (std::int32_t i = 0; i < prompt; ++i)
      request.input_ids.push_back(static_cast<core::TokenId>(random_.below(vocabulary)));
    request.sampling.max_new_tokens = output;
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    return engine_->submit(std::move(request), [this](core::TokenEvent&& event) {
      if (event.finish && event.finish->kind == core::FinishKind::kAbort)
        failed_ = event.finish->status;
    });
  }

  /// What is left of the requests.
  void drain() {
    while (engine_->has_work())
      engine_->step(steady_clock().now());
  }

  /// Notes its time, and its costs where it is the fastest.
  double timed_step(Step& best) {
    backend_.reset();
    executor_->fed().begin();
    const double start = backend_.op_clock().now();
    engine_->step(steady_clock().now());
    const double end = backend_.op_clock().now();
    const double seconds = end - start - backend_.own_seconds();
    if (seconds < best.seconds) best = {seconds, backend_.costs()};
    outside_ = {.before = backend_.first_start() - start,
                .between = backend_.last_end() - backend_.first_start() - backend_.own_seconds(),
                .after = end - backend_.last_end()};
    for (const auto& [op, cost] : backend_.costs())
      outside_.between -= cost.seconds;
    return seconds;
  }

  /// What the last step cannot do without.
  void add_bounds(Run& run) const {
    for (const auto& [op, cost] : backend_.costs()) {
      run.bound_s += bound_s(cost, cost.bytes + cost.spared, limits_);
      run.kept_bound_s += bound_s(cost, limits_);
    }
  }

  Status prefill(std::int32_t context) {
    TANDEM_TRY(make_engine(context + 256 + flags_.page_size));
    Step best;
    double spent = 0;
    // The first run touches pages and scratch and does not count.
    bool counts = false;
    while (runs_.size() < kRuns || runs_.size() % 2 == 0 || spent < flags_.budget_s) {
      TANDEM_TRY(submit(context, 1));
      const double seconds = timed_step(best);
      if (counts) {
        Run& run =
            runs_.emplace_back(Run{.seconds = seconds, .tokens = static_cast<double>(context)});
        add_bounds(run);
        for (const auto& [op, cost] : backend_.costs())
          run.parameters_bound_s += parameters_bound_s(cost, run.tokens, limits_);
        backend_.keep_experts();
      }
      counts = true;
      spent += seconds;
      drain();
      TANDEM_TRY(failed_);
    }
    report("prefill", context, 1, context, best);
    return {};
  }

  Status decode(std::int32_t context, std::int32_t streams) {
    Step best;
    double spent = 0;
    TANDEM_TRY(make_engine(static_cast<std::int64_t>(streams) *
                           (context + output_tokens(streams) + flags_.page_size)));
    // An odd number, so that one is in the middle.
    while (runs_.size() < kRuns || runs_.size() % 2 == 0 || spent < flags_.budget_s) {
      const double start = now_s();
      TANDEM_TRY(const Run run, decode_run(context, streams, best));
      runs_.push_back(run);
      spent += run.seconds;
      if (runs_.size() == 1 && now_s() - start > kLongRunS) break;
    }
    report("decode", context, streams, streams, best);
    report_outside(row_name("decode", context, streams));
    engine_.reset();
    return {};
  }

  /// Of each stream: prompts end one after the other, so streams are some steps apart at most.
  static constexpr std::int32_t output_tokens(std::int32_t streams) { return kSteps + streams + 1; }

  /// The first kSteps steps that every stream takes part in and no prompt.
  Result<Run> decode_run(std::int32_t context, std::int32_t streams, Step& best) {
    for (std::int32_t i = 0; i < streams; ++i)
      TANDEM_TRY(submit(context, output_tokens(streams)));
    Run run;
    std::int32_t steps = 0;
    while (engine_->has_work() && steps < kSteps) {
      Step step;
      const double seconds = timed_step(step);
      TANDEM_TRY(failed_);
      if (!executor_->fed().decoded(static_cast<std::size_t>(streams))) continue;
      backend_.keep_experts();
      ++steps;
      outsides_.push_back(outside_);
      contexts_ += executor_->fed().context();
      run.seconds += seconds;
      add_bounds(run);
      run.tokens += streams;
      if (step.seconds < best.seconds) best = std::move(step);
    }
    if (steps < kSteps) {
      return internal_error(fmt::format(
          "decode:{}:{} has {} steps with all streams of {}", context, streams, steps, kSteps));
    }
    drain();
    return run;
  }

  /// The step in the middle, by its sum.
  void report_outside(const std::string& row) {
    if (outsides_.empty()) return;
    const auto middle = outsides_.begin() + static_cast<std::ptrdiff_t>(outsides_.size() / 2);
    std::ranges::nth_element(outsides_, middle, {}, &Outside::sum);
    fmt::print(
        R"({{"bench": "engine", "row": "{}: outside ops", "value": {:.1f}, "unit": "us", )"
        R"("target": {:.0f}, "before_us": {:.1f}, "between_us": {:.1f}, "after_us": {:.1f}}})"
        "\n",
        row,
        middle->sum() * 1e6,
        kOutsideTargetUs,
        middle->before * 1e6,
        middle->between * 1e6,
        middle->after * 1e6);
    (void)std::fflush(stdout);
  }

  [[nodiscard]] std::string row_name(const char* name,
                                     std::int32_t context,
                                     std::int32_t streams) const {
    return fmt::format(
        "{}{} {} context {} streams {}", model_name(), weights_name(), name, context, streams);
  }

  /// The run in the middle of an odd number.
  Run middle_run() {
    const auto middle = runs_.begin() + static_cast<std::ptrdiff_t>(runs_.size() / 2);
    std::ranges::nth_element(
        runs_, middle, {}, [](const Run& run) { return run.seconds / run.tokens; });
    return *middle;
  }

  /// `step`: the fastest one, of so many tokens.
  void report(const char* name,
              std::int32_t context,
              std::int32_t streams,
              std::int32_t tokens,
              const Step& step) {
    const Run run = middle_run();
    const std::string row = row_name(name, context, streams);
    fmt::print(R"({{"bench": "engine", "row": "{}", "value": {:.1f}, "best": {:.1f}, )"
               R"("unit": "tokens/s", "target": {:.1f}, "share_of_bound": {:.3f}, "ms": {:.3f}, )"
               R"("runs": {}{}}})"
               "\n",
               row,
               run.tokens / run.seconds,
               tokens / step.seconds,
               run.tokens / run.bound_s,
               run.bound_s / run.seconds,
               step.seconds * 1e3,
               runs_.size(),
               remarks(run));
    for (const auto& [op, cost] : step.costs) {
      fmt::print(
          R"({{"bench": "engine", "row": "{}: {}", "value": {:.3f}, "unit": "ms", "target": {:.3f}, )"
          R"("calls": {}, "share_of_step": {:.3f}, "share_of_bound": {:.3f}, "gb_per_s": {:.1f}, )"
          R"("gop_per_s": {:.0f}}})"
          "\n",
          row,
          op,
          cost.seconds * 1e3,
          bound_s(cost, limits_) * 1e3,
          cost.calls,
          cost.seconds / step.seconds,
          bound_s(cost, limits_) / cost.seconds,
          cost.bytes / cost.seconds * 1e-9,
          (cost.flops + cost.bf16_flops + cost.int8_ops) / cost.seconds * 1e-9);
    }
    (void)std::fflush(stdout);
  }

  /// What only some rows say.
  [[nodiscard]] std::string remarks(const Run& run) const {
    std::string text;
    if (!outsides_.empty()) {
      text += fmt::format(R"(, "steps": {}, "mean_context": {:.1f})",
                          kSteps,
                          contexts_ / static_cast<double>(outsides_.size()));
    }
    if (const TimedBackend::Experts experts = backend_.experts(); experts.read > 0) {
      text += fmt::format(
          R"(, "experts_read": {:.1f}, "experts_seen": {:.1f})", experts.read, experts.seen);
    }
    if (run.parameters_bound_s > 0) {
      text += fmt::format(R"(, "parameters_target": {:.1f}, "share_by_parameters": {:.3f})",
                          run.tokens / run.parameters_bound_s,
                          run.parameters_bound_s / run.seconds);
    }
    if (run.kept_bound_s < run.bound_s) {
      const double share = run.kept_bound_s / run.seconds;
      text += fmt::format(R"(, "share_as_kept": {:.3f}, "note": "its bf16 weights are read in 12 )"
                          R"(bits each: {:.0f} % of the bound of that")",
                          share,
                          share * 100);
    } else if (run.bound_s > run.seconds) {
      text += R"(, "note": "beyond its bound: part of what it reads was in caches")";
    }
    return text;
  }

  const Flags& flags_;
  TimedBackend& backend_;
  kernels::ThreadPool& pool_;
  Limits limits_{};
  model::Quantization quantization_ = model::Quantization::kNone;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<TimedExecutor> executor_;
  std::unique_ptr<engine::Engine> engine_;
  std::uint64_t next_id_ = 0;
  Random random_{kSeed};
  Status failed_;          ///< why a request ended early
  std::vector<Run> runs_;  ///< of the row in progress
  Outside outside_;        ///< of the last step
  std::vector<Outside> outsides_;
  double contexts_ = 0;  ///< sum over the same steps
};

int run(const Flags& flags) {
  std::string reason;
  const kernels::Backend* backend = kernels::select(flags.family, &reason);
  if (backend == nullptr) {
    fmt::print(stderr, "engine_bench: {}\n", reason);
    return 1;
  }
  // As a worker has it.
  kernels::ThreadPool pool(flags.threads,
                           kernels::thread_places(flags.threads, kernels::allowed_cpus()));
  use_cpu_time = pool.thread_count() == 1;
  TimedBackend timed(*backend);
  for (const model::Quantization quantization : flags.quantizations) {
    const Status status = Bench(flags, timed, pool).run(quantization);
    if (status.ok()) continue;
    fmt::print(stderr, "engine_bench: {}\n", status.message());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::bench::Flags flags;
  if (!tandem::bench::parse(argc, argv, flags)) {
    fmt::print(stderr,
               "usage: engine_bench [--model DIR] [--dummy] [--threads N] [--family NAME] "
               "[--quantization NAME]... [--kv-cache-dtype NAME] [--page-size N] [--context N]... "
               "[--streams N]... [--row ROW]... [--budget SECONDS] [--share-pages]\n");
    return 2;
  }
  return tandem::bench::run(flags);
}
