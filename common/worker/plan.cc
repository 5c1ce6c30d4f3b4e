#include "common/worker/plan.h"

#include "common/args/args.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace tandem::worker {
namespace {

/// Without an explicit --mem-fraction-static the pool holds this many full contexts at most: a
/// small model must not take most of a machine only because it could.
constexpr std::int64_t kDefaultContexts = 64;
constexpr std::int64_t kRunningMax = 2048;
constexpr std::int64_t kLogitRowsMax = 256;
constexpr std::uint64_t kTransferBytes = 64U << 20U;

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0);
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

Status choose_pool(const args::Arguments& args, WorkerPlan& plan) {
  const std::uint64_t fixed = plan.memory.fixed_bytes() + plan.transfer_bytes;
  const auto budget =
      static_cast<std::uint64_t>(plan.fraction * static_cast<double>(plan.memory_bytes));
  const std::uint64_t page = plan.memory.page_bytes;
  if (budget < fixed + page) {
    return invalid_argument(
        fmt::format("argument --mem-fraction-static: weights and buffers need {:.3f} GiB of {:.3f} "
                    "GiB ({} of the {:.3f} "
                    "GiB that this process may use), nothing is left for the KV cache; raise "
                    "--mem-fraction-static above "
                    "{:.3f} or use a smaller model",
                    gib(fixed),
                    gib(budget),
                    plan.fraction,
                    gib(plan.memory_bytes),
                    static_cast<double>(fixed + page) /
                        static_cast<double>(std::max<std::uint64_t>(plan.memory_bytes, 1))));
  }
  const auto fits = static_cast<std::int64_t>((budget - fixed) / page);
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
    return failed_precondition(
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
  TANDEM_TRY(plan.config, model::read_config(folder, args.model.json_model_override_args));
  TANDEM_TRY(plan.backend, select_backend(args));
  TANDEM_TRY(plan.context_length, choose_context(args.model, plan.config));
  plan.dtype = choose_dtype(args.model.dtype, plan.config);
  plan.quantization = choose_quantization(args.model);
  plan.memory_bytes = memory_bytes;
  plan.fraction = args.kv_cache.mem_fraction_static;
  plan.page_size = args.kv_cache.page_size;
  const std::int64_t chunk = args.scheduling.chunked_prefill_size;
  plan.chunked_prefill_size = static_cast<std::int32_t>(chunk);
  const std::int64_t asked_running =
      args.scheduling.max_running_requests ? *args.scheduling.max_running_requests : kRunningMax;
  // A step holds one chunk (or one whole prompt) and one token of each running request.
  const std::int64_t prompt_tokens =
      chunk > 0 ? chunk
                : std::max<std::int64_t>(args.scheduling.max_prefill_tokens, plan.context_length);
  plan.limits.token_count_max =
      std::min(prompt_tokens, plan.context_length + kLogitRowsMax) + asked_running;
  plan.limits.logit_row_count_max = std::min(asked_running, kLogitRowsMax);
  plan.limits.context_length = plan.context_length;
  plan.memory = model::plan_memory(plan.config,
                                   {.backend = plan.backend,
                                    .weight_dtype = plan.dtype,
                                    .quantization = plan.quantization,
                                    .kv_dtype = plan.dtype,
                                    .limits = plan.limits,
                                    .page_size = plan.page_size});
  if (args.disaggregation.mode != args::DisaggregationMode::kNull)
    plan.transfer_bytes = kTransferBytes;
  TANDEM_TRY(choose_pool(args, plan));
  const std::int64_t derived = std::clamp<std::int64_t>(plan.max_total_tokens / 2, 1, kRunningMax);
  plan.max_running_requests =
      static_cast<std::int32_t>(args.scheduling.max_running_requests ? asked_running : derived);
  return plan;
}

std::string plan_text(const WorkerPlan& plan) {
  const model::MemoryPlan& memory = plan.memory;
  std::string out = "memory plan\n";
  const auto row = [&out](const char* name, std::uint64_t bytes, const std::string& formula) {
    out += fmt::format("  {:<18} {:>14} bytes  {}\n", name, bytes, formula);
  };
  row("weights",
      memory.weight_bytes,
      fmt::format("{} matrices, norms and biases",
                  plan.quantization == model::Quantization::kNone
                      ? kernels::dtype_name(plan.dtype)
                      : model::quantization_name(plan.quantization)));
  row("embedding",
      memory.embedding_bytes,
      fmt::format("{} x {}", plan.config.vocab_size, plan.config.hidden_size));
  row("rotary tables", memory.rope_bytes, fmt::format("{} positions", plan.context_length));
  row("activations",
      memory.activation_bytes,
      fmt::format("{} tokens in a step", plan.limits.token_count_max));
  row("logits", memory.logit_bytes, fmt::format("{} rows", plan.limits.logit_row_count_max));
  row("KV pool",
      plan.pool_bytes(),
      fmt::format("{} pages x {} bytes ({} tokens a page)",
                  plan.page_count,
                  memory.page_bytes,
                  plan.page_size));
  row("transfer buffers",
      plan.transfer_bytes,
      plan.transfer_bytes == 0 ? "no disaggregation" : "units in flight");
  row("total",
      plan.total_bytes(),
      fmt::format("of {} that this process may use", plan.memory_bytes));
  out += fmt::format("  longest request    {:>14} tokens\n",
                     std::min(plan.context_length, plan.max_total_tokens));
  out += fmt::format("  running requests   {:>14} at most\n", plan.max_running_requests);
  out += fmt::format("  kernels            {:>14}\n", kernels::family_name(plan.backend->family()));
  return out;
}

}  // namespace tandem::worker
