// The Generation service as gRPC clients see it, with health and reflection beside it.
#include "common/rpc/generation.h"

#include "common/rpc/internal/channel.h"
#include "common/rpc/testing/support.h"

#include "proto/tandem/v1/generate.grpc.pb.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>

namespace tandem::rpc {
namespace {

using testing::Notes;

struct CallNotes {
  std::vector<GenerationCallPtr> calls;
  int cancels = 0;
};

class FakeHandler final : public GenerationHandler {
 public:
  void on_generate(const GenerationCallPtr& call) override {
    const int tokens = call->request().sampling().max_new_tokens();
    if (call->request().text() == "hang") {
      notes.change([&](CallNotes& n) { n.calls.push_back(call); });
      return;
    }
    for (int i = 0; i < tokens; ++i) {
      v1::GenerateResponse response;
      response.set_text(call->request().text());
      response.add_output_ids(i);
      EXPECT_TRUE(call->write(std::move(response)).ok());
    }
    call->finish(tokens == 0 ? invalid_argument("max_new_tokens: 0") : ok_status());
  }

  void on_cancel(const GenerationCallPtr& call) override {
    call->finish(cancelled("late"));
    notes.change([](CallNotes& n) {
      ++n.cancels;
      n.calls.clear();
    });
  }

  Result<v1::ModelInfo> model_info(const std::string& authorization) override {
    if (authorization != "Bearer key") return unauthenticated("authorization: wrong key");
    v1::ModelInfo info;
    info.mutable_model()->set_vocab_size(9);
    return info;
  }

  Result<std::string> server_info_json(const std::string& /*authorization*/) override {
    return std::string("{}");
  }

  Status abort(const std::string& /*authorization*/, const v1::AbortRequest& request) override {
    return request.all() ? ok_status() : not_found("request_id: unknown");
  }

  Notes<CallNotes> notes;
};

class GenerationTest : public ::testing::Test {
 public:
  std::shared_ptr<FakeHandler> handler = std::make_shared<FakeHandler>();
  std::unique_ptr<Server> server = testing::start_server({make_generation_service(handler)});
  std::shared_ptr<grpc::Channel> channel =
      *internal::make_channel({.address = testing::address_of(*server)});
  std::unique_ptr<v1::Generation::Stub> stub = v1::Generation::NewStub(channel);

  static v1::GenerateRequest request(const std::string& text, int tokens) {
    v1::GenerateRequest r;
    r.set_text(text);
    r.mutable_sampling()->set_max_new_tokens(tokens);
    return r;
  }
};

TEST_F(GenerationTest, StreamsAndStatus) {
  grpc::ClientContext context;
  auto stream = stub->Generate(&context, request("a", 300));
  v1::GenerateResponse response;
  int count = 0;
  while (stream->Read(&response))
    EXPECT_EQ(response.output_ids(0), count++);
  EXPECT_EQ(count, 300);
  EXPECT_TRUE(stream->Finish().ok());
  grpc::ClientContext bad_context;
  auto bad = stub->Generate(&bad_context, request("a", 0));
  EXPECT_FALSE(bad->Read(&response));
  const grpc::Status status = bad->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "max_new_tokens: 0");
}

TEST_F(GenerationTest, CancelReachesTheHandler) {
  grpc::ClientContext context;
  auto stream = stub->Generate(&context, request("hang", 1));
  ASSERT_TRUE(handler->notes.wait([](const CallNotes& n) { return n.calls.size() == 1; }));
  EXPECT_FALSE(handler->notes.get().calls[0]->deadline().has_value());
  context.TryCancel();
  ASSERT_TRUE(handler->notes.wait([](const CallNotes& n) { return n.cancels == 1; }));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerationTest, DeadlineTravels) {
  grpc::ClientContext context;
  const Time before = steady_clock().now();
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(400));
  auto stream = stub->Generate(&context, request("hang", 1));
  v1::GenerateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(handler->notes.wait([](const CallNotes& n) { return n.cancels == 1; }));
  EXPECT_GE((steady_clock().now() - before).milliseconds(), 300);
}

TEST_F(GenerationTest, ShutdownCancelsWhatRuns) {
  grpc::ClientContext context;
  auto stream = stub->Generate(&context, request("hang", 1));
  ASSERT_TRUE(handler->notes.wait([](const CallNotes& n) { return n.calls.size() == 1; }));
  server->shutdown(seconds(5));
  EXPECT_EQ(handler->notes.get().cancels, 1);
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(GenerationTest, UnaryCalls) {
  v1::ModelInfo info;
  grpc::ClientContext without;
  EXPECT_EQ(stub->GetModelInfo(&without, {}, &info).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext with;
  with.AddMetadata("authorization", "Bearer key");
  EXPECT_TRUE(stub->GetModelInfo(&with, {}, &info).ok());
  EXPECT_EQ(info.model().vocab_size(), 9);
  v1::ServerInfo server_info;
  grpc::ClientContext third;
  EXPECT_TRUE(stub->GetServerInfo(&third, {}, &server_info).ok());
  EXPECT_EQ(server_info.json(), "{}");
  v1::AbortReply aborted_reply;
  grpc::ClientContext fourth;
  EXPECT_EQ(stub->Abort(&fourth, {}, &aborted_reply).error_code(), grpc::StatusCode::NOT_FOUND);
}

/// A unary call by name with raw bytes: the standard services have no stubs here.
std::string call_raw(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& method,
                     const std::string& request,
                     bool streaming) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer out(&slice, 1);
  grpc::ByteBuffer in;
  grpc::Status status;
  void* tag = nullptr;
  bool ok = false;
  if (!streaming) {
    auto call = stub.PrepareUnaryCall(&context, method, out, &queue);
    call->StartCall();
    call->Finish(&in, &status, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
  } else {
    auto call = stub.PrepareCall(&context, method, &queue);
    call->StartCall(nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    call->Write(out, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    call->Read(&in, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    call->WritesDone(nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
    call->Finish(&status, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok));
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice flat;
  if (!in.Valid() || !in.DumpToSingleSlice(&flat).ok()) return {};
  return {reinterpret_cast<const char*>(flat.begin()), flat.size()};
}

TEST_F(GenerationTest, HealthAndReflection) {
  const std::string check = "/grpc.health.v1.Health/Check";
  EXPECT_EQ(call_raw(channel, check, "", false), "\x08\x01");  // status = SERVING
  server->set_serving("", false);
  EXPECT_EQ(call_raw(channel, check, "", false), "\x08\x02");  // NOT_SERVING
  // ServerReflectionRequest{list_services = ""}
  const std::string services =
      call_raw(channel,
               "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
               std::string("\x3a\x00", 2),
               true);
  EXPECT_NE(services.find("tandem.v1.Generation"), std::string::npos);
  EXPECT_NE(services.find("grpc.health.v1.Health"), std::string::npos);
}

}  // namespace
}  // namespace tandem::rpc
