// What a worker will hold in memory, and whether it fits: resolved before a weight is read.
#pragma once

#include "common/args/options.h"
#include "common/base/status.h"
#include "common/model/config.h"
#include "common/model/memory_plan.h"
#include "kernels/api/backend.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tandem::worker {

/// Everything about memory and batch sizes that follows from arguments, model and machine.
struct WorkerPlan {
  model::ModelConfig config;
  const kernels::Backend* backend = nullptr;
  kernels::DType dtype = kernels::DType::kBf16;
  kernels::DType kv_dtype = kernels::DType::kBf16;
  model::Quantization quantization = model::Quantization::kNone;
  model::PassLimits limits;
  model::MemoryPlan memory;
  std::uint64_t memory_bytes = 0;  ///< that the process may use
  double fraction = 0;             ///< weights + pool may take this share of it
  std::int64_t context_length = 0;
  std::int64_t page_size = 1;
  std::int64_t page_count = 0;
  std::int64_t max_total_tokens = 0;
  std::int32_t max_running_requests = 0;
  std::int32_t chunked_prefill_size = -1;
  std::int32_t chunk_beside_decodes = 0;  ///< as SchedulerOptions has it
  std::uint64_t transfer_bytes = 0;       ///< buffers of the KV transport
  std::uint32_t compute_threads = 1;
  std::uint64_t thread_bytes = 0;    ///< what each of them works in, sampling included
  std::int64_t largest_context = 0;  ///< tokens of one request that memory would hold
  std::int64_t largest_batch = 0;    ///< requests of context_length that memory would hold

  [[nodiscard]] std::uint64_t pool_bytes() const {
    return static_cast<std::uint64_t>(page_count) * memory.page_bytes;
  }

  [[nodiscard]] std::uint64_t threads_bytes() const { return compute_threads * thread_bytes; }

  /// All but the pool.
  [[nodiscard]] std::uint64_t fixed_bytes() const {
    return memory.fixed_bytes() + transfer_bytes + threads_bytes();
  }

  [[nodiscard]] std::uint64_t total_bytes() const { return fixed_bytes() + pool_bytes(); }
};

/// What the headers of the weight files say. Nothing of the weights themselves is read.
struct CheckpointFacts {
  std::uint64_t byte_count = 0;
  std::size_t tensor_count = 0;
  std::vector<std::pair<std::string, std::size_t>> types;  ///< "BF16", tensors of it
};

/// Reads config.json only. Errors name the flag, what was asked, what there is, and the nearest
/// values that fit.
Result<WorkerPlan> make_plan(const args::Arguments& args, std::uint64_t memory_bytes);

/// Reads the headers of the model's safetensors files. NotFound also when the folder has none.
Result<CheckpointFacts> read_checkpoint_facts(const std::string& folder, kernels::DType kv_dtype);

/// The plan as a table for people: every part with its bytes and the formula behind them, and what
/// fits at most. `checkpoint` is null when there are no weight files.
std::string plan_text(const WorkerPlan& plan, const CheckpointFacts* checkpoint);

/// The backend that --kernel-family (or --attention-backend) names, or why this machine cannot.
Result<const kernels::Backend*> select_backend(const args::Arguments& args);

}  // namespace tandem::worker
