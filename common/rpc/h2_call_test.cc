// H2Call against a peer that says byte by byte what the test wants. That it understands gRPC's own
// server is session_test.cc's affair.
#include "common/rpc/internal/h2_call.h"

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/rpc/testing/h2_bytes.h"
#include "common/rpc/testing/support.h"

#include "proto/tandem/v1/session.pb.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <string>
#include <vector>

namespace tandem::rpc::internal {
namespace {

using namespace testing;  // NOLINT: its bytes are most of this file

const std::string kHello =
    header_frame({{":status", "200"}, {"content-type", "application/grpc"}}, false);

/// The listening end, used by the test's thread.
class Peer {
 public:
  Peer() = default;

  ~Peer() {
    hang_up();
    ::close(bound_.fd);
  }

  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] std::string address() const { return bound_.address(); }

  /// Takes the connection and what comes first on it.
  void accept() {
    fd_ = ::accept(bound_.fd, nullptr, nullptr);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    EXPECT_EQ(read_bytes(fd_, 24), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  }

  void say(std::string_view bytes) const {
    ASSERT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
  }

  [[nodiscard]] Seen next(std::uint8_t type) const { return next_frame(fd_, type); }

  void hang_up() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  const LoopbackPort bound_ = bind_loopback(4);
  int fd_ = -1;
};

struct Heard {
  std::vector<std::string> messages;
  std::vector<Status> ended;
};

class Ear final : public H2CallHandler {
 public:
  Status on_message(H2Call& /*call*/, std::string_view bytes) override {
    notes.change([&](Heard& heard) { heard.messages.emplace_back(bytes); });
    return bytes == "no" ? aborted("the handler says no") : Status();
  }

  void on_ended(const Status& status) override {
    notes.change([&](Heard& heard) { heard.ended.push_back(status); });
  }

  Status end() {
    EXPECT_TRUE(notes.wait([](const Heard& heard) { return !heard.ended.empty(); }));
    const Heard heard = notes.get();
    EXPECT_EQ(heard.ended.size(), 1U);
    return heard.ended.empty() ? Status() : heard.ended[0];
  }

  testing::Notes<Heard> notes;
};

class H2CallTest : public ::testing::Test {
 public:
  Peer peer;
  std::shared_ptr<Ear> ear = std::make_shared<Ear>();

  std::shared_ptr<H2Call> open(ClientOptions options = {},
                               async::IoPool& pool = testing::io_pool()) {
    options.address = peer.address();
    if (options.connect_timeout == ClientOptions().connect_timeout)
      options.connect_timeout = seconds(60);
    // The peer of most tests answers no pings.
    if (options.keepalive == ClientOptions().keepalive) options.keepalive = seconds(60);
    auto call = H2Call::make(options, "/tandem.v1.Session/Open", pool, ear);
    EXPECT_TRUE(call.ok());
    (*call)->start();
    peer.accept();
    return *call;
  }

  /// The peer grants the call's stream `bytes` from here on.
  void let_send(std::uint32_t bytes) {
    std::string window;
    append_number(window, kInitialWindow, 2);
    append_number(window, bytes, 4);
    peer.say(frame(kSettings, 0, 0, window));
    // The answer to settings says that they count.
    while (peer.next(kSettings).flags != kAck) {
    }
  }
};

v1::SessionUp ping(std::uint64_t nonce) {
  v1::SessionUp up;
  up.mutable_ping()->set_nonce(nonce);
  return up;
}

TEST_F(H2CallTest, TheCallIsWhatGrpcExpects) {
  ClientOptions options;
  options.authorization = "Bearer key";
  auto call = open(options);
  EXPECT_EQ(peer.next(kSettings).flags, 0);
  const Seen head = peer.next(kHeaders);
  EXPECT_EQ(head.stream, kStream);
  EXPECT_EQ(head.flags, kEndHeaders);
  EXPECT_EQ(decode(head.payload),
            (std::vector<HeaderField>{{":method", "POST"},
                                      {":scheme", "http"},
                                      {":path", "/tandem.v1.Session/Open"},
                                      {":authority", peer.address()},
                                      {"te", "trailers"},
                                      {"content-type", "application/grpc"},
                                      {"user-agent", "tandem"},
                                      {"authorization", "Bearer key"}}));
  ASSERT_TRUE(call->send(ping(7)).ok());
  EXPECT_EQ(peer.next(kData).payload, message(ping(7).SerializeAsString()));
  call->finish();
  const Seen last = peer.next(kData);
  EXPECT_EQ(last.flags, kEndStream);
  EXPECT_TRUE(last.payload.empty());
  EXPECT_EQ(call->send(ping(8)).code(), Code::kUnavailable);
  peer.say(frame(kSettings, 0, 0, {}) + kHello + header_frame({{"grpc-status", "0"}}, true));
  const Status end = ear->end();
  EXPECT_TRUE(end.ok()) << end.message();
}

// Whatever the pieces in which the bytes come, and however messages lie in frames.
TEST_F(H2CallTest, MessagesComeWholeFromAnyPieces) {
  const std::uint64_t seed = 11;
  Random random(seed);
  std::vector<std::string> sent;
  std::string data;
  for (int i = 0; i < 60; ++i) {
    // One is larger than the room that a call keeps.
    const std::uint64_t most = i == 35 ? 2'000'000 : i % 10 == 0 ? 40'000 : 30;
    sent.emplace_back(i == 35 ? most : random.below(most), static_cast<char>('a' + i % 26));
    data += message(sent.back());
  }
  std::string stream = frame(kSettings, 0, 0, {}) + kHello;
  while (!data.empty()) {
    const std::size_t size = std::min<std::size_t>(data.size(), 1 + random.below(kFrameMax - 10));
    const bool padded = random.chance(0.3) && size < 1000;
    const std::string part = data.substr(0, size);
    data.erase(0, size);
    stream += padded ? frame(kData, kPadded, kStream, "\x03" + part + "xyz")
                     : frame(kData, 0, kStream, part);
    if (random.chance(0.3)) stream += frame(kPing, 0, 0, "12345678");
    if (random.chance(0.3)) stream += frame(0x42, 0xFF, 9, "not known");
  }
  stream += header_frame({{"grpc-status", "0"}}, true);
  auto call = open();
  while (!stream.empty()) {
    const std::size_t size =
        std::min<std::size_t>(stream.size(), 1 + random.below(random.chance(0.5) ? 7 : 9000));
    peer.say(stream.substr(0, size));
    stream.erase(0, size);
  }
  EXPECT_TRUE(ear->end().ok()) << "seed " << seed;
  EXPECT_EQ(ear->notes.get().messages, sent);
  EXPECT_EQ(peer.next(kPing).payload, "12345678");
}

TEST_F(H2CallTest, NoMoreIsSentThanThereIsRoomFor) {
  auto call = open();
  let_send(10);
  v1::SessionUp up;
  for (int i = 0; i < 30; ++i)
    up.mutable_submit()->mutable_request()->add_input_ids(1000 + i);
  const std::string wanted = message(up.SerializeAsString());
  ASSERT_TRUE(call->send(up).ok());
  std::string got = peer.next(kData).payload;
  EXPECT_EQ(got.size(), 10U);
  while (got.size() < wanted.size()) {
    peer.say(frame(kWindowUpdate, 0, kStream, number_text(7)));
    const Seen data = peer.next(kData);
    ASSERT_EQ(data.type, kData);
    ASSERT_LE(data.payload.size(), 7U);
    got += data.payload;
  }
  EXPECT_EQ(got, wanted);
}

// A backlog that never quite goes: what is gone is not kept.
TEST_F(H2CallTest, ABacklogIsSentInOrderHoweverLongItLasts) {
  auto call = open();
  let_send(0);
  const std::uint32_t room = 1000;
  std::string wanted;
  std::string got;
  for (int i = 0; i < 300; ++i) {
    v1::SessionUp up;
    up.mutable_submit()->mutable_request()->set_client_id(
        std::string(1000, static_cast<char>('a' + i % 26)));
    wanted += message(up.SerializeAsString());
    ASSERT_TRUE(call->send(up).ok());
    peer.say(frame(kWindowUpdate, 0, kStream, number_text(room)));
    peer.say(frame(kWindowUpdate, 0, 0, number_text(room)));
    for (std::size_t taken = 0; taken < room;) {
      const Seen data = peer.next(kData);
      ASSERT_EQ(data.type, kData);
      taken += data.payload.size();
      got += data.payload;
    }
  }
  EXPECT_EQ(got, wanted.substr(0, got.size()));
  EXPECT_EQ(got.size(), 300U * room);
}

// A thread of the pool puts its writes off until it has done what it is at, which may last.
TEST_F(H2CallTest, WhatIsSentLaterTakesAWriteThatWasPutOffAlong) {
  async::IoPool pool(1);
  auto call = open({}, pool);
  std::promise<void> seen;
  std::promise<bool> in_time;
  pool.post([&] {
    EXPECT_TRUE(call->send(ping(1)).ok());
    const Time later = steady_clock().now() + milliseconds(2);
    while (steady_clock().now() < later) {
    }
    EXPECT_TRUE(call->send(ping(2)).ok());
    // Too long only for what waits for the end of this.
    in_time.set_value(seen.get_future().wait_for(std::chrono::seconds(20)) ==
                      std::future_status::ready);
  });
  EXPECT_EQ(peer.next(kData).payload,
            message(ping(1).SerializeAsString()) + message(ping(2).SerializeAsString()));
  seen.set_value();
  EXPECT_TRUE(in_time.get_future().get());
  call->cancel(cancelled("the test is over"));
  EXPECT_EQ(ear->end().code(), Code::kCancelled);
}

// Where nothing comes along, waiting for it is given up. One thread of the pool, so that a write
// that was put off would wait for the end of the task.
TEST_F(H2CallTest, AMessageThatIsAloneEachTimeIsSentAtOnce) {
  async::IoPool pool(1);
  auto call = open({}, pool);
  for (std::uint64_t i = 1; i <= 32; ++i) {
    pool.post([&call, i] { EXPECT_TRUE(call->send(ping(i)).ok()); });
    EXPECT_EQ(peer.next(kData).payload, message(ping(i).SerializeAsString()));
  }
  std::promise<void> seen;
  std::promise<bool> in_time;
  pool.post([&] {
    EXPECT_TRUE(call->send(ping(41)).ok());
    EXPECT_TRUE(call->send(ping(42)).ok());
    // Too long only for what waits for the end of this.
    in_time.set_value(seen.get_future().wait_for(std::chrono::seconds(20)) ==
                      std::future_status::ready);
  });
  EXPECT_EQ(peer.next(kData).payload, message(ping(41).SerializeAsString()));
  seen.set_value();
  EXPECT_TRUE(in_time.get_future().get());
  // What came after it waited, and those that come together wait for each other again.
  EXPECT_EQ(peer.next(kData).payload, message(ping(42).SerializeAsString()));
  // The write that was put off is behind us after two turns of the pool's thread.
  for (int i = 0; i < 2; ++i) {
    std::promise<void> turned;
    pool.post([&] { turned.set_value(); });
    turned.get_future().wait();
  }
  pool.post([&] {
    EXPECT_TRUE(call->send(ping(43)).ok());
    EXPECT_TRUE(call->send(ping(44)).ok());
  });
  EXPECT_EQ(peer.next(kData).payload,
            message(ping(43).SerializeAsString()) + message(ping(44).SerializeAsString()));
  call->cancel(cancelled("the test is over"));
  EXPECT_EQ(ear->end().code(), Code::kCancelled);
}

TEST_F(H2CallTest, WhatCannotBeSentIsBounded) {
  ClientOptions options;
  options.queued_bytes_max = 1000;
  auto call = open(options);
  let_send(0);
  v1::SessionUp up;
  up.mutable_submit()->mutable_request()->set_client_id(std::string(300, 'x'));
  Status status;
  for (int i = 0; i < 10 && status.ok(); ++i)
    status = call->send(up);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(ear->end().code(), Code::kResourceExhausted);
  EXPECT_EQ(call->send(up).code(), Code::kUnavailable);
}

struct EndRow {
  const char* name;
  std::string says;
  Code want;
  const char* text;
};

TEST(H2CallEnds, EveryEndHasItsStatus) {
  const std::string goodbye = number_text(1) + number_text(0);
  const EndRow rows[] = {
      {"trailers",
       kHello + header_frame({{"grpc-status", "14"}, {"grpc-message", "a%20b%"}}, true),
       Code::kUnavailable,
       "a b%"},
      {"an answer that is an error",
       header_frame({{":status", "200"}, {"grpc-status", "16"}, {"grpc-message", "key"}}, true),
       Code::kUnauthenticated,
       "key"},
      {"a code that is not known",
       header_frame({{":status", "200"}, {"grpc-status", "99"}}, true),
       Code::kUnknown,
       ""},
      {"not gRPC", header_frame({{":status", "404"}}, true), Code::kUnimplemented, "HTTP 404"},
      {"no status",
       kHello + frame(kData, kEndStream, kStream, {}),
       Code::kUnknown,
       "without a status"},
      {"reset",
       kHello + frame(kResetStream, 0, kStream, number_text(kRefusedStream)),
       Code::kUnavailable,
       "reset"},
      {"goodbye with an error",
       frame(kGoAway, 0, 0, number_text(1) + number_text(11) + "calm"),
       Code::kUnavailable,
       "calm"},
      {"goodbye to what was not begun",
       frame(kGoAway, 0, 0, number_text(0) + number_text(0)),
       Code::kUnavailable,
       "ends"},
      {"goodbye, then the end",
       kHello + frame(kGoAway, 0, 0, goodbye) + header_frame({{"grpc-status", "0"}}, true),
       Code::kOk,
       ""},
      {"nothing", "", Code::kUnavailable, "lost"},
      {"half a frame", std::string("\0\0\x08\x06", 4), Code::kUnavailable, "lost"},
      {"a large frame", std::string("\x01\0\0\0\0\0\0\0\x01", 9), Code::kInternal, "wrong"},
      {"a ping of 4 bytes", frame(kPing, 0, 0, "1234"), Code::kInternal, "wrong"},
      {"a push",
       frame(kSettings, kAck, 0, {}) + frame(kPushPromise, kEndHeaders, kStream, "12345"),
       Code::kInternal,
       "wrong"},
      {"a header that is none",
       frame(kHeaders, kEndHeaders, kStream, "\x80"),
       Code::kInternal,
       "wrong"},
      {"a header that is interrupted",
       frame(kHeaders, 0, kStream, {}) + frame(kPing, 0, 0, "12345678"),
       Code::kInternal,
       "wrong"},
      {"a window of nothing", frame(kWindowUpdate, 0, 0, number_text(0)), Code::kInternal, "wrong"},
      {"a window too large",
       frame(kWindowUpdate, 0, 0, number_text(0x7FFFFFFF)),
       Code::kInternal,
       "wrong"},
      {"padding that is not there",
       frame(kData,
             kPadded,
             kStream,
             "\x05"
             "ab"),
       Code::kInternal,
       "wrong"},
      {"data of another stream", frame(kData, 0, 3, "ab"), Code::kInternal, "wrong"},
      {"a compressed message",
       kHello + frame(kData, 0, kStream, std::string("\x01\0\0\0\0", 5)),
       Code::kUnimplemented,
       "compressed"},
      {"a message too large",
       kHello + frame(kData, 0, kStream, std::string("\0\x7F\0\0\0", 5)),
       Code::kResourceExhausted,
       "limit"},
      {"the handler's own",
       kHello + frame(kData, 0, kStream, message("no") + message("more")),
       Code::kAborted,
       "says no"},
  };
  for (const EndRow& row : rows) {
    SCOPED_TRACE(row.name);
    Peer peer;
    const auto ear = std::make_shared<Ear>();
    const auto call = H2Call::make(
        {.address = peer.address(), .connect_timeout = seconds(60), .keepalive = seconds(60)},
        "/a/b",
        testing::io_pool(),
        ear);
    (*call)->start();
    peer.accept();
    (void)peer.next(kHeaders);
    peer.say(frame(kSettings, 0, 0, {}) + row.says);
    if (std::string_view(row.text) == "lost") peer.hang_up();
    const Status end = ear->end();
    EXPECT_EQ(end.code(), row.want) << end.message();
    EXPECT_NE(end.message().find(row.text), std::string::npos) << end.message();
    EXPECT_EQ((*call)->send(ping(1)).code(), Code::kUnavailable);
  }
}

TEST_F(H2CallTest, CancelTellsThePeer) {
  auto call = open();
  call->cancel(aborted("first"));
  call->cancel(aborted("second"));
  EXPECT_EQ(ear->end().message(), "first");
  const Seen reset = peer.next(kResetStream);
  // A connection that ends says the same, when it ends before the header was out.
  if (reset.type == kResetStream) {
    EXPECT_EQ(reset.payload, number_text(kCancel));
  }
}

TEST_F(H2CallTest, APeerThatFallsSilentIsGivenUp) {
  ClientOptions options;
  options.keepalive = milliseconds(20);
  auto call = open(options);
  EXPECT_EQ(peer.next(kPing).flags, 0);
  EXPECT_EQ(ear->end().code(), Code::kUnavailable);
  EXPECT_NE(ear->end().message().find("pings"), std::string::npos);
}

}  // namespace
}  // namespace tandem::rpc::internal
