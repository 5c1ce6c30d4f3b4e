#include "common/fleet/flight_table.h"

#include "common/base/random.h"
#include "common/fleet/flight_fixture.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

namespace tandem::fleet {
namespace {

TEST(FlightTable, UnifiedRequestRunsThrough) {
  Book book;
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  const auto submits = all<SubmitTo>(book.take());
  ASSERT_EQ(submits.size(), 1U);
  EXPECT_EQ(submits[0].worker, WorkerKey{1});
  EXPECT_EQ(submits[0].role, LegRole::kUnified);
  book.table.on_event({1}, tokens({7}, 0, 2), {}, book.out);
  book.table.on_event({1}, tokens({7}, 2, 2, true), {}, book.out);
  const auto emitted = all<Emit>(book.take());
  ASSERT_EQ(emitted.size(), 2U);
  EXPECT_EQ(emitted[1].event.first_index, 2);
  EXPECT_EQ(emitted[1].event.prompt_tokens, 3);
  EXPECT_TRUE(emitted[1].event.finish.has_value());
  EXPECT_EQ(book.table.active_count(), 0U);
  EXPECT_EQ(book.table.active_at({1}), 0U);
}

TEST(FlightTable, LostWorkerIsReplacedAndContinuesWithWhatTheClientHas) {
  Book book;
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_event({1}, tokens({7}, 0, 2), {}, book.out);
  book.take();
  book.table.on_worker_lost({1}, unavailable("gone"), {}, book.out);
  const auto submits = all<SubmitTo>(book.take());
  ASSERT_EQ(submits.size(), 1U);
  EXPECT_EQ(submits[0].worker, WorkerKey{2});
  EXPECT_EQ(submits[0].request->id, core::RequestId{1000});
  EXPECT_EQ(submits[0].request->resumed_output_ids, (std::vector<core::TokenId>{100, 101}));
  book.table.on_event({1}, tokens({7}, 2, 1), {}, book.out);  // a late word of the dead
  EXPECT_TRUE(book.take().empty());
  EXPECT_EQ(book.table.stats().stale_events, 1U);
  book.table.on_event({2}, tokens({1000}, 2, 2, true), {}, book.out);
  const auto emitted = all<Emit>(book.take());
  ASSERT_EQ(emitted.size(), 1U);
  EXPECT_EQ(emitted[0].event.request, core::RequestId{7});
  EXPECT_EQ(emitted[0].event.first_index, 2);
}

TEST(FlightTable, WithoutAnotherWorkerItWaitsAndThenFailsCleanly) {
  Book book;
  book.main = {{1}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_event({1}, tokens({7}, 0, 1), {}, book.out);
  book.take();
  book.table.on_worker_lost({1}, unavailable("killed"), Time{0}, book.out);
  EXPECT_TRUE(book.take().empty());
  book.main.clear();
  const Time end = Time{0} + milliseconds(1500);
  while (*book.table.next_deadline() < end)
    book.table.on_time(*book.table.next_deadline(), book.out);
  EXPECT_TRUE(book.take().empty());
  book.table.on_time(end, book.out);
  const auto emitted = all<Emit>(book.take());
  ASSERT_EQ(emitted.size(), 1U);
  EXPECT_EQ(emitted[0].event.finish->status.code(), Code::kUnavailable);
  EXPECT_EQ(book.table.active_count(), 0U);
}

TEST(FlightTable, WhenTimeMattersIsKnownWithoutLooking) {
  Book book;
  EXPECT_FALSE(book.table.next_deadline());
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  EXPECT_FALSE(book.table.next_deadline());
  for (const std::int64_t deadline : {90, 50, 70}) {
    core::Request request = request_of(static_cast<std::uint64_t>(deadline));
    request.deadline = Time{deadline};
    ASSERT_TRUE(book.table.begin(std::move(request), {}, book.out).ok());
  }
  book.take();
  EXPECT_EQ(book.table.next_deadline(), Time{50});
  book.table.on_time(Time{49}, book.out);
  EXPECT_TRUE(book.take().empty());
  // The one that has ended costs a look, and then counts no more.
  book.table.on_event({1}, tokens({50}, 0, 1, true), {}, book.out);
  book.take();
  EXPECT_EQ(book.table.next_deadline(), Time{50});
  book.table.on_time(Time{50}, book.out);
  EXPECT_TRUE(book.take().empty());
  EXPECT_EQ(book.table.next_deadline(), Time{70});
  // One that waits for another worker is looked at before its deadline.
  book.main.clear();
  book.table.on_event({1}, core::aborted_event({90}, aborted("a fault")), Time{60}, book.out);
  const Time look_again = Time{60} + milliseconds(100);
  EXPECT_EQ(book.table.next_deadline(), Time{70});
  book.table.on_time(Time{70}, book.out);
  EXPECT_EQ(all<Emit>(book.take()).size(), 1U);
  EXPECT_EQ(book.table.next_deadline(), Time{90});
  book.table.on_time(Time{90}, book.out);
  EXPECT_EQ(all<Emit>(book.take()).size(), 1U);
  EXPECT_FALSE(book.table.next_deadline());
  // The first request has no deadline of its own, but waits as well.
  book.table.on_worker_lost({1}, unavailable("killed"), Time{60}, book.out);
  EXPECT_EQ(book.table.next_deadline(), look_again);
}

TEST(FlightTable, AWorkerThatComesInTimeTakesOver) {
  Book book;
  book.main = {{1}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_worker_lost({1}, unavailable("killed"), Time{0}, book.out);
  book.take();
  book.main = {{3}};
  book.table.on_worker_up({}, book.out);
  const auto submits = all<SubmitTo>(book.take());
  ASSERT_EQ(submits.size(), 1U);
  EXPECT_EQ(submits[0].worker, WorkerKey{3});
  EXPECT_EQ(submits[0].attempt, 1U);
}

TEST(FlightTable, DecodeMayOvertakePrefill) {
  Book book;
  book.prefill = {{11}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  const auto submits = all<SubmitTo>(book.take());
  ASSERT_EQ(submits.size(), 2U);
  EXPECT_EQ(submits[0].role, LegRole::kDecode);
  EXPECT_EQ(submits[0].peer, WorkerKey{11});
  EXPECT_EQ(submits[1].role, LegRole::kPrefill);
  EXPECT_EQ(submits[1].peer, WorkerKey{1});
  book.table.on_event({1}, tokens({7}, 1, 1), {}, book.out);
  book.table.on_event({1}, tokens({7}, 2, 2, true), {}, book.out);
  EXPECT_TRUE(book.take().empty());
  book.table.on_event({11}, tokens({7}, 0, 1), {}, book.out);
  const auto emitted = all<Emit>(book.take());
  ASSERT_EQ(emitted.size(), 3U);
  for (std::int32_t i = 0; i < 3; ++i)
    EXPECT_EQ(emitted[static_cast<std::size_t>(i)].event.first_index, i);
  EXPECT_TRUE(emitted[2].event.finish.has_value());
}

TEST(FlightTable, FinishAtTheFirstTokenEndsDecode) {
  Book book;
  book.prefill = {{11}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  book.table.on_event({11}, tokens({7}, 0, 1, true), {}, book.out);
  const auto actions = book.take();
  ASSERT_EQ(all<Emit>(actions).size(), 1U);
  const auto aborts = all<AbortAt>(actions);
  ASSERT_EQ(aborts.size(), 1U);
  EXPECT_EQ(aborts[0].worker, WorkerKey{1});
}

TEST(FlightTable, PrefillMayDieAfterDecodeHasStarted) {
  Book book;
  book.prefill = {{11}, {12}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_event({11}, tokens({7}, 0, 1), {}, book.out);
  book.table.on_event({1}, tokens({7}, 1, 1), {}, book.out);
  book.take();
  book.table.on_worker_lost({11}, unavailable("killed"), {}, book.out);
  EXPECT_TRUE(book.take().empty());
  book.table.on_event({1}, tokens({7}, 2, 2, true), {}, book.out);
  EXPECT_TRUE(all<Emit>(book.take())[0].event.finish.has_value());
}

TEST(FlightTable, PrefillDiesBeforeTheHandOff) {
  Book book;
  book.prefill = {{11}, {12}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_event({11}, tokens({7}, 0, 1), {}, book.out);
  book.take();
  book.table.on_worker_lost({11}, unavailable("killed"), {}, book.out);
  const auto actions = book.take();
  ASSERT_EQ(all<AbortAt>(actions).size(), 1U);
  EXPECT_EQ(all<AbortAt>(actions)[0].worker, WorkerKey{1});
  const auto submits = all<SubmitTo>(actions);
  ASSERT_EQ(submits.size(), 2U);
  EXPECT_EQ(submits[1].worker, WorkerKey{12});
  EXPECT_EQ(submits[0].request->resumed_output_ids.size(), 1U);
}

TEST(FlightTable, DecodeThatMissesItsPrefillIsNotToBlame) {
  Book book;
  book.main = {{1}};
  book.prefill = {{11}, {12}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  book.table.on_event(
      {1}, core::aborted_event({7}, unavailable("prefill worker lost")), {}, book.out);
  const auto submits = all<SubmitTo>(book.take());
  ASSERT_EQ(submits.size(), 2U);
  EXPECT_EQ(submits[0].worker, WorkerKey{1});
  EXPECT_EQ(submits[1].worker, WorkerKey{12});
}

TEST(FlightTable, APairThatDoesNotFitIsLeftForAnotherOrEndsAtOnce) {
  Book book;
  book.main = {{1}};
  book.prefill = {{11}, {12}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  book.table.on_event(
      {1}, core::aborted_event({7}, failed_precondition("page_size")), {}, book.out);
  const auto submits = all<SubmitTo>(book.take());
  ASSERT_EQ(submits.size(), 2U);
  EXPECT_EQ(submits[1].worker, WorkerKey{12});
  book.table.on_event(
      {1}, core::aborted_event({1000}, failed_precondition("page_size")), {}, book.out);
  const auto emitted = all<Emit>(book.take());
  ASSERT_EQ(emitted.size(), 1U);
  EXPECT_EQ(emitted[0].event.finish->status.code(), Code::kUnavailable);
  EXPECT_EQ(emitted[0].event.finish->status.message(), "page_size");
}

TEST(FlightTable, TheOnlyWorkerIsTriedAgainAfterAPause) {
  Book book;
  book.main = {{1}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  book.table.on_event({1}, core::aborted_event({7}, aborted("a passing fault")), Time{0}, book.out);
  EXPECT_TRUE(book.take().empty());
  book.table.on_time(Time{0} + milliseconds(100), book.out);
  EXPECT_EQ(all<SubmitTo>(book.take()).size(), 1U);
}

TEST(FlightTable, RequestErrorsAreNotRetried) {
  Book book;
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_rejected({1}, {7}, invalid_argument("too long"), {}, book.out);
  const auto actions = book.take();
  ASSERT_EQ(all<Emit>(actions).size(), 1U);
  EXPECT_EQ(all<Emit>(actions)[0].event.finish->status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(all<SubmitTo>(actions).size() == 1U) << "only the first submit";
}

TEST(FlightTable, ALongerContextElsewhereIsTried) {
  Book book;
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  const Status too_long{Code::kOutOfRange, "its --context-length is 256"};
  book.table.on_rejected({1}, {7}, too_long, {}, book.out);
  auto actions = book.take();
  ASSERT_EQ(all<SubmitTo>(actions).size(), 1U);
  EXPECT_EQ(all<SubmitTo>(actions)[0].worker, WorkerKey{2});
  EXPECT_TRUE(all<Emit>(actions).empty());
  const core::RequestId second = all<SubmitTo>(actions)[0].request->id;
  book.table.on_rejected({2}, second, too_long, {}, book.out);
  actions = book.take();
  ASSERT_EQ(all<Emit>(actions).size(), 1U) << "nobody else is there: told at once";
  EXPECT_EQ(all<Emit>(actions)[0].event.finish->status.code(), Code::kOutOfRange);
}

TEST(FlightTable, ALongerContextElsewhereIsTriedAlsoWhenTheWorkerSaysItLater) {
  Book book;
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  const auto refusal = [](core::RequestId id) {
    return core::aborted_event(id, {Code::kOutOfRange, "outgrown"});
  };
  book.table.on_event({1}, refusal({7}), {}, book.out);
  auto actions = book.take();
  ASSERT_EQ(all<SubmitTo>(actions).size(), 1U);
  EXPECT_EQ(all<SubmitTo>(actions)[0].worker, WorkerKey{2});
  book.table.on_event({2}, refusal(all<SubmitTo>(actions)[0].request->id), {}, book.out);
  actions = book.take();
  ASSERT_EQ(all<Emit>(actions).size(), 1U);
  EXPECT_EQ(all<Emit>(actions)[0].event.finish->status.code(), Code::kOutOfRange);
}

TEST(FlightTable, AShortContextElsewhereDoesNotEndTheWaitForTheLostWorker) {
  Book book;
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  book.main = {{2}};
  book.table.on_worker_lost({1}, unavailable("killed"), Time{0}, book.out);
  auto actions = book.take();
  ASSERT_EQ(all<SubmitTo>(actions).size(), 1U);
  const Status too_long{Code::kOutOfRange, "its --context-length is 256"};
  book.table.on_rejected({2}, all<SubmitTo>(actions)[0].request->id, too_long, Time{0}, book.out);
  EXPECT_TRUE(all<Emit>(book.take()).empty());
  book.table.on_time(Time{0} + milliseconds(200), book.out);
  EXPECT_TRUE(all<SubmitTo>(book.take()).empty()) << "it is not asked again";
  book.main = {{2}, {3}};
  book.table.on_worker_up(Time{0} + milliseconds(300), book.out);
  actions = book.take();
  ASSERT_EQ(all<SubmitTo>(actions).size(), 1U);
  EXPECT_EQ(all<SubmitTo>(actions)[0].worker, WorkerKey{3});
}

TEST(FlightTable, ClientAbortReachesBothWorkers) {
  Book book;
  book.prefill = {{11}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.take();
  book.table.abort({7}, cancelled("client left"), book.out);
  const auto actions = book.take();
  EXPECT_EQ(all<AbortAt>(actions).size(), 2U);
  EXPECT_EQ(all<Emit>(actions).size(), 1U);
  EXPECT_EQ(book.table.active_count(), 0U);
}

TEST(FlightTable, DeadlineEndsARequest) {
  Book book;
  core::Request request = request_of(7);
  request.deadline = Time{50};
  ASSERT_TRUE(book.table.begin(std::move(request), {}, book.out).ok());
  book.take();
  book.table.on_time(Time{50}, book.out);
  const auto actions = book.take();
  EXPECT_EQ(all<AbortAt>(actions).size(), 1U);
  EXPECT_EQ(all<Emit>(actions)[0].event.finish->status.code(), Code::kDeadlineExceeded);
}

TEST(FlightTable, NobodyThereIsSaidAtOnce) {
  Book book;
  book.main.clear();
  EXPECT_EQ(book.table.begin(request_of(7), {}, book.out).code(), Code::kUnavailable);
  EXPECT_EQ(book.table.active_count(), 0U);
}

/// Random worlds: workers die, events are delayed and repeated; every client gets exactly the
/// tokens, or an error.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {
    disaggregated_ = random_.chance(0.5);
    for (std::uint64_t i = 0; i < 3; ++i)
      start_worker();
  }

  void run() {
    std::uint64_t next_request = 1;
    for (int step = 0; step < 400; ++step) {
      now_ = now_ + milliseconds(20);
      const std::uint64_t roll = random_.below(20);
      if (roll < 3) begin({next_request++});
      if (roll == 4 && random_.chance(0.3)) kill_worker();
      if (roll == 5) start_worker();
      if (roll == 6 && !wanted_.empty() && random_.chance(0.3)) {
        table_.abort(wanted_.begin()->first, cancelled("client"), out_);
      }
      deliver_some();
      table_.on_time(now_, out_);
      apply();
    }
    for (int step = 0; step < 3000 && table_.active_count() > 0; ++step) {
      now_ = now_ + milliseconds(20);
      if (workers_.size() < 2) start_worker();
      deliver_some();
      table_.on_time(now_, out_);
      apply();
    }
    EXPECT_EQ(table_.active_count(), 0U);
    EXPECT_TRUE(wanted_.empty());
    EXPECT_EQ(table_.stats().differing_tokens, 0U);
  }

 private:
  struct Wanted {
    std::int32_t count = 0;
    std::int32_t have = 0;
  };

  struct Message {
    WorkerKey worker;
    core::TokenEvent event;
  };

  void begin(core::RequestId id) {
    const auto count = static_cast<std::int32_t>(1 + random_.below(6));
    wanted_[id] = {count, 0};
    if (!table_.begin(request_of(id.value, count), now_, out_).ok()) wanted_.erase(id);
    apply();
  }

  void start_worker() {
    workers_.insert({++last_worker_});
    table_.on_worker_up(now_, out_);
    apply();
  }

  void kill_worker() {
    if (workers_.empty()) return;
    auto victim = workers_.begin();
    std::advance(victim, static_cast<std::ptrdiff_t>(random_.below(workers_.size())));
    const WorkerKey key = *victim;
    workers_.erase(victim);
    table_.on_worker_lost(key, unavailable("killed"), now_, out_);
    apply();
  }

  void serve(const SubmitTo& submit) {
    if (!workers_.contains(submit.worker)) return;
    const auto from = static_cast<std::int32_t>(submit.request->resumed_output_ids.size());
    const std::int32_t until = submit.request->sampling.max_new_tokens;
    if (random_.chance(0.03)) {
      queue_.push_back(
          {submit.worker, core::aborted_event(submit.request->id, unavailable("peer lost"))});
      return;
    }
    const std::int32_t begin = submit.role == LegRole::kDecode ? from + 1 : from;
    const std::int32_t end = submit.role == LegRole::kPrefill ? from + 1 : until;
    for (std::int32_t i = begin; i < end; ++i) {
      queue_.push_back({submit.worker, tokens(submit.request->id, i, 1, i + 1 == until)});
    }
  }

  /// Order is kept per worker, not between workers.
  void deliver_some() {
    for (int n = 0; n < 3 && !queue_.empty(); ++n) {
      const auto pick = static_cast<std::ptrdiff_t>(random_.below(queue_.size()));
      const WorkerKey worker = queue_[static_cast<std::size_t>(pick)].worker;
      const auto first = std::find_if(
          queue_.begin(), queue_.end(), [&](const Message& m) { return m.worker == worker; });
      const Message message = *first;
      queue_.erase(first);
      table_.on_event(message.worker, message.event, now_, out_);
      if (random_.chance(0.02)) table_.on_event(message.worker, message.event, now_, out_);
      apply();
    }
  }

  void apply() {
    while (!out_.empty()) {
      for (const FlightAction& action : std::exchange(out_, {})) {
        if (const auto* submit = std::get_if<SubmitTo>(&action)) serve(*submit);
        if (const auto* emit = std::get_if<Emit>(&action)) check(emit->event);
      }
    }
  }

  void check(const core::TokenEvent& event) {
    const auto found = wanted_.find(event.request);
    ASSERT_NE(found, wanted_.end()) << "an event after the end";
    Wanted& want = found->second;
    EXPECT_EQ(event.first_index, want.have);
    for (const core::TokenId token : event.tokens)
      EXPECT_EQ(token, token_at(want.have++));
    if (!event.finish) return;
    if (event.finish->kind != core::FinishKind::kAbort) {
      EXPECT_EQ(want.have, want.count);
    }
    wanted_.erase(found);
  }

  std::optional<Placement> pick(const std::set<WorkerKey>& tried) {
    std::vector<WorkerKey> fresh;
    for (const WorkerKey key : workers_) {
      if (!tried.contains(key)) fresh.push_back(key);
    }
    if (fresh.empty()) fresh.assign(workers_.begin(), workers_.end());
    if (fresh.size() < (disaggregated_ ? 2U : 1U)) return std::nullopt;
    const std::size_t first = random_.below(fresh.size());
    if (!disaggregated_) return Placement{fresh[first], std::nullopt};
    const std::size_t second = (first + 1 + random_.below(fresh.size() - 1)) % fresh.size();
    return Placement{fresh[first], fresh[second]};
  }

  Random random_;
  bool disaggregated_ = false;
  Time now_;
  std::uint64_t last_worker_ = 0;
  std::uint64_t next_wire_ = 1'000'000;
  std::set<WorkerKey> workers_;
  std::map<core::RequestId, Wanted> wanted_;
  std::deque<Message> queue_;
  std::vector<FlightAction> out_;
  FlightTable table_{
      {.draw_id = [this] { return core::RequestId{next_wire_++}; }},
      [this](const core::Request&, const std::set<WorkerKey>& tried) { return pick(tried); }};
};

TEST(FlightTable, ExactlyOnceInRandomWorlds) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    World world(seed);
    world.run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::fleet
