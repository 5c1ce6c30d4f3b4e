// Links between prefill and decode processes: who is there, in which life, and is it making
// progress. Pure: events in, actions out.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/handoff/layout.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tandem::handoff {

enum class Role : std::uint8_t {
  kPrefill,
  kDecode
};

/// One connection of the pair stream, numbered by the caller; numbers are never reused.
using StreamId = Id<struct StreamTag, std::uint64_t>;

/// 3: the data path's pieces over TCP are 512 KiB, which a peer of an earlier version (8 KiB and
/// 256 KiB) cannot receive. 4: long pages have parts (part_count_for), on both sides the same.
inline constexpr std::uint32_t kHandoffVersion = 4;

/// First message each way on a pair stream.
struct HelloMessage {
  std::uint32_t version = kHandoffVersion;
  Role role = Role::kPrefill;
  std::string instance;           ///< stable over restarts, e.g. "10.0.0.7:30000#dp0.tp0"
  std::uint64_t incarnation = 0;  ///< random at process start, not 0
  LayoutDescriptor layout;
  std::string data_address;           ///< of the transport, opaque
  std::string transfer_backend = {};  ///< --disaggregation-transfer-backend: equal on both ends
};

/// Second message each way: the verdict over the peer's hello.
struct LinkAnswerMessage {
  bool accepted = false;
  std::uint64_t plan_hash = 0;
  std::string reason;  ///< one sentence when refused
};

/// Repeated each way on a linked stream.
struct TickMessage {
  std::uint64_t incarnation = 0;
  std::uint64_t progress = 0;  ///< scheduler steps; idle steps count
};

using LinkMessage = std::variant<HelloMessage, LinkAnswerMessage, TickMessage>;

// Events.
struct StreamOpened {
  StreamId stream;
};

struct StreamBroken {
  StreamId stream;
  std::string reason;
};

struct LinkReceived {
  StreamId stream;
  LinkMessage message;
};

/// The own scheduler's step counter; it must move at least once per tick interval, idle or not.
/// Silent peers are looked for here and at LinkTime alone: feed what has come in before.
struct OwnProgress {
  std::uint64_t progress = 0;
};

struct LinkTime {};  ///< only time has passed

using LinkEvent = std::variant<StreamOpened, StreamBroken, LinkReceived, OwnProgress, LinkTime>;

// Actions.
struct LinkSend {
  StreamId stream;
  LinkMessage message;
};

/// Close the stream; nothing more is expected from it.
struct LinkClose {
  StreamId stream;
  Status reason;
};

/// The peer may be used. Connect the data path to `data_address`, feed PeerLinked to the sides.
struct LinkUp {
  StreamId stream;
  std::string instance;
  std::uint64_t incarnation = 0;
  std::string data_address;
  TransferPlan plan;
};

/// The peer in this life is gone: close its data endpoint by force, feed PeerLost to the sides.
/// Comes exactly once after each LinkUp.
struct LinkDown {
  std::string instance;
  std::uint64_t incarnation = 0;
  Status reason;
};

/// The pair was never linked, and why: for logs and `/get_server_info`.
struct LinkRefused {
  StreamId stream;
  std::string instance;
  Status reason;
};

using LinkAction = std::variant<LinkSend, LinkClose, LinkUp, LinkDown, LinkRefused>;

struct LinkOptions {
  Role role = Role::kPrefill;
  std::string instance;
  std::uint64_t incarnation = 0;
  LayoutDescriptor layout;
  std::string data_address;
  std::string transfer_backend = {};
  Duration tick_interval = seconds(1);
  Duration lost_after = seconds(3);   ///< without a tick
  Duration stuck_after = seconds(3);  ///< without a tick that shows progress
  Duration hello_within = seconds(5);
  std::uint32_t links_max = 1024;
};

/// All pair streams of one process. Copyable. One owner thread, no clock.
class LinkSet {
 public:
  explicit LinkSet(LinkOptions options);

  void on(const LinkEvent& event, Time now, std::vector<LinkAction>& out);
  /// When to feed LinkTime at the latest; nothing to wait for: nullopt.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  /// Incarnations that are linked now, ascending.
  [[nodiscard]] std::vector<std::uint64_t> linked() const;
  /// The stream to a linked incarnation.
  [[nodiscard]] std::optional<StreamId> stream_of(std::uint64_t incarnation) const;
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  enum class State : std::uint8_t {
    kHello,
    kAnswer,
    kUp
  };

  struct Link {
    State state = State::kHello;
    std::optional<HelloMessage> hello;
    std::optional<LinkAnswerMessage> answer;
    TransferPlan plan;
    Time heard_at;     ///< when the last tick came (or the stream opened)
    Time progress_at;  ///< when the peer was last seen to move (or the stream to open)
    std::uint64_t progress = 0;
    Time tick_at;  ///< when the next own tick is due
  };

  void opened(const StreamOpened& event, Time now, std::vector<LinkAction>& out);
  void received(const LinkReceived& event, Time now, std::vector<LinkAction>& out);
  void hello(StreamId id, const HelloMessage& message, Time now, std::vector<LinkAction>& out);
  void try_up(StreamId id, Time now, std::vector<LinkAction>& out);
  void tick(StreamId id, const TickMessage& message, Time now);
  void time_passed(Time now, std::vector<LinkAction>& out);
  void drop(StreamId id, const Status& reason, bool close, std::vector<LinkAction>& out);
  [[nodiscard]] Status judge(const HelloMessage& peer) const;
  [[nodiscard]] HelloMessage own_hello() const;

  LinkOptions options_;
  std::map<StreamId, Link> links_;
  std::uint64_t own_progress_ = 0;
};

}  // namespace tandem::handoff
