// PairHub: the pair streams of one worker. Opens them (decode) or takes them (prefill), runs the
// links of room handoff over them, and hands on messages of linked peers.
#pragma once

#include "common/base/status.h"
#include "common/handoff/link.h"
#include "common/rpc/pair.h"
#include "common/worker/handoff_wire.h"
#include "common/worker/task_loop.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::worker {

/// Where a prefill process is to be found.
struct PeerHint {
  std::uint64_t incarnation = 0;
  /// "host:port" of the bootstrap service that knows it; empty: use grpc_address as it is.
  std::string bootstrap_address;
  std::string grpc_address;
};

struct PairHubEvents {
  /// The peer may be used; connect the data path.
  std::function<void(std::uint64_t incarnation, const std::string& data_address)> on_linked;
  /// A linked peer is gone in this life.
  std::function<void(std::uint64_t incarnation, const Status& why)> on_lost;
  /// What ensure() asked for cannot be had.
  std::function<void(std::uint64_t incarnation, const Status& why)> on_unreachable;
  std::function<void(std::uint64_t incarnation, PairValue&& message)> on_message;
};

/// On the thread of `loop`, except the rpc::PairHandler callbacks, which post there. Create as
/// shared_ptr.
class PairHub final : public rpc::PairHandler,
                      public LoopClient,
                      public std::enable_shared_from_this<PairHub> {
 public:
  /// `progress`: the engine's, which peers judge this process by; any thread, until the loop has
  /// ended. `authorization`: sent when it opens streams; empty: none.
  PairHub(handoff::LinkOptions options,
          const TaskLoop& loop,
          std::function<std::uint64_t()> progress,
          PairHubEvents events,
          std::string authorization);
  /// close_all().
  ~PairHub() override;

  /// Decode: makes sure that there is, or soon will be, a link: on_linked or on_unreachable follows
  /// unless it is up.
  void ensure(const PeerHint& hint);
  [[nodiscard]] bool is_linked(std::uint64_t incarnation) const;

  [[nodiscard]] std::vector<std::uint64_t> linked() const { return links_.linked(); }

  void send(std::uint64_t incarnation, const handoff::DecodeToPrefill& message);
  void send(std::uint64_t incarnation, const handoff::PrefillToDecode& message);
  /// The data path to the peer failed: the link goes down with it.
  void data_path_failed(std::uint64_t incarnation, const Status& why);
  /// Cancels all streams and ends the ticks. May be called again.
  void close_all();

  /// Lets go of the streams, which hold this object. Only when the loop's thread has ended.
  void release() { streams_.clear(); }

  void before_step(Time now) override;
  void after_step(Time now) override;

  [[nodiscard]] std::optional<Time> next_deadline() const override {
    return links_.next_deadline();
  }

  void on_open(const rpc::PairStreamPtr& stream) override;
  void on_message(const rpc::PairStreamPtr& stream, v1::PairMessage&& message) override;
  void on_closed(const rpc::PairStreamPtr& stream, const Status& status) override;

 private:
  struct Wanted {
    std::optional<std::uint64_t> stream;  // once the connection is being made
  };

  void feed(const handoff::LinkEvent& event);
  void apply(const handoff::LinkAction& action);
  void received(std::uint64_t stream, PairValue&& value);
  void resolved(const PeerHint& hint, const Result<std::string>& address);
  void connect(std::uint64_t incarnation, const std::string& address);
  void give_up(std::uint64_t incarnation, const Status& why);
  void stream_ended(std::uint64_t stream, const Status& why);
  void send_on(std::uint64_t incarnation, v1::PairMessage&& message);
  void start_ticks(const rpc::PairStreamPtr& stream);
  void stop_ticks(std::uint64_t stream);
  void run_ticks();

  handoff::Role role_;
  const std::uint64_t incarnation_;
  const Duration tick_interval_;
  const Duration hello_within_;
  handoff::LinkSet links_;
  std::function<std::uint64_t()> progress_;  // the loop's thread and ticker only
  std::shared_ptr<TaskLoop::Inbox> inbox_;   // not the loop: gRPC threads may outlive it
  PairHubEvents events_;
  std::string authorization_;
  std::map<std::uint64_t, rpc::PairStreamPtr> streams_;
  std::map<std::uint64_t, std::uint64_t> peer_of_stream_;  // linked ones
  std::map<std::uint64_t, Wanted> wanted_;  // by incarnation, until linked or given up
  // Guards the two below between gRPC, the loop's thread and the ticker: a step of decode's engine
  // may last longer than a peer waits, so the ticks that show progress come from a thread of
  // theirs.
  std::mutex ticks_mutex_;
  std::condition_variable ticks_end_;
  std::map<std::uint64_t, rpc::PairStreamPtr> ticked_;  // open streams by number
  bool ticks_over_ = false;
  std::thread ticker_;
};

}  // namespace tandem::worker
