// The control messages between a prefill and a decode process. Plain values; their wire form is
// protobuf and belongs to the rooms that own the stream.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/transfer_name.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tandem::handoff {

/// Decode -> prefill: pages [first_page, first_page + page_count) of the prompt may be sent. Each
/// grant is complete in itself, so that the first one to arrive also announces the transfer. A
/// grant of no pages says that decode has the whole prompt cached and waits for the commit only.
struct GrantMessage {
  TransferName name;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t first_needed_page = 0;  ///< pages before it are in decode's prefix cache
  std::uint32_t first_page = 0;
  std::uint32_t page_count = 0;
  Duration deadline_left;  ///< of the request, when the message was made
};

/// Decode -> prefill: unit arrived with a wrong CRC; send it again.
struct ResendMessage {
  TransferName name;
  std::uint32_t unit = 0;
};

/// Decode -> prefill: all bytes are verified and the commit is taken. Sent once.
struct AcceptedMessage {
  TransferName name;
};

/// Either way: the sender has given up this transfer. Never answered with a Cancel.
struct CancelMessage {
  TransferName name;
  Code code = Code::kCancelled;
  std::string reason;
};

/// Either way, answer to Cancel: none of the sender's bytes are in flight any more and it holds no
/// page of this transfer. Informative: no page waits for it.
struct DrainedMessage {
  TransferName name;
  std::uint32_t page_count = 0;  ///< pages given back
};

/// What decode needs besides KV to go on from the second token.
struct CommitPayload {
  std::int32_t first_token = 0;
  std::string
      state;  ///< opaque: logprobs, sampler, grammar and draft state, serialised by `worker`
  friend bool operator==(const CommitPayload&, const CommitPayload&) = default;
};

/// Prefill -> decode, after the last unit was sent.
struct CommitMessage {
  TransferName name;
  CommitPayload payload;
  std::uint32_t unit_count = 0;
  std::uint64_t digest = 0;  ///< sum of unit_digest() over all units
};

using DecodeToPrefill =
    std::variant<GrantMessage, ResendMessage, AcceptedMessage, CancelMessage, DrainedMessage>;
using PrefillToDecode = std::variant<CommitMessage, CancelMessage, DrainedMessage>;

/// A unit: one data message. It covers the same layer groups ("parts") of a run of prompt pages.
struct UnitRange {
  std::uint32_t unit = 0;  ///< counted by prefill from 0 within a transfer
  std::uint32_t first_page = 0;
  std::uint32_t page_count = 0;
  std::uint16_t first_part = 0;
  std::uint16_t part_count = 1;
  friend bool operator==(const UnitRange&, const UnitRange&) = default;
};

/// Contribution of one unit to a commit's digest: order of arrival does not matter.
std::uint64_t unit_digest(const UnitRange& range, std::uint32_t crc);

/// Name and sender's incarnation of any control message.
const TransferName& name_of(const DecodeToPrefill& message);
const TransferName& name_of(const PrefillToDecode& message);

}  // namespace tandem::handoff
