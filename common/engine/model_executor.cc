#include "common/engine/model_executor.h"

#include <algorithm>
#include <limits>
#include <type_traits>

namespace tandem::engine {
namespace {

std::int32_t clamp_to_int32(std::int64_t value) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(value, std::numeric_limits<std::int32_t>::max()));
}

/// Kernels take page tables as 32-bit integers; a PageId is one (ids stay below 2^31).
const std::int32_t* raw(std::span<const kv::PageId> pages) {
  static_assert(sizeof(kv::PageId) == sizeof(std::int32_t) &&
                std::is_standard_layout_v<kv::PageId>);
  return reinterpret_cast<const std::int32_t*>(pages.data());
}

}  // namespace

ModelExecutor::ModelExecutor(model::Model* model, std::int32_t page_size) : model_(model) {
  const model::PassLimits& limits = model->limits();
  info_ = {.vocab_size = static_cast<std::int32_t>(model->config().vocab_size),
           .context_length = clamp_to_int32(model->context_length()),
           .eos_token_ids = model->config().eos_ids,
           .page_bytes = model->kv_layout(page_size).page_bytes(),
           .max_batch_tokens = clamp_to_int32(limits.token_count_max),
           .max_logit_rows = clamp_to_int32(limits.logit_row_count_max),
           .max_slices = clamp_to_int32(limits.sequence_count_max)};
  kv_.page_size = static_cast<std::size_t>(page_size);
}

Status ModelExecutor::bind_kv(std::byte* base, std::int64_t page_count) {
  kv_.base = base;
  kv_.page_count = static_cast<std::size_t>(page_count);
  return {};
}

Result<std::span<const float>> ModelExecutor::forward(std::span<const ForwardSlice> slices) {
  token_ids_.clear();
  positions_.clear();
  sequence_.clear();
  tables_.clear();
  rows_.clear();
  for (const ForwardSlice& slice : slices) {
    const auto index = static_cast<std::int32_t>(tables_.size());
    const auto count = static_cast<std::int32_t>(slice.tokens.size());
    token_ids_.insert(token_ids_.end(), slice.tokens.begin(), slice.tokens.end());
    for (std::int32_t i = 0; i < count; ++i)
      positions_.push_back(slice.first_position + i);
    sequence_.insert(sequence_.end(), slice.tokens.size(), index);
    tables_.push_back({.pages = raw(slice.pages), .page_count = slice.pages.size()});
    const auto end = static_cast<std::int32_t>(token_ids_.size());
    for (std::int32_t row = end - slice.logit_count; row < end; ++row)
      rows_.push_back(row);
  }
  model::ForwardOutput output;
  TANDEM_TRY(model_->forward({.token_ids = token_ids_,
                              .positions = positions_,
                              .sequence = sequence_,
                              .sequences = tables_,
                              .kv = kv_,
                              .logit_rows = rows_},
                             output));
  return std::span<const float>(output.logits, rows_.size() * output.vocab_size);
}

std::size_t ModelExecutor::worker_count() const {
  return model_->pool().thread_count();
}

void ModelExecutor::run_tasks(std::size_t count, Task task, void* context) {
  model_->pool().parallel_for(
      count, [&](std::size_t index, std::size_t worker) { task(context, index, worker); });
}

}  // namespace tandem::engine
