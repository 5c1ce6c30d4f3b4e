// The engine's inside. Included by the engine's own files only.
#pragma once

#include "common/engine/engine.h"
#include "common/engine/generation.h"
#include "common/engine/kv_arena.h"
#include "common/engine/memory_ahead.h"
#include "common/engine/row_reader.h"
#include "common/sched/scheduler.h"

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::engine {

/// Part of a work item that goes through the model in one call.
struct Piece {
  Generation* generation = nullptr;
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int32_t logit_count = 0;

  [[nodiscard]] std::int32_t end() const { return first + count; }
};

class Engine::Impl {
 public:
  Impl(const EngineOptions& options,
       const sched::SchedulerOptions& scheduler_options,
       Executor* executor,
       KvArena arena);

  // engine_roles.cc: what comes in
  Status submit(core::Request request, core::EventSink sink, PrefillObserver* observer);
  void abort(core::RequestId id, const Status& why);
  void release_prefill(core::RequestId id);
  Result<Reservation> reserve(const core::Request& request);
  Status adopt(core::RequestId id, const AdoptState& state, core::EventSink sink);
  void cancel_reservation(core::RequestId id, std::int32_t verified_tokens);
  Result<sched::Sequence*> reserved_sequence(core::RequestId id);

  // engine_step.cc: what goes out
  bool step(Time now);
  [[nodiscard]] bool has_work() const;

  [[nodiscard]] core::Load load() const;
  [[nodiscard]] Status check_invariants() const;

  EngineOptions options;
  Executor* executor;
  KvArena arena;
  sched::Scheduler scheduler;
  MemoryAhead memory_ahead;

 private:
  friend class Engine;

  [[nodiscard]] OutputLimits output_limits() const;
  [[nodiscard]] Status check_id_is_free(core::RequestId id) const;
  [[nodiscard]] Status check_room(const Generation& generation) const;
  [[nodiscard]] Generation* find(core::RequestId id);
  void keep(std::unique_ptr<Generation> generation);

  void expire(Time now);
  bool report_ended_before();
  void run_plan(std::span<const sched::WorkItem> plan);
  void run_item(const sched::WorkItem& item, Generation& generation);
  /// Runs the pieces that were gathered; true when the last one's request is still here.
  bool flush_pieces();
  /// Begins to load what the pieces' requests are made of.
  void load_pieces_ahead() const;
  /// What is wanted of the rows of all pieces goes to rows_; their logits are not there yet.
  void want_rows();
  void complete(const Piece& piece, std::span<LogitRow> rows);
  /// Takes what came of a piece's rows: prompt logprobs, then, at the end of the tokens, the next
  /// token.
  Status take_rows(Generation& generation,
                   std::span<LogitRow> rows,
                   std::optional<core::TokenId>* sampled);
  void tell_pages(Generation& generation);
  void end_prefill(Generation& generation, std::optional<core::TokenId> sampled);
  void continue_output(Generation& generation, std::optional<core::TokenId> sampled);
  [[nodiscard]] bool samples_after(const Generation& generation, std::int32_t end) const;
  [[nodiscard]] std::optional<core::FinishReason> finish_of(const Generation& generation,
                                                            core::TokenId token,
                                                            std::int32_t output_count) const;

  /// Reports the failure of a request. Its pages go now, except those of the prefill role.
  void fail(Generation& generation, const Status& why);
  void send(Generation& generation, std::optional<core::FinishReason> finish);
  /// Ends the sequence and forgets the request.
  void erase(Generation& generation);
  void measure_throughput(Time now);

  [[nodiscard]] std::size_t vocab() const {
    return static_cast<std::size_t>(executor->info().vocab_size);
  }

  std::unordered_map<core::RequestId, std::unique_ptr<Generation>> generations_;
  RowReader reader_;
  /// No request's deadline is before this one; it may be that of a request that is gone.
  std::optional<Time> next_deadline_;
  /// Requests that end without any computation.
  std::vector<core::RequestId> ended_before_;

  std::vector<Piece> pieces_;
  std::vector<ForwardSlice> slices_;
  std::vector<LogitRow> rows_;
  std::int32_t piece_tokens_ = 0;
  std::int32_t piece_rows_ = 0;
  std::vector<core::RequestId> scratch_ids_;

  std::uint64_t progress_ = 0;
  std::int64_t window_tokens_ = 0;
  Time window_start_;
  double throughput_ = 0;
};

}  // namespace tandem::engine
