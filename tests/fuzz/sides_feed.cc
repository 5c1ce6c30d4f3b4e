// Both halves of the hand-off with an honest engine behind them and a peer that may say anything.
#include "common/handoff/decode_side.h"
#include "common/handoff/prefill_side.h"
#include "common/handoff/sides_test_support.h"
#include "common/transfer/landing_table.h"
#include "common/worker/handoff_wire.h"
#include "tests/fuzz/feeds.h"

#include "proto/tandem/v1/pair.pb.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::fuzz {
namespace {

using namespace handoff;  // NOLINT(google-build-using-namespace): everything here is of that room

constexpr std::uint64_t kPrefill = handoff::testing::kP;
constexpr std::uint64_t kDecode = handoff::testing::kD;
/// Beyond every deadline.
constexpr Duration kForever = seconds(1'000'000);
/// As the options of tests have them.
constexpr std::uint32_t kPageTokens = 4;
constexpr std::uint32_t kParts = 2;
constexpr std::uint32_t kPartBytes = 256;

std::vector<std::uint64_t> part_offsets() {
  std::vector<std::uint64_t> offsets;
  for (std::uint32_t part = 0; part <= kParts; ++part)
    offsets.push_back(std::uint64_t{part} * kPartBytes);
  return offsets;
}

/// Limits that a few units reach.
SideOptions small_options(std::uint64_t incarnation) {
  SideOptions options = handoff::testing::options(incarnation);
  options.transfers_max = 4;
  options.pages_max = 64;
  options.commit_bytes_max = 64;
  options.window_pages = 4;
  options.units_in_flight_max = 6;
  options.units_in_flight_per_transfer = 4;
  options.bytes_in_flight_max = 3000;
  options.run_bytes = 512;
  options.list_part_bytes = 128;
  options.ended_max = 4;
  return options;
}

/// The bytes, one after the other; zeros behind the end.
class Script {
 public:
  explicit Script(Bytes bytes) : bytes_(bytes) {}

  [[nodiscard]] bool done() const { return at_ >= bytes_.size(); }

  std::uint8_t next() { return done() ? 0 : bytes_[at_++]; }

  /// A length and so many bytes.
  Bytes piece() {
    const std::size_t size = std::min<std::size_t>(next(), bytes_.size() - at_);
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }

 private:
  Bytes bytes_;
  std::size_t at_ = 0;
};

/// A message as it came over the wire, or nothing.
template <class Message>
std::optional<Message> message_of(Bytes bytes, Role own) {
  v1::PairMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  auto value = worker::from_wire(message, own);
  if (!value.ok() || !std::holds_alternative<Message>(*value)) return std::nullopt;
  return std::get<Message>(*std::move(value));
}

SendKey key_of(const TransferName& name) {
  return {name.request_id, name.attempt};
}

/// A prefill process: its engine and its transport keep to the rules.
class PrefillWorld {
 public:
  explicit PrefillWorld(Script* script) : script_(script) {}

  void run() {
    feed(PeerLinked{kDecode});
    while (!script_->done())
      act();
    // Whatever was said, everything ends.
    now_ = now_ + kForever;
    feed(TimePassed{});
    while (!in_flight_.empty())
      finish_unit(true);
    must(side_.active_count() == 0 && sends_.empty(), "every transfer ends");
    must(side_.units_in_flight() == 0, "and nothing of it is under way");
  }

 private:
  struct Sent {
    std::set<std::uint32_t> ready;  ///< pages of the source
    std::uint32_t page_count = 0;
    std::uint32_t given = 0;  ///< of them, to the side
    std::uint32_t in_flight = 0;
    bool token = false;
  };

  SendKey key() { return {1 + (script_->next() & 3U), 0}; }

  TransferName name() {
    return {.request_id = key().request_id,
            .attempt = 0,
            .decode_incarnation = kDecode,
            .slot = 0,
            .generation = 1};
  }

  void act() {
    switch (script_->next() % 10) {
      case 0:
        return start();
      case 1:
        return ready();
      case 2:
        return token();
      case 3:
        return finish_unit((script_->next() & 1U) != 0);
      case 4:
        return feed(CancelSend{key(), cancelled("")});
      case 5:
        return speak(GrantMessage{.name = name(),
                                  .prompt_tokens = script_->next(),
                                  .first_needed_page = script_->next(),
                                  .first_page = script_->next(),
                                  .page_count = script_->next(),
                                  .deadline_left = seconds(1)});
      case 6:
        return say_short();
      case 7:
        if (const auto message = message_of<DecodeToPrefill>(script_->piece(), Role::kPrefill))
          speak(*message);
        return;
      case 8:
        now_ = now_ + milliseconds(script_->next());
        return feed(TimePassed{});
      default:
        switch (script_->next() & 3U) {
          case 1:
            return feed(PeerLinked{kDecode});
          case 2:
            return feed(PeerIsNear{kDecode});
          case 3:
            return feed(PeerIsLocal{kDecode});
          default:
            return feed(PeerLost{kDecode, unavailable("")});
        }
    }
  }

  void start() {
    const StartSend event{.key = key(),
                          .decode_incarnation = (script_->next() & 1U) != 0 ? kDecode : 0,
                          .prompt_tokens = 1U + script_->next() % 64U,
                          .deadline = now_ + milliseconds(script_->next())};
    if (sends_.contains(event.key)) return;
    sends_[event.key].page_count = (event.prompt_tokens + kPageTokens - 1) / kPageTokens;
    feed(event);
  }

  void ready() {
    const SendKey which = key();
    const auto found = sends_.find(which);
    if (found == sends_.end()) return;
    Sent& sent = found->second;
    const std::uint32_t count =
        std::min<std::uint32_t>(script_->next() % 8U, sent.page_count - sent.given);
    ChunkReady event{.key = which, .first_page = sent.given, .source_pages = {}};
    for (std::uint32_t i = 0; i < count; ++i)
      event.source_pages.push_back(next_page_++);
    sent.ready.insert(event.source_pages.begin(), event.source_pages.end());
    sent.given += count;
    feed(event);
  }

  void token() {
    const SendKey which = key();
    const auto found = sends_.find(which);
    if (found == sends_.end() || found->second.token) return;
    found->second.token = true;
    feed(FirstToken{which, {.first_token = 5, .state = "state"}});
  }

  void finish_unit(bool ok) {
    if (in_flight_.empty()) return;
    const SendUnit unit = std::move(in_flight_.front());
    in_flight_.pop_front();
    --sends_.at(key_of(unit.name)).in_flight;
    feed(SendDone{.name = unit.name, .unit = unit.range.unit, .ok = ok, .crc = 7});
  }

  void say_short() {
    const TransferName to = name();
    switch (script_->next() % 4) {
      case 0:
        return speak(ResendMessage{to, script_->next()});
      case 1:
        return speak(AcceptedMessage{to});
      case 2:
        return speak(CancelMessage{to, Code::kCancelled, ""});
      default:
        return speak(DrainedMessage{to, script_->next()});
    }
  }

  void speak(const DecodeToPrefill& message) { feed(FromDecode{kDecode, message}); }

  void feed(const PrefillEvent& event) {
    std::vector<PrefillAction> actions;
    side_.on(event, now_, actions);
    for (const PrefillAction& action : actions) {
      if (const auto* unit = std::get_if<SendUnit>(&action)) take(*unit);
      if (const auto* refused = std::get_if<SendRefused>(&action))
        must(sends_.erase(refused->key) == 1, "what is refused was asked for");
      if (const auto* done = std::get_if<ReleaseSource>(&action)) release(*done);
    }
  }

  void take(const SendUnit& unit) {
    const auto found = sends_.find(key_of(unit.name));
    must(found != sends_.end(), "nothing is sent of what is over");
    must(unit.range.page_count == unit.source_pages.size() && unit.range.page_count > 0,
         "a unit is its pages");
    must(std::uint64_t{unit.range.first_page} + unit.range.page_count <= found->second.page_count,
         "within the prompt");
    must(
        std::ranges::all_of(unit.source_pages,
                            [&](std::uint32_t page) { return found->second.ready.contains(page); }),
        "which are final");
    must(unit.byte_range.offset + unit.byte_range.length <= kParts * kPartBytes,
         "a part is within its page");
    ++found->second.in_flight;
    in_flight_.push_back(unit);
    must(in_flight_.size() <= limits_.units_in_flight_max, "no more are under way than may be");
    must(found->second.in_flight <= limits_.units_in_flight_per_transfer, "nor of one transfer");
    std::uint64_t bytes = 0;
    for (const SendUnit& sent : in_flight_)
      bytes += sent.byte_range.length * sent.range.page_count;
    must(bytes <= limits_.bytes_in_flight_max, "nor more bytes");
  }

  void release(const ReleaseSource& done) {
    const auto found = sends_.find(done.key);
    must(found != sends_.end(), "a source is released once");
    must(found->second.in_flight == 0, "when nobody reads it any more");
    sends_.erase(found);
  }

  Script* script_;
  const SideOptions limits_ = small_options(kPrefill);
  PrefillSide side_{limits_};
  Time now_{0};
  std::map<SendKey, Sent> sends_;  ///< that the side has to release
  std::deque<SendUnit> in_flight_;
  std::uint32_t next_page_ = 0;
};

/// A decode process: its engine and its landing layer keep to the rules.
class DecodeWorld {
 public:
  explicit DecodeWorld(Script* script) : script_(script) {}

  void run() {
    feed(PeerLinked{kPrefill});
    while (!script_->done())
      act();
    now_ = now_ + kForever;
    feed(TimePassed{});
    while (!landing_.empty())
      finish_unit(true);
    while (!closing_.empty())
      close_one();
    must(side_.active_count() == 0 && receives_.empty(), "every transfer ends");
    must(side_.held_page_count() == 0 && out_.empty(), "and every page comes back");
  }

 private:
  struct Received {
    std::uint32_t first_page = 0;
    std::vector<std::uint32_t> pages;  ///< opened for landing, in order
    std::vector<std::uint32_t> good;   ///< parts of each that landed well
    std::uint32_t units = 0;           ///< that did
    std::uint64_t digest = 0;          ///< of them
    std::uint32_t page_count = 0;
    std::uint32_t asked = 0;
    bool opened = false;
    bool closed = false;  ///< nothing can land any more
  };

  void act() {
    switch (script_->next() % 10) {
      case 0:
        return start();
      case 1:
        return give_pages();
      case 2:
        return begin_unit();
      case 3:
        return finish_unit((script_->next() & 3U) != 0);
      case 4:
        return close_one();
      case 5:
        return feed(CancelReceive{1 + (script_->next() & 3U), 0, cancelled("")});
      case 6:
        return commit();
      case 7:
        if (const auto message = message_of<PrefillToDecode>(script_->piece(), Role::kDecode))
          feed(FromPrefill{kPrefill, *message});
        return;
      case 8:
        now_ = now_ + milliseconds(script_->next());
        return feed(TimePassed{});
      default:
        if ((script_->next() & 1U) != 0) return feed(PeerLinked{kPrefill});
        return feed(PeerLost{kPrefill, unavailable("")});
    }
  }

  /// One of those that are under way.
  std::map<TransferName, Received>::iterator any() {
    auto at = receives_.begin();
    if (receives_.empty()) return at;
    std::advance(at, script_->next() % receives_.size());
    return at;
  }

  void start() {
    StartReceive event{.request_id = 1 + (script_->next() & 3U),
                       .attempt = 0,
                       .prefill_incarnation = kPrefill,
                       .prompt_tokens = 1U + script_->next() % 64U,
                       .start_token = 0,
                       .deadline = now_ + milliseconds(script_->next())};
    event.start_token = std::min<std::uint32_t>(script_->next() % 8U * kPageTokens,
                                                event.prompt_tokens / kPageTokens * kPageTokens);
    starting_ = event;
    feed(event);
  }

  void give_pages() {
    const auto to = any();
    if (to == receives_.end() || to->second.asked == 0) return;
    PagesAvailable event{.name = to->first, .pages = {}};
    const std::uint32_t count = std::min<std::uint32_t>(script_->next() % 8U, to->second.asked);
    to->second.asked -= count;
    for (std::uint32_t i = 0; i < count; ++i) {
      event.pages.push_back(next_page_);
      out_.insert(next_page_++);
    }
    feed(event);
  }

  /// A unit's header has come.
  void begin_unit() {
    const auto to = any();
    if (to == receives_.end()) return;
    const Received& received = to->second;
    transfer::UnitHeader header{.name = to->first,
                                .unit = script_->next(),
                                .first_page = script_->next(),
                                .page_count = script_->next() % 8U,
                                .page_offset = 0,
                                .page_length = 0,
                                .first_part = static_cast<std::uint16_t>(script_->next() % 3U),
                                .part_count = static_cast<std::uint16_t>(script_->next() % 4U)};
    header.page_offset = header.first_part * kPartBytes;
    header.page_length = header.part_count * kPartBytes;
    transfer::Landing landing;
    if (table_.begin(header, &landing) != transfer::LandingVerdict::kLand) return;
    must(!received.closed, "nothing lands where all is closed");
    const std::size_t first = header.first_page - received.first_page;
    must(landing.pages.size() == header.page_count && header.page_count > 0 &&
             first + header.page_count <= received.pages.size() &&
             std::equal(landing.pages.begin(),
                        landing.pages.end(),
                        received.pages.begin() + static_cast<std::ptrdiff_t>(first)),
         "a unit lands in its own pages");
    landing_.push_back(landing);
  }

  /// Its bytes are there, as they were sent or not.
  void finish_unit(bool good) {
    if (landing_.empty()) return;
    const transfer::Landing landing = std::move(landing_.front());
    landing_.pop_front();
    const transfer::UnitHeader& header = landing.header;
    const UnitLanded event{.name = header.name,
                           .range = {.unit = header.unit,
                                     .first_page = header.first_page,
                                     .page_count = header.page_count,
                                     .first_part = header.first_part,
                                     .part_count = header.part_count},
                           .crc = 7,
                           .crc_ok = good};
    if (good) {
      Received& received = receives_.at(header.name);
      for (std::size_t page = 0; page < header.page_count; ++page)
        received.good[header.first_page - received.first_page + page] += header.part_count;
      received.digest += unit_digest(event.range, event.crc);
      ++received.units;
    }
    const bool closed = table_.finish(landing, good);
    feed(event);
    if (closed) closing_.push_back(header.name);
  }

  void commit() {
    const auto to = any();
    if (to == receives_.end()) return;
    const CommitMessage message{.name = to->first,
                                .payload = {5, std::string(script_->next() % 80U, 's')},
                                .unit_count = to->second.units,
                                .digest = to->second.digest + (script_->next() & 1U)};
    feed(FromPrefill{kPrefill, message});
  }

  void close_one() {
    if (closing_.empty()) return;
    const TransferName name = closing_.front();
    closing_.pop_front();
    receives_.at(name).closed = true;
    feed(LandingClosed{name});
  }

  void feed(const DecodeEvent& event) {
    std::vector<DecodeAction> actions;
    side_.on(event, now_, actions);
    for (const DecodeAction& action : actions)
      std::visit([this](const auto& a) { take(a); }, action);
  }

  void take(const ReceiveStarted& started) {
    Received& received = receives_[started.name];
    received.first_page = starting_.start_token / kPageTokens;
    received.page_count =
        (starting_.prompt_tokens + kPageTokens - 1) / kPageTokens - received.first_page;
  }

  void take(const ReceiveRefused& /*refused*/) {}

  void take(const NeedPages& need) {
    Received& received = receives_.at(need.name);
    received.asked += need.page_count;
    must(received.asked + received.pages.size() <= received.page_count,
         "no more pages are asked for than the prompt has");
  }

  void take(const PagesNotNeeded& rest) { receives_.at(rest.name).asked = 0; }

  void take(const ReturnPages& back) { take_back(back.pages); }

  void take(const OpenLanding& open) {
    Received& received = receives_.at(open.name);
    must(open.first_page == received.first_page + received.pages.size(), "pages open in order");
    received.opened = true;
    received.pages.insert(received.pages.end(), open.pages.begin(), open.pages.end());
    received.good.resize(received.pages.size());
    table_.open(open.name, open.first_page, open.pages);
  }

  void take(const CloseLanding& close) {
    must(receives_.at(close.name).opened, "what is closed was open");
    if (table_.close(close.name)) closing_.push_back(close.name);
  }

  void take(const ToPrefill& /*to*/) {}

  void take(const Deliver& deliver) {
    const Received& received = end(deliver.name, deliver.pages);
    must(deliver.pages.size() == received.page_count, "what is delivered is whole");
    must(std::ranges::all_of(received.good, [](std::uint32_t good) { return good == kParts; }),
         "and has landed well");
    receives_.erase(deliver.name);
  }

  void take(const Release& release) {
    const Received& received = end(release.name, release.pages);
    must(release.verified_tokens <= received.pages.size() * kPageTokens,
         "no more is kept than came");
    for (std::size_t page = 0; page < release.verified_tokens / kPageTokens; ++page)
      must(received.good[page] == kParts, "and that has landed well");
    receives_.erase(release.name);
  }

  const Received& end(const TransferName& name, const std::vector<std::uint32_t>& pages) {
    const auto found = receives_.find(name);
    must(found != receives_.end(), "a transfer ends once");
    must(!found->second.opened || found->second.closed, "when nothing can land any more");
    must(pages == found->second.pages, "with its own pages");
    take_back(pages);
    return found->second;
  }

  void take_back(const std::vector<std::uint32_t>& pages) {
    for (const std::uint32_t page : pages)
      must(out_.erase(page) == 1, "a page comes back once");
  }

  Script* script_;
  DecodeSide side_{small_options(kDecode)};
  Time now_{0};
  StartReceive starting_;
  std::map<TransferName, Received> receives_;  ///< that the side has to end
  transfer::LandingTable table_{{.pool_pages = 1U << 20U, .part_offsets = part_offsets()}};
  std::deque<transfer::Landing> landing_;
  std::deque<TransferName> closing_;  ///< closed, which the side does not know yet
  std::set<std::uint32_t> out_;       ///< pages that the side holds
  std::uint32_t next_page_ = 0;
};

}  // namespace

void feed_sides(Bytes bytes) {
  if (bytes.empty()) return;
  Script script(bytes.subspan(1));
  if ((bytes[0] & 1U) == 0)
    PrefillWorld(&script).run();
  else
    DecodeWorld(&script).run();
}

}  // namespace tandem::fuzz
