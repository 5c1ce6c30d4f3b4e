#include "common/fleet/flight_table.h"

#include <algorithm>
#include <utility>

namespace tandem::fleet {
namespace {

void merge(core::Timings& into, const core::Timings& from) {
  if (from.queue.ns >= 0) into.queue = from.queue;
  if (from.prefill.ns >= 0) into.prefill = from.prefill;
  if (from.kv_transfer.ns >= 0) into.kv_transfer = from.kv_transfer;
  if (from.kv_transfer_bytes >= 0) into.kv_transfer_bytes = from.kv_transfer_bytes;
}

}  // namespace

bool is_retryable(Code code) {
  return code == Code::kUnavailable || code == Code::kAborted || code == Code::kDataLoss ||
         code == Code::kInternal || code == Code::kUnknown || code == Code::kResourceExhausted;
}

FlightTable::FlightTable(FlightOptions options, Picker picker)
    : options_(std::move(options)), picker_(std::move(picker)) {
  if (!options_.draw_id) options_.draw_id = core::draw_request_id;
}

Status FlightTable::begin(core::Request request, Time now, Out& out) {
  (void)now;
  if (flights_.size() >= options_.flights_max) {
    return resource_exhausted("the router already holds " + std::to_string(flights_.size()) +
                              " requests");
  }
  const core::RequestId id = request.id;
  const auto [it, fresh] = flights_.try_emplace(id);
  if (!fresh) return already_exists("request " + core::to_string(id) + " is running");
  it->second.output = request.resumed_output_ids;
  it->second.request = std::make_shared<const core::Request>(std::move(request));
  it->second.wire_id = id;
  if (!launch(it, out)) {
    flights_.erase(it);
    return unavailable("no worker can take the request now");
  }
  expect(it->second);
  ++stats_.started;
  return {};
}

std::shared_ptr<const core::Request> FlightTable::wire_request(const Flight& flight) {
  const core::Request& given = *flight.request;
  const bool first = flight.wire_id == given.id && !flight.prompt_logprobs_sent &&
                     flight.output.size() == given.resumed_output_ids.size();
  if (first) return flight.request;
  auto request = std::make_shared<core::Request>(given);
  request->id = flight.wire_id;
  request->resumed_output_ids = flight.output;
  if (flight.prompt_logprobs_sent) request->logprob_start_len = -1;
  return request;
}

void FlightTable::note_use(const Flight& flight, bool begin) {
  const auto tokens = static_cast<std::int64_t>(flight.request->input_ids.size()) +
                      flight.request->sampling.max_new_tokens;
  const auto note = [&](WorkerKey worker) {
    WorkerUse& use = use_[worker];
    if (begin) {
      ++use.attempts;
      use.tokens += tokens;
    } else if (--use.attempts == 0) {
      use_.erase(worker);
    } else {
      use.tokens -= tokens;
    }
  };
  note(flight.placement->main);
  if (flight.placement->prefill) note(*flight.placement->prefill);
}

bool FlightTable::launch(Flights::iterator it, Out& out) {
  Flight& flight = it->second;
  flight.placement = picker_(*flight.request, flight.tried);
  if (!flight.placement) return false;
  flight.wait_until.reset();
  flight.prefill_done = false;
  flight.decode_started = false;
  flight.early.clear();
  flight.output_before = flight.output.size();
  if (flight.wire_id != it->first) wire_to_client_[flight.wire_id] = it->first;
  note_use(flight, true);
  const Placement& placement = *flight.placement;
  const LegRole main_role = placement.prefill ? LegRole::kDecode : LegRole::kUnified;
  // Decode first: its grant is then under way while prefill still queues the prompt.
  out.emplace_back(
      SubmitTo{placement.main, wire_request(flight), flight.attempt, main_role, placement.prefill});
  if (placement.prefill) {
    out.emplace_back(SubmitTo{*placement.prefill,
                              wire_request(flight),
                              flight.attempt,
                              LegRole::kPrefill,
                              placement.main});
  }
  return true;
}

FlightTable::Flights::iterator FlightTable::by_wire(WorkerKey worker, core::RequestId wire_id) {
  auto it = flights_.find(wire_id);
  if (it == flights_.end() || it->second.wire_id != wire_id) {
    const auto mapped = wire_to_client_.find(wire_id);
    if (mapped == wire_to_client_.end()) return flights_.end();
    it = flights_.find(mapped->second);
  }
  if (it == flights_.end() || it->second.wire_id != wire_id || !it->second.placement)
    return flights_.end();
  const Placement& placement = *it->second.placement;
  const bool ours = placement.main == worker || placement.prefill == worker;
  return ours ? it : flights_.end();
}

/// Ends both legs of the running attempt; `except` has already ended by itself.
void FlightTable::end_attempt(Flight& flight, std::optional<WorkerKey> except, Out& out) {
  if (!flight.placement) return;
  const Placement placement = *flight.placement;
  note_use(flight, false);
  flight.placement.reset();
  if (flight.wire_id != flight.request->id) wire_to_client_.erase(flight.wire_id);
  if (placement.main != except) out.emplace_back(AbortAt{placement.main, flight.wire_id});
  if (placement.prefill && placement.prefill != except) {
    out.emplace_back(AbortAt{*placement.prefill, flight.wire_id});
  }
}

/// The next attempt, now. False: no worker can take it, or there were enough.
bool FlightTable::next_attempt(Flights::iterator it, Out& out) {
  Flight& flight = it->second;
  if (flight.attempt + 1 >= options_.attempts_max) return false;
  ++flight.attempt;
  ++stats_.retried;
  flight.wire_id = options_.draw_id();
  return launch(it, out);
}

void FlightTable::retry(Flights::iterator it, const Status& why, Time now, Out& out) {
  Flight& flight = it->second;
  flight.last_error = why;
  if (next_attempt(it, out)) return;
  if (flight.attempt + 1 >= options_.attempts_max) {
    fail(it, why, out);
    return;
  }
  wait_for_another(flight, now);
}

/// The request is longer than `worker` has room for: only another one helps. That may be one that
/// has just been lost.
void FlightTable::too_long(
    Flights::iterator it, WorkerKey worker, const Status& why, Time now, Out& out) {
  Flight& flight = it->second;
  flight.too_short.insert(worker);
  flight.tried.insert(worker);
  end_attempt(flight, worker, out);
  if (next_attempt(it, out)) return;
  if (flight.last_error.ok() || flight.attempt + 1 >= options_.attempts_max)
    return fail(it, why, out);
  wait_for_another(flight, now);
}

void FlightTable::wait_for_another(Flight& flight, Time now) {
  flight.wait_until = now + options_.replacement_wait;
  flight.look_again_at = now + options_.look_again;
  expect(flight);
}

/// Has on_time look at the flight when it is due.
void FlightTable::expect(const Flight& flight) {
  const auto note = [this](const std::optional<Time>& time) {
    if (time && (!next_deadline_ || *time < *next_deadline_)) next_deadline_ = time;
  };
  note(flight.request->deadline);
  note(flight.wait_until);
  if (flight.wait_until) note(flight.look_again_at);
}

/// Which half of a pair to avoid next time. A worker that says "unavailable" speaks of the other
/// one: a lost worker says nothing. So does one that says that the pair does not fit.
WorkerKey FlightTable::blame(const Flight& flight, WorkerKey reporter, Code code) {
  const Placement& placement = *flight.placement;
  const bool other = code == Code::kUnavailable || code == Code::kFailedPrecondition;
  if (!placement.prefill || !other) return reporter;
  return reporter == placement.main ? *placement.prefill : placement.main;
}

void FlightTable::fail(Flights::iterator it, const Status& why, Out& out) {
  Flight& flight = it->second;
  end_attempt(flight, std::nullopt, out);
  core::TokenEvent event;
  event.request = it->first;
  event.first_index = static_cast<std::int32_t>(flight.output.size());
  event.prompt_tokens = static_cast<std::int32_t>(flight.request->input_ids.size());
  event.cached_tokens = flight.cached_tokens;
  event.timings = flight.timings;
  event.finish = core::FinishReason{core::FinishKind::kAbort, std::nullopt, why};
  flights_.erase(it);
  ++stats_.failed;
  out.emplace_back(Emit{std::move(event)});
}

/// Hands on what is new in `event`; its indices start at or before the next one.
void FlightTable::take(Flights::iterator it, core::TokenEvent&& event, Out& out) {
  Flight& flight = it->second;
  const auto have = static_cast<std::int32_t>(flight.output.size());
  const auto repeated = std::min<std::size_t>(static_cast<std::size_t>(have - event.first_index),
                                              event.tokens.size());
  for (std::size_t i = 0; i < repeated; ++i) {
    ++stats_.repeated_tokens;
    if (event.tokens[i] != flight.output[static_cast<std::size_t>(event.first_index) + i])
      ++stats_.differing_tokens;
  }
  if (repeated > 0) {
    const auto cut = static_cast<std::ptrdiff_t>(repeated);
    event.tokens.erase(event.tokens.begin(), event.tokens.begin() + cut);
    if (event.logprobs.size() >= repeated)
      event.logprobs.erase(event.logprobs.begin(), event.logprobs.begin() + cut);
  }
  event.first_index = have;
  if (flight.prompt_logprobs_sent) event.prompt_logprobs.clear();
  if (!event.prompt_logprobs.empty()) flight.prompt_logprobs_sent = true;
  flight.output.insert(flight.output.end(), event.tokens.begin(), event.tokens.end());
  merge(flight.timings, event.timings);
  // Only the first attempt's share of the prompt cache is the client's business.
  if (flight.attempt == 0)
    flight.cached_tokens = std::max(flight.cached_tokens, event.cached_tokens);
  flight.retraction_count = std::max(flight.retraction_count, event.retraction_count);
  event.request = it->first;
  event.prompt_tokens = static_cast<std::int32_t>(flight.request->input_ids.size());
  event.cached_tokens = flight.cached_tokens;
  event.retraction_count = flight.retraction_count;
  event.timings = flight.timings;
  if (event.tokens.empty() && event.prompt_logprobs.empty() && !event.finish) return;
  out.emplace_back(Emit{std::move(event)});
}

/// Whether an event says what can follow what the client has: no token beyond those that were asked
/// for, and none left out, but the one that prefill has to send. What is kept of a flight is
/// bounded so, whatever workers say.
Status FlightTable::check_count(const Flight& flight,
                                const core::TokenEvent& event,
                                bool from_prefill) {
  const core::Request& request = *flight.request;
  const std::int64_t end = event.first_index + static_cast<std::int64_t>(event.tokens.size());
  if (end > request.sampling.max_new_tokens) {
    return data_loss("a worker sent token " + std::to_string(end) + " of a request for " +
                     std::to_string(request.sampling.max_new_tokens));
  }
  if (event.prompt_logprobs.size() > request.input_ids.size()) {
    return data_loss("a worker sent logprobs of " + std::to_string(event.prompt_logprobs.size()) +
                     " tokens of a prompt of " + std::to_string(request.input_ids.size()));
  }
  auto next = static_cast<std::int64_t>(flight.output.size());
  if (!flight.early.empty() && !from_prefill) {
    const core::TokenEvent& last = flight.early.back();
    next = last.first_index + static_cast<std::int64_t>(last.tokens.size());
  } else if (flight.placement->prefill && !from_prefill &&
             flight.output.size() == flight.output_before) {
    ++next;
  }
  if (event.first_index > next) {
    return data_loss("a worker sent token " + std::to_string(event.first_index) + " where " +
                     std::to_string(next) + " was the next one");
  }
  return {};
}

/// `worker` gives an attempt up.
void FlightTable::on_abort(
    Flights::iterator it, WorkerKey worker, const Status& why, Time now, Out& out) {
  Flight& flight = it->second;
  if (flight.placement->prefill == worker && flight.handed_over()) return;
  const bool unfit = flight.placement->prefill && why.code() == Code::kFailedPrecondition;
  if (why.code() == Code::kOutOfRange) return too_long(it, worker, why, now, out);
  flight.tried.insert(blame(flight, worker, why.code()));
  end_attempt(flight, worker, out);
  if (unfit) {
    // Time does not make a pair fit: only another one helps.
    if (!next_attempt(it, out)) fail(it, unavailable(why.message()), out);
  } else if (is_retryable(why.code())) {
    retry(it, why, now, out);
  } else {
    fail(it, why, out);
  }
}

void FlightTable::on_event(WorkerKey worker, core::TokenEvent event, Time now, Out& out) {
  const auto it = by_wire(worker, event.request);
  if (it == flights_.end()) {
    ++stats_.stale_events;
    return;
  }
  Flight& flight = it->second;
  const bool from_prefill = flight.placement->prefill == worker;
  if (event.finish && event.finish->kind == core::FinishKind::kAbort)
    return on_abort(it, worker, event.finish->status, now, out);
  if (Status counted = check_count(flight, event, from_prefill); !counted.ok()) {
    if (from_prefill && flight.handed_over()) return;
    ++stats_.miscounted;
    flight.tried.insert(worker);
    end_attempt(flight, std::nullopt, out);
    return retry(it, counted, now, out);
  }
  if (from_prefill) {
    flight.prefill_done = true;
  } else if (flight.placement->prefill) {
    flight.decode_started = true;
  }
  if (event.first_index > static_cast<std::int32_t>(flight.output.size())) {
    flight.early.push_back(std::move(event));
    return;
  }
  while (true) {
    const bool finished = event.finish.has_value();
    take(it, std::move(event), out);
    if (finished) {
      // The leg that finished has ended by itself; the other one may still hold pages.
      end_attempt(flight, worker, out);
      flights_.erase(it);
      return;
    }
    if (flight.early.empty() ||
        flight.early.front().first_index > static_cast<std::int32_t>(flight.output.size()))
      return;
    event = std::move(flight.early.front());
    flight.early.pop_front();
  }
}

void FlightTable::on_rejected(
    WorkerKey worker, core::RequestId wire_id, const Status& why, Time now, Out& out) {
  const auto it = by_wire(worker, wire_id);
  if (it == flights_.end()) {
    ++stats_.stale_events;
    return;
  }
  if (why.code() == Code::kOutOfRange) return too_long(it, worker, why, now, out);
  it->second.tried.insert(worker);
  end_attempt(it->second, worker, out);
  if (is_retryable(why.code())) {
    retry(it, why, now, out);
    return;
  }
  fail(it, why, out);
}

void FlightTable::on_worker_lost(WorkerKey worker, const Status& why, Time now, Out& out) {
  if (active_at(worker) == 0) return;
  std::vector<core::RequestId> ids;
  for (const auto& [id, flight] : flights_) {
    if (flight.placement &&
        (flight.placement->main == worker || flight.placement->prefill == worker))
      ids.push_back(id);
  }
  // In one order, whatever the hash table's is.
  std::ranges::sort(ids);
  for (const core::RequestId id : ids) {
    const auto it = flights_.find(id);
    Flight& flight = it->second;
    if (flight.placement->prefill == worker && flight.handed_over()) continue;
    flight.tried.insert(worker);
    end_attempt(flight, worker, out);
    retry(it, why, now, out);
  }
}

void FlightTable::on_worker_up(Time now, Out& out) {
  (void)now;
  for (auto it = flights_.begin(); it != flights_.end(); ++it) {
    if (it->second.wait_until) launch(it, out);
  }
}

void FlightTable::abort(core::RequestId id, const Status& why, Out& out) {
  const auto it = flights_.find(id);
  if (it != flights_.end()) fail(it, why, out);
}

void FlightTable::abort_all(const Status& why, Out& out) {
  while (!flights_.empty())
    fail(flights_.begin(), why, out);
}

void FlightTable::on_time(Time now, Out& out) {
  if (!next_deadline_ || now < *next_deadline_) return;
  for (auto it = flights_.begin(); it != flights_.end(); ++it) {
    Flight& flight = it->second;
    if (!flight.wait_until || flight.look_again_at > now) continue;
    flight.tried = flight.too_short;
    flight.look_again_at = now + options_.look_again;
    launch(it, out);
  }
  std::vector<core::RequestId> late;
  for (auto& [id, flight] : flights_) {
    if ((flight.wait_until && *flight.wait_until <= now) ||
        (flight.request->deadline && *flight.request->deadline <= now)) {
      late.push_back(id);
    }
  }
  for (const core::RequestId id : late) {
    const auto it = flights_.find(id);
    const bool past_deadline = it->second.request->deadline && *it->second.request->deadline <= now;
    if (past_deadline) {
      fail(it, deadline_exceeded("the request's deadline has passed"), out);
    } else {
      fail(it,
           unavailable("no other worker is there to continue: " + it->second.last_error.message()),
           out);
    }
  }
  next_deadline_.reset();
  for (const auto& [id, flight] : flights_)
    expect(flight);
}

std::size_t FlightTable::active_at(WorkerKey worker) const {
  const auto use = use_.find(worker);
  return use == use_.end() ? 0 : use->second.attempts;
}

std::int64_t FlightTable::tokens_at(WorkerKey worker) const {
  const auto use = use_.find(worker);
  return use == use_.end() ? 0 : use->second.tokens;
}

}  // namespace tandem::fleet
