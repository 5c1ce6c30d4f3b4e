// The scheduler's choice of the next step: decodes, admission, prefill chunks, retraction.
#include "common/base/check.h"
#include "common/base/load_ahead.h"
#include "common/sched/scheduler.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tandem::sched {
namespace {

/// The ratio falls from start to floor in this many decode steps (SGLang).
constexpr std::int32_t kRatioDecaySteps = 600;
/// Output that admission expects of one sequence at most, whatever it may ask for (SGLang's clip).
constexpr std::int32_t kExpectedOutputMax = 4096;
/// Ordering a longer queue by prefix would cost more than it gives (SGLang).
constexpr std::size_t kPrefixOrderQueueMax = 128;
/// After so many later arrivals went first, the head of the queue goes: lpm starves nobody.
constexpr std::int32_t kPassedOverMax = 64;

}  // namespace

std::span<const WorkItem> Scheduler::plan() {
  plan_.clear();
  queue_ordered_ = false;
  if (idle()) {
    ratio_ = ratio_start_;
    return plan_;
  }
  const std::int64_t retractions = retraction_count_;
  for (const Sequence* sequence : running_)
    load_ahead(*sequence);
  make_room_for_decodes();
  const bool decodes = has(Phase::kDecode);
  const bool decode_turn = options_.mixed_chunk || last_was_prefill_;
  // What was just retracted must not come back with the pages that its leaving gave.
  const bool prefill_turn =
      retraction_count_ == retractions && (options_.mixed_chunk || !decodes || !last_was_prefill_);
  if (prefill_turn) plan_prefills(decodes);
  last_was_prefill_ = !plan_.empty();
  if (decodes && (decode_turn || plan_.empty())) {
    plan_decodes();
    if (!options_.mixed_chunk) last_was_prefill_ = false;
  }
  return plan_;
}

bool Scheduler::has(Phase phase) const {
  return std::ranges::any_of(running_, [&](const Sequence* s) { return s->phase == phase; });
}

void Scheduler::plan_decodes() {
  for (Sequence* sequence : running_) {
    if (sequence->phase != Phase::kDecode) continue;
    plan_.push_back({.sequence = sequence, .first = sequence->computed, .count = 1});
  }
  ratio_ = std::max(ratio_floor_, ratio_ - (ratio_start_ - ratio_floor_) / kRatioDecaySteps);
}

std::int32_t Scheduler::prefill_budget(bool beside_decodes) const {
  // A single legal prompt must always be schedulable.
  const std::int32_t most = std::max(options_.max_prefill_tokens, options_.context_length);
  if (options_.chunked_prefill_size == -1) return most;
  const std::int32_t chunk = std::min(most, options_.chunked_prefill_size);
  const bool shorter = beside_decodes && options_.chunk_beside_decodes > 0;
  return shorter ? std::min(chunk, options_.chunk_beside_decodes) : chunk;
}

void Scheduler::plan_prefills(bool beside_decodes) {
  budget_left_ = prefill_budget(beside_decodes);
  for (Sequence* sequence : running_) {
    if (sequence->phase == Phase::kPrefill && budget_left_ > 0) plan_prefill(*sequence);
  }
  while (budget_left_ > 0 && admit_next()) {
    plan_prefill(*running_.back());
  }
}

void Scheduler::plan_prefill(Sequence& sequence) {
  const std::int32_t count = std::min(sequence.token_count() - sequence.computed, budget_left_);
  plan_.push_back({.sequence = &sequence, .first = sequence.computed, .count = count});
  budget_left_ -= count;
}

bool Scheduler::admit_next() {
  const auto holders = static_cast<std::int64_t>(running_.size() + reserved_.size());
  if (waiting_.empty() || holders >= options_.max_running_requests) return false;
  const std::size_t at = next_waiting();
  Sequence& sequence = *waiting_[at];
  // Whole prompts only: one that does not fit into what is left of this step waits for the next.
  const std::int64_t uncached =
      sequence.token_count() - cache_.match_length(sequence.tokens) * options_.page_size;
  if (options_.chunked_prefill_size == -1 && !plan_.empty() && uncached > budget_left_) {
    return false;
  }
  if (!open_pages(sequence)) return false;
  for (std::size_t i = 0; i < at; ++i)
    ++waiting_[i]->passed_over;
  waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
  sequence.computed = static_cast<std::int32_t>(sequence.pages.shared_count) * options_.page_size;
  if (sequence.cached_tokens < 0) sequence.cached_tokens = sequence.computed;
  sequence.phase = Phase::kPrefill;
  reserve_growth(sequence);
  running_.push_back(&sequence);
  return true;
}

std::size_t Scheduler::next_waiting() {
  const Sequence& head = *waiting_.front();
  if (options_.policy == Policy::kFcfs || head.retraction_count > 0 ||
      head.passed_over >= kPassedOverMax || waiting_.size() > kPrefixOrderQueueMax) {
    return 0;
  }
  if (!queue_ordered_) {
    for (Sequence* sequence : waiting_) {
      sequence->queue_match = cache_.match_length(sequence->tokens);
    }
    queue_ordered_ = true;
  }
  const auto longest = std::ranges::max_element(
      waiting_, {}, [](const Sequence* sequence) { return sequence->queue_match; });
  return static_cast<std::size_t>(longest - waiting_.begin());
}

std::int64_t Scheduler::growth_pages(const Sequence& sequence) const {
  if (sequence.prefill_only) return 0;
  const std::int32_t expected = std::min(sequence.remaining_tokens(), kExpectedOutputMax);
  const auto growth = static_cast<std::int64_t>(std::ceil(ratio_ * expected));
  const auto held = static_cast<std::int64_t>(sequence.pages.pages.size());
  const auto now = std::max(held, cache_.pages_for(sequence.token_count()));
  return std::max<std::int64_t>(0, cache_.pages_for(sequence.token_count() + growth) - now);
}

bool Scheduler::open_pages(Sequence& sequence) {
  std::int64_t spare = 0;
  if (!running_.empty()) {
    spare = growth_pages(sequence);
    for (const Sequence* other : running_)
      spare += growth_pages(*other);
    if (sequence.adopted) {
      spare = std::max(spare, cache_.pages_for(options_.reserved_decode_tokens));
    }
  }
  const kv::Owner owner{sequence.prefill_only ? kv::OwnerKind::kTransfer : kv::OwnerKind::kSequence,
                        sequence.id.value};
  // At least the last token is computed, for its logits.
  const std::int64_t match_limit = std::min(sequence.match_limit, sequence.token_count() - 1);
  return cache_.open(&sequence.pages, owner, sequence.tokens, match_limit, spare);
}

// Memory that a list has and does not reach is never touched.
void Scheduler::reserve_growth(Sequence& sequence) const {
  if (sequence.prefill_only) return;
  sequence.tokens.reserve(static_cast<std::size_t>(sequence.token_limit));
  sequence.pages.pages.reserve(static_cast<std::size_t>(cache_.pages_for(sequence.token_limit)));
}

void Scheduler::make_room_for_decodes() {
  for (std::size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    if (sequence.phase != Phase::kDecode || cache_.grow(&sequence.pages, sequence.token_count())) {
      ++i;
      continue;
    }
    retract(*pick_victim());
    i = 0;
  }
}

Sequence* Scheduler::pick_victim() const {
  const auto key = [](const Sequence* s) {
    return std::tuple(s->output_count(), -s->prompt_count);
  };
  Sequence* victim = nullptr;
  for (Sequence* sequence : running_) {
    // Pages of a prefill-only sequence may be on their way to someone.
    if (sequence->prefill_only) continue;
    if (victim == nullptr || key(sequence) <= key(victim)) victim = sequence;
  }
  TANDEM_CHECK(victim != nullptr, "Scheduler: a decode needs a page and nobody runs");
  return victim;
}

void Scheduler::retract(Sequence& sequence) {
  cache_.close(&sequence.pages,
               std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.computed)));
  sequence.computed = 0;
  sequence.phase = Phase::kWaiting;
  ++sequence.retraction_count;
  ++retraction_count_;
  std::erase(running_, &sequence);
  waiting_.push_front(&sequence);
  estimate_ratio();
}

}  // namespace tandem::sched
