// The memory plan for people: --dry-run.
#include "common/model/kv_scales.h"
#include "common/sample/sampler.h"
#include "common/weights/checkpoint.h"
#include "common/worker/plan.h"
#include "kernels/api/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tandem::worker {
namespace {

std::string checkpoint_formula(const CheckpointFacts* checkpoint) {
  if (checkpoint == nullptr) return "no weight files in the model's folder";
  std::string types;
  for (const auto& [type, count] : checkpoint->types)
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", count, type);
  return fmt::format("{} tensors by the file headers ({}); not held beside the weights",
                     checkpoint->tensor_count,
                     types);
}

std::string weight_formula(const WorkerPlan& plan) {
  const model::ModelConfig& c = plan.config;
  const auto mlp = [&c](std::int64_t layers, std::int64_t inner) {
    return fmt::format("{} x (gate, up {} x {} + down {} x {})",
                       layers,
                       2 * inner,
                       c.hidden_size,
                       c.hidden_size,
                       inner);
  };
  const std::int64_t with_experts = c.expert_layer_count();
  std::string mlps;
  if (with_experts < c.layer_count)
    mlps += " + " + mlp(c.layer_count - with_experts, c.intermediate_size);
  if (with_experts > 0) {
    mlps += fmt::format(" + {} routers {} x {} (f32) + {} experts x {}",
                        with_experts,
                        c.experts.count,
                        c.hidden_size,
                        c.experts.count,
                        mlp(with_experts, c.experts.intermediate_size));
  }
  return fmt::format(
      "{} x (qkv {} x {} + out {} x {}){} + head {} x {}, as {} packed for {}, and f32 norms",
      c.layer_count,
      c.query_size() + 2 * c.kv_size(),
      c.hidden_size,
      c.hidden_size,
      c.query_size(),
      mlps,
      c.vocab_size,
      c.hidden_size,
      plan.quantization == model::Quantization::kNone ? kernels::dtype_name(plan.dtype)
                                                      : model::quantization_name(plan.quantization),
      kernels::family_name(plan.backend->family()));
}

std::string pool_formula(const WorkerPlan& plan) {
  const model::ModelConfig& c = plan.config;
  return fmt::format(
      "{} pages x {} bytes ({} tokens a page x 2 x {} layers x {} KV heads x {} x {} bytes)",
      plan.page_count,
      plan.memory.page_bytes,
      plan.page_size,
      c.layer_count,
      c.kv_head_count,
      c.head_dim,
      kernels::dtype_bytes(plan.kv_dtype));
}

}  // namespace

Result<CheckpointFacts> read_checkpoint_facts(const std::string& folder, kernels::DType kv_dtype) {
  TANDEM_TRY(const weights::Checkpoint checkpoint, weights::Checkpoint::open(folder, {}));
  TANDEM_TRY(model::check_kv_scales(checkpoint, kv_dtype));
  CheckpointFacts facts{.byte_count = checkpoint.byte_count(),
                        .tensor_count = checkpoint.tensor_count(),
                        .types = {}};
  std::map<std::string, std::size_t> types;
  for (const weights::StoredTensor& tensor : checkpoint.tensors())
    ++types[std::string(weights::name(tensor.type))];
  facts.types.assign(types.begin(), types.end());
  return facts;
}

std::string plan_text(const WorkerPlan& plan, const CheckpointFacts* checkpoint) {
  const model::MemoryPlan& memory = plan.memory;
  const model::ModelConfig& config = plan.config;
  std::string out = "memory plan\n";
  const auto row = [&out](const char* name, std::uint64_t bytes, const std::string& formula) {
    out += fmt::format("  {:<18} {:>14} bytes  {}\n", name, bytes, formula);
  };
  row("checkpoint",
      checkpoint == nullptr ? 0 : checkpoint->byte_count,
      checkpoint_formula(checkpoint));
  row("weights", memory.weight_bytes, weight_formula(plan));
  row("embedding",
      memory.embedding_bytes,
      fmt::format("{} x {} x {} bytes",
                  config.vocab_size,
                  config.hidden_size,
                  kernels::dtype_bytes(config.dtype.value_or(plan.dtype))));
  row("rotary tables",
      memory.rope_bytes,
      fmt::format("{} positions x {} x 4 bytes", plan.context_length, config.head_dim));
  row("activations",
      memory.activation_bytes,
      fmt::format("{} tokens in a step x {} x 4 bytes",
                  plan.limits.token_count_max,
                  model::activation_floats_per_token(config)));
  row("logits",
      memory.logit_bytes,
      fmt::format("{} rows x ({} + 2 x {}) x 4 bytes",
                  plan.limits.logit_row_count_max,
                  config.vocab_size,
                  config.hidden_size));
  row("KV pool", plan.pool_bytes(), pool_formula(plan));
  row("transfer buffers",
      plan.transfer_bytes,
      plan.transfer_bytes == 0 ? "no disaggregation" : "fixed: units in flight");
  row("threads",
      plan.threads_bytes(),
      fmt::format("{} threads x ({} + {} x {} to sample in)",
                  plan.compute_threads,
                  kernels::ThreadPool::kScratchBytes,
                  config.vocab_size,
                  sample::Sampler::kBytesPerToken));
  row("total",
      plan.total_bytes(),
      fmt::format("of {} x {} that this process may use", plan.fraction, plan.memory_bytes));
  const auto fact = [&out](const char* name, const std::string& value) {
    out += fmt::format("  {:<18} {:>14} {}\n",
                       name,
                       value.substr(0, value.find(' ')),
                       value.substr(std::min(value.find(' '), value.size() - 1) + 1));
  };
  fact("longest request",
       fmt::format("{} tokens", std::min(plan.context_length, plan.max_total_tokens)));
  fact("running requests", fmt::format("{} at most", plan.max_running_requests));
  fact("largest context",
       fmt::format("{} tokens of one request would fit in memory", plan.largest_context));
  fact(
      "largest batch",
      fmt::format(
          "{} requests of {} tokens would fit in memory", plan.largest_batch, plan.context_length));
  out += fmt::format("  {:<18} {:>14}\n", "kernels", kernels::family_name(plan.backend->family()));
  return out;
}

}  // namespace tandem::worker
