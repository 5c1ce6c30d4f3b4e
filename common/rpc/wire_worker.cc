// Messages that describe a worker and what is submitted to it.
#include "common/rpc/internal/packed.h"
#include "common/rpc/wire.h"

#include <cstdint>
#include <limits>
#include <string>

namespace tandem::rpc {

namespace {

constexpr std::int32_t kNumberMax = std::numeric_limits<std::int32_t>::max();

Result<Role> read_role(v1::Role role, const char* field) {
  switch (role) {
    case v1::ROLE_UNIFIED:
      return Role::kUnified;
    case v1::ROLE_PREFILL:
      return Role::kPrefill;
    case v1::ROLE_DECODE:
      return Role::kDecode;
    default:
      return invalid_argument(std::string(field) + ": found " + std::to_string(role) +
                              ", expected 1 (unified), 2 (prefill) or 3 (decode)");
  }
}

Status check_number(const char* field, std::int64_t found, std::int64_t least, std::int64_t most) {
  if (found >= least && found <= most) return {};
  return invalid_argument(std::string(field) + ": found " + std::to_string(found) + ", expected " +
                          std::to_string(least) + ".." + std::to_string(most));
}

Result<Disaggregation> read_disaggregation(const v1::Disaggregation& message) {
  TANDEM_TRY(const Role role, read_role(message.role(), "disaggregation.role"));
  if (role == Role::kUnified) {
    return invalid_argument("disaggregation.role: found 1 (unified), expected prefill or decode");
  }
  if (message.room() == 0 || (message.room() >> 63U) != 0) {
    return invalid_argument("disaggregation.room: found " + std::to_string(message.room()) +
                            ", expected 1..2^63-1");
  }
  TANDEM_TRY(check_number("disaggregation.bootstrap_port", message.bootstrap_port(), 0, 65535));
  Disaggregation split;
  split.role = role;
  split.room = message.room();
  split.attempt = message.attempt();
  split.decode_incarnation = message.decode_incarnation();
  split.bootstrap_host = message.bootstrap_host();
  split.bootstrap_port = static_cast<std::uint16_t>(message.bootstrap_port());
  split.peer_grpc_address = message.peer_grpc_address();
  split.peer_incarnation = message.peer_incarnation();
  return split;
}

void write_disaggregation(const Disaggregation& split, v1::Disaggregation* out) {
  out->set_role(static_cast<v1::Role>(split.role));
  out->set_room(split.room);
  out->set_attempt(split.attempt);
  out->set_decode_incarnation(split.decode_incarnation);
  out->set_bootstrap_host(split.bootstrap_host);
  out->set_bootstrap_port(split.bootstrap_port);
  out->set_peer_grpc_address(split.peer_grpc_address);
  out->set_peer_incarnation(split.peer_incarnation);
}

}  // namespace

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kUnified:
      return "null";
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
  }
  return "unknown";
}

void write_load(const core::Load& load, v1::Load* out) {
  out->set_running_requests(load.running_requests);
  out->set_waiting_requests(load.waiting_requests);
  out->set_used_tokens(load.used_tokens);
  out->set_cached_tokens(load.cached_tokens);
  out->set_total_tokens(load.total_tokens);
  out->set_free_pages(load.free_pages);
  out->set_used_pages(load.used_pages);
  out->set_cached_pages(load.cached_pages);
  out->set_transferring_pages(load.transferring_pages);
  out->set_total_pages(load.total_pages);
  out->set_progress(load.progress);
  out->set_generation_throughput(load.generation_throughput);
}

core::Load read_load(const v1::Load& message) {
  core::Load load;
  load.running_requests = message.running_requests();
  load.waiting_requests = message.waiting_requests();
  load.used_tokens = message.used_tokens();
  load.cached_tokens = message.cached_tokens();
  load.total_tokens = message.total_tokens();
  load.free_pages = message.free_pages();
  load.used_pages = message.used_pages();
  load.cached_pages = message.cached_pages();
  load.transferring_pages = message.transferring_pages();
  load.total_pages = message.total_pages();
  load.progress = message.progress();
  load.generation_throughput = message.generation_throughput();
  return load;
}

void write_served_model(const core::ServedModel& model, v1::ServedModel* out) {
  out->set_model_path(model.model_path);
  out->set_served_model_name(model.served_model_name);
  out->set_tokenizer_path(model.tokenizer_path);
  for (const std::string& name : model.architectures)
    out->add_architectures(name);
  out->set_model_type(model.model_type);
  out->set_weight_version(model.weight_version);
  out->set_vocab_size(model.vocab_size);
  out->set_context_length(model.context_length);
  out->set_max_request_tokens(model.max_request_tokens);
  for (const core::TokenId id : model.eos_token_ids)
    out->add_eos_token_ids(id);
  write_sampling(model.default_sampling, out->mutable_default_sampling());
  out->set_disaggregation_mode(model.disaggregation_mode);
  out->set_vocabulary_digest(model.vocabulary_digest);
}

/// What every request of the fleet is held to.
Status check_limits(const v1::ServedModel& message) {
  TANDEM_TRY(check_number("worker_info.model.vocab_size", message.vocab_size(), 1, kNumberMax));
  TANDEM_TRY(
      check_number("worker_info.model.context_length", message.context_length(), 1, kNumberMax));
  TANDEM_TRY(check_number(
      "worker_info.model.max_request_tokens", message.max_request_tokens(), 0, kNumberMax));
  for (const std::int32_t id : message.eos_token_ids())
    TANDEM_TRY(check_number("worker_info.model.eos_token_ids", id, 0, message.vocab_size() - 1));
  return {};
}

core::ServedModel read_served_model(const v1::ServedModel& message) {
  core::ServedModel model;
  model.model_path = message.model_path();
  model.served_model_name = message.served_model_name();
  model.tokenizer_path = message.tokenizer_path();
  model.architectures.assign(message.architectures().begin(), message.architectures().end());
  model.model_type = message.model_type();
  model.weight_version = message.weight_version();
  model.vocab_size = message.vocab_size();
  model.context_length = message.context_length();
  model.max_request_tokens = message.max_request_tokens();
  model.eos_token_ids.assign(message.eos_token_ids().begin(), message.eos_token_ids().end());
  if (message.has_default_sampling())
    model.default_sampling = read_sampling(message.default_sampling());
  model.disaggregation_mode = message.disaggregation_mode();
  model.vocabulary_digest = message.vocabulary_digest();
  return model;
}

void write_worker_info(const WorkerInfo& info, v1::WorkerInfo* out) {
  out->set_incarnation(info.incarnation);
  out->set_role(static_cast<v1::Role>(info.role));
  out->set_model_digest(info.model_digest);
  write_served_model(info.model, out->mutable_model());
  out->set_page_size(info.page_size);
  out->set_dtype(info.dtype);
  out->set_kv_cache_dtype(info.kv_cache_dtype);
  out->set_numerics_family(info.numerics_family);
  out->set_version(info.version);
  out->set_protocol_version(info.protocol_version);
  out->set_http_address(info.http_address);
  out->set_grpc_address(info.grpc_address);
  out->set_bootstrap_address(info.bootstrap_address);
  out->set_arguments_json(info.arguments_json);
  out->set_dp_rank(info.dp_rank);
  out->set_dp_size(info.dp_size);
}

Result<WorkerInfo> read_worker_info(const v1::WorkerInfo& message) {
  if (message.incarnation() == 0) {
    return invalid_argument("worker_info.incarnation: found 0, expected a random number");
  }
  if (message.protocol_version() != kProtocolVersion) {
    return failed_precondition("worker_info.protocol_version: found " +
                               std::to_string(message.protocol_version()) + ", expected " +
                               std::to_string(kProtocolVersion));
  }
  WorkerInfo info;
  TANDEM_TRY(info.role, read_role(message.role(), "worker_info.role"));
  TANDEM_TRY(check_limits(message.model()));
  TANDEM_TRY(check_number("worker_info.page_size", message.page_size(), 1, kNumberMax));
  TANDEM_TRY(check_number("worker_info.dp_size", message.dp_size(), 1, kNumberMax));
  TANDEM_TRY(check_number("worker_info.dp_rank", message.dp_rank(), 0, message.dp_size() - 1));
  info.incarnation = message.incarnation();
  info.model_digest = message.model_digest();
  info.model = read_served_model(message.model());
  info.page_size = message.page_size();
  info.dtype = message.dtype();
  info.kv_cache_dtype = message.kv_cache_dtype();
  info.numerics_family = message.numerics_family();
  info.version = message.version();
  info.protocol_version = message.protocol_version();
  info.http_address = message.http_address();
  info.grpc_address = message.grpc_address();
  info.bootstrap_address = message.bootstrap_address();
  info.arguments_json = message.arguments_json();
  info.dp_rank = message.dp_rank();
  info.dp_size = message.dp_size();
  return info;
}

namespace {

/// Tag and length of a field of bytes: a message, or numbers in a row. Fields below 16 have a tag
/// of one byte.
constexpr std::uint8_t tag_of(int field) {
  constexpr int kLengthDelimited = 2;
  return static_cast<std::uint8_t>(field << 3 | kLengthDelimited);
}

}  // namespace

void append_submission(const SubmissionView& submission,
                       Time now,
                       v1::SessionUp* scratch,
                       std::string* out) {
  v1::Submit* submit = scratch->mutable_submit();
  write_request(submission.request, now, submit->mutable_request());
  submit->set_attempt(submission.attempt);
  if (submission.disaggregation) {
    write_disaggregation(*submission.disaggregation, submit->mutable_disaggregation());
  }
  const std::vector<core::TokenId>& ids = submission.request.input_ids;
  // A message that comes in two parts is both of them together (Protocol Buffers, "Last One Wins"):
  // the second part is the prompt alone.
  using internal::varint_bytes;
  using internal::write_varint;
  const std::size_t ids_bytes = internal::packed_bytes(ids);
  const std::size_t request_bytes = 1 + varint_bytes(ids_bytes) + ids_bytes;
  const std::size_t submit_bytes = 1 + varint_bytes(request_bytes) + request_bytes;
  const std::size_t second = ids.empty() ? 0 : 1 + varint_bytes(submit_bytes) + submit_bytes;
  const std::size_t first = scratch->ByteSizeLong();
  const std::size_t begin = out->size();
  out->resize(begin + first + second);
  auto* at = reinterpret_cast<std::uint8_t*>(out->data()) + begin;
  at = scratch->SerializeWithCachedSizesToArray(at);
  if (ids.empty()) return;
  *at++ = tag_of(v1::SessionUp::kSubmitFieldNumber);
  at = write_varint(submit_bytes, at);
  *at++ = tag_of(v1::Submit::kRequestFieldNumber);
  at = write_varint(request_bytes, at);
  *at++ = tag_of(v1::Request::kInputIdsFieldNumber);
  at = write_varint(ids_bytes, at);
  internal::write_packed(ids, at);
}

Result<Submission> read_submission(const v1::Submit& message, Time now) {
  Submission submission;
  TANDEM_TRY(submission.request, read_request(message.request(), now));
  submission.attempt = message.attempt();
  if (message.has_disaggregation()) {
    TANDEM_TRY(auto split, read_disaggregation(message.disaggregation()));
    submission.disaggregation = std::move(split);
  }
  return submission;
}

}  // namespace tandem::rpc
