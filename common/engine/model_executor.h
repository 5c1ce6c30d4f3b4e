// ModelExecutor: room model behind the engine's Executor.
#pragma once

#include "common/engine/executor.h"
#include "common/model/model.h"

#include <cstdint>
#include <vector>

namespace tandem::engine {

class ModelExecutor final : public Executor {
 public:
  /// `model` is borrowed. page_size: the engine's, >= 1.
  ModelExecutor(model::Model* model, std::int32_t page_size);

  [[nodiscard]] const ExecutorInfo& info() const override { return info_; }

  Status bind_kv(std::byte* base, std::int64_t page_count) override;
  Result<std::span<const float>> forward(std::span<const ForwardSlice> slices) override;

  /// On the model's compute pool, which is idle between forward calls.
  [[nodiscard]] std::size_t worker_count() const override;
  void run_tasks(std::size_t count, Task task, void* context) override;

 private:
  model::Model* model_;
  ExecutorInfo info_;
  model::KvArena kv_;
  // Reused by every call: their capacity is that of the largest batch so far.
  std::vector<std::int32_t> token_ids_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> sequence_;
  std::vector<model::SequencePages> tables_;
  std::vector<std::int32_t> rows_;
};

}  // namespace tandem::engine
