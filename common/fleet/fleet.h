// Fleet: the router's Generator. Keeps a session to every worker, places requests, and carries them
// over to another worker when one is lost.
#pragma once

#include "common/async/channel.h"
#include "common/balance/balance.h"
#include "common/base/clock.h"
#include "common/cluster/health.h"
#include "common/core/generator.h"
#include "common/fleet/entrance.h"
#include "common/fleet/flight_table.h"
#include "common/fleet/worker_address.h"
#include "common/rpc/session_client.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem::fleet {

struct FleetOptions {
  /// Reads what workers send. Borrowed; outlives the fleet's stop().
  async::IoPool* io = nullptr;
  bool disaggregated = false;
  balance::Method policy = balance::Method::kLeastLoad;  ///< unified workers
  balance::Method prefill_policy = balance::Method::kLeastLoad;
  balance::Method decode_policy = balance::Method::kLeastLoad;
  balance::CacheAware cache;  ///< its `prefixes` is the fleet's affair
  /// Tokens of prompts remembered per worker, for kCacheAware.
  std::uint64_t max_tree_size = 1U << 26U;
  Duration eviction_interval = seconds(60);
  std::uint64_t random_seed = 0;
  /// Shown to workers; empty: none.
  std::string api_key;
  /// A worker from which nothing came for so long is lost (it ticks four times in a second).
  Duration stall_timeout = milliseconds(2000);
  /// A worker whose engine has finished no layer and no idle turn for so long is lost.
  Duration no_progress_timeout = seconds(10);
  Duration request_timeout = seconds(1800);
  Duration hung_after = seconds(15);
  /// -1: no limit; beyond it requests wait, at most queue_size of them.
  std::int32_t max_concurrent_requests = -1;
  std::uint32_t queue_size = 100;
};

/// Any thread. One thread at a time uses the state: requests and steps are worked on by the thread
/// that brings them when nobody else is at it, everything else by a thread of its own.
class Fleet final : public core::Generator {
 public:
  explicit Fleet(FleetOptions options);
  /// stop().
  ~Fleet() override;

  void start();
  /// Ends all requests and sessions, then the thread.
  void stop();

  /// From now on keeps a session to this worker. Returns a number to remove it by.
  /// `on_hung` is called, inside the fleet, each time the worker has been out of reach for
  /// hung_after: whoever started it can end it.
  std::uint64_t add_worker(WorkerAddress address, std::function<void()> on_hung = nullptr);
  void remove_worker(std::uint64_t number);

  /// Waits until workers of every role needed are up, or the deadline; the error tells what is
  /// missing. They may still not fit each other: see ready().
  Status wait_ready(Time deadline, const std::function<bool()>& give_up);
  /// The model that the first worker told of, with the shortest context of those that are up; valid
  /// once wait_ready said ok.
  [[nodiscard]] core::ServedModel served_model() const;
  /// Where that worker answers HTTP, for its tokenizer files.
  [[nodiscard]] std::string model_source() const;

  void drain() { draining_.store(true); }

  Status submit(core::Request request, core::EventSink sink) override;
  void abort(core::RequestId id) override;
  void abort_all() override;
  void flush_cache(std::function<void(Status)> done) override;
  [[nodiscard]] std::vector<core::Load> loads() const override;
  [[nodiscard]] Status ready() const override;
  [[nodiscard]] Status present() const;
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> server_info() const override;

 private:
  class Handler;
  enum class State : std::uint8_t {
    kProbing,
    kConnecting,
    kUp,
    kBackoff
  };

  struct Worker {
    WorkerAddress address;
    State state = State::kBackoff;
    WorkerKey key;  // of the present life
    std::unique_ptr<rpc::SessionClient> client;
    rpc::WorkerInfo info;
    core::Load load;
    Time heard_at;
    cluster::WorkerHealth health;
    Time retry_at;
    Duration backoff{0};
    std::string last_error;
    bool flush_pending = false;
    std::function<void()> on_hung;
    Time out_of_reach_since;
  };

  struct Waiting {
    core::Request request;
    core::EventSink sink;
  };

  struct Published {
    std::vector<core::Load> loads;
    Status present;  // workers of every role needed are up
    Status ready;    // and fit each other
    std::string workers_json;
    std::string router_json;
    std::optional<core::ServedModel> model;
    std::string model_source;
  };

  // All inside the entrance: on the fleet thread, or on the thread that brought the work.
  void run();
  void post(std::function<void()> task);
  void on_turn(Time now);
  void probe(std::uint64_t number);
  void connect(std::uint64_t number, const Result<std::string>& grpc_address);
  void on_hello(WorkerKey key, rpc::WorkerInfo&& info);
  void on_heard(WorkerKey key, const core::Load& load, Time now);
  void on_closed(WorkerKey key, const Status& status);
  void lose(Worker& worker, const Status& why);
  static Status check_pair(const rpc::WorkerInfo& prefill, const rpc::WorkerInfo& decode);
  [[nodiscard]] Status find_pair() const;
  [[nodiscard]] bool all_pairs_fit() const;
  [[nodiscard]] Status judge(const Worker& worker, const rpc::WorkerInfo& info) const;
  Worker* by_key(WorkerKey key);
  std::optional<Placement> pick(const core::Request& request, const std::set<WorkerKey>& tried);
  std::optional<Placement> choose(const balance::Demand& demand);
  [[nodiscard]] bool by_prefix() const;
  void tend_prefixes(Time now);
  [[nodiscard]] std::vector<balance::Candidate> candidates(rpc::Role role) const;
  void begin(core::Request request, core::EventSink sink);
  void start_waiting();
  void apply(std::vector<FlightAction>& actions);
  void submit_to(const SubmitTo& submit);
  [[nodiscard]] rpc::Disaggregation describe_pair(const SubmitTo& submit,
                                                  const Worker& worker,
                                                  const Worker& peer) const;
  [[nodiscard]] std::string worker_json(const Worker& worker) const;
  void flushed(WorkerKey key, const Status& status);
  void finish_flush(const Status& status);
  void publish(Time now);
  void heard(WorkerKey key, std::vector<core::TokenEvent>&& events, const core::Load& load);
  void end_early(core::RequestId id);
  void refuse(core::EventSink sink, core::TokenEvent event);
  [[nodiscard]] Time next_turn(Time now) const;
  void turn_by(Time time);
  [[nodiscard]] Duration wait_time(Time now) const;

  FleetOptions options_;
  std::uint64_t incarnation_;
  // Shared with the handlers of sessions, whose last callback may come when the fleet is gone.
  std::shared_ptr<Entrance> entrance_;
  // Name look-ups and HTTP probes block; they must not hold the fleet up.
  async::Channel<std::function<void()>> probe_inbox_;
  std::map<std::uint64_t, Worker> workers_;
  std::atomic<std::uint64_t> number_source_{1};
  std::uint64_t next_key_ = 1;
  balance::Turn turn_;
  balance::PairTurns pair_turns_;
  balance::PrefixIndex prefixes_;  // by worker key, of all roles
  std::vector<std::uint64_t> keys_;
  bool trimming_ = false;
  bool tending_ = false;            // trimming_, or a lost worker's part is not all swept yet
  std::uint64_t prefix_trims_ = 0;  // how often that began
  Time trim_at_;
  FlightTable flights_;
  std::vector<FlightAction> step_actions_;  // empty between steps; its room stays
  std::unordered_map<core::RequestId, core::EventSink> sinks_;
  std::deque<Waiting> queue_;
  // For the fleet thread, from whoever is inside: it must not wait for its own inbox, and a sink
  // must not be called from within submit().
  std::vector<std::function<void()>> deferred_;
  std::vector<std::function<void(Status)>> flush_waiters_;
  Status flush_result_;
  std::optional<rpc::WorkerInfo> model_of_;  // the first worker's: all others must serve the same
  Time publish_at_;
  Time turn_at_;
  Time turned_at_;
  bool pairs_differ_ = false;  // some prefill and decode workers do not fit each other
  bool changed_ = true;        // a worker came or went: publish at once
  std::atomic<bool> draining_{false};
  // Guards published_: written once per turn, read by health checks and info routes at their own
  // times.
  mutable std::mutex published_mutex_;
  Published published_;
  std::thread thread_;
  std::thread probe_thread_;
};

/// Asks the worker's HTTP port where its gRPC port is. Blocks until `deadline` at most.
Result<std::string> probe_grpc_address(const WorkerAddress& address,
                                       const std::string& api_key,
                                       Time deadline);

}  // namespace tandem::fleet
