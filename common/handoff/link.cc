#include "common/handoff/link.h"

#include "common/base/check.h"
#include "common/handoff/fingerprint.h"

#include <algorithm>

namespace tandem::handoff {

namespace {

Role other(Role role) {
  return role == Role::kPrefill ? Role::kDecode : Role::kPrefill;
}

const char* role_name(Role role) {
  return role == Role::kPrefill ? "prefill" : "decode";
}

}  // namespace

LinkSet::LinkSet(LinkOptions options) : options_(std::move(options)) {
  TANDEM_CHECK(options_.incarnation != 0, "an incarnation is never 0");
}

void LinkSet::on(const LinkEvent& event, Time now, std::vector<LinkAction>& out) {
  if (const auto* e = std::get_if<StreamOpened>(&event)) opened(*e, now, out);
  if (const auto* e = std::get_if<StreamBroken>(&event)) {
    drop(e->stream, unavailable("stream broken: " + e->reason), /*close=*/false, out);
  }
  if (const auto* e = std::get_if<LinkReceived>(&event)) received(*e, now, out);
  if (const auto* e = std::get_if<OwnProgress>(&event)) {
    own_progress_ = std::max(own_progress_, e->progress);
  }
  // Time counts only where the driver says so, after all that has come in: the ticks of other peers
  // may wait behind this event, and their silence is then the own scheduler's long step.
  const bool timed =
      std::holds_alternative<OwnProgress>(event) || std::holds_alternative<LinkTime>(event);
  if (timed) time_passed(now, out);
}

void LinkSet::opened(const StreamOpened& event, Time now, std::vector<LinkAction>& out) {
  if (links_.contains(event.stream)) return;
  if (links_.size() >= options_.links_max) {
    out.emplace_back(LinkClose{
        event.stream,
        resource_exhausted("links: at most " + std::to_string(options_.links_max) + " at once")});
    return;
  }
  Link& link = links_[event.stream];
  link.progress_at = now;
  link.heard_at = now;
  out.emplace_back(LinkSend{event.stream, own_hello()});
}

void LinkSet::received(const LinkReceived& event, Time now, std::vector<LinkAction>& out) {
  const auto it = links_.find(event.stream);
  if (it == links_.end()) return;  // late bytes of a stream that is over
  if (const auto* greeting = std::get_if<HelloMessage>(&event.message)) {
    hello(event.stream, *greeting, now, out);
  } else if (const auto* answer = std::get_if<LinkAnswerMessage>(&event.message)) {
    if (it->second.answer) return;  // a repeated answer changes nothing
    it->second.answer = *answer;
    try_up(event.stream, now, out);
  } else if (const auto* beat = std::get_if<TickMessage>(&event.message)) {
    tick(event.stream, *beat, now);
  }
}

Status LinkSet::judge(const HelloMessage& peer) const {
  if (peer.version != kHandoffVersion) {
    return failed_precondition("version: " + std::string(role_name(options_.role)) + " has " +
                               std::to_string(kHandoffVersion) + ", " +
                               role_name(other(options_.role)) + " has " +
                               std::to_string(peer.version));
  }
  if (peer.role == options_.role) {
    return failed_precondition(std::string("role: both ends are ") + role_name(options_.role));
  }
  if (peer.incarnation == 0) return invalid_argument("incarnation: 0 is not one");
  if (peer.instance.empty()) return invalid_argument("instance: empty");
  if (peer.transfer_backend != options_.transfer_backend) {
    const bool own_first = options_.role == Role::kPrefill;
    return failed_precondition("transfer_backend: prefill has " +
                               (own_first ? options_.transfer_backend : peer.transfer_backend) +
                               ", decode has " +
                               (own_first ? peer.transfer_backend : options_.transfer_backend));
  }
  const bool prefill = options_.role == Role::kPrefill;
  return make_plan(prefill ? options_.layout : peer.layout, prefill ? peer.layout : options_.layout)
      .status();
}

void LinkSet::hello(StreamId id,
                    const HelloMessage& message,
                    Time now,
                    std::vector<LinkAction>& out) {
  if (links_.at(id).hello) return;  // a repeated hello changes nothing
  const Status verdict = judge(message);
  if (!verdict.ok()) {
    out.emplace_back(LinkSend{id, LinkAnswerMessage{false, 0, verdict.message()}});
    out.emplace_back(LinkRefused{id, message.instance, verdict});
    out.emplace_back(LinkClose{id, verdict});
    links_.erase(id);
    return;
  }
  // The same instance on another stream is either its earlier life or an earlier connection of this
  // one: the newest wins and ends the others at once.
  std::vector<StreamId> older;
  for (const auto& [stream, link] : links_) {
    if (stream != id && link.hello && link.hello->instance == message.instance) {
      older.push_back(stream);
    }
  }
  for (const StreamId stream : older) {
    const bool same_life = links_.at(stream).hello->incarnation == message.incarnation;
    drop(stream,
         unavailable(message.instance +
                     (same_life ? " has connected again" : " has restarted (new incarnation)")),
         /*close=*/true,
         out);
  }
  Link& link = links_.at(id);
  const bool prefill = options_.role == Role::kPrefill;
  link.plan = *make_plan(prefill ? options_.layout : message.layout,
                         prefill ? message.layout : options_.layout);
  link.hello = message;
  link.state = State::kAnswer;
  link.progress_at = now;
  link.heard_at = now;
  out.emplace_back(LinkSend{id, LinkAnswerMessage{true, link.plan.hash, ""}});
  try_up(id, now, out);
}

void LinkSet::try_up(StreamId id, Time now, std::vector<LinkAction>& out) {
  Link& link = links_.at(id);
  if (!link.answer) return;
  const std::string peer = link.hello ? link.hello->instance : std::string("peer");
  Status refused;
  if (!link.answer->accepted) {
    refused = failed_precondition(peer + " refuses the link: " + link.answer->reason);
  } else if (link.hello && link.answer->plan_hash != link.plan.hash) {
    refused = failed_precondition("plan_hash: own is " + std::to_string(link.plan.hash) + ", " +
                                  peer + " has " + std::to_string(link.answer->plan_hash));
  }
  if (!refused.ok()) {
    out.emplace_back(LinkRefused{id, peer, refused});
    out.emplace_back(LinkClose{id, refused});
    links_.erase(id);
    return;
  }
  if (!link.hello || link.state == State::kUp) return;
  link.state = State::kUp;
  link.progress_at = now;
  link.heard_at = now;
  link.tick_at = now;
  out.emplace_back(LinkUp{
      id, link.hello->instance, link.hello->incarnation, link.hello->data_address, link.plan});
}

void LinkSet::tick(StreamId id, const TickMessage& message, Time now) {
  Link& link = links_.at(id);
  // Ticks may come before the hello: a step of the peer's engine, which answers between its steps,
  // may last longer than hello_within.
  if (link.hello && message.incarnation != link.hello->incarnation) return;
  link.heard_at = now;
  // A tick that shows no progress is no sign of life for long: the network threads of a hung
  // scheduler answer well. (A layer of a large model takes its time, too.)
  if (message.progress <= link.progress) return;
  link.progress = message.progress;
  link.progress_at = now;
}

void LinkSet::time_passed(Time now, std::vector<LinkAction>& out) {
  std::vector<std::pair<StreamId, Status>> late;
  for (auto& [id, link] : links_) {
    if (link.state != State::kUp) {
      if (now >= link.progress_at + options_.hello_within) {
        late.emplace_back(
            id,
            deadline_exceeded("no hello and answer within " +
                              std::to_string(options_.hello_within.milliseconds()) + " ms"));
      }
      continue;
    }
    if (now >= link.heard_at + options_.lost_after) {
      late.emplace_back(id,
                        unavailable(link.hello->instance + " has been silent for " +
                                    std::to_string((now - link.heard_at).milliseconds()) + " ms"));
    } else if (now >= link.progress_at + options_.stuck_after) {
      late.emplace_back(
          id,
          unavailable(link.hello->instance + " shows no progress for " +
                      std::to_string((now - link.progress_at).milliseconds()) + " ms"));
    } else if (now >= link.tick_at) {
      out.emplace_back(LinkSend{id, TickMessage{options_.incarnation, own_progress_}});
      link.tick_at = now + options_.tick_interval;
    }
  }
  for (const auto& [id, reason] : late)
    drop(id, reason, /*close=*/true, out);
}

void LinkSet::drop(StreamId id, const Status& reason, bool close, std::vector<LinkAction>& out) {
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  const Link link = std::move(it->second);
  links_.erase(it);
  if (close) out.emplace_back(LinkClose{id, reason});
  if (link.state == State::kUp) {
    out.emplace_back(LinkDown{link.hello->instance, link.hello->incarnation, reason});
  } else {
    out.emplace_back(LinkRefused{id, link.hello ? link.hello->instance : std::string(), reason});
  }
}

HelloMessage LinkSet::own_hello() const {
  return {.version = kHandoffVersion,
          .role = options_.role,
          .instance = options_.instance,
          .incarnation = options_.incarnation,
          .layout = options_.layout,
          .data_address = options_.data_address,
          .transfer_backend = options_.transfer_backend};
}

std::optional<Time> LinkSet::next_deadline() const {
  std::optional<Time> next;
  const auto at = [&next](Time t) { next = next ? std::min(*next, t) : t; };
  for (const auto& [id, link] : links_) {
    if (link.state == State::kUp) {
      at(link.tick_at);
      at(link.heard_at + options_.lost_after);
      at(link.progress_at + options_.stuck_after);
    } else {
      at(link.progress_at + options_.hello_within);
    }
  }
  return next;
}

std::vector<std::uint64_t> LinkSet::linked() const {
  std::vector<std::uint64_t> found;
  for (const auto& [id, link] : links_)
    if (link.state == State::kUp) found.push_back(link.hello->incarnation);
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<StreamId> LinkSet::stream_of(std::uint64_t incarnation) const {
  for (const auto& [id, link] : links_) {
    if (link.state == State::kUp && link.hello->incarnation == incarnation) return id;
  }
  return std::nullopt;
}

std::uint64_t LinkSet::fingerprint() const {
  Fingerprint f;
  f.add(own_progress_);
  for (const auto& [id, link] : links_) {
    f.add(id.value).add(static_cast<std::uint64_t>(link.state)).add(link.progress);
    f.add(link.hello ? link.hello->incarnation : 0).add(link.answer ? 1 : 0);
    f.add(static_cast<std::uint64_t>(link.heard_at.ns));
    f.add(static_cast<std::uint64_t>(link.progress_at.ns));
    f.add(static_cast<std::uint64_t>(link.tick_at.ns));
  }
  return f.value();
}

}  // namespace tandem::handoff
