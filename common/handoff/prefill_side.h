// Prefill's half of the hand-off: all transfers that one prefill process sends.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/transfer_name.h"
#include "common/handoff/decode_side.h"
#include "common/handoff/messages.h"
#include "common/handoff/options.h"
#include "common/handoff/transitions.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <variant>
#include <vector>

namespace tandem::handoff {

/// A request and the router's try of it: how the own engine names a transfer. (The slot and the
/// generation are decode's.)
struct SendKey {
  std::uint64_t request_id = 0;
  std::uint32_t attempt = 0;
  friend constexpr auto operator<=>(const SendKey&, const SendKey&) = default;
};

// Events of the own engine.

/// A prompt will be computed for a decode process. Refused at once by SendRefused, or followed by
/// exactly one ReleaseSource.
struct StartSend {
  SendKey key;
  std::uint64_t decode_incarnation = 0;  ///< 0: whichever linked decode process grants first
  std::uint32_t prompt_tokens = 0;
  Time deadline;
};

/// Parts [first_part, first_part + part_count) of prompt pages first_page + i are final in
/// source_pages[i], which stay as they are until ReleaseSource.
struct ChunkReady {
  SendKey key;
  std::uint32_t first_page = 0;
  std::vector<std::uint32_t> source_pages;
  std::uint16_t first_part = 0;
  std::uint16_t part_count = 0;  ///< 0: all parts
};

/// Prefill has sampled: with all units sent, this makes the commit.
struct FirstToken {
  SendKey key;
  CommitPayload payload;
};

struct CancelSend {
  SendKey key;
  Status reason;
};

/// Event of the transport: a SendUnit has ended, well or not; its source bytes are free, as
/// transfer::SendDoneEvent has it. Comes exactly once per SendUnit, also when the peer dies.
struct SendDone {
  TransferName name;
  std::uint32_t unit = 0;
  bool ok = false;
  std::uint32_t crc = 0;  ///< of the unit's bytes, when ok
};

/// Event of the pair stream.
struct FromDecode {
  std::uint64_t peer = 0;  ///< incarnation of the sender
  DecodeToPrefill message;
};

/// Event of the transport: nothing goes to a linked peer over the network. Until it is lost, its
/// units are long: each is a message, and no piece has to be put together.
struct PeerIsLocal {
  std::uint64_t peer = 0;
};

/// Event of the transport: pages go to a linked peer from where they lie, over the network of this
/// machine. Until it is lost, units of long pages that lie apart are as short as runs, too.
struct PeerIsNear {
  std::uint64_t peer = 0;
};

using PrefillEvent = std::variant<StartSend,
                                  ChunkReady,
                                  FirstToken,
                                  CancelSend,
                                  SendDone,
                                  FromDecode,
                                  PeerLinked,
                                  PeerIsLocal,
                                  PeerIsNear,
                                  PeerLost,
                                  TimePassed>;

/// Action for the transport: send byte_range of each of source_pages as one unit.
struct SendUnit {
  TransferName name;
  std::uint64_t peer = 0;
  UnitRange range;
  ByteRange byte_range;  ///< within each page
  std::vector<std::uint32_t> source_pages;
};

/// Action for the pair stream.
struct ToDecode {
  std::uint64_t peer = 0;
  PrefillToDecode message;
};

// Actions for the own engine.
struct SendRefused {
  SendKey key;
  Status status;
};

/// The transfer is over and none of its pages is being sent: they may go to the prefix cache
/// (always valid KV, whatever the status says of the transfer).
struct ReleaseSource {
  SendKey key;
  Status status;  ///< ok: decode has accepted
};

using PrefillAction = std::variant<SendUnit, ToDecode, SendRefused, ReleaseSource>;

/// Pure: no I/O, no clock, no thread. Copyable. One owner thread.
class PrefillSide {
 public:
  explicit PrefillSide(SideOptions options);

  void on(const PrefillEvent& event, Time now, std::vector<PrefillAction>& out);
  [[nodiscard]] std::optional<Time> next_deadline() const;

  [[nodiscard]] const SideStats& stats() const { return stats_; }

  [[nodiscard]] std::size_t active_count() const { return sends_.size(); }

  /// Whether decode has made room for this prompt.
  [[nodiscard]] bool has_grant(const SendKey& key) const {
    const auto found = sends_.find(key);
    return found != sends_.end() && found->second.named;
  }

  [[nodiscard]] std::size_t units_in_flight() const { return units_in_flight_; }

  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  struct Page {
    std::uint32_t source = 0;
    std::uint16_t ready_parts = 0;  ///< final in the source
    std::uint16_t cut_parts = 0;    ///< belong to a unit already
    bool granted = false;
  };

  struct Unit {
    UnitRange range;
    std::uint32_t in_flight = 0;
    std::uint32_t sends = 0;
    bool done = false;    ///< sent well at least once
    bool wanted = false;  ///< once more, when a limit allows it
  };

  struct Send {
    PrefillState state = PrefillState::kNone;
    bool named = false;  ///< `name` is bound
    TransferName name;
    std::uint64_t peer = 0;  ///< decode incarnation; 0 while any will do
    std::uint32_t prompt_tokens = 0;
    std::uint32_t first_page = 0;  ///< first needed one; known when named
    Time deadline;
    std::vector<Page> pages;      ///< of the whole prompt
    std::uint32_t scan_from = 0;  ///< pages before it are cut entirely
    std::vector<Unit> units;
    std::deque<std::uint32_t> wanted;  ///< units, in the order in which decode asked for them
    std::uint32_t in_flight = 0;
    std::uint32_t units_done = 0;
    std::uint64_t digest = 0;
    std::optional<CommitPayload> token;
    bool tell_drained = false;
    Status end_status;
  };

  struct Ended {
    SendKey key;
    std::uint64_t peer = 0;  ///< the decode process that it concerns; 0: any
    Status status;
  };

  /// What the transport says of a linked peer.
  struct Peer {
    bool local = false;  ///< PeerIsLocal
    bool near = false;   ///< PeerIsNear
  };

  using Out = std::vector<PrefillAction>;
  using Sends = std::map<SendKey, Send>;
  void start(const StartSend& event, Out& out);
  void begin(const StartSend& event, Out& out);
  void adopt(Sends::iterator it, const StartSend& event, Out& out);
  void chunk(const ChunkReady& event, Out& out);
  void token(const FirstToken& event, Out& out);
  void cancel(const CancelSend& event, Out& out);
  void send_done(const SendDone& event, Out& out);
  void message(const FromDecode& event, Time now, Out& out);
  void grant(const FromDecode& event, const GrantMessage& message, Time now, Out& out);
  void resend(Sends::iterator it, const ResendMessage& message, Out& out);
  void cancelled_by_peer(const FromDecode& event, const CancelMessage& message, Out& out);
  void lost(const PeerLost& event, Out& out);
  void time_passed(Time now, Out& out);

  [[nodiscard]] Rule rule_for(Sends::const_iterator it, PrefillEventKind event);
  [[nodiscard]] static Status bind(Send& send, std::uint64_t peer, const GrantMessage& message);
  [[nodiscard]] bool is_stale(Sends::const_iterator it, const FromDecode& event) const;
  void hold_grant(const FromDecode& event, const GrantMessage& message, Time now, Out& out);
  void note_grant(Sends::iterator it, const GrantMessage& message, Out& out);
  bool note_chunk(Sends::iterator it, const ChunkReady& event, Out& out);
  void pump_all(Out& out);
  void pump(Send& send, Out& out);
  bool send_one(Send& send, Out& out);
  bool cut_one(Send& send, Out& out);
  [[nodiscard]] bool has_room(std::uint64_t bytes) const;
  [[nodiscard]] std::uint64_t bytes_of(const UnitRange& range) const;
  void post(Send& send, Unit& unit, Out& out);
  static void try_commit(Send& send, Out& out);
  static void tell_cancel(const Send& send, const Status& reason, Out& out);
  void forget(Sends::iterator it, const Status& status);
  void end(Sends::iterator it, const Status& status, Out& out);
  void abort(Sends::iterator it, const Status& status, Out& out);
  void finish_if_drained(Sends::iterator it, Out& out);
  void remember(SendKey key, std::uint64_t peer, const Status& status);
  [[nodiscard]] const Ended* ended(SendKey key, std::uint64_t peer) const;

  SideOptions options_;
  SideStats stats_;
  Sends sends_;
  std::deque<Ended> ended_;
  std::map<std::uint64_t, Peer> peers_;  ///< linked, by incarnation
  std::size_t units_in_flight_ = 0;
  std::uint64_t bytes_in_flight_ = 0;
  SendKey pump_after_;  ///< fairness: where the next round of pump_all begins
};

std::string_view to_string(const PrefillAction& action);

}  // namespace tandem::handoff
