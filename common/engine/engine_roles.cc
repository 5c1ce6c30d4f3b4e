// What comes into the engine: requests, aborts, and both sides of a transfer.
#include "common/engine/engine_impl.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::engine {

OutputLimits Engine::Impl::output_limits() const {
  return {.eos_token_ids = executor->info().eos_token_ids,
          .token_limit =
              std::min<std::int64_t>(options.context_length, scheduler.capacity_tokens() + 1)};
}

Status Engine::Impl::check_id_is_free(core::RequestId id) const {
  if (!generations_.contains(id)) return {};
  return already_exists("request " + core::to_string(id) + " is here already");
}

Generation* Engine::Impl::find(core::RequestId id) {
  const auto found = generations_.find(id);
  return found == generations_.end() ? nullptr : found->second.get();
}

Status Engine::Impl::submit(core::Request request,
                            core::EventSink sink,
                            PrefillObserver* observer) {
  TANDEM_TRY(check_id_is_free(request.id));
  TANDEM_TRY(check_request(request, executor->info().vocab_size));
  sched::NewSequence spec;
  auto generation = std::make_unique<Generation>(std::move(request), output_limits(), &spec);
  TANDEM_TRY(check_room(*generation));
  generation->sink = std::move(sink);
  generation->observer = observer;
  generation->prefill_role = observer != nullptr;
  generation->submitted = options.clock->now();
  spec.prefill_only = generation->prefill_role;
  const core::RequestId id = generation->id();
  if (generation->ended_before && generation->next_prompt_row == kNoMatchLimit) {
    ended_before_.push_back(id);
  } else {
    TANDEM_TRY(generation->sequence, scheduler.add(std::move(spec)));
  }
  keep(std::move(generation));
  return {};
}

void Engine::Impl::keep(std::unique_ptr<Generation> generation) {
  const std::optional<Time> deadline = generation->request.deadline;
  if (deadline) next_deadline_ = std::min(next_deadline_.value_or(*deadline), *deadline);
  const core::RequestId id = generation->id();
  generations_.emplace(id, std::move(generation));
}

void Engine::Impl::abort(core::RequestId id, const Status& why) {
  Generation* generation = find(id);
  if (generation == nullptr) return;
  const bool keeps_pages = generation->prefill_role;
  if (!generation->reported) fail(*generation, why);
  // fail() has erased all others.
  if (keeps_pages) erase(*generation);
}

void Engine::Impl::release_prefill(core::RequestId id) {
  Generation* generation = find(id);
  if (generation != nullptr && generation->prefill_role) erase(*generation);
}

Status Engine::Impl::check_room(const Generation& generation) const {
  if (!generation.outgrown) return {};
  return {Code::kOutOfRange,
          "the request has " + std::to_string(generation.prompt_count) + " + " +
              std::to_string(generation.resumed_count) +
              " tokens and goes on, this worker has room for " +
              std::to_string(output_limits().token_limit) +
              " (--context-length, --max-total-tokens)"};
}

Result<Reservation> Engine::Impl::reserve(const core::Request& request) {
  TANDEM_TRY(check_id_is_free(request.id));
  TANDEM_TRY(check_request(request, executor->info().vocab_size));
  sched::NewSequence spec;
  auto generation = std::make_unique<Generation>(request, output_limits(), &spec);
  TANDEM_TRY(check_room(*generation));
  if (generation->ended_before || generation->is_last(generation->resumed_count + 1))
    return Reservation{.nothing_to_decode = true};
  // Logprobs of the prompt are the prefill side's; here the whole prompt may be cached.
  generation->next_prompt_row = kNoMatchLimit;
  generation->prompt_logprobs.clear();
  spec.match_limit = kNoMatchLimit;
  TANDEM_TRY(generation->sequence, scheduler.reserve(std::move(spec)));
  const kv::PageTable& table = generation->sequence->pages;
  const Reservation reservation{.matched_tokens = generation->sequence->computed,
                                .page_count = static_cast<std::int32_t>(table.pages.size()) -
                                              static_cast<std::int32_t>(table.shared_count)};
  generation->submitted = options.clock->now();
  keep(std::move(generation));
  return reservation;
}

Result<sched::Sequence*> Engine::Impl::reserved_sequence(core::RequestId id) {
  sched::Sequence* sequence = scheduler.find(id);
  if (sequence == nullptr) return not_found("request " + core::to_string(id) + " is not here");
  if (sequence->phase != sched::Phase::kReserved) {
    return failed_precondition("request " + core::to_string(id) + " holds no reservation");
  }
  return sequence;
}

Status Engine::Impl::adopt(core::RequestId id, const AdoptState& state, core::EventSink sink) {
  TANDEM_TRY(sched::Sequence * sequence, reserved_sequence(id));
  if (state.first_token < 0 || state.first_token >= executor->info().vocab_size) {
    return invalid_argument("first_token: " + std::to_string(state.first_token) +
                            " is outside the vocabulary");
  }
  Generation& generation = *find(id);
  const std::int32_t output_count = generation.resumed_count + 1;
  generation.cached_tokens = state.cached_tokens;
  generation.timings = state.timings;
  generation.sent_any = true;
  generation.pending.first_index = output_count;
  if (auto finish = finish_of(generation, state.first_token, output_count)) {
    const bool prefill_knows = generation.finish_after(state.first_token, output_count).has_value();
    core::TokenEvent event = generation.take_event();
    event.finish = std::move(finish);
    cancel_reservation(id, sequence->token_count());
    // Room is what each side knows of itself alone.
    if (!prefill_knows) sink(std::move(event));
    return {};
  }
  scheduler.adopt(*sequence, state.first_token);
  generation.start(options.clock->now());
  if (generation.keeps_counts) ++generation.counts[state.first_token];
  generation.sink = std::move(sink);
  return {};
}

void Engine::Impl::cancel_reservation(core::RequestId id, std::int32_t verified_tokens) {
  const auto sequence = reserved_sequence(id);
  if (!sequence.ok()) return;
  scheduler.cancel_reservation(**sequence, verified_tokens);
  Generation& generation = *find(id);
  generation.sequence = nullptr;
  erase(generation);
}

void Engine::Impl::fail(Generation& generation, const Status& why) {
  generation.reported = true;
  if (generation.prefill_role) {
    if (generation.sequence != nullptr) scheduler.hold(*generation.sequence);
    generation.observer->ended(generation.id(), why);
    return;
  }
  if (generation.sink) {
    send(generation, finish_reason(core::FinishKind::kAbort, std::nullopt, why));
  }
  erase(generation);
}

void Engine::Impl::erase(Generation& generation) {
  if (generation.sequence != nullptr) {
    // A reservation's pages hold nothing that was verified.
    scheduler.finish(
        *generation.sequence,
        generation.discard ? sched::Scheduler::Keep::kNothing : sched::Scheduler::Keep::kComputed);
  }
  std::erase(ended_before_, generation.id());
  generations_.erase(generation.id());
}

}  // namespace tandem::engine
