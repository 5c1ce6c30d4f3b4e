#include "common/handoff/sides_test_support.h"

#include <gtest/gtest.h>

namespace tandem::handoff {
namespace {

using namespace testing;  // NOLINT: vocabulary of these tests

TEST(DecodeSide, GrantsLandsAndDeliversOnce) {
  D d(options(kD));
  d.feed(PeerLinked{kP});
  auto out = d.feed(start_receive());
  ASSERT_EQ(all<ReceiveStarted>(out).size(), 1U);
  const TransferName name = all<ReceiveStarted>(out)[0].name;
  EXPECT_EQ(name.decode_incarnation, kD);
  ASSERT_EQ(all<NeedPages>(out).size(), 1U);
  EXPECT_EQ(all<NeedPages>(out)[0].page_count, 3U);
  // The engine gives what it has, and one page too many.
  out = d.feed(PagesAvailable{name, {8}});
  ASSERT_EQ(out.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<OpenLanding>(out[0])) << "open before anybody is told";
  EXPECT_EQ(messages<GrantMessage>(out)[0].first_page, 0U);
  out = d.feed(PagesAvailable{name, {4, 6, 2}});
  EXPECT_EQ(messages<GrantMessage>(out)[0].first_page, 1U);
  EXPECT_EQ(messages<GrantMessage>(out)[0].page_count, 2U);
  EXPECT_EQ(all<ReturnPages>(out)[0].pages, std::vector<std::uint32_t>{2});
  // The commit overtakes the bytes.
  out = d.feed(FromPrefill{kP, commit(name, 3)});
  EXPECT_TRUE(out.empty());
  EXPECT_TRUE(d.feed(unit(name, 2, 2)).empty());
  EXPECT_TRUE(d.feed(unit(name, 0, 0)).empty());
  out = d.feed(unit(name, 1, 1));
  ASSERT_EQ(out.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<CloseLanding>(out[0]));
  EXPECT_TRUE(d.feed(FromPrefill{kP, commit(name, 3)}).empty()) << "a repeated commit";
  out = d.feed(LandingClosed{name});
  EXPECT_EQ(messages<AcceptedMessage>(out).size(), 1U);
  ASSERT_EQ(all<Deliver>(out).size(), 1U);
  EXPECT_EQ(all<Deliver>(out)[0].pages, (std::vector<std::uint32_t>{8, 4, 6}));
  EXPECT_EQ(all<Deliver>(out)[0].payload.first_token, 5);
  EXPECT_EQ(d.side.active_count(), 0U);
  EXPECT_TRUE(d.feed(LandingClosed{name}).empty());
  EXPECT_TRUE(d.feed(FromPrefill{kP, commit(name, 3)}).empty());
}

TEST(DecodeSide, AWhollyCachedPromptNeedsTheCommitOnly) {
  D d(options(kD));
  d.feed(PeerLinked{kP});
  auto out = d.feed(start_receive(8, 8));
  ASSERT_EQ(messages<GrantMessage>(out).size(), 1U);
  EXPECT_EQ(messages<GrantMessage>(out)[0].page_count, 0U);
  const TransferName name = all<ReceiveStarted>(out)[0].name;
  out = d.feed(FromPrefill{kP, commit(name, 0)});
  EXPECT_EQ(all<Deliver>(out).size(), 1U);
  EXPECT_TRUE(all<CloseLanding>(out).empty()) << "nothing was ever open";
}

TEST(DecodeSide, WindowGrantsAheadOfTheVerifiedPages) {
  SideOptions o = options(kD);
  o.window_pages = 4;
  D d(o);
  d.feed(PeerLinked{kP});
  auto out = d.feed(start_receive(40));
  const TransferName name = all<ReceiveStarted>(out)[0].name;
  EXPECT_EQ(all<NeedPages>(out)[0].page_count, 4U);
  d.feed(PagesAvailable{name, {0, 1, 2, 3}});
  EXPECT_TRUE(d.feed(unit(name, 0, 0)).empty()) << "half the window must be free";
  out = d.feed(unit(name, 1, 1));
  EXPECT_EQ(all<NeedPages>(out)[0].page_count, 2U);
}

TEST(DecodeSide, RefusalsNameTheReason) {
  struct Row {
    const char* name;
    StartReceive event;
    Code code;
  };

  const Row rows[] = {
      {"no tokens", start_receive(0), Code::kInvalidArgument},
      {"start not on a page", start_receive(11, 3), Code::kInvalidArgument},
      {"start after the prompt", start_receive(11, 12), Code::kInvalidArgument},
      {"too long", start_receive(4'000'000'000U), Code::kInvalidArgument},
      {"unknown peer",
       {.request_id = 7,
        .attempt = 0,
        .prefill_incarnation = 99,
        .prompt_tokens = 4,
        .start_token = 0,
        .deadline = kDeadline},
       Code::kUnavailable},
  };
  D d(options(kD));
  d.feed(PeerLinked{kP});
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto out = d.feed(row.event);
    ASSERT_EQ(all<ReceiveRefused>(out).size(), 1U);
    EXPECT_EQ(all<ReceiveRefused>(out)[0].status.code(), row.code);
  }
  d.feed(start_receive());
  EXPECT_EQ(all<ReceiveRefused>(d.feed(start_receive()))[0].status.code(), Code::kAlreadyExists)
      << "a duplicate room";
  EXPECT_EQ(d.side.active_count(), 1U) << "the first is unharmed";
}

TEST(DecodeSide, NoTimerFreesAPage) {
  D d(options(kD));
  d.feed(PeerLinked{kP});
  const TransferName name = all<ReceiveStarted>(d.feed(start_receive()))[0].name;
  d.feed(PagesAvailable{name, {8, 9}});
  d.feed(unit(name, 0, 0));
  EXPECT_EQ(d.side.next_deadline(), kDeadline);
  auto out = d.feed(TimePassed{}, kDeadline);
  EXPECT_EQ(messages<CancelMessage>(out).size(), 1U);
  EXPECT_EQ(all<CloseLanding>(out).size(), 1U);
  EXPECT_EQ(all<PagesNotNeeded>(out).size(), 1U);
  EXPECT_TRUE(all<Release>(out).empty()) << "bytes may be in flight";
  EXPECT_EQ(d.side.quarantined_page_count(), 2U);
  EXPECT_TRUE(d.feed(TimePassed{}, kDeadline + seconds(3600)).empty());
  out = d.feed(LandingClosed{name}, kDeadline);
  ASSERT_EQ(all<Release>(out).size(), 1U);
  EXPECT_EQ(all<Release>(out)[0].pages, (std::vector<std::uint32_t>{8, 9}));
  EXPECT_EQ(all<Release>(out)[0].verified_tokens, 4U) << "the first page is good";
  EXPECT_EQ(all<Release>(out)[0].reason.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(d.side.quarantined_page_count(), 0U);
}

TEST(DecodeSide, BadUnitsAreAskedForAgainAndThenGivenUp) {
  SideOptions o = options(kD);
  o.resends_max = 2;
  D d(o);
  d.feed(PeerLinked{kP});
  const TransferName name = all<ReceiveStarted>(d.feed(start_receive()))[0].name;
  d.feed(PagesAvailable{name, {8, 9, 10}});
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(messages<ResendMessage>(d.feed(unit(name, 1, 1, false)))[0].unit, 1U);
  const auto out = d.feed(unit(name, 1, 1, false));
  ASSERT_EQ(messages<CancelMessage>(out).size(), 1U);
  EXPECT_EQ(messages<CancelMessage>(out)[0].code, Code::kDataLoss);
  EXPECT_NE(messages<CancelMessage>(out)[0].reason.find("unit 1"), std::string::npos);
}

TEST(DecodeSide, WhatLandsBadlyIsNotKeptWhenTheTransferIsGivenUp) {
  D d(options(kD));
  d.feed(PeerLinked{kP});
  const TransferName name = all<ReceiveStarted>(d.feed(start_receive()))[0].name;
  d.feed(PagesAvailable{name, {8, 9, 10}});
  d.feed(unit(name, 0, 0));
  d.feed(unit(name, 1, 1));
  d.feed(CancelReceive{7, 0, cancelled("left")});
  d.feed(unit(name, 1, 1, false));
  const auto out = d.feed(LandingClosed{name});
  ASSERT_EQ(all<Release>(out).size(), 1U);
  EXPECT_EQ(all<Release>(out)[0].verified_tokens, 4U) << "the first page alone";
}

TEST(DecodeSide, ThereAreNoMoreUnitsThanPartsOfPages) {
  for (const bool good : {true, false}) {
    SCOPED_TRACE(good);
    D d(options(kD));
    d.feed(PeerLinked{kP});
    const TransferName name = all<ReceiveStarted>(d.feed(start_receive()))[0].name;
    d.feed(PagesAvailable{name, {8, 9, 10}});
    // Three pages of two parts.
    EXPECT_TRUE(messages<CancelMessage>(d.feed(unit(name, 5, 0, good))).empty());
    const auto out = d.feed(unit(name, 6, 1, good));
    ASSERT_EQ(messages<CancelMessage>(out).size(), 1U);
    EXPECT_EQ(messages<CancelMessage>(out)[0].code, Code::kDataLoss);
    EXPECT_NE(messages<CancelMessage>(out)[0].reason.find("6 units at most"), std::string::npos);
    EXPECT_EQ(d.side.stats().invalid, 1U);
  }
}

TEST(DecodeSide, ACommitThatDoesNotFitTheBytesIsDataLoss) {
  for (const bool wrong_count : {true, false}) {
    D d(options(kD));
    d.feed(PeerLinked{kP});
    const TransferName name = all<ReceiveStarted>(d.feed(start_receive(4)))[0].name;
    d.feed(PagesAvailable{name, {8}});
    d.feed(unit(name, 0, 0));
    CommitMessage m = commit(name, 1);
    if (wrong_count) {
      m.unit_count = 2;
    } else {
      m.digest ^= 1U;
    }
    EXPECT_EQ(messages<CancelMessage>(d.feed(FromPrefill{kP, m}))[0].code, Code::kDataLoss);
    EXPECT_EQ(all<Release>(d.feed(LandingClosed{name})).size(), 1U);
  }
}

TEST(DecodeSide, NamesThatAreNotExactAreDroppedAndCounted) {
  D d(options(kD));
  d.feed(PeerLinked{kP});
  const TransferName name = all<ReceiveStarted>(d.feed(start_receive(4)))[0].name;
  d.feed(PagesAvailable{name, {8}});
  TransferName wrong[6] = {name, name, name, name, name, name};
  ++wrong[0].generation;
  ++wrong[1].attempt;
  ++wrong[2].request_id;
  ++wrong[3].decode_incarnation;
  ++wrong[4].slot;
  wrong[5].slot = 0xFFFFFFFFU;
  const std::uint64_t before = d.side.fingerprint();
  for (const TransferName& w : wrong) {
    EXPECT_TRUE(d.feed(unit(w, 0, 0)).empty());
    EXPECT_TRUE(d.feed(FromPrefill{kP, commit(w, 0)}).empty());
    EXPECT_TRUE(d.feed(FromPrefill{kP, CancelMessage{w, Code::kAborted, "x"}}).empty());
    EXPECT_TRUE(d.feed(LandingClosed{w}).empty());
  }
  EXPECT_TRUE(d.feed(FromPrefill{99, CancelMessage{name, Code::kAborted, "x"}}).empty())
      << "from another process";
  EXPECT_EQ(d.side.fingerprint(), before);
  EXPECT_EQ(d.side.stats().stale_dropped, 25U);
}

TEST(DecodeSide, LosingThePeerKeepsTheVerifiedPrefix) {
  D d(options(kD));
  d.feed(PeerLinked{kP});
  const TransferName name = all<ReceiveStarted>(d.feed(start_receive(11)))[0].name;
  d.feed(PagesAvailable{name, {8, 9, 10}});
  d.feed(unit(name, 0, 0));
  d.feed(unit(name, 2, 2));
  auto out = d.feed(PeerLost{kP, unavailable("gone")});
  EXPECT_TRUE(all<ToPrefill>(out).empty());
  d.feed(unit(name, 1, 1));  // it was in place already, the news comes late
  out = d.feed(LandingClosed{name});
  EXPECT_EQ(all<Release>(out)[0].verified_tokens, 11U);
  EXPECT_EQ(all<ReceiveRefused>(d.feed(start_receive()))[0].status.code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem::handoff
