#include "common/rpc/session.h"

#include "common/rpc/internal/channel.h"
#include "common/rpc/testing/front.h"

#include "proto/tandem/v1/session.grpc.pb.h"

#include <grpcpp/client_context.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <thread>

namespace tandem::rpc {
namespace {

using testing::FakeRouter;
using testing::FakeWorker;
using testing::io_pool;
using testing::make_event;
using testing::make_submission;
using testing::open_session;
using testing::RouterNotes;
using testing::Served;
using testing::ServedBy;
using testing::WorkerNotes;

class SessionTest : public ::testing::TestWithParam<ServedBy> {
 public:
  std::shared_ptr<FakeWorker> worker = std::make_shared<FakeWorker>();
  std::shared_ptr<FakeRouter> router = std::make_shared<FakeRouter>();
  Served served{GetParam(), {make_session_service(worker)}};

  [[nodiscard]] bool by_pool() const { return GetParam() == ServedBy::kPool; }

  WorkerSessionPtr session() {
    EXPECT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
    return worker->notes.get().sessions.back().lock();
  }
};

INSTANTIATE_TEST_SUITE_P(Ways,
                         SessionTest,
                         ::testing::Values(ServedBy::kGrpc, ServedBy::kPool),
                         testing::name_of);

TEST_P(SessionTest, RequestAndItsTokens) {
  auto client = open_session("grpc://" + served.address, router);
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.hellos.empty(); }));
  EXPECT_EQ(router->notes.get().hellos[0].incarnation, 77U);
  EXPECT_EQ(router->notes.get().hellos[0].model.vocab_size, 512);
  ASSERT_TRUE(client->submit(make_submission(42)).ok());
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return n.submissions.size() == 1; }));
  EXPECT_EQ(worker->notes.get().submissions[0].request.id.value, 42U);
  const WorkerSessionPtr peer = session();
  EXPECT_EQ(worker->notes.get().threads[0].starts_with("sessions"), by_pool());
  EXPECT_EQ(peer->router_incarnation(), 5U);
  for (int i = 0; i < 10; ++i)
    peer->send_step({make_event(42, i)}, {});
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return n.events.size() == 10; }));
  const RouterNotes notes = router->notes.get();
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(notes.events[static_cast<std::size_t>(i)].first_index, i);
  client->close();
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
  EXPECT_TRUE(router->notes.get().closed[0].ok()) << router->notes.get().closed[0].message();
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.closed.empty(); }));
  EXPECT_TRUE(worker->notes.get().closed[0].ok());
  EXPECT_TRUE(peer->closed());
  peer->send_step({make_event(42, 11)}, {});  // harmless
  EXPECT_EQ(client->submit(make_submission(1)).code(), Code::kUnavailable);
}

TEST_P(SessionTest, AKeyIsAskedForWhereOneIsSet) {
  SessionServiceOptions options;
  options.authorize = [](std::string_view value) { return value == "Bearer key"; };
  const Served strict(GetParam(), {make_session_service(worker, options)});

  struct Row {
    const char* name;
    const char* authorization;
    bool enters;
  };

  for (const Row& row : {Row{"none", "", false},
                         Row{"wrong", "Bearer no", false},
                         Row{"right", "Bearer key", true}}) {
    SCOPED_TRACE(row.name);
    auto caller = std::make_shared<FakeRouter>();
    SessionClient::Options client_options;
    client_options.io = &io_pool();
    client_options.client.address = strict.address;
    client_options.client.authorization = row.authorization;
    client_options.router_incarnation = 5;
    auto client = SessionClient::open(client_options, caller);
    ASSERT_TRUE(client.ok());
    if (row.enters) {
      ASSERT_TRUE(caller->notes.wait([](const RouterNotes& n) { return !n.hellos.empty(); }));
      continue;
    }
    ASSERT_TRUE(caller->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
    EXPECT_EQ(caller->notes.get().closed[0].code(), Code::kUnauthenticated);
  }
}

TEST_P(SessionTest, AbortFlushRejectPing) {
  auto client = open_session(served.address, router);
  ASSERT_TRUE(client->abort(core::RequestId{6}).ok());
  ASSERT_TRUE(client->abort_all().ok());
  ASSERT_TRUE(client->flush_cache().ok());
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.flushed.empty(); }));
  EXPECT_EQ(router->notes.get().flushed[0].code(), Code::kFailedPrecondition);
  EXPECT_EQ(worker->notes.get().aborts, std::vector<core::RequestId>{core::RequestId{6}});
  EXPECT_EQ(worker->notes.get().abort_alls, 1);
  Submission bad = make_submission(8);
  bad.request.input_ids.clear();
  ASSERT_TRUE(client->submit(bad).ok());
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.rejected.empty(); }));
  EXPECT_EQ(router->notes.get().rejected[0].first.value, 8U);
  EXPECT_EQ(router->notes.get().rejected[0].second.code(), Code::kInvalidArgument);
  EXPECT_TRUE(worker->notes.get().submissions.empty());
  ASSERT_TRUE(client->ping().ok());
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.ticks.empty(); }));
}

TEST_P(SessionTest, IdleSessionsTickWithTheSchedulersCounter) {
  auto client = open_session(served.address, router);
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return n.ticks.size() >= 3; }));
  const RouterNotes notes = router->notes.get();
  EXPECT_LT(notes.ticks[0].progress, notes.ticks[2].progress);
  EXPECT_EQ(notes.ticks[0].total_pages, 64);
}

TEST_P(SessionTest, StepsMergeBehindASlowRouter) {
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  router->on_step_hook = [opened] { opened.wait(); };
  auto client = open_session(served.address, router, 4);
  const WorkerSessionPtr peer = session();
  constexpr int kSteps = 2000;
  for (int i = 0; i < kSteps; ++i)
    peer->send_step({make_event(7, i), make_event(8, i)}, {});
  gate.set_value();
  ASSERT_TRUE(
      router->notes.wait([](const RouterNotes& n) { return n.events.size() == 2 * kSteps; }));
  const RouterNotes notes = router->notes.get();
  // Window 4, credits in twos: what does not fit waits as one message.
  EXPECT_LT(notes.steps, kSteps / 2);
  int next[2] = {0, 0};
  for (const core::TokenEvent& event : notes.events) {
    EXPECT_EQ(event.first_index, next[event.request.value - 7]++);
  }
}

TEST_P(SessionTest, ASlowRouterIsCutOffAtTheBound) {
  const Served bounded(GetParam(), {make_session_service(worker, {.queued_bytes_max = 20'000})});
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  router->on_step_hook = [opened] { opened.wait(); };
  auto client = open_session(bounded.address, router, 2);
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
  const WorkerSessionPtr peer = worker->notes.get().sessions[0].lock();
  int sent = 0;
  while (!peer->closed() && sent < 100'000)
    peer->send_step({make_event(1, sent++)}, {});
  gate.set_value();
  EXPECT_TRUE(peer->closed());
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.closed.empty(); }));
  EXPECT_EQ(worker->notes.get().closed[0].code(), Code::kResourceExhausted);
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
  EXPECT_FALSE(router->notes.get().closed[0].ok());
  // gRPC may have a write under way, and then cancels.
  if (by_pool()) {
    EXPECT_EQ(router->notes.get().closed[0].code(), Code::kResourceExhausted);
  }
}

TEST_P(SessionTest, DroppedClientIsNoticed) {
  auto client = open_session(served.address, router);
  (void)session();
  client.reset();
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.closed.empty(); }));
  EXPECT_EQ(worker->notes.get().closed[0].code(), Code::kCancelled);
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
}

TEST_P(SessionTest, ShutdownEndsSessionsInOrder) {
  std::vector<std::shared_ptr<FakeRouter>> routers;
  std::vector<std::unique_ptr<SessionClient>> clients;
  for (int i = 0; i < 8; ++i) {
    routers.push_back(std::make_shared<FakeRouter>());
    clients.push_back(open_session(served.address, routers.back()));
  }
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return n.sessions.size() == 8; }));
  served.server->shutdown(seconds(5));
  // When shutdown has returned, no callback is still to come.
  EXPECT_EQ(worker->notes.get().closed.size(), 8U);
  for (auto& r : routers) {
    ASSERT_TRUE(r->notes.wait([](const RouterNotes& n) { return n.closed.size() == 1; }));
    EXPECT_EQ(r->notes.get().closed[0].code(), Code::kUnavailable);
  }
}

TEST_P(SessionTest, SendersRaceShutdown) {
  auto client = open_session(served.address, router);
  const WorkerSessionPtr peer = session();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        peer->send_step({make_event(1, 0)}, {});
        (void)client->submit(make_submission(2));
        std::this_thread::yield();
      }
    });
  }
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return n.steps > 10; }));
  served.server->shutdown(seconds(1));
  stop = true;
  for (std::thread& thread : threads)
    thread.join();
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return n.closed.size() == 1; }));
  EXPECT_EQ(worker->notes.get().closed.size(), 1U);
}

TEST_P(SessionTest, TooManySessions) {
  const Served small(GetParam(), {make_session_service(worker, {.sessions_max = 1})});
  auto first = open_session(small.address, router);
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.hellos.empty(); }));
  auto second_router = std::make_shared<FakeRouter>();
  auto second = open_session(small.address, second_router);
  ASSERT_TRUE(second_router->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
  EXPECT_EQ(second_router->notes.get().closed[0].code(), Code::kResourceExhausted);
}

struct GreetingRow {
  const char* name;
  v1::SessionUp first;
  Code want;
};

v1::SessionUp hello(std::uint32_t version, std::uint64_t incarnation) {
  v1::SessionUp message;
  message.mutable_hello()->set_protocol_version(version);
  message.mutable_hello()->set_incarnation(incarnation);
  return message;
}

v1::SessionUp not_a_hello() {
  v1::SessionUp message;
  message.mutable_flush_cache();
  return message;
}

TEST_P(SessionTest, BadGreetings) {
  const GreetingRow rows[] = {
      {"version 2", hello(2, 1), Code::kFailedPrecondition},
      {"no incarnation", hello(1, 0), Code::kInvalidArgument},
      {"flush first", not_a_hello(), Code::kFailedPrecondition},
      {"empty message", v1::SessionUp(), Code::kFailedPrecondition},
  };
  auto channel = internal::make_channel({.address = served.address});
  const auto stub = v1::Session::NewStub(*channel);
  for (const GreetingRow& row : rows) {
    SCOPED_TRACE(row.name);
    grpc::ClientContext context;
    const auto stream = stub->Open(&context);
    stream->Write(row.first);
    v1::SessionDown answer;
    EXPECT_FALSE(stream->Read(&answer));
    EXPECT_EQ(static_cast<int>(stream->Finish().error_code()), static_cast<int>(row.want));
  }
  EXPECT_TRUE(worker->notes.get().sessions.empty());
}

TEST(SessionClientErrors, NobodyListens) {
  auto router = std::make_shared<FakeRouter>();
  // Bound but not listening: connecting is refused, and nobody else can take the port.
  const auto bound = testing::bind_loopback(0);
  auto client = open_session(bound.address(), router);
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
  EXPECT_EQ(router->notes.get().closed[0].code(), Code::kUnavailable);
  EXPECT_TRUE(router->notes.get().hellos.empty());
  close(bound.fd);
}

TEST(SessionClientErrors, ServerIsSilent) {
  auto router = std::make_shared<FakeRouter>();
  // The kernel completes the handshake, nobody accepts: as of a stopped process.
  const auto bound = testing::bind_loopback(4);
  SessionClient::Options options;
  options.io = &io_pool();
  options.client.address = bound.address();
  options.client.connect_timeout = milliseconds(300);
  auto client = SessionClient::open(options, router);
  ASSERT_TRUE(client.ok());
  ASSERT_TRUE(router->notes.wait([](const RouterNotes& n) { return !n.closed.empty(); }));
  const Code code = router->notes.get().closed[0].code();
  EXPECT_TRUE(code == Code::kDeadlineExceeded || code == Code::kUnavailable);
  close(bound.fd);
}

TEST(SessionClientErrors, BadAddresses) {
  for (const char* address :
       {"", "host", "host:", ":80", "host:0", "host:65536", "http://h:1", "h:1x"}) {
    SCOPED_TRACE(address);
    SessionClient::Options options;
    options.io = &io_pool();
    options.client.address = address;
    const auto client = SessionClient::open(options, std::make_shared<FakeRouter>());
    EXPECT_EQ(client.status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tandem::rpc
