#include "common/worker/plan.h"

#include "common/args/args.h"
#include "common/sample/sampler.h"
#include "kernels/api/thread_pool.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace tandem::worker {
namespace {

/// Without an explicit --mem-fraction-static the pool holds this many full contexts at most: a
/// small model must not take most of a machine only because it could.
constexpr std::int64_t kDefaultContexts = 64;
constexpr std::int64_t kRunningMax = 2048;
/// Tokens of a prefill chunk beside running outputs, when none was asked for. With tiles twice as
/// many are done sooner, and fewer would be slower each: their weights come in as often.
constexpr std::int64_t kChunkBesideDecodes = 128;
constexpr std::int64_t kChunkBesideDecodesOnTiles = 256;
constexpr std::int64_t kLogitRowsMax = 256;
constexpr std::uint64_t kTransferBytes = 64U << 20U;

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0);
}

kernels::DType choose_kv_dtype(args::KvCacheDType choice, kernels::DType dtype) {
  switch (choice) {
    case args::KvCacheDType::kFp8E5m2:
      return kernels::DType::kFp8E5m2;
    case args::KvCacheDType::kFp8E4m3:
      return kernels::DType::kFp8E4m3;
    case args::KvCacheDType::kAuto:
      break;
  }
  return dtype;
}

kernels::DType choose_dtype(args::DType choice, const model::ModelConfig& config) {
  switch (choice) {
    case args::DType::kFloat16:
      return kernels::DType::kF16;
    case args::DType::kBfloat16:
      return kernels::DType::kBf16;
    case args::DType::kFloat32:
      return kernels::DType::kF32;
    case args::DType::kAuto:
      break;
  }
  // As the schema has it: float32 and float16 checkpoints run in float16, bfloat16 ones in
  // bfloat16.
  return config.dtype == kernels::DType::kBf16 ? kernels::DType::kBf16 : kernels::DType::kF16;
}

model::Quantization choose_quantization(const args::ModelOptions& options) {
  if (options.quantization == args::Quantization::kW8A8Int8) {
    return model::Quantization::kW8A8Int8;
  }
  switch (options.torchao_config) {
    case args::TorchaoConfig::kNone:
      return model::Quantization::kNone;
    case args::TorchaoConfig::kInt8wo:
      return model::Quantization::kInt8WeightOnly;
    case args::TorchaoConfig::kInt4wo128:
      return model::Quantization::kInt4WeightOnly128;
  }
  return model::Quantization::kNone;
}

Result<std::int64_t> choose_context(const args::ModelOptions& options,
                                    const model::ModelConfig& config) {
  const std::int64_t own = config.context_length();
  if (!options.context_length) return own;
  const std::int64_t asked = *options.context_length;
  const char* allow =
      std::getenv("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN");  // NOLINT(concurrency-mt-unsafe)
  if (asked > own && (allow == nullptr || std::string_view(allow) != "1")) {
    return invalid_argument(
        fmt::format("argument --context-length: {} exceeds the model's {}; set "
                    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 to "
                    "allow it",
                    asked,
                    own));
  }
  return asked;
}

/// What a person may turn to make a plan fit, and what the sizes of all buffers follow from.
struct Knobs {
  std::int64_t context_length = 0;
  std::int64_t chunk = -1;  ///< tokens; -1: whole prompts
  std::int64_t running = 0;
};

/// Fills limits and memory.
void size_buffers(const args::Arguments& args, const Knobs& knobs, WorkerPlan& plan) {
  plan.context_length = knobs.context_length;
  // A step holds one chunk (or one whole prompt) and one token of each running request.
  const std::int64_t prompt_tokens =
      knobs.chunk > 0
          ? knobs.chunk
          : std::max<std::int64_t>(args.scheduling.max_prefill_tokens, knobs.context_length);
  plan.limits.token_count_max =
      std::min(prompt_tokens, knobs.context_length + kLogitRowsMax) + knobs.running;
  plan.limits.logit_row_count_max = std::min(knobs.running, kLogitRowsMax);
  plan.limits.context_length = knobs.context_length;
  plan.memory = model::plan_memory(plan.config,
                                   {.backend = plan.backend,
                                    .weight_dtype = plan.dtype,
                                    .quantization = plan.quantization,
                                    .kv_dtype = plan.kv_dtype,
                                    .limits = plan.limits,
                                    .page_size = plan.page_size});
}

std::uint64_t budget_of(const WorkerPlan& plan) {
  return static_cast<std::uint64_t>(plan.fraction * static_cast<double>(plan.memory_bytes));
}

/// Pages that fit beside everything else; 0 also when nothing else fits.
std::int64_t pages_that_fit(const WorkerPlan& plan) {
  const std::uint64_t fixed = plan.fixed_bytes();
  const std::uint64_t budget = budget_of(plan);
  return budget < fixed ? 0 : static_cast<std::int64_t>((budget - fixed) / plan.memory.page_bytes);
}

/// The largest value in [1, most] that satisfies a condition which holds below some value and
/// nowhere above it; 0 when there is none.
template <class Holds>
std::int64_t largest(std::int64_t most, Holds&& holds) {
  std::int64_t low = 0;
  std::int64_t high = most;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (holds(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::int64_t pages_with(const args::Arguments& args, const Knobs& knobs, WorkerPlan plan) {
  size_buffers(args, knobs, plan);
  return pages_that_fit(plan);
}

/// "--mem-fraction-static 0.25, --chunked-prefill-size 512 or ...": each alone makes room for the
/// buffers and one page. "" when nothing does.
std::string remedies(const args::Arguments& args, const Knobs& knobs, const WorkerPlan& plan) {
  std::vector<std::string> found;
  const auto room = [&args, &plan](const Knobs& each) { return pages_with(args, each, plan) > 0; };
  const std::int64_t page = plan.page_size;
  const std::int64_t chunk_now =
      knobs.chunk > 0 ? std::min(knobs.chunk, knobs.context_length) : knobs.context_length;
  const std::int64_t chunk = page * largest(chunk_now / page, [&](std::int64_t pages) {
                               Knobs each = knobs;
                               each.chunk = pages * page;
                               return room(each);
                             });
  if (chunk > 0) found.push_back(fmt::format("--chunked-prefill-size {}", chunk));
  const std::int64_t running = largest(knobs.running, [&](std::int64_t count) {
    Knobs each = knobs;
    each.running = count;
    return room(each);
  });
  if (running > 0) found.push_back(fmt::format("--max-running-requests {}", running));
  const std::int64_t context = largest(knobs.context_length, [&](std::int64_t tokens) {
    Knobs each = knobs;
    each.context_length = tokens;
    return room(each);
  });
  if (context > 0) found.push_back(fmt::format("--context-length {}", context));
  return fmt::format("{}", fmt::join(found, " or "));
}

/// Weights and buffers leave no room for a single page.
Status nothing_left(const args::Arguments& args, const Knobs& knobs, const WorkerPlan& plan) {
  const std::uint64_t fixed = plan.fixed_bytes();
  const double needed = static_cast<double>(fixed + plan.memory.page_bytes) /
                        static_cast<double>(std::max<std::uint64_t>(plan.memory_bytes, 1));
  // Rounded up, so that the value that is named fits.
  const double named = std::ceil(needed * 1e4) / 1e4;
  std::string remedy;
  if (named < 1) remedy = fmt::format("raise --mem-fraction-static above {:.4f}", named);
  if (const std::string others = remedies(args, knobs, plan); !others.empty())
    remedy += (remedy.empty() ? "what fits is " : ", or what also fits is ") + others;
  if (remedy.empty()) remedy = "no value of another argument makes room; use a smaller model";
  return invalid_argument(
      fmt::format("argument --mem-fraction-static: weights and buffers need {:.3f} GiB of {:.3f} "
                  "GiB ({} of the {:.3f} GiB that this process may use), nothing is left for the "
                  "KV cache; {}",
                  gib(fixed),
                  gib(budget_of(plan)),
                  plan.fraction,
                  gib(plan.memory_bytes),
                  remedy));
}

Status choose_pool(const args::Arguments& args, WorkerPlan& plan) {
  const std::int64_t fits = pages_that_fit(plan);
  std::int64_t pages = fits;
  if (args.kv_cache.max_total_tokens) {
    const auto asked = static_cast<std::int64_t>(*args.kv_cache.max_total_tokens) / plan.page_size;
    if (asked < 1) {
      return invalid_argument(
          fmt::format("argument --max-total-tokens: {} is smaller than one page of {} tokens",
                      *args.kv_cache.max_total_tokens,
                      plan.page_size));
    }
    pages = std::min(asked, fits);
  } else if (!args.is_explicit("mem_fraction_static")) {
    pages = std::min(
        fits, (kDefaultContexts * plan.context_length + plan.page_size - 1) / plan.page_size);
  }
  plan.page_count = std::min<std::int64_t>(pages, INT32_MAX);
  plan.max_total_tokens = plan.page_count * plan.page_size;
  return {};
}

/// What memory would hold, had nobody capped pool or context.
void find_largest(const args::Arguments& args, const Knobs& knobs, WorkerPlan& plan) {
  const std::int64_t page = plan.page_size;
  const std::int64_t tokens = pages_that_fit(plan) * page;
  plan.largest_context = largest(tokens, [&](std::int64_t context) {
    Knobs each = knobs;
    each.context_length = context;
    return pages_with(args, each, plan) * page >= context;
  });
  plan.largest_batch = tokens / ((plan.context_length + page - 1) / page * page);
}

}  // namespace

Result<const kernels::Backend*> select_backend(const args::Arguments& args) {
  kernels::Family family = kernels::Family::kAuto;
  const std::string_view name = args::to_string(args.runtime.kernel_family);
  if (!kernels::parse_family(name, &family)) {
    return invalid_argument(fmt::format("argument --kernel-family: {} is not built", name));
  }
  std::string reason;
  const kernels::Backend* backend = kernels::select(family, &reason);
  // torch_native promises the kernels that run everywhere: no AMX, though the CPU has it.
  if (backend != nullptr && family == kernels::Family::kAuto &&
      backend->family() == kernels::Family::kAmx &&
      args.runtime.attention_backend == args::AttentionBackend::kTorchNative) {
    backend = kernels::select(kernels::Family::kAvx512, &reason);
  }
  if (backend == nullptr) {
    return invalid_argument(
        fmt::format("argument --kernel-family: {} cannot run here: {}; use auto", name, reason));
  }
  return backend;
}

Result<WorkerPlan> make_plan(const args::Arguments& args, std::uint64_t memory_bytes) {
  const std::string& folder = args.model.model_path;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return invalid_argument(
        "argument --model-path: " + folder +
        ": no such folder (a local checkpoint folder with config.json is expected)");
  }
  WorkerPlan plan;
  TANDEM_TRY(plan.backend, select_backend(args));
  TANDEM_TRY(plan.config, model::read_config(folder, args.model.json_model_override_args));
  TANDEM_TRY(plan.context_length, choose_context(args.model, plan.config));
  plan.dtype = choose_dtype(args.model.dtype, plan.config);
  plan.kv_dtype = choose_kv_dtype(args.kv_cache.kv_cache_dtype, plan.dtype);
  plan.quantization = choose_quantization(args.model);
  plan.memory_bytes = memory_bytes;
  plan.fraction = args.kv_cache.mem_fraction_static;
  plan.page_size = args.kv_cache.page_size;
  const std::int64_t chunk = args.scheduling.chunked_prefill_size;
  plan.chunked_prefill_size = static_cast<std::int32_t>(chunk);
  // The size that follows from memory suits accelerators; here such a chunk takes seconds, and who
  // streams waits for it. A size that was asked for is kept.
  if (!args.is_explicit("chunked_prefill_size")) {
    const bool tiles = plan.backend->family() == kernels::Family::kAmx;
    const std::int64_t tokens = tiles ? kChunkBesideDecodesOnTiles : kChunkBesideDecodes;
    plan.chunk_beside_decodes = static_cast<std::int32_t>(
        std::max<std::int64_t>(tokens / plan.page_size, 1) * plan.page_size);
  }
  const std::int64_t asked_running =
      args.scheduling.max_running_requests ? *args.scheduling.max_running_requests : kRunningMax;
  if (args.disaggregation.mode != args::DisaggregationMode::kNull)
    plan.transfer_bytes = kTransferBytes;
  plan.compute_threads = args.runtime.compute_threads;
  plan.thread_bytes =
      kernels::ThreadPool::kScratchBytes +
      static_cast<std::uint64_t>(plan.config.vocab_size) * sample::Sampler::kBytesPerToken;
  const Knobs knobs{
      .context_length = plan.context_length, .chunk = chunk, .running = asked_running};
  size_buffers(args, knobs, plan);
  if (pages_that_fit(plan) < 1) return nothing_left(args, knobs, plan);
  TANDEM_TRY(choose_pool(args, plan));
  find_largest(args, knobs, plan);
  const std::int64_t derived = std::clamp<std::int64_t>(plan.max_total_tokens / 2, 1, kRunningMax);
  plan.max_running_requests =
      static_cast<std::int32_t>(args.scheduling.max_running_requests ? asked_running : derived);
  return plan;
}

}  // namespace tandem::worker
