#include "common/worker/handoff_wire.h"

#include "common/rpc/wire.h"

#include <utility>

namespace tandem::worker {
namespace {

void write_name(const TransferName& name, v1::TransferName* out) {
  out->set_request_id(name.request_id);
  out->set_attempt(name.attempt);
  out->set_decode_incarnation(name.decode_incarnation);
  out->set_slot(name.slot);
  out->set_generation(name.generation);
}

TransferName read_name(const v1::TransferName& message) {
  return {.request_id = message.request_id(),
          .attempt = message.attempt(),
          .decode_incarnation = message.decode_incarnation(),
          .slot = message.slot(),
          .generation = message.generation()};
}

void write_layout(const handoff::LayoutDescriptor& layout, v1::LayoutDescriptor* out) {
  out->set_layout_version(layout.layout_version);
  out->set_page_size(layout.page_size);
  out->set_layer_count(layout.layer_count);
  out->set_kv_head_count(layout.kv_head_count);
  out->set_head_dim(layout.head_dim);
  out->set_dtype(layout.dtype);
  out->set_page_bytes(layout.page_bytes);
  out->set_page_stride_bytes(layout.page_stride_bytes);
  out->set_part_count(layout.part_count);
  out->set_tp_rank(layout.tp_rank);
  out->set_tp_size(layout.tp_size);
  out->set_dp_rank(layout.dp_rank);
  out->set_dp_size(layout.dp_size);
  out->set_pp_rank(layout.pp_rank);
  out->set_pp_size(layout.pp_size);
  out->set_model_digest(layout.model_digest);
  out->set_weight_version(layout.weight_version);
  out->set_numerics_family(layout.numerics_family);
  out->set_quantization(layout.quantization);
  out->set_weight_dtype(layout.weight_dtype);
}

handoff::LayoutDescriptor read_layout(const v1::LayoutDescriptor& message) {
  handoff::LayoutDescriptor layout;
  layout.layout_version = message.layout_version();
  layout.page_size = message.page_size();
  layout.layer_count = message.layer_count();
  layout.kv_head_count = message.kv_head_count();
  layout.head_dim = message.head_dim();
  layout.dtype = message.dtype();
  layout.page_bytes = message.page_bytes();
  layout.page_stride_bytes = message.page_stride_bytes();
  layout.part_count = message.part_count();
  layout.tp_rank = message.tp_rank();
  layout.tp_size = message.tp_size();
  layout.dp_rank = message.dp_rank();
  layout.dp_size = message.dp_size();
  layout.pp_rank = message.pp_rank();
  layout.pp_size = message.pp_size();
  layout.model_digest = message.model_digest();
  layout.weight_version = message.weight_version();
  layout.numerics_family = message.numerics_family();
  layout.quantization = message.quantization();
  layout.weight_dtype = message.weight_dtype();
  return layout;
}

struct LinkWriter {
  v1::PairMessage* out;

  void operator()(const handoff::HelloMessage& hello) const {
    v1::LinkOffer* offer = out->mutable_link_offer();
    offer->set_version(hello.version);
    offer->set_role(hello.role == handoff::Role::kPrefill ? v1::ROLE_PREFILL : v1::ROLE_DECODE);
    offer->set_instance(hello.instance);
    offer->set_incarnation(hello.incarnation);
    write_layout(hello.layout, offer->mutable_layout());
    offer->set_data_address(hello.data_address);
    offer->set_transfer_backend(hello.transfer_backend);
  }

  void operator()(const handoff::LinkAnswerMessage& answer) const {
    v1::LinkAnswer* message = out->mutable_link_answer();
    message->set_accepted(answer.accepted);
    message->set_plan_hash(answer.plan_hash);
    message->set_reason(answer.reason);
  }

  void operator()(const handoff::TickMessage& tick) const {
    out->mutable_tick()->set_incarnation(tick.incarnation);
    out->mutable_tick()->set_progress(tick.progress);
  }
};

struct TransferWriter {
  v1::PairMessage* out;

  void operator()(const handoff::GrantMessage& grant) const {
    v1::Grant* message = out->mutable_grant();
    write_name(grant.name, message->mutable_name());
    message->set_prompt_tokens(grant.prompt_tokens);
    message->set_first_needed_page(grant.first_needed_page);
    message->set_first_page(grant.first_page);
    message->set_page_count(grant.page_count);
    message->set_deadline_left_ns(grant.deadline_left.ns);
  }

  void operator()(const handoff::ResendMessage& resend) const {
    write_name(resend.name, out->mutable_resend()->mutable_name());
    out->mutable_resend()->set_unit(resend.unit);
  }

  void operator()(const handoff::AcceptedMessage& accepted) const {
    write_name(accepted.name, out->mutable_accepted()->mutable_name());
  }

  void operator()(const handoff::CommitMessage& commit) const {
    v1::Commit* message = out->mutable_commit();
    write_name(commit.name, message->mutable_name());
    message->set_first_token(commit.payload.first_token);
    message->set_state(commit.payload.state);
    message->set_unit_count(commit.unit_count);
    message->set_digest(commit.digest);
  }

  void operator()(const handoff::CancelMessage& cancel) const {
    write_name(cancel.name, out->mutable_cancel()->mutable_name());
    out->mutable_cancel()->mutable_status()->set_code(static_cast<int>(cancel.code));
    out->mutable_cancel()->mutable_status()->set_message(cancel.reason);
  }

  void operator()(const handoff::DrainedMessage& drained) const {
    write_name(drained.name, out->mutable_drained()->mutable_name());
    out->mutable_drained()->set_page_count(drained.page_count);
  }
};

handoff::CancelMessage read_cancel(const v1::Cancel& message) {
  const int code = message.status().code();
  const bool known = code > 0 && code <= static_cast<int>(Code::kUnauthenticated);
  return {.name = read_name(message.name()),
          .code = known ? static_cast<Code>(code) : Code::kUnknown,
          .reason = message.status().message()};
}

Result<PairValue> read_offer(const v1::LinkOffer& offer) {
  handoff::HelloMessage hello;
  hello.version = offer.version();
  if (offer.role() != v1::ROLE_PREFILL && offer.role() != v1::ROLE_DECODE) {
    return invalid_argument("link_offer.role: " + std::to_string(offer.role()) +
                            ", expected prefill or decode");
  }
  hello.role = offer.role() == v1::ROLE_PREFILL ? handoff::Role::kPrefill : handoff::Role::kDecode;
  hello.instance = offer.instance();
  hello.incarnation = offer.incarnation();
  hello.layout = read_layout(offer.layout());
  hello.data_address = offer.data_address();
  hello.transfer_backend = offer.transfer_backend();
  return PairValue(handoff::LinkMessage(std::move(hello)));
}

Result<PairValue> wrong_way(const char* field) {
  return invalid_argument(std::string(field) + ": this message goes the other way");
}

}  // namespace

v1::PairMessage to_wire(const handoff::LinkMessage& message) {
  v1::PairMessage out;
  std::visit(LinkWriter{&out}, message);
  return out;
}

v1::PairMessage to_wire(const handoff::DecodeToPrefill& message) {
  v1::PairMessage out;
  std::visit(TransferWriter{&out}, message);
  return out;
}

v1::PairMessage to_wire(const handoff::PrefillToDecode& message) {
  v1::PairMessage out;
  std::visit(TransferWriter{&out}, message);
  return out;
}

Result<PairValue> from_wire(const v1::PairMessage& message, handoff::Role own) {
  const bool to_prefill = own == handoff::Role::kPrefill;
  switch (message.kind_case()) {
    case v1::PairMessage::kLinkOffer:
      return read_offer(message.link_offer());
    case v1::PairMessage::kLinkAnswer:
      return PairValue(handoff::LinkMessage(
          handoff::LinkAnswerMessage{.accepted = message.link_answer().accepted(),
                                     .plan_hash = message.link_answer().plan_hash(),
                                     .reason = message.link_answer().reason()}));
    case v1::PairMessage::kTick:
      return PairValue(handoff::LinkMessage(handoff::TickMessage{
          .incarnation = message.tick().incarnation(), .progress = message.tick().progress()}));
    case v1::PairMessage::kGrant: {
      if (!to_prefill) return wrong_way("grant");
      const v1::Grant& grant = message.grant();
      return PairValue(handoff::DecodeToPrefill(
          handoff::GrantMessage{.name = read_name(grant.name()),
                                .prompt_tokens = grant.prompt_tokens(),
                                .first_needed_page = grant.first_needed_page(),
                                .first_page = grant.first_page(),
                                .page_count = grant.page_count(),
                                .deadline_left = {grant.deadline_left_ns()}}));
    }
    case v1::PairMessage::kResend:
      if (!to_prefill) return wrong_way("resend");
      return PairValue(handoff::DecodeToPrefill(handoff::ResendMessage{
          .name = read_name(message.resend().name()), .unit = message.resend().unit()}));
    case v1::PairMessage::kAccepted:
      if (!to_prefill) return wrong_way("accepted");
      return PairValue(handoff::DecodeToPrefill(
          handoff::AcceptedMessage{.name = read_name(message.accepted().name())}));
    case v1::PairMessage::kCommit: {
      if (to_prefill) return wrong_way("commit");
      const v1::Commit& commit = message.commit();
      return PairValue(handoff::PrefillToDecode(handoff::CommitMessage{
          .name = read_name(commit.name()),
          .payload = {.first_token = commit.first_token(), .state = commit.state()},
          .unit_count = commit.unit_count(),
          .digest = commit.digest()}));
    }
    case v1::PairMessage::kCancel:
      if (to_prefill) return PairValue(handoff::DecodeToPrefill(read_cancel(message.cancel())));
      return PairValue(handoff::PrefillToDecode(read_cancel(message.cancel())));
    case v1::PairMessage::kDrained: {
      const handoff::DrainedMessage drained{.name = read_name(message.drained().name()),
                                            .page_count = message.drained().page_count()};
      if (to_prefill) return PairValue(handoff::DecodeToPrefill(drained));
      return PairValue(handoff::PrefillToDecode(drained));
    }
    case v1::PairMessage::KIND_NOT_SET:
      break;
  }
  return invalid_argument("pair message: no kind that this version knows");
}

std::string write_commit_state(const CommitState& state) {
  v1::CommitState message;
  message.set_cached_tokens(state.cached_tokens);
  rpc::write_timings(state.timings, message.mutable_timings());
  return message.SerializeAsString();
}

Result<CommitState> read_commit_state(const std::string& bytes) {
  v1::CommitState message;
  if (!message.ParseFromString(bytes))
    return invalid_argument("commit.state: not a CommitState message");
  return CommitState{.cached_tokens = message.cached_tokens(),
                     .timings = rpc::read_timings(message.timings())};
}

}  // namespace tandem::worker
