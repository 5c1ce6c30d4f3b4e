// A whole cluster of hand-off machines in one copyable value: prefill and decode processes, router,
// network and landing layer. The seeded simulator draws its next step at random, the explorer takes
// every step; both look at the same invariants.
#pragma once

#include "common/handoff/decode_side.h"
#include "common/handoff/prefill_side.h"
#include "common/transfer/landing_table.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::sim {

struct RequestPlan {
  std::uint32_t pages = 2;
  std::uint32_t cached_pages = 0;  ///< in decode's prefix cache
  std::uint32_t prefill = 0;       ///< of the first attempt; later ones move on by one
  std::uint32_t decode = 0;
  Duration deadline = milliseconds(500);
};

/// How many faults may still happen; a step that needs one is not offered without it.
struct FaultBudget {
  int drops = 0;
  int duplicates = 0;
  int corruptions = 0;
  int crashes = 0;
  int cancels = 0;
  int expiries = 0;  ///< deadlines that come early (the explorer); they come anyway when all waits
  int total = 0;     ///< of all kinds together
};

struct WorldOptions {
  std::uint32_t prefill_count = 2;
  std::uint32_t decode_count = 2;
  std::uint32_t pool_pages = 4;  ///< of each decode process
  std::uint32_t slots = 2;
  std::uint32_t window_pages = 0;
  std::uint32_t unit_pages = 1;
  std::uint32_t part_count = 1;
  std::uint32_t attempts_max = 1;
  std::uint32_t units_in_flight = 8;
  std::uint32_t run_parts = ~0U;  ///< page parts in a unit of neighbours, unless peers are local;
                                  ///< also of others, where they are near
  bool local = false;
  bool near = false;
  std::vector<RequestPlan> requests;
  FaultBudget faults;
  /// Engines answer at once instead of by a step of their own: fewer states, same protocol.
  bool eager_engines = false;
  handoff::PlantedBugs bugs;
};

enum class StepKind : std::uint8_t {
  kSubmit,           ///< a: request
  kRouterToPrefill,  ///< a: process; next command of its stream
  kRouterToDecode,
  kCompute,        ///< a: prefill, b: index of its computing request
  kControl,        ///< a: message
  kDropControl,    ///< a: message
  kRepeatControl,  ///< a: message, delivered and kept
  kUnitArrives,    ///< a: unit; the receiver looks its name up
  kUnitLands,      ///< a: unit; its bytes are written
  kUnitLandsBad,
  kDropUnit,
  kRepeatUnit,
  kLocalPrefill,  ///< a: process; next event of its transport
  kLocalDecode,
  kGivePages,     ///< a: decode
  kEngineFrees,   ///< a: decode, b: index of a delivered request
  kCrashPrefill,  ///< a: process
  kCrashDecode,
  kRestartPrefill,
  kRestartDecode,
  kNoticeLoss,  ///< a: index of a loss that an observer has not noticed
  kCancel,      ///< a: request; the client leaves
  kExpire,      ///< time passes to the next deadline
};

struct Step {
  StepKind kind = StepKind::kSubmit;
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

std::string to_string(const Step& step);

/// What the engine of prefill makes of a request: the token that decode must be told of, and where
/// the KV of a prompt page lies.
inline std::int32_t token_of(std::uint64_t request_id) {
  return static_cast<std::int32_t>(request_id * 7 + 3);
}

inline std::uint32_t source_of(std::uint64_t request_id, std::uint32_t page) {
  return static_cast<std::uint32_t>(request_id * 1000 + page);
}

class World {
 public:
  explicit World(WorldOptions options);

  /// Everything that can happen now. Faults are offered while the budget lasts.
  void steps(std::vector<Step>& out) const;
  void apply(const Step& step);
  /// Simulated time passes without anything else happening.
  void advance(Duration by);

  void stop_faults() { options_.faults = {}; }

  [[nodiscard]] Time now() const { return now_; }

  [[nodiscard]] std::optional<Time> next_deadline() const;

  /// The first broken invariant, empty while all hold.
  [[nodiscard]] const std::string& violation() const { return violation_; }

  /// Every request has ended at the router.
  [[nodiscard]] bool all_ended() const;
  /// Called when nothing is left to happen: no transfer, unit, landing or page is left over.
  void check_quiescent();

  [[nodiscard]] std::uint64_t fingerprint() const;

  [[nodiscard]] std::size_t delivered_count() const { return delivered_; }

  [[nodiscard]] std::size_t error_count() const;

  /// A line per step goes here when set.
  void trace_to(std::string* log) { log_ = log; }

  [[nodiscard]] std::string state_line() const;

 private:
  friend class WorldTest;
  enum class Owner : std::uint8_t {
    kPool,
    kSide,
    kEngine
  };

  struct Page {
    Owner owner = Owner::kPool;
    TransferName name;  ///< of the owner
    std::uint64_t content_request = 0;
    std::uint32_t content_index = 0;
    std::uint16_t content_parts = 0;  ///< written well
  };

  struct RouterCommand {
    enum class Kind : std::uint8_t {
      kStart,
      kCancel
    } kind = Kind::kStart;
    std::uint32_t request = 0;
    std::uint32_t attempt = 0;
    std::uint64_t peer = 0;
  };

  struct Computing {
    handoff::SendKey key;
    std::uint32_t next_page = 0;
    std::uint32_t pages = 0;
  };

  struct Prefill {
    bool up = true;
    std::uint64_t incarnation = 0;
    handoff::PrefillSide side;
    std::deque<RouterCommand> inbox;
    std::deque<handoff::SendDone> local;
    std::vector<Computing> computing;
    std::vector<handoff::SendKey> sources;  ///< started, not released
  };

  struct Waiter {
    TransferName name;
    std::uint32_t count = 0;
  };

  struct Held {
    TransferName name;
    std::vector<std::uint32_t> pages;
  };

  using LocalDecodeEvent = std::variant<handoff::UnitLanded, handoff::LandingClosed>;

  struct Decode {
    bool up = true;
    std::uint64_t incarnation = 0;
    handoff::DecodeSide side;
    transfer::LandingTable table;
    std::deque<RouterCommand> inbox;
    std::deque<LocalDecodeEvent> local;
    std::vector<Page> pages;
    std::vector<std::uint32_t> free_pages;  ///< kept sorted, taken from the back
    std::vector<Waiter> waiters;
    std::vector<Held> held;
    std::vector<TransferName> live;  ///< started, not ended
  };

  struct Control {
    bool to_prefill = false;
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    std::variant<handoff::DecodeToPrefill, handoff::PrefillToDecode> message;
  };

  struct DataUnit {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    TransferName name;
    handoff::UnitRange range;
    bool copy = false;  ///< a repetition: the sender does not wait for it
    std::optional<transfer::Landing> landing;
  };

  struct Loss {
    bool observer_is_prefill = false;
    std::uint32_t observer = 0;
    std::uint64_t observer_incarnation = 0;
    std::uint64_t lost = 0;
  };
  enum class RequestState : std::uint8_t {
    kWaiting,
    kRunning,
    kOk,
    kError
  };

  struct Request {
    RequestState state = RequestState::kWaiting;
    std::uint32_t attempt = 0;
    std::uint32_t prefill = 0, decode = 0;
    std::uint64_t prefill_incarnation = 0, decode_incarnation = 0;
    bool client_left = false;
    Time deadline;
  };

  void fail(const std::string& what);
  void log(const std::string& line);
  void offer_faults(std::vector<Step>& out) const;
  bool spend(int& budget);

  // Router.
  void submit(std::uint32_t request);
  void router_to_prefill(std::uint32_t p);
  void router_to_decode(std::uint32_t d);
  void client_leaves(std::uint32_t request);
  void attempt_failed(std::uint64_t request_id, std::uint32_t attempt);
  void attempt_cancel(std::uint32_t request);

  // Processes.
  void feed(Prefill& p, const handoff::PrefillEvent& event);
  void feed(Decode& d, const handoff::DecodeEvent& event);
  void act(Prefill& p, const handoff::PrefillAction& action);
  void act(Decode& d, const handoff::DecodeAction& action);
  void compute(std::uint32_t p, std::uint32_t index);
  void eager(Prefill& p);
  void eager(Decode& d);
  void send_unit(Prefill& p, const handoff::SendUnit& action);
  void deliver(Decode& d, const handoff::Deliver& action);
  void give_pages(Decode& d);
  void to_pool(Decode& d,
               const TransferName& name,
               const std::vector<std::uint32_t>& pages,
               Owner from);
  void engine_frees(Decode& d, std::size_t index);
  Prefill* prefill_of(std::uint64_t incarnation);
  Decode* decode_of(std::uint64_t incarnation);

  // Network and landing.
  void control(std::uint32_t index, bool keep);
  void unit_arrives(std::uint32_t index);
  void unit_lands(std::uint32_t index, bool good);
  void end_landing(Decode& d, const transfer::Landing& landing, bool good);
  void sender_done(const DataUnit& unit, bool ok);
  void crash(bool prefill, std::uint32_t index);
  void restart(bool prefill, std::uint32_t index);
  void notice_loss(std::uint32_t index);
  void expire();

  [[nodiscard]] handoff::SideOptions side_options(std::uint64_t incarnation) const;
  [[nodiscard]] transfer::LandingLimits landing_limits() const;

  [[nodiscard]] static std::uint64_t room(std::uint32_t request) { return 100 + request; }

  WorldOptions options_;
  Time now_;
  std::uint64_t next_incarnation_ = 1;
  std::vector<Prefill> prefills_;
  std::vector<Decode> decodes_;
  std::vector<Request> requests_;
  std::vector<Control> controls_;
  std::vector<DataUnit> units_;
  std::vector<Loss> losses_;
  std::size_t delivered_ = 0;
  std::string violation_;
  std::string* log_ = nullptr;
};

}  // namespace tandem::sim
