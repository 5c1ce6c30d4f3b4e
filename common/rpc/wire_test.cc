#include "common/rpc/wire.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>

namespace tandem::rpc {
namespace {

core::Request random_request(Random& random) {
  core::Request request;
  request.id = core::RequestId{(random.next() >> 1U) | 1U};
  request.client_id = std::string(random.below(5), 'x');
  for (std::uint64_t i = 0; i <= random.below(50); ++i) {
    request.input_ids.push_back(static_cast<core::TokenId>(random.below(1U << 30U)));
  }
  request.resumed_output_ids.assign(random.below(4), 9);
  request.sampling.temperature = static_cast<float>(random.uniform());
  request.sampling.top_k = static_cast<std::int32_t>(random.below(100));
  request.sampling.logit_bias = {{4, -1.5F}, {1, 2.0F}};
  request.sampling.stop_token_ids = {1, 2};
  request.sampling.ignore_eos = random.chance(0.5);
  request.sampling.seed = random.next();
  request.return_logprob = random.chance(0.5);
  request.logprob_start_len = static_cast<std::int32_t>(random.below(10)) - 1;
  request.top_logprobs_num = static_cast<std::int32_t>(random.below(10));
  if (random.chance(0.5)) request.deadline = Time{5'000'000'000};
  return request;
}

/// As the worker sees it.
v1::Submit sent_message(const Submission& submission, Time now) {
  v1::SessionUp scratch;
  std::string bytes = "before";
  append_submission(submission, now, &scratch, &bytes);
  EXPECT_TRUE(bytes.starts_with("before"));
  v1::SessionUp got;
  EXPECT_TRUE(got.ParseFromString(bytes.substr(6)));
  EXPECT_EQ(got.kind_case(), v1::SessionUp::kSubmit);
  return got.submit();
}

TEST(Wire, RequestSurvivesTheTrip) {
  const std::uint64_t seed = 11;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 200; ++round) {
    const core::Request sent = random_request(random);
    const v1::Submit message = sent_message({sent, 0, std::nullopt}, Time{1'000'000'000});
    const v1::Request& parsed = message.request();
    // The receiver's clock has nothing to do with the sender's: 4 s are left.
    const auto got = read_request(parsed, Time{100});
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(got->id, sent.id);
    EXPECT_EQ(got->client_id, sent.client_id);
    EXPECT_EQ(got->input_ids, sent.input_ids);
    EXPECT_EQ(got->resumed_output_ids, sent.resumed_output_ids);
    EXPECT_EQ(got->sampling.temperature, sent.sampling.temperature);
    EXPECT_EQ(got->sampling.top_k, sent.sampling.top_k);
    EXPECT_EQ(got->sampling.logit_bias, sent.sampling.logit_bias);
    EXPECT_EQ(got->sampling.stop_token_ids, sent.sampling.stop_token_ids);
    EXPECT_EQ(got->sampling.ignore_eos, sent.sampling.ignore_eos);
    EXPECT_EQ(got->sampling.seed, sent.sampling.seed);
    EXPECT_EQ(got->return_logprob, sent.return_logprob);
    EXPECT_EQ(got->logprob_start_len, sent.logprob_start_len);
    EXPECT_EQ(got->top_logprobs_num, sent.top_logprobs_num);
    ASSERT_EQ(got->deadline.has_value(), sent.deadline.has_value());
    if (sent.deadline) {
      EXPECT_EQ(got->deadline->ns, 4'000'000'100);
    }
  }
}

// The prompt is written without protobuf: it must be what protobuf writes.
TEST(Wire, PromptsOfEveryLengthAndSizeOfId) {
  std::vector<core::TokenId> all{0, -1, std::numeric_limits<core::TokenId>::min()};
  for (std::uint32_t bit = 1; bit < 1U << 31U; bit <<= 1U) {
    all.push_back(static_cast<core::TokenId>(bit));
    all.push_back(static_cast<core::TokenId>(bit - 1));
  }
  all.push_back(std::numeric_limits<core::TokenId>::max());
  // Lengths of all three parts of the frame need one byte, two, three.
  for (const std::size_t count :
       {0UL, 1UL, 25UL, 26UL, 100UL, 126UL, 127UL, 128UL, 3'300UL, 9'000UL}) {
    for (std::size_t first = 0; first < (count < 1000 ? all.size() : 1); ++first) {
      SCOPED_TRACE(std::to_string(count) + " ids from " + std::to_string(first));
      Submission sent;
      sent.request.id = core::RequestId{1};
      for (std::size_t i = 0; i < count; ++i)
        sent.request.input_ids.push_back(all[(first + i) % all.size()]);
      const v1::Submit got = sent_message(sent, Time{0});
      const auto& ids = got.request().input_ids();
      ASSERT_EQ(std::vector<core::TokenId>(ids.begin(), ids.end()), sent.request.input_ids);
    }
  }
}

TEST(Wire, SamplingCoversEveryField) {
  core::SamplingParams sent;
  sent.max_new_tokens = 1;
  sent.min_new_tokens = 2;
  sent.temperature = 0.3F;
  sent.top_p = 0.4F;
  sent.top_k = 5;
  sent.min_p = 0.6F;
  sent.frequency_penalty = 0.7F;
  sent.presence_penalty = 0.8F;
  sent.repetition_penalty = 0.9F;
  v1::SamplingParams message;
  write_sampling(sent, &message);
  const core::SamplingParams got = read_sampling(message);
  EXPECT_EQ(got.max_new_tokens, 1);
  EXPECT_EQ(got.min_new_tokens, 2);
  EXPECT_EQ(got.temperature, 0.3F);
  EXPECT_EQ(got.top_p, 0.4F);
  EXPECT_EQ(got.top_k, 5);
  EXPECT_EQ(got.min_p, 0.6F);
  EXPECT_EQ(got.frequency_penalty, 0.7F);
  EXPECT_EQ(got.presence_penalty, 0.8F);
  EXPECT_EQ(got.repetition_penalty, 0.9F);
}

TEST(Wire, EventKeepsLogprobBits) {
  core::TokenEvent sent;
  sent.request = core::RequestId{9};
  sent.first_index = 3;
  sent.tokens = {10, 11};
  const float odd = -0.1F * 3;
  sent.logprobs = {{.token = 10, .logprob = odd, .top = {{10, odd}, {2, -7.25F}}},
                   {.token = 11, .logprob = -std::numeric_limits<float>::infinity(), .top = {}}};
  sent.prompt_logprobs = {{.token = 1, .logprob = std::nullopt, .top = {}}};
  sent.prompt_tokens = 4;
  sent.cached_tokens = 2;
  sent.retraction_count = 1;
  sent.finish = core::FinishReason{
      .kind = core::FinishKind::kAbort, .matched_token = 11, .status = cancelled("by the client")};
  sent.timings.prefill = nanoseconds(0);
  sent.timings.kv_transfer_bytes = 12;
  v1::TokenEvent message;
  write_event(sent, &message);
  const auto got = read_event(message);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->tokens, sent.tokens);
  ASSERT_EQ(got->logprobs.size(), 2U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(*got->logprobs[0].logprob),
            std::bit_cast<std::uint32_t>(odd));
  EXPECT_EQ(got->logprobs[0].top, sent.logprobs[0].top);
  EXPECT_EQ(got->logprobs[1].logprob, sent.logprobs[1].logprob);
  ASSERT_EQ(got->prompt_logprobs.size(), 1U);
  EXPECT_FALSE(got->prompt_logprobs[0].logprob.has_value());
  EXPECT_EQ(got->prompt_tokens, 4);
  EXPECT_EQ(got->cached_tokens, 2);
  EXPECT_EQ(got->retraction_count, 1);
  ASSERT_TRUE(got->finish.has_value());
  EXPECT_EQ(got->finish->kind, core::FinishKind::kAbort);
  EXPECT_EQ(got->finish->matched_token, 11);
  EXPECT_EQ(got->finish->status.code(), Code::kCancelled);
  EXPECT_EQ(got->timings.prefill.ns, 0);
  EXPECT_LT(got->timings.queue.ns, 0);
  EXPECT_EQ(got->timings.kv_transfer_bytes, 12);
}

TEST(Wire, FinishKindsKeepTheirMeaning) {
  for (const auto kind :
       {core::FinishKind::kStop, core::FinishKind::kLength, core::FinishKind::kAbort}) {
    v1::FinishReason message;
    write_finish({.kind = kind, .matched_token = std::nullopt, .status = {}}, &message);
    EXPECT_NE(message.kind(), v1::FINISH_KIND_UNSPECIFIED);
    EXPECT_EQ(read_finish(message)->kind, kind);
  }
}

WorkerInfo some_worker() {
  WorkerInfo info;
  info.incarnation = 1;
  info.model.vocab_size = 3;
  info.model.eos_token_ids = {2};
  info.model.context_length = 1;
  info.page_size = 1;
  return info;
}

TEST(Wire, SubmissionAndWorkerInfo) {
  Submission sent;
  sent.request.id = core::RequestId{3};
  sent.request.input_ids = {1};
  sent.attempt = 2;
  sent.disaggregation = Disaggregation{.role = Role::kDecode,
                                       .room = 3,
                                       .attempt = 2,
                                       .decode_incarnation = 8,
                                       .bootstrap_host = "h",
                                       .bootstrap_port = 8998,
                                       .peer_grpc_address = "p:1",
                                       .peer_incarnation = 6};
  const auto got = read_submission(sent_message(sent, Time{0}), Time{0});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->attempt, 2U);
  EXPECT_EQ(got->request.input_ids, sent.request.input_ids);
  ASSERT_TRUE(got->disaggregation.has_value());
  EXPECT_EQ(got->disaggregation->role, Role::kDecode);
  EXPECT_EQ(got->disaggregation->room, 3U);
  EXPECT_EQ(got->disaggregation->decode_incarnation, 8U);
  EXPECT_EQ(got->disaggregation->bootstrap_port, 8998);
  EXPECT_EQ(got->disaggregation->peer_grpc_address, "p:1");
  EXPECT_EQ(got->disaggregation->peer_incarnation, 6U);

  WorkerInfo info = some_worker();
  info.role = Role::kDecode;
  info.model.architectures = {"LlamaForCausalLM"};
  info.model.default_sampling.top_k = 20;
  info.dp_size = 4;
  v1::WorkerInfo info_message;
  write_worker_info(info, &info_message);
  const auto info_got = read_worker_info(info_message);
  ASSERT_TRUE(info_got.ok());
  EXPECT_EQ(info_got->role, Role::kDecode);
  EXPECT_EQ(info_got->model.architectures, info.model.architectures);
  EXPECT_EQ(info_got->model.eos_token_ids, info.model.eos_token_ids);
  EXPECT_EQ(info_got->model.default_sampling.top_k, 20);
  EXPECT_EQ(info_got->dp_size, 4);
}

struct BadWorkerRow {
  const char* name;
  void (*damage)(v1::WorkerInfo& message);
  const char* expected;
};

constexpr BadWorkerRow kBadWorkers[] = {
    {"no incarnation",
     [](v1::WorkerInfo& m) { m.set_incarnation(0); },
     "worker_info.incarnation: found 0, expected a random number"},
    {"another protocol",
     [](v1::WorkerInfo& m) { m.set_protocol_version(99); },
     "worker_info.protocol_version: found 99, expected "},
    {"no role", [](v1::WorkerInfo& m) { m.clear_role(); }, "worker_info.role: found 0, expected "},
    {"no vocabulary",
     [](v1::WorkerInfo& m) { m.mutable_model()->set_vocab_size(0); },
     "worker_info.model.vocab_size: found 0, expected 1..2147483647"},
    {"no context",
     [](v1::WorkerInfo& m) { m.mutable_model()->set_context_length(-5); },
     "worker_info.model.context_length: found -5, expected 1..2147483647"},
    {"less than no tokens",
     [](v1::WorkerInfo& m) { m.mutable_model()->set_max_request_tokens(-1); },
     "worker_info.model.max_request_tokens: found -1, expected 0..2147483647"},
    {"an end that is no token",
     [](v1::WorkerInfo& m) { m.mutable_model()->add_eos_token_ids(3); },
     "worker_info.model.eos_token_ids: found 3, expected 0..2"},
    {"pages of nothing",
     [](v1::WorkerInfo& m) { m.set_page_size(0); },
     "worker_info.page_size: found 0, expected 1..2147483647"},
    {"no replica",
     [](v1::WorkerInfo& m) { m.set_dp_size(0); },
     "worker_info.dp_size: found 0, expected 1..2147483647"},
    {"a replica too many",
     [](v1::WorkerInfo& m) { m.set_dp_rank(1); },
     "worker_info.dp_rank: found 1, expected 0..0"},
};

TEST(Wire, BadWorkersAreRefusedByTheirField) {
  v1::WorkerInfo whole;
  write_worker_info(some_worker(), &whole);
  ASSERT_TRUE(read_worker_info(whole).ok());
  for (const BadWorkerRow& row : kBadWorkers) {
    SCOPED_TRACE(row.name);
    v1::WorkerInfo message = whole;
    row.damage(message);
    const auto got = read_worker_info(message);
    ASSERT_FALSE(got.ok());
    EXPECT_TRUE(got.status().message().starts_with(row.expected)) << got.status().message();
  }
}

struct BadRow {
  const char* name;
  void (*damage)(v1::Submit& message);
  const char* field;
};

constexpr BadRow kBadRows[] = {
    {"id 0", [](v1::Submit& m) { m.mutable_request()->set_id(0); }, "request.id"},
    {"id 64 bits", [](v1::Submit& m) { m.mutable_request()->set_id(~0ULL); }, "request.id"},
    {"no prompt", [](v1::Submit& m) { m.mutable_request()->clear_input_ids(); }, "input_ids"},
    {"no sampling", [](v1::Submit& m) { m.mutable_request()->clear_sampling(); }, "sampling"},
    {"role 0", [](v1::Submit& m) { m.mutable_disaggregation()->set_room(1); }, "role"},
    {"role 9",
     [](v1::Submit& m) { m.mutable_disaggregation()->set_role(static_cast<v1::Role>(9)); },
     "role"},
    {"room 0",
     [](v1::Submit& m) { m.mutable_disaggregation()->set_role(v1::ROLE_DECODE); },
     "room"},
    {"port",
     [](v1::Submit& m) {
       m.mutable_disaggregation()->set_role(v1::ROLE_DECODE);
       m.mutable_disaggregation()->set_room(1);
       m.mutable_disaggregation()->set_bootstrap_port(70000);
     },
     "bootstrap_port"},
};

TEST(Wire, BadSubmissionsNameTheField) {
  for (const BadRow& row : kBadRows) {
    SCOPED_TRACE(row.name);
    Submission good;
    good.request.id = core::RequestId{3};
    good.request.input_ids = {1};
    v1::Submit message = sent_message(good, Time{0});
    row.damage(message);
    const auto got = read_submission(message, Time{0});
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.status().code(), Code::kInvalidArgument);
    EXPECT_NE(got.status().message().find(row.field), std::string::npos) << got.status().message();
  }
}

TEST(Wire, BadEventsNameTheField) {
  v1::TokenEvent event;
  event.add_tokens(1);
  event.add_tokens(2);
  event.add_logprobs();
  EXPECT_NE(read_event(event).status().message().find("event.logprobs"), std::string::npos);
  event.clear_logprobs();
  event.mutable_finish();
  EXPECT_NE(read_event(event).status().message().find("finish.kind"), std::string::npos);
  event.clear_finish();
  event.add_prompt_logprobs()->add_top_ids(3);
  EXPECT_NE(read_event(event).status().message().find("top_logprobs"), std::string::npos);
  event.clear_prompt_logprobs();
  event.set_first_index(-1);
  EXPECT_NE(read_event(event).status().message().find("first_index"), std::string::npos);
}

TEST(Wire, StatusCodes) {
  for (int code = 0; code <= 16; ++code) {
    v1::Status message;
    message.set_code(code);
    EXPECT_EQ(static_cast<int>(read_status(message).code()), code);
  }
  v1::Status unknown;
  unknown.set_code(99);
  EXPECT_EQ(read_status(unknown).code(), Code::kUnknown);
  unknown.set_code(-1);
  EXPECT_EQ(read_status(unknown).code(), Code::kUnknown);
}

TEST(Wire, DeadlineIsWhatIsLeft) {
  core::Request request;
  request.id = core::RequestId{1};
  request.input_ids = {1};
  request.deadline = Time{0};
  v1::Request message = sent_message({request, 0, std::nullopt}, Time{seconds(9).ns}).request();
  EXPECT_EQ(message.deadline_left_ms(), 0);  // past: nothing is left, not a negative amount
  message.set_deadline_left_ms(std::numeric_limits<std::int64_t>::max());
  const auto got = read_request(message, Time{1});
  ASSERT_TRUE(got.ok());
  EXPECT_GT(got->deadline->ns, 1);  // no overflow
}

}  // namespace
}  // namespace tandem::rpc
