// From logits to tokens, for a vocabulary of 151,936: JSON lines, one for each kind of draw with
// one row and with 32, beside the time that reading the rows from memory takes.
//   sampler_bench [--threads N] [--vocab N] [--budget SECONDS]
// Rows are normally distributed with a deviation of 3 (a model that is rather sure) or, "flat", 1
// (a quarter of the vocabulary shares the mass). As many of them take turns as the caches do not
// hold.
#include "common/sample/sampler.h"

#include "bench/limits.h"
#include "common/base/random.h"
#include "common/sample/logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tandem::bench {
namespace {

constexpr std::size_t kStep = 32;   // rows of a step of many streams
constexpr std::size_t kRows = 128;  // 78 MB

struct Flags {
  std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  std::size_t vocab = 151936;
  double budget_s = 0.3;
};

bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const double value = std::strtod(argv[i + 1], nullptr);
    if (value <= 0) return false;
    if (name == "--threads") {
      flags.threads = static_cast<std::size_t>(value);
    } else if (name == "--vocab") {
      flags.vocab = static_cast<std::size_t>(value);
    } else if (name == "--budget") {
      flags.budget_s = value;
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

std::vector<float> make_rows(std::size_t vocab, double deviation) {
  Random random(1);
  std::vector<float> rows(kRows * vocab);
  for (float& logit : rows) {
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
    logit =
        static_cast<float>(deviation * radius * std::cos(2 * std::numbers::pi * random.uniform()));
  }
  return rows;
}

struct Draw {
  const char* name;
  float temperature = 1;
  float top_p = 1;
  std::int32_t top_k = core::kTopKAll;
  float min_p = 0;
  float repetition_penalty = 1;
  bool logprob = false;
};

constexpr Draw kDraws[] = {
    {.name = "greedy", .temperature = 0},
    {.name = "greedy, repetition penalty", .temperature = 0, .repetition_penalty = 1.1F},
    {.name = "greedy, 5 logprobs", .temperature = 0, .logprob = true},
    {.name = "temperature 1"},
    {.name = "temperature 0.7, top_p 0.95", .temperature = 0.7F, .top_p = 0.95F},
    {.name = "top_k 40", .top_k = 40},
    {.name = "top_k 40, top_p 0.95", .top_p = 0.95F, .top_k = 40},
    {.name = "min_p 0.05", .min_p = 0.05F},
};

struct Worker {
  explicit Worker(std::size_t vocab)
      : sampler(static_cast<std::int32_t>(vocab)), scan(static_cast<std::int32_t>(vocab)) {}

  sample::Sampler sampler;
  sample::RowScan scan;
};

class Bench {
 public:
  Bench(const Flags& flags, kernels::ThreadPool& pool, double read_gb_s)
      : flags_(flags), pool_(pool), read_gb_s_(read_gb_s) {
    for (std::size_t i = 0; i < pool.thread_count(); ++i)
      workers_.emplace_back(flags.vocab);
    for (core::TokenId id = 0; id < 200; ++id)
      counts_[id * 11] = 1;
  }

  void run(const char* shape, const std::vector<float>& rows, const Draw& draw) {
    core::SamplingParams params;
    params.temperature = draw.temperature;
    params.top_p = draw.top_p;
    params.top_k = draw.top_k;
    params.min_p = draw.min_p;
    params.repetition_penalty = draw.repetition_penalty;
    for (const std::size_t count : {std::size_t{1}, kStep}) {
      std::size_t turn = 0;
      const double seconds = best_time(flags_.budget_s, [&] {
        turn = (turn + count) % kRows;
        pool_.parallel_for(count, [&](std::size_t task, std::size_t worker) {
          const auto row =
              std::span(rows).subspan((turn + task) % kRows * flags_.vocab, flags_.vocab);
          read(workers_[worker], row, params, draw.logprob, static_cast<std::int32_t>(task));
        });
      });
      const double bytes = static_cast<double>(count * flags_.vocab * sizeof(float));
      const double bound = bytes / read_gb_s_ * 1e-9;
      fmt::print(R"({{"bench": "sampler", "row": "{}, {}, {} rows", "value": {:.1f}, )"
                 R"("unit": "us", "target": {:.1f}, "share_of_bound": {:.3f}, "threads": {}}})"
                 "\n",
                 shape,
                 draw.name,
                 count,
                 seconds * 1e6,
                 bound * 1e6,
                 bound / seconds,
                 pool_.thread_count());
      (void)std::fflush(stdout);
    }
  }

 private:
  void read(Worker& worker,
            std::span<const float> row,
            const core::SamplingParams& params,
            bool logprob,
            std::int32_t index) {
    const auto token = worker.sampler.sample(
        {.logits = row, .params = &params, .counts = &counts_, .output_index = index});
    if (!token.ok() || (logprob && !sample::token_logprob(worker.scan, row, *token, 5).ok())) {
      std::abort();
    }
  }

  const Flags& flags_;
  kernels::ThreadPool& pool_;
  double read_gb_s_;
  std::vector<Worker> workers_;
  sample::TokenCounts counts_;
};

void run(const Flags& flags) {
  kernels::ThreadPool pool(flags.threads);
  use_cpu_time = pool.thread_count() == 1;
  const kernels::Backend& backend = *kernels::select(kernels::Family::kAuto, nullptr);
  const double read_gb_s = measure_limits(backend, pool, flags.budget_s).read_gb_s;
  fmt::print(R"({{"bench": "limits", "threads": {}, "clock": "{}", "read_gb_s": {:.1f}}})"
             "\n",
             pool.thread_count(),
             use_cpu_time ? "cpu" : "wall",
             read_gb_s);
  Bench bench(flags, pool, read_gb_s);
  const std::vector<float> sure = make_rows(flags.vocab, 3);
  for (const Draw& draw : kDraws)
    bench.run("sure", sure, draw);
  const std::vector<float> flat = make_rows(flags.vocab, 1);
  for (const Draw& draw : {kDraws[3], kDraws[4]})
    bench.run("flat", flat, draw);
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  tandem::bench::Flags flags;
  if (!tandem::bench::parse(argc, argv, flags)) {
    fmt::print(stderr, "usage: sampler_bench [--threads N] [--vocab N] [--budget SECONDS]\n");
    return 2;
  }
  tandem::bench::run(flags);
  return 0;
}
