// Scheduler: which tokens of which sequences the next step computes, and where their KV goes.
#pragma once

#include "common/base/status.h"
#include "common/kv/page_cache.h"
#include "common/sched/sequence.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace tandem::sched {

enum class Policy : std::uint8_t {
  kFcfs,
  kLpm,
};

struct SchedulerOptions {
  std::int64_t page_count = 1;
  std::int32_t page_size = 1;
  bool prefix_reuse = true;
  std::int32_t context_length = 1;
  std::int32_t max_running_requests = 1;
  std::int32_t max_queued_requests = 0;  ///< 0: no limit
  std::int32_t max_prefill_tokens = 16384;
  std::int32_t chunked_prefill_size = -1;  ///< -1: whole prompts
  /// The same while sequences decode, who wait for the step; 0: no difference.
  std::int32_t chunk_beside_decodes = 0;
  bool mixed_chunk = true;
  Policy policy = Policy::kFcfs;
  double conservativeness = 1.0;
  std::int32_t reserved_decode_tokens = 512;
};

/// Compute tokens [first, first + count) of a sequence. When first + count is all of its tokens,
/// the step gives the logits of the next one.
struct WorkItem {
  Sequence* sequence = nullptr;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

/// A pure state machine: no clock, no I/O, no threads. Inputs are the calls; the output is the plan
/// of the next step. Use: plan(), compute, then for each item advance(), and append() or finish().
///
/// A step holds one token of every decoding sequence and, within the budgets, prompt tokens of
/// prefilling ones (with mixed_chunk = false the two kinds take turns). Pages of a whole prompt are
/// held from admission on, so a prefill never stops half-way for memory. When a decode finds no
/// page, sequences are retracted, fewest output tokens first, then longest prompt: their pages go
/// to the prefix tree, they return to the head of the queue and are recomputed as a prompt.
///
/// Admission keeps `ratio * remaining output` of every running sequence free. The ratio starts at
/// min(1, 0.7 * conservativeness), falls over 600 decode steps to 14 % of that, is re-estimated
/// after a retraction and starts anew when nothing is left to do (as in SGLang). A sequence is
/// always admitted when nothing runs, if its tokens fit.
///
/// What a sequence needs to grow to its limit is asked for when it is admitted: the plan of a step
/// of decodes, and what is told of it, allocate nothing.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Queues a sequence. Errors as in engine::Engine::submit.
  Result<Sequence*> add(NewSequence spec);

  /// Pages for a prompt whose KV comes from elsewhere. kResourceExhausted: try again later.
  Result<Sequence*> reserve(NewSequence spec);
  /// The next landing pages, in order of the prompt; borrowed until the next call.
  Result<std::span<const kv::PageId>> take_pages(Sequence& sequence, std::int32_t count);
  /// All KV of a reservation is there: it decodes from `first_token` on.
  void adopt(Sequence& sequence, core::TokenId first_token);
  /// The first verified_tokens tokens after the matched ones are good; ends the sequence.
  void cancel_reservation(Sequence& sequence, std::int32_t verified_tokens);

  /// The next step; empty when there is nothing to do or nothing fits now. Borrowed until the next
  /// call.
  std::span<const WorkItem> plan();
  /// KV of the next `count` tokens of the sequence is computed.
  void advance(Sequence& sequence, std::int32_t count);
  /// Adds an output token to a fully computed sequence.
  void append(Sequence& sequence, core::TokenId token);

  /// Stops the computation of a prefill-only sequence; its pages stay.
  void hold(Sequence& sequence);

  enum class Keep : std::uint8_t {
    kComputed,  ///< full pages of computed tokens go to the prefix tree
    kNothing,   ///< their KV is not to be trusted
  };
  /// Ends a sequence in any phase; it is gone on return.
  void finish(Sequence& sequence, Keep keep);

  [[nodiscard]] Sequence* find(core::RequestId id);

  [[nodiscard]] bool idle() const { return waiting_.empty() && running_.empty(); }

  [[nodiscard]] std::size_t sequence_count() const { return sequences_.size(); }

  [[nodiscard]] std::int64_t waiting_count() const {
    return static_cast<std::int64_t>(waiting_.size());
  }

  [[nodiscard]] std::int64_t running_count() const {
    return static_cast<std::int64_t>(running_.size());
  }

  /// Longest prompt plus output that the pool can ever hold.
  [[nodiscard]] std::int64_t capacity_tokens() const;

  [[nodiscard]] double new_token_ratio() const { return ratio_; }

  [[nodiscard]] std::int64_t retraction_count() const { return retraction_count_; }

  [[nodiscard]] const kv::PageCache& cache() const { return cache_; }

  /// Drops cached pages that no sequence uses.
  void flush_cache() { cache_.clear_unused(); }

  /// Every page has one owner, every sequence is in the list of its phase, budgets hold.
  [[nodiscard]] Status check() const;

 private:
  Status check_new(const NewSequence& spec) const;
  Sequence* insert(NewSequence spec);
  std::vector<Sequence*>& list_of(Phase phase);

  void plan_decodes();
  void plan_prefills(bool beside_decodes);
  void plan_prefill(Sequence& sequence);
  [[nodiscard]] std::int32_t prefill_budget(bool beside_decodes) const;
  [[nodiscard]] bool has(Phase phase) const;

  void make_room_for_decodes();
  [[nodiscard]] Sequence* pick_victim() const;
  void retract(Sequence& sequence);
  void estimate_ratio();

  bool admit_next();
  [[nodiscard]] std::size_t next_waiting();
  [[nodiscard]] bool open_pages(Sequence& sequence);
  void reserve_growth(Sequence& sequence) const;
  [[nodiscard]] std::int64_t growth_pages(const Sequence& sequence) const;

  SchedulerOptions options_;
  kv::PageCache cache_;
  std::unordered_map<core::RequestId, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;  ///< kPrefill and kDecode, in order of admission
  std::vector<Sequence*> held_;
  std::vector<Sequence*> reserved_;
  std::vector<WorkItem> plan_;
  std::int32_t budget_left_ = 0;
  bool last_was_prefill_ = false;
  bool queue_ordered_ = false;
  double ratio_start_ = 0;
  double ratio_floor_ = 0;
  double ratio_ = 0;
  std::int64_t retraction_count_ = 0;
};

}  // namespace tandem::sched
