// The router's book of requests: which worker serves which attempt, what the client already has,
// and what happens when a worker is lost. Pure: events in, actions out; no I/O, no clock, no
// thread.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/core/request.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace tandem::fleet {

/// One life of one worker as the router sees it: a worker that comes back gets a new key.
using WorkerKey = Id<struct WorkerTag, std::uint64_t>;

/// What a request is to a worker.
enum class LegRole : std::uint8_t {
  kUnified,
  kPrefill,
  kDecode
};

/// Where an attempt runs: `main` serves everything (unified) or decodes; `prefill` is set when
/// disaggregated.
struct Placement {
  WorkerKey main;
  std::optional<WorkerKey> prefill;
};

/// Send this request to this worker. Its id is the attempt's own, so that nothing of an earlier
/// attempt can be mistaken for it.
struct SubmitTo {
  WorkerKey worker;
  std::shared_ptr<const core::Request> request;
  std::uint32_t attempt = 0;
  LegRole role = LegRole::kUnified;
  /// The other half of a disaggregated attempt.
  std::optional<WorkerKey> peer;
};

struct AbortAt {
  WorkerKey worker;
  core::RequestId wire_id;
};

/// Hand this to the client. Indices of one request go up without gap or repeat; the last one has
/// `finish`.
struct Emit {
  core::TokenEvent event;
};

using FlightAction = std::variant<SubmitTo, AbortAt, Emit>;

struct FlightOptions {
  std::uint32_t attempts_max = 5;
  std::size_t flights_max = 100'000;
  /// How long a request whose worker was lost waits for another one to appear.
  Duration replacement_wait = milliseconds(1500);
  /// While it waits, the workers that it was tried on count as new ones again this often.
  Duration look_again = milliseconds(100);
  /// Draws the wire ids of second and later attempts; the default takes random ones.
  std::function<core::RequestId()> draw_id;
};

struct FlightStats {
  std::uint64_t started = 0;
  std::uint64_t retried = 0;
  std::uint64_t stale_events = 0;      ///< of attempts that are over
  std::uint64_t repeated_tokens = 0;   ///< dropped: the client had them
  std::uint64_t differing_tokens = 0;  ///< a repeated token that was not the same: promise 1 broken
  std::uint64_t miscounted = 0;        ///< attempts whose worker left tokens out or sent too many
  std::uint64_t failed = 0;
};

class FlightTable {
 public:
  /// Chooses workers for an attempt, avoiding `tried` where it can; nothing: nobody can serve now.
  using Picker = std::function<std::optional<Placement>(const core::Request&,
                                                        const std::set<WorkerKey>& tried)>;

  FlightTable(FlightOptions options, Picker picker);

  /// Takes a request or says why not; ok: exactly one Emit with `finish` will follow.
  Status begin(core::Request request, Time now, std::vector<FlightAction>& out);

  /// An event that `worker` sent for a wire id.
  void on_event(WorkerKey worker, core::TokenEvent event, Time now, std::vector<FlightAction>& out);
  /// `worker` did not take a submit.
  void on_rejected(WorkerKey worker,
                   core::RequestId wire_id,
                   const Status& why,
                   Time now,
                   std::vector<FlightAction>& out);
  /// `worker` is gone; it will never be heard of again under this key.
  void on_worker_lost(WorkerKey worker,
                      const Status& why,
                      Time now,
                      std::vector<FlightAction>& out);
  /// A worker appeared: waiting requests may go on.
  void on_worker_up(Time now, std::vector<FlightAction>& out);
  void abort(core::RequestId id, const Status& why, std::vector<FlightAction>& out);
  void abort_all(const Status& why, std::vector<FlightAction>& out);
  /// Ends what is late and looks for workers again; cheap before next_deadline().
  void on_time(Time now, std::vector<FlightAction>& out);

  /// When on_time has work at the earliest. It may turn out to have none: what has ended meanwhile
  /// still counts.
  [[nodiscard]] std::optional<Time> next_deadline() const { return next_deadline_; }

  [[nodiscard]] std::size_t active_count() const { return flights_.size(); }

  /// Attempts that `worker` serves now, in either role.
  [[nodiscard]] std::size_t active_at(WorkerKey worker) const;
  /// Prompt and output tokens of the attempts that `worker` serves now.
  [[nodiscard]] std::int64_t tokens_at(WorkerKey worker) const;

  [[nodiscard]] const FlightStats& stats() const { return stats_; }

 private:
  struct Flight {
    /// As the client gave it; id is the client's. Shared with the first attempt's SubmitTo: prompts
    /// are long.
    std::shared_ptr<const core::Request> request;
    std::vector<core::TokenId> output;  // what the client has
    bool prompt_logprobs_sent = false;
    std::uint32_t attempt = 0;
    core::RequestId wire_id;
    std::optional<Placement> placement;  // nothing while waiting for a worker
    bool prefill_done = false;           // P's token is here
    bool decode_started = false;         ///< D has been heard of

    /// P does not matter any more. Both are needed: D may be heard before P's token, and that token
    /// is P's to send.
    [[nodiscard]] bool handed_over() const { return prefill_done && decode_started; }

    std::size_t output_before = 0;       // of it, when this attempt began
    std::deque<core::TokenEvent> early;  // D's events that overtook P's token, in order
    std::set<WorkerKey> tried;
    std::set<WorkerKey> too_short;  ///< of tried: they have no room for it, now or later
    std::optional<Time> wait_until;
    Time look_again_at;  // while waiting: then any worker will do, also one that was tried and has
                         // room
    Status last_error;
    core::Timings timings;
    std::int32_t cached_tokens = 0;
    std::int32_t retraction_count = 0;
  };

  using Flights = std::unordered_map<core::RequestId, Flight>;
  using Out = std::vector<FlightAction>;

  struct WorkerUse {
    std::size_t attempts = 0;
    std::int64_t tokens = 0;
  };

  static Status check_count(const Flight& flight, const core::TokenEvent& event, bool from_prefill);
  Flights::iterator by_wire(WorkerKey worker, core::RequestId wire_id);
  bool launch(Flights::iterator it, Out& out);
  bool next_attempt(Flights::iterator it, Out& out);
  void end_attempt(Flight& flight, std::optional<WorkerKey> except, Out& out);
  void on_abort(Flights::iterator it, WorkerKey worker, const Status& why, Time now, Out& out);
  void retry(Flights::iterator it, const Status& why, Time now, Out& out);
  void too_long(Flights::iterator it, WorkerKey worker, const Status& why, Time now, Out& out);
  void wait_for_another(Flight& flight, Time now);
  void expect(const Flight& flight);
  void fail(Flights::iterator it, const Status& why, Out& out);
  void take(Flights::iterator it, core::TokenEvent&& event, Out& out);
  static WorkerKey blame(const Flight& flight, WorkerKey reporter, Code code);
  void note_use(const Flight& flight, bool begin);
  static std::shared_ptr<const core::Request> wire_request(const Flight& flight);

  FlightOptions options_;
  Picker picker_;
  Flights flights_;
  /// Of later attempts: a first one goes by the client's id.
  std::unordered_map<core::RequestId, core::RequestId> wire_to_client_;
  std::map<WorkerKey, WorkerUse> use_;
  std::optional<Time> next_deadline_;  // not later than anything in flights_
  FlightStats stats_;
};

/// Whether another worker may do better: the failure lies with a process or a link, not with the
/// request.
bool is_retryable(Code code);

}  // namespace tandem::fleet
