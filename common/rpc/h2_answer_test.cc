// Sessions that the pool serves, against callers that say byte by byte what the test wants, or
// what a router of ours never says. What they do with a good one is session_test.cc's affair.
#include "common/rpc/internal/h2_answer.h"

#include "common/base/clock.h"
#include "common/rpc/internal/h2_call.h"
#include "common/rpc/testing/front.h"
#include "common/rpc/testing/h2_bytes.h"

#include "proto/tandem/v1/session.pb.h"

#include <algorithm>
#include <future>
#include <string>
#include <vector>

namespace tandem::rpc::internal {
namespace {

using namespace testing;  // NOLINT: its bytes are most of this file

constexpr const char* kPath = "/tandem.v1.Session/Open";

/// A frame of settings that holds these.
std::string settings(const std::vector<nghttp2_settings_entry>& entries) {
  std::string payload;
  for (const nghttp2_settings_entry& entry : entries) {
    append_number(payload, static_cast<std::uint32_t>(entry.settings_id), 2);
    append_number(payload, entry.value, 4);
  }
  return frame(kSettings, 0, 0, payload);
}

const std::string kBegin = kPreface + settings({kSessionMark});

std::string call_frame(const std::string& path = kPath, bool last = false) {
  return header_frame({{":method", "POST"},
                       {":scheme", "http"},
                       {":path", path},
                       {":authority", "worker"},
                       {"te", "trailers"},
                       {"content-type", "application/grpc"}},
                      last);
}

/// Nothing of its own accord: neither pings nor their absence end or write anything in a test.
ServerOptions patient() {
  ServerOptions options;
  options.keepalive = seconds(600);
  return options;
}

std::string hello(std::uint32_t version = 1, std::uint64_t incarnation = 5) {
  v1::SessionUp message;
  message.mutable_hello()->set_protocol_version(version);
  message.mutable_hello()->set_incarnation(incarnation);
  return message.SerializeAsString();
}

/// A worker, and a socket that is connected to it.
class Caller {
 public:
  explicit Caller(const SessionServiceOptions& session = {}, const ServerOptions& server = {})
      : served_(ServedBy::kPool, {make_session_service(worker, session)}, server) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string port = served_.address.substr(served_.address.rfind(':') + 1);
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(port)));
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }

  ~Caller() { hang_up(); }

  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void say(std::string_view bytes) const {
    ASSERT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }

  [[nodiscard]] Seen next(std::uint8_t type) const { return next_frame(fd_, type); }

  /// The status and the text that the call ends with.
  [[nodiscard]] std::pair<std::string, std::string> end() const {
    for (;;) {
      const Seen head = next(kHeaders);
      if (head.type == 0xFF) return {"no status", {}};
      if ((head.flags & kEndStream) == 0) continue;
      std::pair<std::string, std::string> found;
      for (const auto& [name, value] : decode(head.payload)) {
        if (name == "grpc-status") found.first = value;
        if (name == "grpc-message") found.second = value;
      }
      return found;
    }
  }

  /// Whether the server has closed, after whatever it said.
  [[nodiscard]] bool is_left() const { return next(0xFE).type == 0xFF; }

  void shutdown(Duration grace) { served_.server->shutdown(grace); }

  void hang_up() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  std::shared_ptr<FakeWorker> worker = std::make_shared<FakeWorker>();

 private:
  Served served_;
  int fd_ = -1;
};

TEST(SessionMark, IsTheFirstOfTheSettings) {
  struct Row {
    const char* name;
    std::string bytes;
    bool want;
  };

  const nghttp2_settings_entry other = {NGHTTP2_SETTINGS_ENABLE_PUSH, 0};
  const Row rows[] = {
      {"alone", kBegin, true},
      {"with what comes behind it", kBegin + call_frame(), true},
      {"before others", kPreface + settings({kSessionMark, other}), true},
      {"behind others", kPreface + settings({other, kSessionMark}), false},
      {"of another version", kPreface + settings({{kSessionMark.settings_id, 2}}), false},
      {"no settings at all", kPreface + settings({}), false},
      {"a byte short", kBegin.substr(0, kBegin.size() - 1), false},
      {"nothing", "", false},
      {"another preface", "PRI * HTTP/2.1" + kBegin.substr(14), false},
      {"an answer to settings",
       kPreface + frame(kSettings, kAck, 0, settings({kSessionMark}).substr(kFrameHeader)),
       false},
      {"another frame",
       kPreface + frame(kPing, 0, 0, settings({kSessionMark}).substr(kFrameHeader)),
       false},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    ASSERT_EQ(::send(pair[1], row.bytes.data(), row.bytes.size(), 0), std::ssize(row.bytes));
    EXPECT_EQ(begins_with_session_mark(pair[0]), row.want);
    ::close(pair[1]);
    EXPECT_EQ(read_bytes(pair[0], 1000), row.bytes) << "nothing was read";
    ::close(pair[0]);
  }
}

/// Whatever the pieces, once the mark was there.
TEST(H2Answer, ACallMayTakeItsTime) {
  const Caller caller({}, patient());
  caller.say(kBegin);
  while (caller.next(kSettings).flags != kAck) {
  }
  for (const char byte : call_frame() + frame(kPing, 0, 0, "12345678") +
                             frame(kData, 0, kStream, message(hello()).substr(0, 7)) +
                             frame(kData, 0, kStream, message(hello()).substr(7)))
    caller.say(std::string_view(&byte, 1));
  const Seen first = caller.next(kData);
  v1::SessionDown down;
  ASSERT_TRUE(first.payload.size() > 5 && down.ParseFromString(first.payload.substr(5)));
  EXPECT_EQ(down.hello().info().incarnation(), 77U);
  caller.say(frame(kData, kEndStream, kStream, {}));
  EXPECT_EQ(caller.end().first, "0");
}

TEST(H2Answer, TheAnswerIsWhatGrpcExpects) {
  const Caller caller;
  caller.say(kBegin + call_frame() + frame(kData, 0, kStream, message(hello())));
  EXPECT_EQ(decode(caller.next(kHeaders).payload),
            (std::vector<HeaderField>{{":status", "200"}, {"content-type", "application/grpc"}}));
  const Seen first = caller.next(kData);
  v1::SessionDown down;
  ASSERT_TRUE(down.ParseFromString(first.payload.substr(5)));
  EXPECT_EQ(down.hello().info().incarnation(), 77U);
  // What is not a message yet is not lost.
  v1::SessionUp ping;
  ping.mutable_ping()->set_nonce(9);
  const std::string bytes = message(ping.SerializeAsString());
  caller.say(frame(kData, 0, kStream, bytes.substr(0, 3)));
  caller.say(frame(kData, 0, kStream, bytes.substr(3)));
  do {
    ASSERT_TRUE(down.ParseFromString(caller.next(kData).payload.substr(5)));
  } while (down.tick().ping_nonce() != 9);
  caller.say(frame(kData, kEndStream, kStream, {}));
  EXPECT_EQ(caller.end(), std::pair(std::string("0"), std::string()));
  // And then the connection.
  EXPECT_EQ(caller.next(kData).type, 0xFF);
  ASSERT_TRUE(caller.worker->notes.wait([](const WorkerNotes& n) { return !n.closed.empty(); }));
  EXPECT_TRUE(caller.worker->notes.get().closed[0].ok());
}

TEST(H2Answer, WhatIsWrongEndsTheCallWithItsReason) {
  struct Row {
    const char* name;
    std::string bytes;
    Code want;
  };

  const auto data = [](std::string_view bytes) { return frame(kData, 0, kStream, bytes); };
  v1::SessionUp flush;
  flush.mutable_flush_cache();
  const Row rows[] = {
      {"version 2", call_frame() + data(message(hello(2))), Code::kFailedPrecondition},
      {"no incarnation", call_frame() + data(message(hello(1, 0))), Code::kInvalidArgument},
      {"flush first",
       call_frame() + data(message(flush.SerializeAsString())),
       Code::kFailedPrecondition},
      {"an empty message", call_frame() + data(message({})), Code::kFailedPrecondition},
      {"a second hello",
       call_frame() + data(message(hello()) + message(hello())),
       Code::kFailedPrecondition},
      {"not a message", call_frame() + data(message("\xFF\xFF")), Code::kInternal},
      {"compressed",
       call_frame() + data("\x01" + message(hello()).substr(1)),
       Code::kUnimplemented},
      {"too large", call_frame() + data(message(std::string(1001, 'x'))), Code::kResourceExhausted},
      {"a size beyond all",
       call_frame() + data(std::string("\0\xFF\xFF\xFF\xFF", 5)),
       Code::kResourceExhausted},
      {"another method", call_frame("/tandem.v1.Generation/Generate"), Code::kUnimplemented},
      {"not gRPC",
       header_frame(
           {{":method", "GET"}, {":scheme", "http"}, {":path", kPath}, {":authority", "worker"}},
           true),
       Code::kInternal},
      {"only a beginning", call_frame(kPath, true), Code::kOk},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    ServerOptions options;
    options.message_bytes_max = 1000;
    const Caller caller({}, options);
    caller.say(kBegin + row.bytes);
    EXPECT_EQ(caller.end().first, std::to_string(static_cast<int>(row.want)));
    // A session that had begun has ended; one that had not was never heard of.
    ASSERT_TRUE(caller.worker->notes.wait(
        [](const WorkerNotes& n) { return n.closed.size() == n.sessions.size(); }));
  }
}

/// A connection without a call is nothing to wait for.
TEST(H2Answer, ShutdownDoesNotWaitForWhoHasNotCalled) {
  Caller caller({}, patient());
  caller.say(kBegin);
  EXPECT_NE(caller.next(kSettings).type, 0xFF);
  const Time began = steady_clock().now();
  caller.shutdown(seconds(60));
  EXPECT_LT((steady_clock().now() - began).ns, seconds(8).ns) << "it waited for a greeting";
  EXPECT_TRUE(caller.is_left());
}

/// Steps that follow each other at once go by the pool, in order and without an end left behind,
/// however the sender pauses.
TEST(H2Answer, StepsInBurstsComeInOrderAndToTheLast) {
  auto worker = std::make_shared<FakeWorker>();
  auto router = std::make_shared<FakeRouter>();
  const Served served(
      ServedBy::kPool, {make_session_service(worker, {.tick_interval = seconds(600)})}, patient());
  SessionClient::Options options;
  options.io = &io_pool();
  options.client.address = served.address;
  options.client.keepalive = seconds(600);
  options.router_incarnation = 5;
  const auto client = SessionClient::open(options, router);
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
  const WorkerSessionPtr session = worker->notes.get().sessions[0].lock();
  std::size_t sent = 0;
  for (int burst = 1; burst <= 60; ++burst) {
    for (int i = 0; i < burst % 7; ++i)
      session->send_step({make_event(1, static_cast<std::int32_t>(sent++))}, {});
    ASSERT_TRUE(router->notes.wait([&](const RouterNotes& n) { return n.events.size() == sent; }));
  }
  const RouterNotes notes = router->notes.get();
  for (std::size_t i = 0; i < sent; ++i)
    ASSERT_EQ(notes.events[i].first_index, static_cast<std::int32_t>(i));
}

TEST(H2Answer, TheReasonComesThroughWhateverIsInIt) {
  const Caller caller;
  caller.say(kBegin + call_frame() + frame(kData, 0, kStream, message(hello())));
  ASSERT_TRUE(caller.worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
  caller.worker->notes.get().sessions[0].lock()->close(aborted("100 % k\xC3\xA4se\n"));
  EXPECT_EQ(caller.end(), std::pair(std::string("10"), std::string("100 %25 k%C3%A4se%0A")));
}

TEST(H2Answer, OneCallAConnection) {
  const Caller caller;
  std::string second = call_frame();
  second[8] = 3;  // the stream's number
  caller.say(kBegin + call_frame() + second);
  const Seen reset = caller.next(kResetStream);
  EXPECT_EQ(reset.stream, 3U);
  EXPECT_EQ(reset.payload, number_text(kRefusedStream));
  caller.say(frame(kData, 0, kStream, message(hello())));
  EXPECT_EQ(caller.next(kData).stream, kStream);
}

TEST(H2Answer, CallersThatVanishOrTalkNonsenseAreLetGo) {
  struct Row {
    const char* name;
    std::string first;
    std::string then;
    bool stays;
  };

  const std::string begun = kBegin + call_frame() + frame(kData, 0, kStream, message(hello()));
  const std::string garbage(100, 'g');
  const Row rows[] = {
      {"before the call", kBegin, {}, false},
      {"before the first message", kBegin + call_frame(), {}, false},
      {"in a session", begun, {}, false},
      {"in a message", begun, frame(kData, 0, kStream, message("x").substr(0, 3)), false},
      {"with another word", begun, frame(kResetStream, 0, kStream, number_text(0)), true},
      {"with a word", begun, frame(kResetStream, 0, kStream, number_text(kCancel)), true},
      {"nonsense before the call", kBegin, garbage, true},
      {"nonsense in a session", begun, garbage, true},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Caller caller({}, patient());
    caller.say(row.first);
    if (row.first == begun) {
      ASSERT_TRUE(
          caller.worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
    }
    caller.say(row.then);
    if (!row.stays) caller.hang_up();
    ASSERT_TRUE(caller.worker->notes.wait(
        [](const WorkerNotes& n) { return n.closed.size() == n.sessions.size(); }));
    for (const Status& status : caller.worker->notes.get().closed)
      EXPECT_FALSE(status.ok());
    EXPECT_TRUE(!row.stays || caller.is_left());
  }
}

/// Bytes in flight fill both sockets, and the session is cut off while a write is under way.
TEST(H2Answer, ACallerThatDoesNotReadIsCutOffAtTheBound) {
  SessionServiceOptions options;
  options.queued_bytes_max = std::size_t{1} << 20U;
  const Caller caller(options);
  std::string window = settings({kSessionMark, {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1U << 30U}});
  caller.say(kPreface + window + frame(kWindowUpdate, 0, 0, number_text(1U << 30U)) + call_frame() +
             frame(kData, 0, kStream, message(hello())));
  ASSERT_TRUE(caller.worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
  const WorkerSessionPtr session = caller.worker->notes.get().sessions[0].lock();
  std::vector<core::TokenEvent> events;
  for (int i = 0; i < 500; ++i)
    events.push_back(make_event(1, i));
  int steps = 0;
  for (; !session->closed() && steps < 100'000; ++steps)
    session->send_step(std::vector(events), {});
  EXPECT_TRUE(session->closed());
  ASSERT_TRUE(caller.worker->notes.wait([](const WorkerNotes& n) { return !n.closed.empty(); }));
  EXPECT_EQ(caller.worker->notes.get().closed[0].code(), Code::kResourceExhausted);
  session->send_step({make_event(1, 0)}, {});  // harmless
}

/// The way that test has to go: more than the sockets take, and all of it comes.
TEST(H2Answer, ABacklogComesWholeAndInOrder) {
  auto worker = std::make_shared<FakeWorker>();
  auto router = std::make_shared<FakeRouter>();
  const Served served(ServedBy::kPool, {make_session_service(worker)});
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  router->on_step_hook = [opened] { opened.wait(); };
  auto client = open_session(served.address, router, /*step_window=*/0);
  ASSERT_TRUE(worker->notes.wait([](const WorkerNotes& n) { return !n.sessions.empty(); }));
  const WorkerSessionPtr session = worker->notes.get().sessions[0].lock();
  constexpr int kSteps = 1500;
  constexpr int kEach = 400;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<core::TokenEvent> events;
    for (int i = 0; i < kEach; ++i)
      events.push_back(make_event(1, step * kEach + i));
    session->send_step(std::move(events), {});
  }
  gate.set_value();
  ASSERT_TRUE(router->notes.wait(
      [](const RouterNotes& n) { return n.events.size() == std::size_t{kSteps} * kEach; }));
  const RouterNotes notes = router->notes.get();
  for (std::size_t i = 0; i < notes.events.size(); ++i)
    ASSERT_EQ(notes.events[i].first_index, static_cast<std::int32_t>(i));
}

}  // namespace
}  // namespace tandem::rpc::internal
