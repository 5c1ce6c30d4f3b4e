#include "common/sched/scheduler.h"

#include "common/base/check.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::sched {
namespace {

// SGLang's constants, so that a deployment's tuning carries over.
constexpr double kRatioStart = 0.7;
constexpr double kRatioFloor = 0.14;

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      cache_({.page_count = options.page_count,
              .page_size = options.page_size,
              .prefix_reuse = options.prefix_reuse}),
      ratio_start_(std::min(1.0, kRatioStart * options.conservativeness)),
      ratio_floor_(ratio_start_ * kRatioFloor),
      ratio_(ratio_start_) {
  TANDEM_CHECK(options.max_running_requests >= 1, "Scheduler: max_running_requests");
  TANDEM_CHECK(options.chunked_prefill_size == -1 || options.chunked_prefill_size >= 1,
               "Scheduler: chunked_prefill_size");
}

Scheduler::~Scheduler() = default;

std::int64_t Scheduler::capacity_tokens() const {
  return options_.page_count * options_.page_size;
}

Status Scheduler::check_new(const NewSequence& spec) const {
  const auto prompt = static_cast<std::int64_t>(spec.prompt.size());
  const auto tokens = prompt + static_cast<std::int64_t>(spec.resumed.size());
  if (prompt == 0) return invalid_argument("input_ids is empty");
  if (sequences_.contains(spec.id)) {
    return already_exists("request " + core::to_string(spec.id) + " is here already");
  }
  const bool generates = static_cast<std::size_t>(spec.max_new_tokens) > spec.resumed.size();
  const std::int64_t wanted = tokens + (generates ? 1 : 0);
  if (wanted > options_.context_length) {
    return {Code::kOutOfRange,
            "the prompt has " + std::to_string(tokens) + " tokens, the context length is " +
                std::to_string(options_.context_length) +
                (tokens <= options_.context_length ? " (no room for output)" : "")};
  }
  if (tokens > capacity_tokens()) {
    return {Code::kOutOfRange,
            "the prompt has " + std::to_string(tokens) + " tokens, the KV pool holds " +
                std::to_string(capacity_tokens()) + " (--max-total-tokens)"};
  }
  return {};
}

Sequence* Scheduler::insert(NewSequence spec) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = spec.id;
  sequence->prompt_count = static_cast<std::int32_t>(spec.prompt.size());
  sequence->tokens = std::move(spec.prompt);
  sequence->tokens.insert(sequence->tokens.end(), spec.resumed.begin(), spec.resumed.end());
  // The last token of an output needs no KV, hence the + 1.
  const std::int64_t limit = std::min({std::int64_t{sequence->prompt_count} + spec.max_new_tokens,
                                       std::int64_t{options_.context_length},
                                       capacity_tokens() + 1});
  sequence->token_limit =
      static_cast<std::int32_t>(std::max<std::int64_t>(limit, sequence->token_count()));
  sequence->match_limit = spec.match_limit;
  sequence->prefill_only = spec.prefill_only;
  Sequence* raw = sequence.get();
  sequences_.emplace(spec.id, std::move(sequence));
  return raw;
}

Result<Sequence*> Scheduler::add(NewSequence spec) {
  TANDEM_TRY(check_new(spec));
  if (options_.max_queued_requests > 0 && waiting_count() >= options_.max_queued_requests) {
    return resource_exhausted("the queue is full: " + std::to_string(waiting_count()) +
                              " requests wait (--max-queued-requests)");
  }
  Sequence* sequence = insert(std::move(spec));
  waiting_.push_back(sequence);
  return sequence;
}

Result<Sequence*> Scheduler::reserve(NewSequence spec) {
  TANDEM_TRY(check_new(spec));
  if (!waiting_.empty()) {
    return resource_exhausted(std::to_string(waiting_.size()) +
                              " requests wait here for KV pages and go first");
  }
  const auto holders = static_cast<std::int64_t>(running_.size() + reserved_.size());
  if (holders >= options_.max_running_requests) {
    return resource_exhausted(std::to_string(holders) +
                              " requests run or arrive (--max-running-requests)");
  }
  // Alone, a request may use the whole pool: a pool smaller than the reserve still serves.
  const std::int64_t spare =
      holders == 0 ? 0 : cache_.pages_for((holders + 1) * options_.reserved_decode_tokens);
  Sequence* sequence = insert(std::move(spec));
  const kv::Owner owner{kv::OwnerKind::kTransfer, sequence->id.value};
  const std::int64_t match_limit = std::min(sequence->match_limit, sequence->token_count() - 1);
  if (!cache_.open(&sequence->pages, owner, sequence->tokens, match_limit, spare)) {
    const std::int64_t needed = cache_.pages_for(sequence->token_count());
    sequences_.erase(sequence->id);
    return resource_exhausted("the prompt needs " + std::to_string(needed) + " pages and " +
                              std::to_string(spare) + " stay reserved; available are " +
                              std::to_string(cache_.available_pages()));
  }
  sequence->computed = static_cast<std::int32_t>(sequence->pages.shared_count) * options_.page_size;
  sequence->cached_tokens = sequence->computed;
  sequence->phase = Phase::kReserved;
  reserved_.push_back(sequence);
  return sequence;
}

Result<std::span<const kv::PageId>> Scheduler::take_pages(Sequence& sequence, std::int32_t count) {
  if (sequence.phase != Phase::kReserved) {
    return failed_precondition("request " + core::to_string(sequence.id) + " is not reserved");
  }
  const auto first = sequence.pages.shared_count + sequence.pages_taken;
  const auto left = static_cast<std::int64_t>(sequence.pages.pages.size()) - first;
  if (count < 0 || count > left) {
    return invalid_argument("request " + core::to_string(sequence.id) + ": " +
                            std::to_string(count) + " pages wanted, " + std::to_string(left) +
                            " are left of its reservation");
  }
  sequence.pages_taken += count;
  return std::span<const kv::PageId>(sequence.pages.pages)
      .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

void Scheduler::adopt(Sequence& sequence, core::TokenId first_token) {
  TANDEM_CHECK(sequence.phase == Phase::kReserved, "Scheduler::adopt: not reserved");
  std::erase(reserved_, &sequence);
  cache_.change_owner(&sequence.pages, {kv::OwnerKind::kSequence, sequence.id.value});
  sequence.computed = sequence.token_count();
  sequence.adopted = true;
  sequence.phase = Phase::kDecode;
  cache_.publish(&sequence.pages, sequence.tokens);
  reserve_growth(sequence);
  running_.push_back(&sequence);
  append(sequence, first_token);
}

void Scheduler::cancel_reservation(Sequence& sequence, std::int32_t verified_tokens) {
  TANDEM_CHECK(sequence.phase == Phase::kReserved, "Scheduler::cancel_reservation: not reserved");
  const std::int32_t verified = std::max(verified_tokens, 0);
  sequence.computed += std::min(verified, sequence.token_count() - sequence.computed);
  finish(sequence, Keep::kComputed);
}

void Scheduler::advance(Sequence& sequence, std::int32_t count) {
  sequence.computed += count;
  TANDEM_CHECK(sequence.computed <= sequence.token_count(), "Scheduler::advance: too far");
  if (sequence.phase != Phase::kPrefill) return;
  cache_.publish(&sequence.pages,
                 std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.computed)));
  if (sequence.computed < sequence.token_count()) return;
  sequence.phase = sequence.prefill_only ? Phase::kHeld : Phase::kDecode;
  if (!sequence.prefill_only) return;
  std::erase(running_, &sequence);
  held_.push_back(&sequence);
}

void Scheduler::append(Sequence& sequence, core::TokenId token) {
  TANDEM_CHECK(sequence.computed == sequence.token_count(), "Scheduler::append: not computed");
  TANDEM_CHECK(sequence.remaining_tokens() > 0, "Scheduler::append: beyond the limit");
  sequence.tokens.push_back(token);
}

void Scheduler::finish(Sequence& sequence, Keep keep) {
  if (keep == Keep::kComputed) {
    cache_.close(&sequence.pages,
                 std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.computed)));
  } else {
    cache_.discard(&sequence.pages);
  }
  if (sequence.phase == Phase::kWaiting) {
    std::erase(waiting_, &sequence);
  } else {
    std::erase(list_of(sequence.phase), &sequence);
  }
  sequences_.erase(sequence.id);
}

std::vector<Sequence*>& Scheduler::list_of(Phase phase) {
  if (phase == Phase::kHeld) return held_;
  if (phase == Phase::kReserved) return reserved_;
  return running_;
}

void Scheduler::hold(Sequence& sequence) {
  TANDEM_CHECK(sequence.prefill_only && sequence.phase != Phase::kReserved, "Scheduler::hold");
  if (sequence.phase == Phase::kHeld) return;
  if (sequence.phase == Phase::kWaiting) {
    std::erase(waiting_, &sequence);
  } else {
    std::erase(running_, &sequence);
  }
  sequence.phase = Phase::kHeld;
  held_.push_back(&sequence);
}

Sequence* Scheduler::find(core::RequestId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

void Scheduler::estimate_ratio() {
  // SGLang: what the running sequences have used of their allowance, plus 20 steps each.
  constexpr double kStepsAhead = 20;
  double used = 0;
  double allowed = 1;
  for (const Sequence* sequence : running_) {
    used += sequence->output_count() + kStepsAhead;
    allowed += sequence->token_limit - sequence->prompt_count;
  }
  ratio_ = std::min(1.0, used / allowed);
}

Status Scheduler::check() const {
  std::vector<const kv::PageTable*> tables;
  std::size_t listed = waiting_.size() + running_.size() + held_.size() + reserved_.size();
  for (const auto& [id, sequence] : sequences_) {
    tables.push_back(&sequence->pages);
    const auto capacity =
        static_cast<std::int64_t>(sequence->pages.pages.size()) * options_.page_size;
    const bool holds = sequence->phase != Phase::kWaiting;
    if (sequence->computed > capacity || (!holds && capacity > 0)) {
      return internal_error("request " + core::to_string(id) + ": " +
                            std::to_string(sequence->computed) + " tokens computed in pages for " +
                            std::to_string(capacity));
    }
  }
  if (listed != sequences_.size()) {
    return internal_error(std::to_string(sequences_.size()) + " sequences, " +
                          std::to_string(listed) + " in the lists");
  }
  if (static_cast<std::int64_t>(running_.size()) > options_.max_running_requests) {
    return internal_error(std::to_string(running_.size()) + " sequences run");
  }
  return cache_.check(tables);
}

}  // namespace tandem::sched
