// The one transition table of both sides: every (state, event) pair names the rule that handles it.
// The code dispatches on this table and docs/protocols/handoff.md is printed from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::handoff {

enum class PrefillState : std::uint8_t {
  kNone,            ///< no transfer of this request and attempt
  kAwaitingEngine,  ///< decode has granted, the own engine has not named the request yet
  kAwaitingPeer,    ///< the own engine has named it, no grant yet
  kSending,
  kCommitted,  ///< commit sent
  kDraining,   ///< over; own sends are still in flight
};
inline constexpr std::size_t kPrefillStates = 6;

enum class PrefillEventKind : std::uint8_t {
  kStartSend,
  kChunkReady,
  kFirstToken,
  kCancelSend,
  kSendDone,
  kGrant,
  kResend,
  kAccepted,
  kCancel,
  kDrained,
  kPeerLost,
  kDeadline,
};
inline constexpr std::size_t kPrefillEvents = 12;

enum class DecodeState : std::uint8_t {
  kNone,        ///< the slot is free, or holds another generation
  kReceiving,   ///< granting and landing
  kDelivering,  ///< all verified, landing is being closed
  kReleasing,   ///< failed, landing is being closed
};
inline constexpr std::size_t kDecodeStates = 4;

enum class DecodeEventKind : std::uint8_t {
  kStartReceive,
  kPagesAvailable,
  kUnitLanded,
  kLandingClosed,
  kCommit,
  kCancel,
  kDrained,
  kCancelReceive,
  kPeerLost,
  kDeadline,
};
inline constexpr std::size_t kDecodeEvents = 10;

enum class Rule : std::uint8_t {
  kUndefined,  ///< no cell may hold this: a test looks
  kDrop,
  kNothing,
  kRefuse,
  // prefill
  kBeginSend,
  kHoldGrant,
  kRememberEnd,
  kPair,
  kAddGrant,
  kNote,
  kSend,
  kNoteToken,
  kSendDone,
  kResend,
  kAccept,
  kForget,
  kForgetAndTell,
  kFinish,
  kAbort,
  kDrain,
  // decode
  kBeginReceive,
  kReturnPages,
  kGrant,
  kVerify,
  kNoteLanded,
  kTakeCommit,
  kRelease,
  kReleaseAndTell,
  kDeliver,
  kGiveBack,
  kCountDrained,
};
inline constexpr std::size_t kRules = 31;

Rule rule(PrefillState state, PrefillEventKind event);
Rule rule(DecodeState state, DecodeEventKind event);

std::string_view to_string(PrefillState state);
std::string_view to_string(PrefillEventKind event);
std::string_view to_string(DecodeState state);
std::string_view to_string(DecodeEventKind event);
/// Short name, as in the table.
std::string_view to_string(Rule rule);
/// One sentence: what it does and the state after.
std::string_view explain(Rule rule);

/// Both tables and the list of rules, as Markdown.
std::string transitions_markdown();

}  // namespace tandem::handoff
