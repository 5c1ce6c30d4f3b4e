#include "common/handoff/decode_side.h"

#include "common/base/check.h"
#include "common/handoff/fingerprint.h"

#include <algorithm>

namespace tandem::handoff {

DecodeSide::DecodeSide(SideOptions options)
    : options_(std::move(options)), slots_(options_.transfers_max) {
  TANDEM_CHECK(options_.incarnation != 0, "an incarnation is never 0");
  TANDEM_CHECK(validate(options_.layout).ok(), validate(options_.layout).message());
  TANDEM_CHECK(options_.grant_pages_max > 0, "grant_pages_max");
  for (std::uint32_t s = 0; s < slots_.size(); ++s) {
    slots_[s].name.decode_incarnation = options_.incarnation;
    slots_[s].name.slot = s;
  }
}

void DecodeSide::on(const DecodeEvent& event, Time now, Out& out) {
  if (const auto* e = std::get_if<StartReceive>(&event)) start(*e, now, out);
  if (const auto* e = std::get_if<PagesAvailable>(&event)) pages(*e, now, out);
  if (const auto* e = std::get_if<CancelReceive>(&event)) cancel(*e, out);
  if (const auto* e = std::get_if<UnitLanded>(&event)) landed(*e, out);
  if (const auto* e = std::get_if<LandingClosed>(&event)) closed(*e, out);
  if (const auto* e = std::get_if<FromPrefill>(&event)) message(*e, out);
  if (const auto* e = std::get_if<PeerLinked>(&event)) {
    const auto at = std::lower_bound(peers_.begin(), peers_.end(), e->peer);
    if (at == peers_.end() || *at != e->peer) peers_.insert(at, e->peer);
  }
  if (const auto* e = std::get_if<PeerLost>(&event)) lost(*e, out);
  time_passed(now, out);
}

Status DecodeSide::check_start(const StartReceive& event) const {
  const auto page_size = options_.layout.page_size;
  if (event.prompt_tokens == 0) return invalid_argument("prompt_tokens: 0, expected at least 1");
  if (event.start_token % page_size != 0 || event.start_token > event.prompt_tokens) {
    return invalid_argument("start_token: " + std::to_string(event.start_token) +
                            " is not a multiple of page_size " + std::to_string(page_size) +
                            " up to prompt_tokens " + std::to_string(event.prompt_tokens));
  }
  const std::uint64_t page_count = (std::uint64_t{event.prompt_tokens} + page_size - 1) / page_size;
  if (page_count > options_.pages_max) {
    return invalid_argument("prompt_tokens: " + std::to_string(event.prompt_tokens) + " are " +
                            std::to_string(page_count) + " pages, at most " +
                            std::to_string(options_.pages_max) + " can be transferred");
  }
  if (!std::binary_search(peers_.begin(), peers_.end(), event.prefill_incarnation)) {
    return unavailable("prefill process " + std::to_string(event.prefill_incarnation) +
                       " is not linked");
  }
  return {};
}

void DecodeSide::start(const StartReceive& event, Time now, Out& out) {
  Slot* slot = nullptr;
  Status problem = check_start(event);
  for (Slot& s : slots_) {
    if (s.state == DecodeState::kNone) {
      if (slot == nullptr) slot = &s;
    } else if (s.name.request_id == event.request_id && s.name.attempt == event.attempt) {
      TANDEM_CHECK(rule_for(&s, DecodeEventKind::kStartReceive) == Rule::kRefuse);
      problem = already_exists("request " + std::to_string(event.request_id) + " attempt " +
                               std::to_string(event.attempt) + " is being received already");
    }
  }
  if (problem.ok() && slot == nullptr) {
    problem = resource_exhausted("transfers: all " + std::to_string(slots_.size()) + " are in use");
  }
  if (!problem.ok()) {
    ++stats_.refused;
    out.emplace_back(ReceiveRefused{event.request_id, event.attempt, problem});
    return;
  }
  const auto page_size = options_.layout.page_size;
  ++stats_.started;
  slot->state = DecodeState::kReceiving;
  slot->name.request_id = event.request_id;
  slot->name.attempt = event.attempt;
  ++slot->name.generation;
  slot->peer = event.prefill_incarnation;
  slot->prompt_tokens = event.prompt_tokens;
  slot->first_page = event.start_token / page_size;
  slot->page_count = (event.prompt_tokens + page_size - 1) / page_size - slot->first_page;
  slot->deadline = event.deadline;
  out.emplace_back(ReceiveStarted{slot->name});
  if (slot->page_count == 0) {
    out.emplace_back(ToPrefill{slot->peer,
                               GrantMessage{.name = slot->name,
                                            .prompt_tokens = slot->prompt_tokens,
                                            .first_needed_page = slot->first_page,
                                            .first_page = slot->first_page,
                                            .page_count = 0,
                                            .deadline_left = slot->deadline - now}});
  }
  ask_pages(*slot, out);
}

void DecodeSide::ask_pages(Slot& slot, Out& out) {
  const auto window = options_.window_pages == 0 ? slot.page_count : options_.window_pages;
  const auto want = static_cast<std::uint32_t>(
      std::min<std::uint64_t>(slot.page_count, std::uint64_t{slot.verified_pages} + window));
  const auto have = static_cast<std::uint32_t>(slot.pages.size()) + slot.pages_asked;
  if (want <= have) return;
  const std::uint32_t deficit = want - have;
  // Wait until half the window is free: a grant per landed page would make units of one page.
  if (deficit < (window + 1) / 2 && want < slot.page_count) return;
  slot.pages_asked += deficit;
  out.emplace_back(NeedPages{slot.name, deficit});
}

DecodeSide::Slot* DecodeSide::find(const TransferName& name) {
  if (name.decode_incarnation != options_.incarnation || name.slot >= slots_.size()) {
    ++stats_.stale_dropped;
    return nullptr;
  }
  Slot& slot = slots_[name.slot];
  if (options_.bugs.skip_generation_check) {
    return slot.state == DecodeState::kNone ? nullptr : &slot;
  }
  if (slot.name != name) {
    ++stats_.stale_dropped;
    return nullptr;
  }
  return slot.state == DecodeState::kNone ? nullptr : &slot;
}

Rule DecodeSide::rule_for(const Slot* slot, DecodeEventKind event) {
  const Rule found = rule(slot == nullptr ? DecodeState::kNone : slot->state, event);
  if (found == Rule::kDrop) {
    ++(slot == nullptr ? stats_.unknown_dropped : stats_.out_of_order_dropped);
  }
  return found;
}

void DecodeSide::pages(const PagesAvailable& event, Time now, Out& out) {
  Slot* slot = find(event.name);
  switch (rule_for(slot, DecodeEventKind::kPagesAvailable)) {
    case Rule::kGrant:
      grant(*slot, event, now, out);
      break;
    default:
      if (!event.pages.empty()) out.emplace_back(ReturnPages{event.name, event.pages});
  }
}

void DecodeSide::grant(Slot& slot, const PagesAvailable& event, Time now, Out& out) {
  const auto given = static_cast<std::uint32_t>(
      std::min<std::size_t>(event.pages.size(), std::size_t{slot.pages_asked}));
  slot.pages_asked -= given;
  for (std::uint32_t done = 0; done < given;) {
    const std::uint32_t count = std::min(given - done, options_.grant_pages_max);
    const auto first = slot.first_page + static_cast<std::uint32_t>(slot.pages.size());
    std::vector<std::uint32_t> part(event.pages.begin() + done, event.pages.begin() + done + count);
    slot.pages.insert(slot.pages.end(), part.begin(), part.end());
    slot.landed_parts.resize(slot.pages.size());
    slot.landing_open = true;
    out.emplace_back(OpenLanding{slot.name, first, std::move(part)});
    out.emplace_back(ToPrefill{slot.peer,
                               GrantMessage{.name = slot.name,
                                            .prompt_tokens = slot.prompt_tokens,
                                            .first_needed_page = slot.first_page,
                                            .first_page = first,
                                            .page_count = count,
                                            .deadline_left = slot.deadline - now}});
    done += count;
  }
  if (given < event.pages.size()) {
    out.emplace_back(ReturnPages{slot.name, {event.pages.begin() + given, event.pages.end()}});
  }
}

void DecodeSide::cancel(const CancelReceive& event, Out& out) {
  Slot* slot = nullptr;
  for (Slot& s : slots_) {
    if (s.state != DecodeState::kNone && s.name.request_id == event.request_id &&
        s.name.attempt == event.attempt) {
      slot = &s;
    }
  }
  if (rule_for(slot, DecodeEventKind::kCancelReceive) == Rule::kReleaseAndTell) {
    begin_release(*slot,
                  event.reason.ok() ? cancelled("cancelled") : event.reason,
                  /*tell=*/true,
                  out);
  }
}

void DecodeSide::lost(const PeerLost& event, Out& out) {
  const auto at = std::lower_bound(peers_.begin(), peers_.end(), event.peer);
  if (at != peers_.end() && *at == event.peer) peers_.erase(at);
  for (Slot& slot : slots_) {
    if (slot.state == DecodeState::kNone || slot.peer != event.peer) continue;
    if (rule_for(&slot, DecodeEventKind::kPeerLost) == Rule::kRelease) {
      begin_release(slot,
                    unavailable("prefill process lost: " + event.reason.message()),
                    /*tell=*/false,
                    out);
    }
  }
}

void DecodeSide::time_passed(Time now, Out& out) {
  for (Slot& slot : slots_) {
    if (slot.state != DecodeState::kReceiving || now < slot.deadline) continue;
    if (rule_for(&slot, DecodeEventKind::kDeadline) == Rule::kReleaseAndTell) {
      begin_release(slot,
                    deadline_exceeded("the prompt's KV did not arrive before the deadline"),
                    /*tell=*/true,
                    out);
    }
  }
}

std::optional<Time> DecodeSide::next_deadline() const {
  std::optional<Time> next;
  for (const Slot& slot : slots_) {
    if (slot.state != DecodeState::kReceiving) continue;
    next = next ? std::min(*next, slot.deadline) : slot.deadline;
  }
  return next;
}

std::size_t DecodeSide::active_count() const {
  return static_cast<std::size_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& s) { return s.state != DecodeState::kNone; }));
}

std::size_t DecodeSide::held_page_count() const {
  std::size_t count = 0;
  for (const Slot& slot : slots_)
    count += slot.pages.size();
  return count;
}

std::size_t DecodeSide::quarantined_page_count() const {
  std::size_t count = 0;
  for (const Slot& slot : slots_)
    if (slot.state == DecodeState::kReleasing) count += slot.pages.size();
  return count;
}

std::uint64_t DecodeSide::fingerprint() const {
  Fingerprint f;
  for (const auto peer : peers_)
    f.add(peer);
  for (const Slot& s : slots_) {
    f.add(static_cast<std::uint64_t>(s.state)).add(s.name);
    if (s.state == DecodeState::kNone) continue;
    f.add(s.peer).add(s.prompt_tokens).add(s.first_page).add(s.page_count);
    f.add(static_cast<std::uint64_t>(s.deadline.ns)).add(s.pages_asked);
    f.add((s.landing_open ? 1U : 0U) | (s.tell_drained ? 2U : 0U)).add(s.digest);
    f.add(s.pages.size());
    for (std::size_t i = 0; i < s.pages.size(); ++i)
      f.add((std::uint64_t{s.pages[i]} << 16U) | s.landed_parts[i]);
    for (const auto& [unit, crc] : s.units)
      f.add((std::uint64_t{unit} << 32U) | crc);
    f.add(s.bad.size());
    for (const auto& [unit, count] : s.bad)
      f.add((std::uint64_t{unit} << 32U) | count);
    f.add(static_cast<std::uint64_t>(s.end_reason.code()));
    if (s.commit) {
      f.add(s.commit->name).add(s.commit->unit_count).add(s.commit->digest);
      f.add(static_cast<std::uint64_t>(s.commit->payload.first_token));
    }
  }
  return f.value();
}

std::string_view to_string(const DecodeAction& action) {
  constexpr std::string_view kNames[] = {"ReceiveStarted",
                                         "ReceiveRefused",
                                         "NeedPages",
                                         "PagesNotNeeded",
                                         "ReturnPages",
                                         "Deliver",
                                         "Release",
                                         "OpenLanding",
                                         "CloseLanding",
                                         "ToPrefill"};
  static_assert(std::size(kNames) == std::variant_size_v<DecodeAction>);
  return kNames[action.index()];
}

}  // namespace tandem::handoff
