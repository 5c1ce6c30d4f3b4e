// PrefillSide: grants, and pairing them with the own engine's requests.
#include "common/handoff/prefill_side.h"

#include <algorithm>

namespace tandem::handoff {

void PrefillSide::grant(const FromDecode& event, const GrantMessage& message, Time now, Out& out) {
  const auto it = sends_.find({message.name.request_id, message.name.attempt});
  switch (rule_for(it, PrefillEventKind::kGrant)) {
    case Rule::kHoldGrant:
      hold_grant(event, message, now, out);
      break;
    case Rule::kPair:
      if (Status status = bind(it->second, event.peer, message); !status.ok()) {
        abort(it, status, out);
        break;
      }
      it->second.state = PrefillState::kSending;
      [[fallthrough]];
    case Rule::kAddGrant:
      note_grant(it, message, out);
      break;
    default:
      break;
  }
}

/// A grant for a request that the own engine has not named yet.
void PrefillSide::hold_grant(const FromDecode& event,
                             const GrantMessage& message,
                             Time now,
                             Out& out) {
  const SendKey key{message.name.request_id, message.name.attempt};
  const auto page_size = options_.layout.page_size;
  const std::uint64_t page_count =
      (std::uint64_t{message.prompt_tokens} + page_size - 1) / page_size;
  Status problem;
  if (const Ended* before = ended(key, event.peer)) {
    problem = before->status.ok() ? cancelled("accepted already") : before->status;
  } else if (message.prompt_tokens == 0 || page_count > options_.pages_max) {
    ++stats_.invalid;
    problem = invalid_argument("grant: prompt_tokens " + std::to_string(message.prompt_tokens) +
                               ", expected 1 to " +
                               std::to_string(std::uint64_t{options_.pages_max} * page_size));
  } else if (sends_.size() >= options_.transfers_max) {
    problem = resource_exhausted("transfers: all " + std::to_string(options_.transfers_max) +
                                 " of prefill are in use");
  }
  if (!problem.ok()) {
    out.emplace_back(
        ToDecode{event.peer, CancelMessage{message.name, problem.code(), problem.message()}});
    return;
  }
  const auto it = sends_.emplace(key, Send{}).first;
  Send& send = it->second;
  send.state = PrefillState::kAwaitingEngine;
  send.prompt_tokens = message.prompt_tokens;
  send.pages.resize(static_cast<std::size_t>(page_count));
  send.deadline = now + std::min(message.deadline_left, options_.orphan_ttl);
  if (Status status = bind(send, event.peer, message); !status.ok()) {
    ++stats_.invalid;
    tell_cancel(send, status, out);
    sends_.erase(it);
    return;
  }
  note_grant(it, message, out);
}

Status PrefillSide::bind(Send& send, std::uint64_t peer, const GrantMessage& message) {
  send.named = true;
  send.name = message.name;
  send.peer = peer;
  send.first_page = message.first_needed_page;
  if (message.prompt_tokens != send.prompt_tokens) {
    return invalid_argument("prompt_tokens: prefill has " + std::to_string(send.prompt_tokens) +
                            ", decode has " + std::to_string(message.prompt_tokens));
  }
  if (send.first_page > send.pages.size()) {
    return invalid_argument("first_needed_page: " + std::to_string(send.first_page) +
                            ", but the prompt has " + std::to_string(send.pages.size()) + " pages");
  }
  send.scan_from = send.first_page;
  return {};
}

void PrefillSide::note_grant(Sends::iterator it, const GrantMessage& message, Out& out) {
  Send& send = it->second;
  const std::uint64_t end_page = std::uint64_t{message.first_page} + message.page_count;
  if (message.prompt_tokens != send.prompt_tokens || message.first_needed_page != send.first_page ||
      message.first_page < send.first_page || end_page > send.pages.size()) {
    ++stats_.invalid;
    const Status reason = invalid_argument(
        "grant: pages " + std::to_string(message.first_page) + " + " +
        std::to_string(message.page_count) + " are not within the needed pages " +
        std::to_string(send.first_page) + " to " + std::to_string(send.pages.size()));
    if (send.state == PrefillState::kAwaitingEngine) {
      tell_cancel(send, reason, out);
      forget(it, reason);
    } else {
      abort(it, reason, out);
    }
    return;
  }
  for (std::uint64_t p = message.first_page; p < end_page; ++p)
    send.pages[static_cast<std::size_t>(p)].granted = true;
  if (send.state != PrefillState::kSending) return;
  pump(send, out);
  try_commit(send, out);
}

}  // namespace tandem::handoff
