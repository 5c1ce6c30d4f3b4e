// core values to and from their messages. Readers check what a peer sent: ranges of enums, ids that
// must not be 0, lengths that must agree; the error names the field.
#pragma once

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/core/request.h"
#include "common/rpc/types.h"

#include "proto/tandem/v1/common.pb.h"
#include "proto/tandem/v1/session.pb.h"

#include <string>

namespace tandem::rpc {

void write_status(const Status& status, v1::Status* out);
/// An unknown code becomes kUnknown.
Status read_status(const v1::Status& message);

/// All but input_ids, which append_submission adds. `now` is this process's clock: deadlines travel
/// as what is left (at least 0).
void write_request(const core::Request& request, Time now, v1::Request* out);
Result<core::Request> read_request(const v1::Request& message, Time now);

void write_sampling(const core::SamplingParams& params, v1::SamplingParams* out);
core::SamplingParams read_sampling(const v1::SamplingParams& message);

void write_logprob(const core::TokenLogprob& logprob, v1::TokenLogprob* out);
Result<core::TokenLogprob> read_logprob(const v1::TokenLogprob& message);

void write_finish(const core::FinishReason& finish, v1::FinishReason* out);
Result<core::FinishReason> read_finish(const v1::FinishReason& message);

void write_timings(const core::Timings& timings, v1::Timings* out);
core::Timings read_timings(const v1::Timings& message);

void write_event(const core::TokenEvent& event, v1::TokenEvent* out);
Result<core::TokenEvent> read_event(const v1::TokenEvent& message);

void write_load(const core::Load& load, v1::Load* out);
core::Load read_load(const v1::Load& message);

void write_served_model(const core::ServedModel& model, v1::ServedModel* out);
core::ServedModel read_served_model(const v1::ServedModel& message);

void write_worker_info(const WorkerInfo& info, v1::WorkerInfo* out);
Result<WorkerInfo> read_worker_info(const v1::WorkerInfo& message);

/// Appends the bytes of a SessionUp that carries the submission. `scratch` is empty and gets parts
/// of it. Quicker than a message of all for the prompt, which is most of it.
void append_submission(const SubmissionView& submission,
                       Time now,
                       v1::SessionUp* scratch,
                       std::string* out);
Result<Submission> read_submission(const v1::Submit& message, Time now);

}  // namespace tandem::rpc
