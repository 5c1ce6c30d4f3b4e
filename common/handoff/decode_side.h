// Decode's half of the hand-off: all transfers that one decode process receives.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/transfer_name.h"
#include "common/handoff/messages.h"
#include "common/handoff/options.h"
#include "common/handoff/transitions.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tandem::handoff {

// Events of the own engine.

/// Receive the KV of a prompt. Answered at once by ReceiveStarted or ReceiveRefused.
struct StartReceive {
  std::uint64_t request_id = 0;
  std::uint32_t attempt = 0;
  std::uint64_t prefill_incarnation = 0;
  std::uint32_t prompt_tokens = 0;  ///< > 0
  std::uint32_t start_token = 0;    ///< tokens already in the prefix cache; a whole number of pages
  Time deadline;
};

/// Pages for a NeedPages, some or all, in any number of events. The side owns them until Deliver,
/// Release or ReturnPages.
struct PagesAvailable {
  TransferName name;
  std::vector<std::uint32_t> pages;
};

/// The client left, the router aborted, ...: any number of times, in any state.
struct CancelReceive {
  std::uint64_t request_id = 0;
  std::uint32_t attempt = 0;
  Status reason;
};

// Events of the landing layer.

/// All bytes of a unit are in its pages.
struct UnitLanded {
  TransferName name;
  UnitRange range;
  std::uint32_t crc = 0;
  bool crc_ok = false;
};

/// Answer to CloseLanding: no byte of that name is in flight, none will land.
struct LandingClosed {
  TransferName name;
};

// Events of the peer and of its link (also taken by PrefillSide).

struct FromPrefill {
  std::uint64_t peer = 0;  ///< incarnation of the sender
  PrefillToDecode message;
};

struct PeerLinked {
  std::uint64_t peer = 0;
};

struct PeerLost {
  std::uint64_t peer = 0;
  Status reason;
};

struct TimePassed {};

using DecodeEvent = std::variant<StartReceive,
                                 PagesAvailable,
                                 CancelReceive,
                                 UnitLanded,
                                 LandingClosed,
                                 FromPrefill,
                                 PeerLinked,
                                 PeerLost,
                                 TimePassed>;

// Actions for the own engine.

struct ReceiveStarted {
  TransferName name;
};

struct ReceiveRefused {
  std::uint64_t request_id = 0;
  std::uint32_t attempt = 0;
  Status status;
};

/// Wants `page_count` more pages; asks again only for pages beyond these.
struct NeedPages {
  TransferName name;
  std::uint32_t page_count = 0;
};

/// The rest of what NeedPages asked for is not wanted any more.
struct PagesNotNeeded {
  TransferName name;
};

/// Pages that came too late or were too many: back to the pool, nobody was told of them.
struct ReturnPages {
  TransferName name;
  std::vector<std::uint32_t> pages;
};

/// End of a transfer, good: KV of tokens [start_token, prompt_tokens) is in `pages`, in order.
struct Deliver {
  TransferName name;
  std::vector<std::uint32_t> pages;
  CommitPayload payload;
};

/// End of a transfer, bad. No byte can land in `pages` any more. The first
/// `verified_tokens` tokens after start_token (whole pages) are good and may be kept.
struct Release {
  TransferName name;
  std::vector<std::uint32_t> pages;
  std::uint32_t verified_tokens = 0;
  Status reason;
};

// Actions for the landing layer. An OpenLanding must reach it before the Grant that follows it in
// the list leaves the process.

/// Units for prompt pages first_page + i may land in pages[i]. Repeated as more are granted.
struct OpenLanding {
  TransferName name;
  std::uint32_t first_page = 0;
  std::vector<std::uint32_t> pages;
};

/// Let nothing more begin to land; answer LandingClosed when what has begun has ended.
struct CloseLanding {
  TransferName name;
};

/// Action for the pair stream.
struct ToPrefill {
  std::uint64_t peer = 0;
  DecodeToPrefill message;
};

using DecodeAction = std::variant<ReceiveStarted,
                                  ReceiveRefused,
                                  NeedPages,
                                  PagesNotNeeded,
                                  ReturnPages,
                                  Deliver,
                                  Release,
                                  OpenLanding,
                                  CloseLanding,
                                  ToPrefill>;

/// Pure: no I/O, no clock, no thread. Copyable (the explorer forks it). One owner thread.
///
/// Each ReceiveStarted is followed by exactly one Deliver or Release. A page given by
/// PagesAvailable comes back exactly once, by Deliver, Release or ReturnPages, and never while a
/// byte can still land in it: no timer frees a page.
class DecodeSide {
 public:
  explicit DecodeSide(SideOptions options);

  void on(const DecodeEvent& event, Time now, std::vector<DecodeAction>& out);
  /// When to feed TimePassed at the latest.
  [[nodiscard]] std::optional<Time> next_deadline() const;

  [[nodiscard]] const SideStats& stats() const { return stats_; }

  /// Transfers that are not over, those that only wait for the landing layer included.
  [[nodiscard]] std::size_t active_count() const;
  /// Pages held between PagesAvailable and Deliver, Release or ReturnPages.
  [[nodiscard]] std::size_t held_page_count() const;
  /// Pages of failed transfers whose landing is not closed yet: quarantine, a metric.
  [[nodiscard]] std::size_t quarantined_page_count() const;
  /// Hash of the whole state (without statistics): equal states, equal values.
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  struct Slot {
    DecodeState state = DecodeState::kNone;
    TransferName name;  ///< the generation survives the occupant
    std::uint64_t peer = 0;
    std::uint32_t prompt_tokens = 0;
    std::uint32_t first_page = 0;  ///< first page that is not cached
    std::uint32_t page_count = 0;  ///< pages to receive
    Time deadline;
    std::vector<std::uint32_t> pages;         ///< granted so far
    std::vector<std::uint16_t> landed_parts;  ///< per granted page, one bit per verified part
    std::uint32_t verified_pages = 0;
    std::uint32_t pages_asked = 0;  ///< by NeedPages, not yet answered
    bool landing_open = false;
    bool tell_drained = false;
    std::map<std::uint32_t, std::uint32_t> units;  ///< verified: unit -> crc
    std::map<std::uint32_t, std::uint32_t> bad;    ///< unit -> bad CRCs
    std::uint64_t digest = 0;
    std::optional<CommitMessage> commit;
    Status end_reason;
  };

  using Out = std::vector<DecodeAction>;
  void start(const StartReceive& event, Time now, Out& out);
  void pages(const PagesAvailable& event, Time now, Out& out);
  void landed(const UnitLanded& event, Out& out);
  void closed(const LandingClosed& event, Out& out);
  void message(const FromPrefill& event, Out& out);
  void cancel(const CancelReceive& event, Out& out);
  void lost(const PeerLost& event, Out& out);
  void time_passed(Time now, Out& out);

  Slot* find(const TransferName& name);
  [[nodiscard]] Rule rule_for(const Slot* slot, DecodeEventKind event);
  void ask_pages(Slot& slot, Out& out);
  void grant(Slot& slot, const PagesAvailable& event, Time now, Out& out);
  void verify(Slot& slot, const UnitLanded& event, Out& out);
  bool note_landed(Slot& slot, const UnitLanded& event);
  void try_deliver(Slot& slot, Out& out);
  void begin_release(Slot& slot, Status reason, bool tell, Out& out);
  void close_landing(Slot& slot, Out& out);
  void deliver(Slot& slot, Out& out);
  void give_back(Slot& slot, Out& out);
  static void clear(Slot& slot);
  [[nodiscard]] Status check_start(const StartReceive& event) const;

  SideOptions options_;
  SideStats stats_;
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> peers_;  ///< linked incarnations, ascending
};

std::string_view to_string(const DecodeAction& action);

}  // namespace tandem::handoff
