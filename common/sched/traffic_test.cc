#include "common/base/random.h"
#include "common/sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tandem::sched {
namespace {

constexpr std::int32_t kNoLimit = 1 << 30;

/// Random traffic: everything ends, budgets are kept, no page is lost, in any mode.
class Traffic {
 public:
  explicit Traffic(std::uint64_t seed)
      : random_(seed), options_(draw_options()), scheduler_(options_) {}

  void run() {
    int quiet = 0;
    for (int i = 0; i < 600 || scheduler_.sequence_count() > 0; ++i) {
      ASSERT_LT(i, 20000) << "someone starves";
      if (i < 600) arrive();
      const auto plan = scheduler_.plan();
      quiet = plan.empty() ? quiet + 1 : 0;
      ASSERT_TRUE(quiet < 50 || i < 600 || scheduler_.idle()) << "stuck";
      check_plan(plan);
      const std::vector<WorkItem> items(plan.begin(), plan.end());
      for (const WorkItem& item : items)
        compute(item);
      if (i % 4 == 0 || i >= 600) disturb(i >= 600);
      const Status status = scheduler_.check();
      ASSERT_TRUE(status.ok()) << "step " << i << ": " << status.message();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(ended_, started_);
    scheduler_.flush_cache();
    EXPECT_EQ(scheduler_.cache().pool().free_count(), options_.page_count);
  }

 private:
  SchedulerOptions draw_options() {
    SchedulerOptions options;
    options.page_size = 1 + static_cast<std::int32_t>(random_.below(4));
    options.page_count = 12 + static_cast<std::int64_t>(random_.below(30));
    options.prefix_reuse = random_.chance(0.7);
    options.context_length = 40;
    options.max_running_requests = 1 + static_cast<std::int32_t>(random_.below(8));
    options.chunked_prefill_size =
        random_.chance(0.3) ? -1 : 1 + static_cast<std::int32_t>(random_.below(12));
    options.max_prefill_tokens = 1 + static_cast<std::int32_t>(random_.below(60));
    options.mixed_chunk = random_.chance(0.5);
    options.policy = random_.chance(0.5) ? Policy::kLpm : Policy::kFcfs;
    options.conservativeness = random_.uniform() * 1.5;
    options.reserved_decode_tokens = static_cast<std::int32_t>(random_.below(10));
    return options;
  }

  void arrive() {
    if (!random_.chance(0.3)) return;
    NewSequence spec{.id = {++ids_}, .prompt = {}, .resumed = {}};
    spec.prompt.resize(1 + random_.below(24));
    for (auto& token : spec.prompt)
      token = static_cast<core::TokenId>(random_.below(2));
    if (random_.chance(0.2)) spec.resumed.resize(1 + random_.below(4));
    spec.max_new_tokens = static_cast<std::int32_t>(spec.resumed.size() + 1 + random_.below(15));
    spec.match_limit = random_.chance(0.8) ? kNoLimit : static_cast<std::int32_t>(random_.below(9));
    const bool arriving = random_.chance(0.25);
    spec.prefill_only = !arriving && random_.chance(0.2);
    auto result = arriving ? scheduler_.reserve(spec) : scheduler_.add(spec);
    if (result.ok()) ++started_;
  }

  void check_plan(std::span<const WorkItem> plan) {
    std::set<const Sequence*> seen;
    std::int64_t prefill = 0;
    for (const WorkItem& item : plan) {
      const Sequence& s = *item.sequence;
      ASSERT_TRUE(seen.insert(&s).second) << "twice in one step";
      ASSERT_EQ(item.first, s.computed);
      ASSERT_GE(item.count, 1);
      ASSERT_LE(item.first + item.count, s.token_count());
      ASSERT_LE(item.first + item.count,
                static_cast<std::int64_t>(s.pages.pages.size()) * options_.page_size);
      if (s.phase == Phase::kPrefill) prefill += item.count;
      ASSERT_LE(s.token_count(), s.token_limit);
    }
    const std::int32_t most = std::max(options_.max_prefill_tokens, options_.context_length);
    ASSERT_LE(prefill, most);
    if (options_.chunked_prefill_size > 0) {
      ASSERT_LE(prefill, options_.chunked_prefill_size);
    }
  }

  void compute(const WorkItem& item) {
    Sequence& s = *item.sequence;
    scheduler_.advance(s, item.count);
    if (s.computed < s.token_count() || s.prefill_only) return;
    if (s.remaining_tokens() > 0) {
      scheduler_.append(s, static_cast<core::TokenId>(random_.below(2)));
    }
    if (s.remaining_tokens() == 0 || random_.chance(0.03)) end(s);
  }

  void end(Sequence& sequence) {
    scheduler_.finish(sequence,
                      random_.chance(0.1) ? Scheduler::Keep::kNothing : Scheduler::Keep::kComputed);
    ++ended_;
  }

  /// Aborts, and the far side of transfers: held ones are released, reserved ones land or break.
  void disturb(bool draining) {
    for (std::uint64_t id = 1; id <= ids_; ++id) {
      Sequence* s = scheduler_.find({id});
      if (s == nullptr) continue;
      if (s->phase == Phase::kHeld && random_.chance(0.3)) {
        end(*s);
      } else if (s->phase == Phase::kReserved && random_.chance(0.3)) {
        if (random_.chance(0.3)) {
          scheduler_.cancel_reservation(*s, static_cast<std::int32_t>(random_.below(30)));
          ++ended_;
        } else {
          scheduler_.adopt(*s, 1);
          if (s->remaining_tokens() == 0) end(*s);
        }
      } else if (!draining && random_.chance(0.01)) {
        end(*s);
      }
    }
  }

  Random random_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  std::uint64_t ids_ = 0;
  int started_ = 0;
  int ended_ = 0;
};

TEST(Scheduler, RandomTrafficAlwaysEndsWithinItsBudgets) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Traffic(seed).run();
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::sched
