#include "common/handoff/link.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tandem::handoff {
namespace {

LayoutDescriptor layout() {
  return {.layout_version = 1,
          .page_size = 16,
          .layer_count = 4,
          .kv_head_count = 2,
          .head_dim = 8,
          .dtype = "f32",
          .page_bytes = 8192,
          .page_stride_bytes = 8192,
          .part_count = 2,
          .model_digest = "m1",
          .weight_version = "w1",
          .numerics_family = "cpu-f32"};
}

TEST(Layout, RefusalNamesTheFieldAndBothValues) {
  struct Row {
    void (*change)(LayoutDescriptor&);
    const char* sentence;
  };

  const Row rows[] = {
      {[](LayoutDescriptor& l) { l.page_size = 32; }, "page_size: prefill has 16, decode has 32"},
      {[](LayoutDescriptor& l) { l.weight_dtype = "bf16"; },
       "dtype: prefill has \"\", decode has \"bf16\""},
      {[](LayoutDescriptor& l) { l.dtype = "bf16"; },
       "kv_cache_dtype: prefill has \"f32\", decode has \"bf16\""},
      {[](LayoutDescriptor& l) { l.model_digest = "m2"; },
       "model_digest: prefill has \"m1\", decode has \"m2\""},
      {[](LayoutDescriptor& l) { l.quantization = "int8wo"; },
       "quantization: prefill has \"\", decode has \"int8wo\""},
      {[](LayoutDescriptor& l) { l.weight_version = "w2"; },
       "weight_version: prefill has \"w1\", decode has \"w2\""},
      {[](LayoutDescriptor& l) { l.tp_size = 2; }, "tp_size: prefill has 1, decode has 2"},
      {[](LayoutDescriptor& l) { l.pp_size = 2; }, "pp_size: prefill has 1, decode has 2"},
      {[](LayoutDescriptor& l) { l.layer_count = 8; }, "layer_count: prefill has 4, decode has 8"},
      {[](LayoutDescriptor& l) { l.kv_head_count = 1; },
       "kv_head_count: prefill has 2, decode has 1"},
      {[](LayoutDescriptor& l) { l.head_dim = 4; }, "head_dim: prefill has 8, decode has 4"},
      {[](LayoutDescriptor& l) { l.page_bytes = 4096; },
       "page_bytes: prefill has 8192, decode has 4096"},
      {[](LayoutDescriptor& l) { l.part_count = 4; }, "part_count: prefill has 2, decode has 4"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.sentence);
    LayoutDescriptor decode = layout();
    row.change(decode);
    const auto plan = make_plan(layout(), decode);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), Code::kFailedPrecondition);
    EXPECT_EQ(plan.status().message(), row.sentence);
  }
}

TEST(Layout, StrideAndNumericsMayDiffer) {
  LayoutDescriptor decode = layout();
  decode.page_stride_bytes = 16384;
  decode.numerics_family = "cuda-f32";
  const auto plan = make_plan(layout(), decode);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_FALSE(plan->same_numerics);
  EXPECT_TRUE(make_plan(layout(), layout())->same_numerics);
}

TEST(Layout, SenselessSizesAreNamed) {
  struct Row {
    void (*change)(LayoutDescriptor&);
    const char* field;
  };

  const Row rows[] = {
      {[](LayoutDescriptor& l) { l.layout_version = 2; }, "layout_version"},
      {[](LayoutDescriptor& l) { l.page_size = 0; }, "page_size"},
      {[](LayoutDescriptor& l) { l.layer_count = 0; }, "layer_count"},
      {[](LayoutDescriptor& l) { l.kv_head_count = 0; }, "kv_head_count"},
      {[](LayoutDescriptor& l) { l.head_dim = 0; }, "head_dim"},
      {[](LayoutDescriptor& l) { l.page_bytes = 8190; }, "page_bytes"},
      {[](LayoutDescriptor& l) { l.page_bytes = std::uint64_t{1} << 40U; }, "page_bytes"},
      {[](LayoutDescriptor& l) { l.page_stride_bytes = 4096; }, "page_stride_bytes"},
      {[](LayoutDescriptor& l) { l.part_count = 5; }, "part_count"},
      {[](LayoutDescriptor& l) { l.tp_rank = 1; }, "tp_rank"},
      {[](LayoutDescriptor& l) { l.dp_size = 0; }, "dp_rank"},
      {[](LayoutDescriptor& l) { l.pp_rank = 3; }, "pp_rank"},
  };
  EXPECT_TRUE(validate(layout()).ok());
  for (const Row& row : rows) {
    SCOPED_TRACE(row.field);
    LayoutDescriptor bad = layout();
    row.change(bad);
    EXPECT_EQ(validate(bad).code(), Code::kInvalidArgument);
    EXPECT_EQ(validate(bad).message().find(row.field), 0U) << validate(bad).message();
  }
}

TEST(Layout, PartsCoverThePageWithoutGaps) {
  LayoutDescriptor l = layout();
  for (const std::uint32_t layers : {1U, 3U, 4U, 7U, 36U}) {
    l.layer_count = layers;
    l.page_bytes = layers * 100UL;
    for (std::uint32_t parts = 1; parts <= std::min(layers, kPartCountMax); ++parts) {
      l.part_count = parts;
      std::uint64_t at = 0;
      for (std::uint32_t p = 0; p < parts; ++p) {
        const ByteRange range = part_bytes(l, p, 1);
        EXPECT_EQ(range.offset, at);
        EXPECT_GT(range.length, 0U);
        at += range.length;
      }
      EXPECT_EQ(at, l.page_bytes);
      EXPECT_EQ(part_bytes(l, 0, parts).length, l.page_bytes);
    }
  }
}

TEST(Layout, AsFewPartsAsKeepEachShort) {
  struct Row {
    std::uint32_t layers;
    std::uint64_t layer_kib;
    std::uint32_t want;
  };

  constexpr Row kRows[] = {
      {28, 4, 1},    // a page of one token goes whole
      {28, 17, 1},   // 476 KiB
      {28, 18, 2},   // 504 KiB
      {28, 64, 4},   // seven layers each
      {29, 64, 5},   // six at most
      {3, 1024, 3},  // a layer is the least
      {80, 256, 16},
  };
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.layers * row.layer_kib);
    LayoutDescriptor l = layout();
    l.layer_count = row.layers;
    l.page_bytes = row.layers * row.layer_kib << 10U;
    EXPECT_EQ(part_count_for(l, kRunBytes), row.want);
    l.part_count = row.want;
    for (std::uint32_t p = 0; p < row.want && row.want < kPartCountMax; ++p)
      EXPECT_LE(part_bytes(l, p, 1).length, std::max(kRunBytes, row.layer_kib << 10U));
  }
}

/// One prefill and one decode LinkSet with wires between them.
struct Wires {
  static LinkOptions options(Role role, const char* instance, std::uint64_t incarnation) {
    LinkOptions o;
    o.transfer_backend = "mooncake";
    o.role = role;
    o.instance = instance;
    o.incarnation = incarnation;
    o.layout = layout();
    o.data_address = std::string("address of ") + instance;
    return o;
  }

  void carry(LinkSet& from, std::vector<LinkAction>& actions, LinkSet& to, Time now) {
    std::vector<LinkAction> answers;
    for (const LinkAction& action : actions) {
      if (const auto* send = std::get_if<LinkSend>(&action)) {
        to.on(LinkReceived{send->stream, send->message}, now, answers);
      }
      log.push_back(action);
    }
    actions.clear();
    if (!answers.empty()) carry(to, answers, from, now);
  }

  void open(LinkSet& a, LinkSet& b, StreamId stream, Time now) {
    std::vector<LinkAction> from_a;
    std::vector<LinkAction> from_b;
    a.on(StreamOpened{stream}, now, from_a);
    b.on(StreamOpened{stream}, now, from_b);
    carry(a, from_a, b, now);
    carry(b, from_b, a, now);
  }

  template <class Action>
  std::vector<Action> all() const {
    std::vector<Action> found;
    for (const LinkAction& action : log)
      if (const auto* a = std::get_if<Action>(&action)) found.push_back(*a);
    return found;
  }

  std::vector<LinkAction> log;
};

constexpr Time at_ms(std::int64_t ms) {
  return {ms * 1'000'000};
}

TEST(LinkSet, TwoProcessesLinkAndLearnEachOthersAddress) {
  Wires wires;
  LinkSet p(Wires::options(Role::kPrefill, "p", 11));
  LinkSet d(Wires::options(Role::kDecode, "d", 22));
  wires.open(p, d, {1}, at_ms(0));
  const auto ups = wires.all<LinkUp>();
  ASSERT_EQ(ups.size(), 2U);
  EXPECT_EQ(p.linked(), std::vector<std::uint64_t>{22});
  EXPECT_EQ(d.linked(), std::vector<std::uint64_t>{11});
  EXPECT_EQ(ups[0].plan.hash, ups[1].plan.hash);
  for (const LinkUp& up : ups)
    EXPECT_EQ(up.data_address, "address of " + up.instance);
  EXPECT_EQ(p.stream_of(22)->value, 1U);
  EXPECT_FALSE(p.stream_of(11));
}

TEST(LinkSet, BothSidesHearWhyAPairIsRefused) {
  struct Row {
    void (*change)(LinkOptions&);
    const char* why;
  };

  const Row rows[] = {
      {[](LinkOptions& o) { o.layout.page_size = 32; }, "page_size: prefill has 16, decode has 32"},
      {[](LinkOptions& o) { o.role = Role::kPrefill; }, "role: both ends are prefill"},
      {[](LinkOptions& o) { o.transfer_backend = "nixl"; },
       "transfer_backend: prefill has mooncake, decode has nixl"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.why);
    Wires wires;
    LinkSet p(Wires::options(Role::kPrefill, "p", 11));
    LinkOptions o = Wires::options(Role::kDecode, "d", 22);
    row.change(o);
    LinkSet d(o);
    wires.open(p, d, {1}, at_ms(0));
    EXPECT_TRUE(wires.all<LinkUp>().empty());
    const auto refused = wires.all<LinkRefused>();
    ASSERT_FALSE(refused.empty());
    EXPECT_NE(refused[0].reason.message().find(row.why), std::string::npos)
        << refused[0].reason.message();
    EXPECT_FALSE(p.next_deadline());
  }
}

TEST(LinkSet, ANewIncarnationEndsTheOldLinkAtOnce) {
  Wires wires;
  LinkSet p(Wires::options(Role::kPrefill, "p", 11));
  LinkSet d(Wires::options(Role::kDecode, "d", 22));
  wires.open(p, d, {1}, at_ms(0));
  LinkSet reborn(Wires::options(Role::kDecode, "d", 23));
  wires.log.clear();
  wires.open(p, reborn, {2}, at_ms(10));
  const auto downs = wires.all<LinkDown>();
  ASSERT_EQ(downs.size(), 1U);
  EXPECT_EQ(downs[0].incarnation, 22U);
  EXPECT_NE(downs[0].reason.message().find("restarted"), std::string::npos);
  EXPECT_EQ(p.linked(), std::vector<std::uint64_t>{23});
  // The old stream breaks later: nothing of it is left to report.
  std::vector<LinkAction> out;
  p.on(StreamBroken{{1}, "reset"}, at_ms(20), out);
  EXPECT_TRUE(std::none_of(
      out.begin(), out.end(), [](const auto& a) { return std::holds_alternative<LinkDown>(a); }));
}

TEST(LinkSet, TicksWithoutProgressAreNoSignOfLife) {
  for (const bool progress : {true, false}) {
    SCOPED_TRACE(progress);
    Wires wires;
    LinkSet p(Wires::options(Role::kPrefill, "p", 11));
    LinkSet d(Wires::options(Role::kDecode, "d", 22));
    wires.open(p, d, {1}, at_ms(0));
    wires.log.clear();
    // The scheduler of d hangs, or goes on; its network threads tick either way.
    for (std::int64_t ms = 100; ms <= 4000; ms += 100) {
      std::vector<LinkAction> out;
      d.on(OwnProgress{progress ? static_cast<std::uint64_t>(ms) : 1}, at_ms(ms), out);
      wires.carry(d, out, p, at_ms(ms));
      p.on(OwnProgress{static_cast<std::uint64_t>(ms)}, at_ms(ms), out);
      wires.carry(p, out, d, at_ms(ms));
    }
    bool lost = false;
    for (const LinkDown& down : wires.all<LinkDown>()) {
      EXPECT_EQ(down.incarnation, 22U);
      EXPECT_NE(down.reason.message().find("no progress"), std::string::npos);
      lost = true;
    }
    EXPECT_EQ(lost, !progress);
  }
}

TEST(LinkSet, SilenceEndsALinkAtItsDeadline) {
  Wires wires;
  LinkSet p(Wires::options(Role::kPrefill, "p", 11));
  LinkSet d(Wires::options(Role::kDecode, "d", 22));
  wires.open(p, d, {1}, at_ms(0));
  std::vector<LinkAction> out;
  Time now = at_ms(0);
  for (int i = 0; i < 100 && !p.linked().empty(); ++i) {
    ASSERT_TRUE(p.next_deadline());
    ASSERT_GE(*p.next_deadline(), now) << "a deadline must not stand still";
    now = *p.next_deadline();
    p.on(LinkTime{}, now, out);
  }
  EXPECT_EQ(now, at_ms(3000));
  EXPECT_EQ(std::count_if(out.begin(),
                          out.end(),
                          [](const auto& a) { return std::holds_alternative<LinkDown>(a); }),
            1);
}

TEST(LinkSet, AStreamWithoutHelloIsClosedAndLinksAreBounded) {
  LinkOptions o = Wires::options(Role::kPrefill, "p", 11);
  o.links_max = 2;
  LinkSet p(o);
  std::vector<LinkAction> out;
  for (std::uint64_t s = 1; s <= 3; ++s)
    p.on(StreamOpened{{s}}, at_ms(0), out);
  const auto closes = [&out] {
    return std::count_if(
        out.begin(), out.end(), [](const auto& a) { return std::holds_alternative<LinkClose>(a); });
  };
  EXPECT_EQ(closes(), 1);
  p.on(LinkTime{}, at_ms(5000), out);
  EXPECT_EQ(closes(), 3);
  EXPECT_FALSE(p.next_deadline());
}

TEST(LinkSet, APeerInALongStepIsWaitedForWhileItTicks) {
  LinkSet d(Wires::options(Role::kDecode, "d", 22));
  std::vector<LinkAction> out;
  d.on(StreamOpened{{1}}, at_ms(0), out);
  std::int64_t ms = 0;
  for (std::uint64_t layer = 1; layer <= 40; ++layer) {
    ms += 500;
    d.on(LinkReceived{{1}, TickMessage{11, layer}}, at_ms(ms), out);
    d.on(LinkTime{}, at_ms(ms), out);
  }
  ASSERT_EQ(out.size(), 1U) << "its own hello, and no end";
  // The same answers without any progress end the wait.
  for (int i = 0; i < 40; ++i) {
    ms += 500;
    d.on(LinkReceived{{1}, TickMessage{11, 40}}, at_ms(ms), out);
    d.on(LinkTime{}, at_ms(ms), out);
  }
  EXPECT_TRUE(std::any_of(
      out.begin(), out.end(), [](const auto& a) { return std::holds_alternative<LinkClose>(a); }));
}

/// LinkUp and LinkDown alternate per incarnation, whatever the streams do.
TEST(LinkSet, RandomStreamsKeepUpAndDownPaired) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    LinkSet p(Wires::options(Role::kPrefill, "p", 11));
    std::map<std::uint64_t, bool> up;
    std::int64_t ms = 0;
    std::uint64_t streams = 0;
    for (int step = 0; step < 200; ++step) {
      ms += static_cast<std::int64_t>(random.below(400));
      std::vector<LinkAction> out;
      const StreamId stream{1 + random.below(streams + 1)};
      switch (random.below(6)) {
        case 0:
          p.on(StreamOpened{{++streams}}, at_ms(ms), out);
          break;
        case 1: {
          LinkOptions peer = Wires::options(Role::kDecode, random.chance(0.5) ? "d" : "e", 0);
          HelloMessage hello{.version = kHandoffVersion,
                             .role = peer.role,
                             .instance = peer.instance,
                             .incarnation = 100 + stream.value,
                             .layout = peer.layout,
                             .data_address = {}};
          p.on(LinkReceived{stream, hello}, at_ms(ms), out);
          break;
        }
        case 2:
          p.on(LinkReceived{stream,
                            LinkAnswerMessage{true, make_plan(layout(), layout())->hash, ""}},
               at_ms(ms),
               out);
          break;
        case 3:
          p.on(
              LinkReceived{stream, TickMessage{100 + stream.value, static_cast<std::uint64_t>(ms)}},
              at_ms(ms),
              out);
          break;
        case 4:
          p.on(StreamBroken{stream, "x"}, at_ms(ms), out);
          break;
        default:
          p.on(LinkTime{}, at_ms(ms), out);
      }
      for (const LinkAction& action : out) {
        if (const auto* a = std::get_if<LinkUp>(&action)) {
          ASSERT_FALSE(up[a->incarnation]);
          up[a->incarnation] = true;
        }
        if (const auto* a = std::get_if<LinkDown>(&action)) {
          ASSERT_TRUE(up[a->incarnation]);
          up[a->incarnation] = false;
        }
      }
      for (const std::uint64_t incarnation : p.linked())
        ASSERT_TRUE(up[incarnation]);
    }
  }
}

}  // namespace
}  // namespace tandem::handoff
