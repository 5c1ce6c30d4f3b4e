// Tokens per second of the shipped model through the engine: one long prompt, then one and eight
// streams. Prints JSON. Usage: engine_bench [model folder] [threads]
#include "common/engine/engine.h"

#include "common/base/clock.h"
#include "common/engine/model_executor.h"
#include "common/model/model.h"
#include "kernels/api/backend.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

namespace tandem {
namespace {

constexpr std::int32_t kPromptTokens = 2048;
constexpr std::int32_t kOutputTokens = 256;

core::Request make_request(std::uint64_t id, std::int32_t prompt, std::int32_t output) {
  core::Request request;
  request.id = {id};
  for (std::int32_t i = 0; i < prompt; ++i) {
    request.input_ids.push_back(
        static_cast<core::TokenId>((static_cast<std::uint64_t>(i) * 37 + id * 101) % 1000) + 10);
  }
  request.sampling.max_new_tokens = output;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  return request;
}

/// Seconds until all requests have ended; -1 when one failed.
double run(engine::Engine& engine, int streams, std::int32_t prompt, std::int32_t output) {
  static std::uint64_t next_id = 1;
  bool failed = false;
  const Time start = steady_clock().now();
  for (int i = 0; i < streams; ++i) {
    const Status status =
        engine.submit(make_request(next_id++, prompt, output), [&](core::TokenEvent&& event) {
          failed |= event.finish && event.finish->kind == core::FinishKind::kAbort;
        });
    if (!status.ok()) return -1;
  }
  while (engine.has_work())
    engine.step(steady_clock().now());
  return failed ? -1 : (steady_clock().now() - start).seconds();
}

int bench(const std::string& folder, std::size_t threads) {
  std::string reason;
  const kernels::Backend* backend = kernels::select(kernels::Family::kAuto, &reason);
  if (backend == nullptr) {
    std::fprintf(stderr, "engine_bench: %s\n", reason.c_str());
    return 1;
  }
  kernels::ThreadPool pool(threads);
  model::LoadOptions load;
  load.folder = folder;
  load.backend = backend;
  load.pool = &pool;
  auto model = model::Model::load(load);
  if (!model.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", model.status().message().c_str());
    return 1;
  }
  engine::ModelExecutor executor(model->get(), 16);
  engine::EngineOptions options;
  options.max_total_tokens = 32768;
  options.page_size = 16;
  options.chunked_prefill_size = 2048;
  // The second run of a prompt must not be served from the cache.
  options.disable_radix_cache = true;
  auto engine = engine::Engine::create(options, &executor);
  if (!engine.ok()) {
    std::fprintf(stderr, "engine_bench: %s\n", engine.status().message().c_str());
    return 1;
  }
  run(**engine, 1, kPromptTokens, 1);  // touches pages and scratch once
  const double prefill = run(**engine, 1, kPromptTokens, 1);
  const double one = run(**engine, 1, 16, kOutputTokens);
  const double eight = run(**engine, 8, 16, kOutputTokens);
  // Decode reads all weights once a step: the share of that bound needs the machine's bandwidth,
  // which kernels_bench measures; here the bytes are given.
  const auto plan = (*model)->memory_plan(16);
  std::printf(
      "{\"bench\": \"engine\", \"model\": \"%s\", \"family\": \"%s\", \"threads\": %zu, "
      "\"prefill_tokens_per_s\": %.0f, \"decode_1_tokens_per_s\": %.0f, "
      "\"decode_8_tokens_per_s\": %.0f, \"weight_bytes\": %llu, \"decode_1_weight_gb_per_s\": "
      "%.2f}\n",
      folder.c_str(),
      std::string(kernels::family_name(backend->family())).c_str(),
      pool.thread_count(),
      kPromptTokens / prefill,
      kOutputTokens / one,
      8 * kOutputTokens / eight,
      static_cast<unsigned long long>(plan.weight_bytes),
      static_cast<double>(plan.weight_bytes) * kOutputTokens / one * 1e-9);
  return prefill > 0 && one > 0 && eight > 0 ? 0 : 1;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : TANDEM_DEMO_MODEL;
  const long threads = argc > 2 ? std::strtol(argv[2], nullptr, 10) : 0;
  const std::size_t all = std::thread::hardware_concurrency();
  return tandem::bench(folder, threads > 0 ? static_cast<std::size_t>(threads) : all);
}
