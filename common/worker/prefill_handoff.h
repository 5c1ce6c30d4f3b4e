// PrefillHandoff: the sending half of the hand-off at work: state machine, pair streams, transport.
#pragma once

#include "common/base/status.h"
#include "common/handoff/prefill_side.h"
#include "common/worker/pd_roles.h"
#include "common/worker/task_loop.h"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem::worker {

/// A send that is over: its pages are free. ok: decode has accepted.
struct EndedSend {
  handoff::SendKey key;
  Status status;
};

/// On a thread of its own, because a prefill step may last seconds and the pages of a prompt need
/// many turns of grants and acknowledgements: between steps only, a prompt of 128 pages would wait
/// for eight of them. All calls on the thread of `loop`, unless said otherwise.
class PrefillHandoff final : public LoopClient {
 public:
  /// `loop` is borrowed, as `progress` is (PairHub). `on_ended` hears of ends before any message
  /// that tells peers of them leaves, where nothing is in flight any more.
  PrefillHandoff(const PdOptions& options,
                 TaskLoop* loop,
                 std::function<std::uint64_t()> progress,
                 std::function<void(std::vector<EndedSend>&&)> on_ended);

  /// Before the loop starts, on any thread.
  Status start(transfer::PageMemory memory, const MakeTransport& make_transport);

  void feed(const handoff::PrefillEvent& event);

  /// Whether decode has made room for this prompt.
  [[nodiscard]] bool has_grant(const handoff::SendKey& key) const { return side_.has_grant(key); }

  [[nodiscard]] std::string stats_json() const;

  /// Any thread.
  [[nodiscard]] std::shared_ptr<PairHub> hub() const { return hub_; }

  /// When the loop has ended, on any thread.
  void shut_down();

  void before_step(Time now) override;

  void after_step(Time /*now*/) override {}

  [[nodiscard]] std::optional<Time> next_deadline() const override;

 private:
  PairHubEvents hub_events();
  void on_transport(const transfer::TransportEvent& event);
  void send(handoff::SendUnit& unit);

  PdOptions options_;
  TaskLoop* loop_;
  std::function<std::uint64_t()> progress_;
  std::function<void(std::vector<EndedSend>&&)> on_ended_;
  handoff::PrefillSide side_;
  std::unique_ptr<transfer::KvTransport> transport_;
  std::shared_ptr<PairHub> hub_;
};

}  // namespace tandem::worker
