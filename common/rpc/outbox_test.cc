// The outbox alone, over reactors that do what gRPC's do but in threads that a sanitizer can see:
// gRPC itself is built without instrumentation.
#include "common/rpc/internal/outbox.h"

#include "proto/tandem/v1/session.pb.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <thread>
#include <vector>

namespace tandem::rpc::internal {
namespace {

using Out = v1::SessionDown;

void merge(Out& into, Out&& more) {
  for (v1::TokenEvent& event : *more.mutable_step()->mutable_events()) {
    *into.mutable_step()->add_events() = std::move(event);
  }
}

Out step(std::uint64_t request, int index) {
  Out message;
  v1::TokenEvent* event = message.mutable_step()->add_events();
  event->set_request(request);
  event->set_first_index(index);
  return message;
}

Out tick() {
  Out message;
  message.mutable_tick();
  return message;
}

/// Writes complete when the test says so.
class ManualOps final : public StreamOps<Out> {
 public:
  void start_write(const Out* message) override { writes.push_back(*message); }

  void start_finish(const Status& status, bool broken) override {
    ++finishes;
    finish_status = status;
    finish_broken = broken;
  }

  void cancel_now(bool writing) override {
    ++cancels;
    cancelled_while_writing = writing;
  }

  std::vector<Out> writes;
  int finishes = 0;
  int cancels = 0;
  bool finish_broken = false;
  bool cancelled_while_writing = false;
  Status finish_status;
};

TEST(Outbox, OneWriteAtATimeAndMergesBehindIt) {
  Outbox<Out> outbox(1 << 20, merge);
  ManualOps ops;
  outbox.attach(&ops);
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(outbox.send_mergeable(step(1, i)).ok());
  EXPECT_TRUE(outbox.send(tick()).ok());
  ASSERT_EQ(ops.writes.size(), 1U);
  outbox.write_done(true);
  ASSERT_EQ(ops.writes.size(), 2U);
  EXPECT_TRUE(ops.writes[1].has_tick());  // ordered messages go before what merges
  outbox.write_done(true);
  ASSERT_EQ(ops.writes.size(), 3U);
  ASSERT_EQ(ops.writes[2].step().events_size(), 4);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(ops.writes[2].step().events(i).first_index(), i + 1);
  outbox.write_done(true);
  EXPECT_EQ(ops.writes.size(), 3U);
  EXPECT_EQ(ops.finishes, 0);
}

/// gRPC may report a write as done, on another thread, before StartWrite has returned.
class EarlyOps final : public StreamOps<Out> {
 public:
  explicit EarlyOps(Outbox<Out>* outbox) : outbox_(outbox) {}

  void start_write(const Out* message) override {
    ASSERT_EQ(++inside_, 1) << "one write at a time";
    std::thread([this] { outbox_->write_done(true); }).join();
    seen.push_back(message->step().events(0).first_index());
    --inside_;
  }

  void start_finish(const Status& /*status*/, bool /*broken*/) override { ++finishes; }

  void cancel_now(bool /*writing*/) override {}

  std::vector<std::uint32_t> seen;
  int finishes = 0;

 private:
  Outbox<Out>* outbox_;
  int inside_ = 0;
};

TEST(Outbox, AWriteThatIsDoneBeforeItsStartReturned) {
  Outbox<Out> outbox(1 << 20, merge);
  for (int i = 0; i < 4; ++i)
    EXPECT_TRUE(outbox.send(step(1, i)).ok());
  outbox.close(ok_status());
  EarlyOps ops(&outbox);
  outbox.attach(&ops);
  outbox.credit(0);
  EXPECT_EQ(ops.seen, (std::vector<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(ops.finishes, 1);
}

TEST(Outbox, TheWindowHoldsStepsButNotTicks) {
  Outbox<Out> outbox(1 << 20, merge);
  ManualOps ops;
  outbox.attach(&ops);
  outbox.set_window(2);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(outbox.send_mergeable(step(1, i)).ok());
    outbox.write_done(true);
  }
  EXPECT_EQ(ops.writes.size(), 2U);
  outbox.send_if_idle(tick());
  EXPECT_EQ(ops.writes.size(), 3U);
  outbox.write_done(true);
  outbox.credit(1);
  ASSERT_EQ(ops.writes.size(), 4U);
  EXPECT_EQ(ops.writes[3].step().events_size(), 3);
}

TEST(Outbox, CloseDrainsCancelDoesNot) {
  for (const bool drain : {true, false}) {
    SCOPED_TRACE(drain);
    Outbox<Out> outbox(1 << 20, merge);
    ManualOps ops;
    outbox.attach(&ops);
    outbox.set_window(1);
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(outbox.send_mergeable(step(1, i)).ok());
    drain ? outbox.close(aborted("why")) : outbox.cancel(aborted("why"));
    EXPECT_EQ(outbox.send(tick()).code(), Code::kUnavailable);
    EXPECT_EQ(ops.finishes, 0);  // a write is in flight
    EXPECT_EQ(ops.cancels, drain ? 0 : 1);
    outbox.write_done(drain);
    if (drain) {
      ASSERT_EQ(ops.writes.size(), 2U);
      EXPECT_EQ(ops.writes[1].step().events_size(), 2);  // closing lifts the window
      outbox.write_done(true);
    }
    EXPECT_EQ(ops.writes.size(), drain ? 2U : 1U);
    EXPECT_EQ(ops.finishes, 1);
    EXPECT_EQ(ops.finish_broken, !drain);
    EXPECT_EQ(ops.finish_status.code(), Code::kAborted);
    outbox.close(ok_status());
    outbox.cancel(ok_status());
    outbox.write_done(true);
    EXPECT_EQ(ops.finishes, 1);  // once, whatever comes
    EXPECT_EQ(outbox.detach()->code(), Code::kAborted);
  }
}

TEST(Outbox, TheBoundCountsWhatWaits) {
  Outbox<Out> outbox(1000, merge);
  ManualOps ops;
  outbox.attach(&ops);
  Status status;
  int sent = 0;
  while (status.ok() && sent < 1000)
    status = outbox.send_mergeable(step(1, ++sent));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_GT(sent, 10);
  EXPECT_TRUE(outbox.closed());
  EXPECT_TRUE(ops.cancelled_while_writing);
  outbox.write_done(false);
  EXPECT_EQ(ops.finishes, 1);
  EXPECT_EQ(outbox.detach()->code(), Code::kResourceExhausted);
}

TEST(Outbox, WhatWasSentOrEndedBeforeThereWasAStream) {
  Outbox<Out> outbox(1000);
  ManualOps ops;
  EXPECT_TRUE(outbox.send(tick()).ok());
  outbox.attach(&ops);
  outbox.credit(0);
  EXPECT_EQ(ops.writes.size(), 1U);
  Outbox<Out> ended(1000);
  ended.cancel(aborted("early"));
  ManualOps late;
  ended.attach(&late);
  ended.credit(0);
  EXPECT_EQ(late.cancels, 1);
  EXPECT_EQ(late.finishes, 1);
}

/// Completes writes on its own thread and dies after its finish, as reactors do.
class ThreadedOps final : public StreamOps<Out> {
 public:
  ThreadedOps(Outbox<Out>* outbox, std::vector<int>* next) : outbox_(outbox), next_(next) {
    thread_ = std::thread([this] { run(); });
  }

  ~ThreadedOps() override { thread_.join(); }

  void start_write(const Out* message) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(writing_, nullptr);
    writing_ = message;
    wake_.notify_all();
  }

  void start_finish(const Status& /*status*/, bool /*broken*/) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finished_);
    EXPECT_EQ(writing_, nullptr);
    finished_ = true;
    wake_.notify_all();
  }

  void cancel_now(bool /*writing*/) override {}

  void join() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return done_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return writing_ != nullptr || finished_; });
      if (writing_ == nullptr) break;
      for (const v1::TokenEvent& event : writing_->step().events()) {
        EXPECT_EQ(event.first_index(), (*next_)[event.request()]++);
      }
      writing_ = nullptr;
      lock.unlock();
      outbox_->credit(1);
      outbox_->write_done(true);
      lock.lock();
    }
    (void)outbox_->detach();
    done_ = true;
    wake_.notify_all();
  }

  Outbox<Out>* outbox_;
  std::vector<int>* next_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const Out* writing_ = nullptr;
  bool finished_ = false;
  bool done_ = false;
  std::thread thread_;
};

TEST(Outbox, ManySendersOneStream) {
  constexpr int kSenders = 4;
  constexpr int kSteps = 500;
  for (int round = 0; round < 5; ++round) {
    Outbox<Out> outbox(64 << 20, merge);
    std::vector<int> next(kSenders, 0);
    auto ops = std::make_unique<ThreadedOps>(&outbox, &next);
    outbox.attach(ops.get());
    outbox.set_window(3);
    std::vector<std::thread> senders;
    for (int s = 0; s < kSenders; ++s) {
      senders.emplace_back([&outbox, s] {
        for (int i = 0; i < kSteps; ++i) {
          EXPECT_TRUE(outbox.send_mergeable(step(static_cast<std::uint64_t>(s), i)).ok());
          outbox.send_if_idle(tick());
        }
      });
    }
    for (std::thread& sender : senders)
      sender.join();
    outbox.close(ok_status());
    ops->join();
    ops.reset();
    EXPECT_EQ(next, std::vector<int>(kSenders, kSteps));
    EXPECT_EQ(outbox.send(tick()).code(), Code::kUnavailable);
  }
}

}  // namespace
}  // namespace tandem::rpc::internal
