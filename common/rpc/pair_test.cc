#include "common/rpc/pair.h"

#include "common/rpc/testing/support.h"

#include <thread>

namespace tandem::rpc {
namespace {

using testing::address_of;
using testing::Notes;
using testing::start_server;

struct PairNotes {
  std::vector<std::weak_ptr<PairStream>> streams;  // weak: a stream holds its handler
  std::vector<v1::PairMessage> messages;
  std::vector<Status> closed;
};

class FakeSide final : public PairHandler {
 public:
  void on_open(const PairStreamPtr& stream) override {
    notes.change([&](PairNotes& n) { n.streams.push_back(stream); });
  }

  void on_message(const PairStreamPtr& stream, v1::PairMessage&& message) override {
    if (hook) hook(stream, message);
    notes.change([&](PairNotes& n) { n.messages.push_back(std::move(message)); });
  }

  void on_closed(const PairStreamPtr& /*stream*/, const Status& status) override {
    notes.change([&](PairNotes& n) { n.closed.push_back(status); });
  }

  Notes<PairNotes> notes;
  std::function<void(const PairStreamPtr&, const v1::PairMessage&)> hook;
};

v1::PairMessage grant(std::uint32_t first_page) {
  v1::PairMessage message;
  v1::Grant& g = *message.mutable_grant();
  g.mutable_name()->set_request_id(1);
  g.set_first_page(first_page);
  return message;
}

v1::PairMessage hello(std::uint64_t incarnation) {
  v1::PairMessage message;
  message.mutable_link_offer()->set_incarnation(incarnation);
  return message;
}

class PairTest : public ::testing::Test {
 public:
  std::shared_ptr<FakeSide> prefill = std::make_shared<FakeSide>();
  std::shared_ptr<FakeSide> decode = std::make_shared<FakeSide>();
  std::unique_ptr<Server> server = start_server({make_pair_service(prefill)});

  PairStreamPtr open() {
    auto stream =
        open_pair({.address = address_of(*server), .connect_timeout = seconds(20)}, decode);
    EXPECT_TRUE(stream.ok());
    return std::move(stream).value();
  }
};

TEST_F(PairTest, MessagesBothWaysInOrder) {
  prefill->hook = [](const PairStreamPtr& stream, const v1::PairMessage& message) {
    if (message.has_link_offer()) {
      EXPECT_TRUE(stream->send(hello(2)).ok());
      return;
    }
    v1::PairMessage answer;
    answer.mutable_commit()->set_unit_count(message.grant().first_page());
    EXPECT_TRUE(stream->send(std::move(answer)).ok());
  };
  const PairStreamPtr stream = open();
  ASSERT_TRUE(stream->send(hello(1)).ok());
  constexpr std::uint32_t kCount = 500;
  for (std::uint32_t i = 0; i < kCount; ++i)
    ASSERT_TRUE(stream->send(grant(i)).ok());
  ASSERT_TRUE(
      decode->notes.wait([](const PairNotes& n) { return n.messages.size() == kCount + 1; }));
  const PairNotes got = decode->notes.get();
  EXPECT_EQ(got.messages[0].link_offer().incarnation(), 2U);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(got.messages[i + 1].commit().unit_count(), i);
  }
  EXPECT_NE(stream->number(), prefill->notes.get().streams[0].lock()->number());
}

TEST_F(PairTest, RefusalArrivesBeforeTheEnd) {
  prefill->hook = [](const PairStreamPtr& stream, const v1::PairMessage& /*message*/) {
    v1::PairMessage answer;
    answer.mutable_link_answer()->set_reason("page_size: prefill has 16, decode has 32");
    EXPECT_TRUE(stream->send(std::move(answer)).ok());
    stream->close(failed_precondition("page_size differs"));
  };
  const PairStreamPtr stream = open();
  ASSERT_TRUE(stream->send(hello(1)).ok());
  ASSERT_TRUE(decode->notes.wait([](const PairNotes& n) { return !n.closed.empty(); }));
  const PairNotes got = decode->notes.get();
  ASSERT_EQ(got.messages.size(), 1U);
  EXPECT_EQ(got.messages[0].link_answer().reason(), "page_size: prefill has 16, decode has 32");
  EXPECT_EQ(got.closed[0].code(), Code::kFailedPrecondition);
  EXPECT_EQ(got.closed[0].message(), "page_size differs");
  EXPECT_EQ(stream->send(grant(0)).code(), Code::kUnavailable);
}

TEST_F(PairTest, CloseCancelAndShutdownFromEitherSide) {
  struct Row {
    const char* name;
    std::function<void(PairTest&, const PairStreamPtr&, const PairStreamPtr&)> end;
    Code client_sees;
    Code server_sees;
  };

  const Row rows[] = {
      {"client closes",
       [](PairTest&, const PairStreamPtr& c, const PairStreamPtr&) { c->close(ok_status()); },
       Code::kOk,
       Code::kOk},
      {"client cancels",
       [](PairTest&, const PairStreamPtr& c, const PairStreamPtr&) {
         c->cancel(aborted("enough"));
       },
       Code::kAborted,
       Code::kCancelled},
      {"server closes",
       [](PairTest&, const PairStreamPtr&, const PairStreamPtr& s) { s->close(aborted("enough")); },
       Code::kAborted,
       Code::kAborted},
      {"server cancels",
       [](PairTest&, const PairStreamPtr&, const PairStreamPtr& s) {
         s->cancel(aborted("enough"));
       },
       Code::kAborted,
       Code::kAborted},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    prefill->notes.change([](PairNotes& n) { n = {}; });
    decode->notes.change([](PairNotes& n) { n = {}; });
    const PairStreamPtr stream = open();
    ASSERT_TRUE(stream->send(hello(1)).ok());
    ASSERT_TRUE(prefill->notes.wait([](const PairNotes& n) { return n.messages.size() == 1; }));
    row.end(*this, stream, prefill->notes.get().streams[0].lock());
    ASSERT_TRUE(decode->notes.wait([](const PairNotes& n) { return n.closed.size() == 1; }));
    ASSERT_TRUE(prefill->notes.wait([](const PairNotes& n) { return n.closed.size() == 1; }));
    EXPECT_EQ(decode->notes.get().closed[0].code(), row.client_sees);
    EXPECT_EQ(prefill->notes.get().closed[0].code(), row.server_sees);
  }
}

TEST_F(PairTest, WriteAgainstAStoppedReaderIsBounded) {
  auto small = start_server({make_pair_service(prefill, {.queued_bytes_max = 100'000})});
  std::atomic<bool> release{false};
  decode->hook = [&](const PairStreamPtr&, const v1::PairMessage&) {
    while (!release)
      std::this_thread::yield();
  };
  auto stream = open_pair({.address = address_of(*small), .connect_timeout = seconds(20)}, decode);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE((*stream)->send(hello(1)).ok());
  ASSERT_TRUE(prefill->notes.wait([](const PairNotes& n) { return n.messages.size() == 1; }));
  const PairStreamPtr sender = prefill->notes.get().streams[0].lock();
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    v1::PairMessage message;
    message.mutable_commit()->set_state(std::string(10'000, 'x'));
    status = sender->send(std::move(message));
  }
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  release = true;
  ASSERT_TRUE(prefill->notes.wait([](const PairNotes& n) { return n.closed.size() == 1; }));
  EXPECT_EQ(prefill->notes.get().closed[0].code(), Code::kResourceExhausted);
  ASSERT_TRUE(decode->notes.wait([](const PairNotes& n) { return n.closed.size() == 1; }));
}

}  // namespace
}  // namespace tandem::rpc
