#include "common/handoff/transitions.h"

#include <array>

namespace tandem::handoff {

namespace {

using R = Rule;
template <std::size_t kStates, std::size_t kEvents>
using Table = std::array<std::array<Rule, kEvents>, kStates>;

// clang-format off
// Columns: StartSend, ChunkReady, FirstToken, CancelSend, SendDone, Grant, Resend, Accepted, Cancel, Drained, PeerLost, Deadline
constexpr Table<kPrefillStates, kPrefillEvents> kPrefillTable = {{
  /* None           */ {R::kBeginSend, R::kDrop, R::kDrop, R::kRememberEnd, R::kDrop, R::kHoldGrant, R::kDrop, R::kDrop, R::kRememberEnd, R::kCountDrained, R::kNothing, R::kNothing},
  /* AwaitingEngine */ {R::kPair, R::kDrop, R::kDrop, R::kForgetAndTell, R::kDrop, R::kAddGrant, R::kDrop, R::kDrop, R::kForget, R::kCountDrained, R::kForget, R::kForgetAndTell},
  /* AwaitingPeer   */ {R::kRefuse, R::kNote, R::kNoteToken, R::kFinish, R::kDrop, R::kPair, R::kDrop, R::kDrop, R::kFinish, R::kCountDrained, R::kFinish, R::kFinish},
  /* Sending        */ {R::kRefuse, R::kSend, R::kNoteToken, R::kAbort, R::kSendDone, R::kAddGrant, R::kResend, R::kDrop, R::kDrain, R::kCountDrained, R::kDrain, R::kAbort},
  /* Committed      */ {R::kRefuse, R::kDrop, R::kDrop, R::kAbort, R::kSendDone, R::kDrop, R::kResend, R::kAccept, R::kDrain, R::kCountDrained, R::kDrain, R::kAbort},
  /* Draining       */ {R::kRefuse, R::kDrop, R::kDrop, R::kDrop, R::kSendDone, R::kDrop, R::kDrop, R::kDrop, R::kDrop, R::kCountDrained, R::kNothing, R::kNothing},
}};

// Columns: StartReceive, PagesAvailable, UnitLanded, LandingClosed, Commit, Cancel, Drained, CancelReceive, PeerLost, Deadline
constexpr Table<kDecodeStates, kDecodeEvents> kDecodeTable = {{
  /* None       */ {R::kBeginReceive, R::kReturnPages, R::kDrop, R::kDrop, R::kDrop, R::kDrop, R::kCountDrained, R::kDrop, R::kNothing, R::kNothing},
  /* Receiving  */ {R::kRefuse, R::kGrant, R::kVerify, R::kDrop, R::kTakeCommit, R::kRelease, R::kCountDrained, R::kReleaseAndTell, R::kRelease, R::kReleaseAndTell},
  /* Delivering */ {R::kRefuse, R::kReturnPages, R::kDrop, R::kDeliver, R::kDrop, R::kDrop, R::kCountDrained, R::kReleaseAndTell, R::kNothing, R::kNothing},
  /* Releasing  */ {R::kRefuse, R::kReturnPages, R::kNoteLanded, R::kGiveBack, R::kDrop, R::kDrop, R::kCountDrained, R::kDrop, R::kNothing, R::kNothing},
}};
// clang-format on

constexpr std::array<std::string_view, kPrefillStates> kPrefillStateNames = {
    "None", "AwaitingEngine", "AwaitingPeer", "Sending", "Committed", "Draining"};
constexpr std::array<std::string_view, kPrefillEvents> kPrefillEventNames = {"StartSend",
                                                                             "ChunkReady",
                                                                             "FirstToken",
                                                                             "CancelSend",
                                                                             "SendDone",
                                                                             "Grant",
                                                                             "Resend",
                                                                             "Accepted",
                                                                             "Cancel",
                                                                             "Drained",
                                                                             "PeerLost",
                                                                             "Deadline"};
constexpr std::array<std::string_view, kDecodeStates> kDecodeStateNames = {
    "None", "Receiving", "Delivering", "Releasing"};
constexpr std::array<std::string_view, kDecodeEvents> kDecodeEventNames = {"StartReceive",
                                                                           "PagesAvailable",
                                                                           "UnitLanded",
                                                                           "LandingClosed",
                                                                           "Commit",
                                                                           "Cancel",
                                                                           "Drained",
                                                                           "CancelReceive",
                                                                           "PeerLost",
                                                                           "Deadline"};

struct RuleText {
  std::string_view name;
  std::string_view explanation;
};

constexpr std::array<RuleText, kRules> kRuleTexts = {{
    {"undefined", "No cell holds it."},
    {"drop", "Count and drop; the state stays."},
    {"-", "Nothing to do."},
    {"refuse", "Answer already_exists; the running transfer is not touched."},
    {"begin", "New transfer with its deadline. → AwaitingPeer"},
    {"hold",
     "If the request ended lately: answer Cancel with the reason. Else keep the grant "
     "for orphan_ttl at most. → AwaitingEngine"},
    {"remember",
     "Note that the request ended, so that a late grant or start is answered with the "
     "reason; answer Cancel with Drained."},
    {"pair",
     "Check both sides' prompt lengths, bind the name; send what is granted and ready. → "
     "Sending"},
    {"add", "More pages are granted; send what is ready."},
    {"note", "Remember the source pages."},
    {"send", "Remember the source pages; send those that are granted."},
    {"token", "Keep the first token; all units sent: send Commit. → Committed"},
    {"done",
     "One send less in flight: send what waits. Failed: tell Cancel → Draining. All sent and "
     "token there: send Commit → Committed. Draining and none left: ReleaseSource → None"},
    {"again",
     "Send the unit once more as soon as the limits of what is in flight allow it; waiting for "
     "that already: nothing. Too often: tell Cancel. → Draining"},
    {"accept",
     "The transfer has succeeded; when no send is in flight ReleaseSource(ok). → "
     "Draining, None"},
    {"forget", "Remember the end, answer Cancel with Drained. → None"},
    {"forget, tell", "Remember the end, tell Cancel. → None"},
    {"finish", "ReleaseSource with the reason; nothing was ever sent. → None"},
    {"abort",
     "Tell Cancel; when no send is in flight ReleaseSource with the reason. → Draining, "
     "None"},
    {"drain",
     "When no send is in flight ReleaseSource with the reason (and answer Cancel with "
     "Drained). → Draining, None"},
    {"begin",
     "Take a slot, count its generation up, ask for the first window of pages (none "
     "needed: grant nothing). → Receiving"},
    {"return", "The pages go straight back to the pool: nobody was told of them."},
    {"grant",
     "Open the landing for the pages, then send Grant. More than asked for: return the "
     "rest."},
    {"verify",
     "CRC good: mark the parts, ask for more pages when the window has moved, deliver "
     "when complete. CRC bad: send Resend, or after resends_max give up: tell Cancel. A number "
     "that no unit can have: tell Cancel. → Receiving, Delivering, Releasing"},
    {"keep", "CRC good: mark the parts; they count for verified_tokens. Bad: they do not."},
    {"commit",
     "Keep the commit; when all pages are verified check unit count and digest: good → "
     "Delivering, bad: tell Cancel → Releasing"},
    {"release", "Close the landing (answer Cancel with Drained when closed). → Releasing"},
    {"release, tell", "Tell Cancel; close the landing. → Releasing"},
    {"deliver", "Send Accepted; the engine gets pages and payload. → None"},
    {"give back", "The engine gets the pages back with the verified prefix. → None"},
    {"count", "Statistics only."},
}};

template <class Cells, class StateNames, class EventNames>
void print_table(std::string& out,
                 const Cells& cells,
                 const StateNames& states,
                 const EventNames& events) {
  out += "| event |";
  for (const auto state : states)
    out += " " + std::string(state) + " |";
  out += "\n| --- |";
  for (std::size_t s = 0; s < states.size(); ++s)
    out += " --- |";
  out += "\n";
  for (std::size_t e = 0; e < events.size(); ++e) {
    out += "| " + std::string(events[e]) + " |";
    for (std::size_t s = 0; s < states.size(); ++s)
      out += " " + std::string(to_string(cells[s][e])) + " |";
    out += "\n";
  }
}

}  // namespace

Rule rule(PrefillState state, PrefillEventKind event) {
  return kPrefillTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

Rule rule(DecodeState state, DecodeEventKind event) {
  return kDecodeTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(event)];
}

std::string_view to_string(PrefillState state) {
  return kPrefillStateNames[static_cast<std::size_t>(state)];
}

std::string_view to_string(PrefillEventKind event) {
  return kPrefillEventNames[static_cast<std::size_t>(event)];
}

std::string_view to_string(DecodeState state) {
  return kDecodeStateNames[static_cast<std::size_t>(state)];
}

std::string_view to_string(DecodeEventKind event) {
  return kDecodeEventNames[static_cast<std::size_t>(event)];
}

std::string_view to_string(Rule rule) {
  return kRuleTexts[static_cast<std::size_t>(rule)].name;
}

std::string_view explain(Rule rule) {
  return kRuleTexts[static_cast<std::size_t>(rule)].explanation;
}

std::string transitions_markdown() {
  constexpr auto kFirstDecodeRule = static_cast<std::size_t>(Rule::kBeginReceive);
  const auto rules = [](std::string& out, std::size_t begin, std::size_t end) {
    for (std::size_t r = begin; r < end; ++r) {
      out += "- **" + std::string(kRuleTexts[r].name) +
             "**: " + std::string(kRuleTexts[r].explanation) + "\n";
    }
  };
  std::string out = "### Both sides\n\n";
  rules(out, static_cast<std::size_t>(Rule::kDrop), static_cast<std::size_t>(Rule::kBeginSend));
  rules(out, static_cast<std::size_t>(Rule::kCountDrained), kRules);
  out += "\n### Prefill\n\n";
  print_table(out, kPrefillTable, kPrefillStateNames, kPrefillEventNames);
  out += "\n";
  rules(out, static_cast<std::size_t>(Rule::kBeginSend), kFirstDecodeRule);
  out += "\n### Decode\n\n";
  print_table(out, kDecodeTable, kDecodeStateNames, kDecodeEventNames);
  out += "\n";
  rules(out, kFirstDecodeRule, static_cast<std::size_t>(Rule::kCountDrained));
  return out;
}

}  // namespace tandem::handoff
