#include "common/handoff/prefill_side.h"

#include "common/base/check.h"
#include "common/handoff/fingerprint.h"

#include <algorithm>

namespace tandem::handoff {

PrefillSide::PrefillSide(SideOptions options) : options_(std::move(options)) {
  TANDEM_CHECK(options_.incarnation != 0, "an incarnation is never 0");
  TANDEM_CHECK(validate(options_.layout).ok(), validate(options_.layout).message());
}

void PrefillSide::on(const PrefillEvent& event, Time now, Out& out) {
  if (const auto* e = std::get_if<StartSend>(&event)) start(*e, out);
  if (const auto* e = std::get_if<ChunkReady>(&event)) chunk(*e, out);
  if (const auto* e = std::get_if<FirstToken>(&event)) token(*e, out);
  if (const auto* e = std::get_if<CancelSend>(&event)) cancel(*e, out);
  if (const auto* e = std::get_if<SendDone>(&event)) send_done(*e, out);
  if (const auto* e = std::get_if<FromDecode>(&event)) message(*e, now, out);
  if (const auto* e = std::get_if<PeerLinked>(&event)) {
    peers_.try_emplace(e->peer);
  }
  if (const auto* e = std::get_if<PeerIsLocal>(&event)) {
    if (const auto at = peers_.find(e->peer); at != peers_.end()) at->second.local = true;
  }
  if (const auto* e = std::get_if<PeerIsNear>(&event)) {
    if (const auto at = peers_.find(e->peer); at != peers_.end()) at->second.near = true;
  }
  if (const auto* e = std::get_if<PeerLost>(&event)) lost(*e, out);
  time_passed(now, out);
}

Rule PrefillSide::rule_for(Sends::const_iterator it, PrefillEventKind event) {
  const bool none = it == sends_.end();
  const Rule found = rule(none ? PrefillState::kNone : it->second.state, event);
  if (found == Rule::kDrop) ++(none ? stats_.unknown_dropped : stats_.out_of_order_dropped);
  return found;
}

// Events of the engine.

void PrefillSide::start(const StartSend& event, Out& out) {
  const auto it = sends_.find(event.key);
  switch (rule_for(it, PrefillEventKind::kStartSend)) {
    case Rule::kBeginSend:
      begin(event, out);
      break;
    case Rule::kPair:
      adopt(it, event, out);
      break;
    default:
      ++stats_.refused;
      out.emplace_back(SendRefused{
          event.key,
          already_exists("request " + std::to_string(event.key.request_id) + " attempt " +
                         std::to_string(event.key.attempt) + " is being sent already")});
  }
}

void PrefillSide::begin(const StartSend& event, Out& out) {
  const auto page_size = options_.layout.page_size;
  const std::uint64_t page_count = (std::uint64_t{event.prompt_tokens} + page_size - 1) / page_size;
  Status problem;
  if (event.prompt_tokens == 0 || page_count > options_.pages_max) {
    problem = invalid_argument("prompt_tokens: " + std::to_string(event.prompt_tokens) +
                               ", expected 1 to " +
                               std::to_string(std::uint64_t{options_.pages_max} * page_size));
  } else if (const Ended* before = ended(event.key, event.decode_incarnation)) {
    problem = Status(
        before->status.ok() ? Code::kAlreadyExists : before->status.code(),
        "has ended already: " + (before->status.ok() ? "accepted" : before->status.message()));
  } else if (sends_.size() >= options_.transfers_max) {
    problem = resource_exhausted("transfers: all " + std::to_string(options_.transfers_max) +
                                 " are in use");
    // The engine may have said the first token by the time it hears this: decode has to hear it.
    remember(event.key, event.decode_incarnation, problem);
  }
  if (!problem.ok()) {
    ++stats_.refused;
    out.emplace_back(SendRefused{event.key, problem});
    return;
  }
  ++stats_.started;
  Send& send = sends_[event.key];
  send.state = PrefillState::kAwaitingPeer;
  send.peer = event.decode_incarnation;
  send.prompt_tokens = event.prompt_tokens;
  send.deadline = event.deadline;
  send.pages.resize(static_cast<std::size_t>(page_count));
}

void PrefillSide::adopt(Sends::iterator it, const StartSend& event, Out& out) {
  Send& send = it->second;
  if (event.decode_incarnation != 0 && event.decode_incarnation != send.peer) {
    // The grant came from a process that the router did not choose.
    tell_cancel(send, failed_precondition("the request goes to another decode process"), out);
    sends_.erase(it);
    begin(event, out);
    return;
  }
  ++stats_.started;
  send.deadline = event.deadline;
  send.state = PrefillState::kSending;
  if (send.prompt_tokens != event.prompt_tokens) {
    abort(it,
          invalid_argument("prompt_tokens: prefill has " + std::to_string(event.prompt_tokens) +
                           ", decode has " + std::to_string(send.prompt_tokens)),
          out);
  }
}

void PrefillSide::chunk(const ChunkReady& event, Out& out) {
  const auto it = sends_.find(event.key);
  switch (rule_for(it, PrefillEventKind::kChunkReady)) {
    case Rule::kNote:
      note_chunk(it, event, out);
      break;
    case Rule::kSend:
      if (note_chunk(it, event, out)) pump(it->second, out);
      break;
    default:
      break;
  }
}

void PrefillSide::token(const FirstToken& event, Out& out) {
  const auto it = sends_.find(event.key);
  if (rule_for(it, PrefillEventKind::kFirstToken) != Rule::kNoteToken) return;
  if (it->second.token) {
    ++stats_.out_of_order_dropped;
    return;
  }
  it->second.token = event.payload;
  if (it->second.state == PrefillState::kSending) try_commit(it->second, out);
}

void PrefillSide::cancel(const CancelSend& event, Out& out) {
  const auto it = sends_.find(event.key);
  const Status reason = event.reason.ok() ? cancelled("cancelled") : event.reason;
  switch (rule_for(it, PrefillEventKind::kCancelSend)) {
    case Rule::kRememberEnd:
      remember(event.key, 0, reason);
      break;
    case Rule::kForgetAndTell:
      tell_cancel(it->second, reason, out);
      forget(it, reason);
      break;
    case Rule::kFinish:
      end(it, reason, out);
      break;
    case Rule::kAbort:
      abort(it, reason, out);
      break;
    default:
      break;
  }
}

// Events of the peer.

bool PrefillSide::is_stale(Sends::const_iterator it, const FromDecode& event) const {
  const TransferName& name = name_of(event.message);
  if (name.decode_incarnation != event.peer || event.peer == 0) return true;
  if (it == sends_.end()) return false;
  const Send& send = it->second;
  if (send.named) return send.name != name;
  return send.peer != 0 && send.peer != event.peer;
}

void PrefillSide::message(const FromDecode& event, Time now, Out& out) {
  const TransferName& name = name_of(event.message);
  const auto it = sends_.find({name.request_id, name.attempt});
  if (is_stale(it, event)) {
    ++stats_.stale_dropped;
    return;
  }
  if (const auto* m = std::get_if<GrantMessage>(&event.message)) {
    grant(event, *m, now, out);
  } else if (const auto* r = std::get_if<ResendMessage>(&event.message)) {
    if (rule_for(it, PrefillEventKind::kResend) == Rule::kResend) resend(it, *r, out);
  } else if (std::get_if<AcceptedMessage>(&event.message) != nullptr) {
    if (rule_for(it, PrefillEventKind::kAccepted) == Rule::kAccept) end(it, ok_status(), out);
  } else if (const auto* c = std::get_if<CancelMessage>(&event.message)) {
    cancelled_by_peer(event, *c, out);
  } else {
    if (rule_for(it, PrefillEventKind::kDrained) == Rule::kCountDrained) ++stats_.peer_drained;
  }
}

void PrefillSide::cancelled_by_peer(const FromDecode& event,
                                    const CancelMessage& message,
                                    Out& out) {
  const SendKey key{message.name.request_id, message.name.attempt};
  const auto it = sends_.find(key);
  const Status reason(message.code == Code::kOk ? Code::kCancelled : message.code,
                      "decode gave up: " + message.reason);
  const auto answer = [&] {
    out.emplace_back(ToDecode{event.peer, DrainedMessage{message.name, 0}});
  };
  switch (rule_for(it, PrefillEventKind::kCancel)) {
    case Rule::kRememberEnd:
      remember(key, event.peer, reason);
      answer();
      break;
    case Rule::kForget:
      forget(it, reason);
      answer();
      break;
    case Rule::kFinish:
      end(it, reason, out);
      answer();
      break;
    case Rule::kDrain:
      it->second.tell_drained = true;
      end(it, reason, out);
      break;
    default:
      break;
  }
}

void PrefillSide::lost(const PeerLost& event, Out& out) {
  peers_.erase(event.peer);
  const Status reason = unavailable("decode process lost: " + event.reason.message());
  for (auto it = sends_.begin(); it != sends_.end();) {
    const auto current = it++;
    if (current->second.peer != event.peer) continue;
    switch (rule_for(current, PrefillEventKind::kPeerLost)) {
      case Rule::kForget:
        forget(current, reason);
        break;
      case Rule::kFinish:
      case Rule::kDrain:
        end(current, reason, out);
        break;
      default:
        break;
    }
  }
}

void PrefillSide::time_passed(Time now, Out& out) {
  for (auto it = sends_.begin(); it != sends_.end();) {
    const auto current = it++;
    if (now < current->second.deadline) continue;
    switch (rule_for(current, PrefillEventKind::kDeadline)) {
      case Rule::kForgetAndTell: {
        const Status reason = deadline_exceeded("prefill was never asked to compute this request");
        tell_cancel(current->second, reason, out);
        forget(current, reason);
        break;
      }
      case Rule::kFinish:
        end(current, deadline_exceeded("no decode process granted pages in time"), out);
        break;
      case Rule::kAbort:
        abort(current, deadline_exceeded("the hand-off did not end before the deadline"), out);
        break;
      default:
        break;
    }
  }
}

// Ends.

void PrefillSide::tell_cancel(const Send& send, const Status& reason, Out& out) {
  if (!send.named) return;
  out.emplace_back(ToDecode{send.peer, CancelMessage{send.name, reason.code(), reason.message()}});
}

void PrefillSide::forget(Sends::iterator it, const Status& status) {
  remember(it->first, it->second.peer, status);
  sends_.erase(it);
}

void PrefillSide::abort(Sends::iterator it, const Status& status, Out& out) {
  tell_cancel(it->second, status, out);
  end(it, status, out);
}

void PrefillSide::end(Sends::iterator it, const Status& status, Out& out) {
  it->second.state = PrefillState::kDraining;
  it->second.end_status = status;
  finish_if_drained(it, out);
}

void PrefillSide::finish_if_drained(Sends::iterator it, Out& out) {
  const Send& send = it->second;
  if (send.in_flight > 0) return;
  ++(send.end_status.ok() ? stats_.succeeded : stats_.failed);
  if (send.tell_drained) {
    out.emplace_back(ToDecode{
        send.peer, DrainedMessage{send.name, static_cast<std::uint32_t>(send.pages.size())}});
  }
  out.emplace_back(ReleaseSource{it->first, send.end_status});
  forget(it, send.end_status);
}

void PrefillSide::remember(SendKey key, std::uint64_t peer, const Status& status) {
  std::erase_if(ended_, [&](const Ended& e) { return e.key == key && e.peer == peer; });
  ended_.push_back({key, peer, status});
  while (ended_.size() > options_.ended_max)
    ended_.pop_front();
}

const PrefillSide::Ended* PrefillSide::ended(SendKey key, std::uint64_t peer) const {
  for (const Ended& e : ended_) {
    if (e.key == key && (e.peer == 0 || peer == 0 || e.peer == peer)) return &e;
  }
  return nullptr;
}

std::optional<Time> PrefillSide::next_deadline() const {
  std::optional<Time> next;
  for (const auto& [key, send] : sends_) {
    if (send.state == PrefillState::kDraining) continue;
    next = next ? std::min(*next, send.deadline) : send.deadline;
  }
  return next;
}

std::uint64_t PrefillSide::fingerprint() const {
  Fingerprint f;
  for (const auto& [incarnation, peer] : peers_)
    f.add(incarnation).add(peer.local ? 1 : 0).add(peer.near ? 1 : 0);
  f.add(pump_after_.request_id).add(pump_after_.attempt);
  for (const auto& [key, s] : sends_) {
    f.add(key.request_id).add(key.attempt).add(static_cast<std::uint64_t>(s.state));
    f.add(s.named ? 1 : 0).add(s.name).add(s.peer).add(s.prompt_tokens).add(s.first_page);
    f.add(static_cast<std::uint64_t>(s.deadline.ns)).add(s.digest).add(s.token ? 1 : 0);
    if (s.token) f.add(static_cast<std::uint64_t>(s.token->first_token));
    for (const Page& p : s.pages) {
      f.add((std::uint64_t{p.source} << 32U) | (std::uint64_t{p.ready_parts} << 16U) | p.cut_parts);
      f.add(p.granted ? 1 : 0);
    }
    for (const Unit& u : s.units) {
      f.add((std::uint64_t{u.range.first_page} << 32U) | u.range.page_count);
      f.add((std::uint64_t{u.range.first_part} << 16U) | u.range.part_count);
      f.add((std::uint64_t{u.in_flight} << 32U) | (std::uint64_t{u.sends} << 1U) |
            (u.done ? 1U : 0U));
    }
    for (const std::uint32_t unit : s.wanted)
      f.add(unit);
    f.add(s.tell_drained ? 1 : 0).add(static_cast<std::uint64_t>(s.end_status.code()));
  }
  for (const Ended& e : ended_) {
    f.add(e.key.request_id).add(e.key.attempt).add(e.peer);
    f.add(static_cast<std::uint64_t>(e.status.code()));
  }
  return f.value();
}

std::string_view to_string(const PrefillAction& action) {
  constexpr std::string_view kNames[] = {"SendUnit", "ToDecode", "SendRefused", "ReleaseSource"};
  static_assert(std::size(kNames) == std::variant_size_v<PrefillAction>);
  return kNames[action.index()];
}

}  // namespace tandem::handoff
