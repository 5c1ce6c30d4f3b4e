// The messages of room handoff to and from the pair stream's protobuf. Readers check what a peer
// sent; the error names the field.
#pragma once

#include "common/base/status.h"
#include "common/core/request.h"
#include "common/handoff/link.h"
#include "common/handoff/messages.h"

#include "proto/tandem/v1/pair.pb.h"

#include <string>
#include <variant>

namespace tandem::worker {

/// Everything that may come on a pair stream, as room handoff knows it.
using PairValue =
    std::variant<handoff::LinkMessage, handoff::DecodeToPrefill, handoff::PrefillToDecode>;

v1::PairMessage to_wire(const handoff::LinkMessage& message);
v1::PairMessage to_wire(const handoff::DecodeToPrefill& message);
v1::PairMessage to_wire(const handoff::PrefillToDecode& message);

/// `own` tells which way the message went: Cancel and Drained exist in both.
Result<PairValue> from_wire(const v1::PairMessage& message, handoff::Role own);

/// What a commit carries besides the token, as the opaque bytes of CommitPayload::state.
struct CommitState {
  std::int32_t cached_tokens = 0;
  core::Timings timings;
};

std::string write_commit_state(const CommitState& state);
Result<CommitState> read_commit_state(const std::string& bytes);

}  // namespace tandem::worker
