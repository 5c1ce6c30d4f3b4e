#include "common/handoff/sides_test_support.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>

namespace tandem::handoff {
namespace {

using namespace testing;  // NOLINT: vocabulary of these tests

/// A prompt's pages, granted and ready: a unit of two and one of one. What the last of it asks for.
std::vector<PrefillAction> send_three_pages(P& p) {
  p.feed(StartSend{kKey, kD, 11, kDeadline});
  p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3)});
  return p.feed(ChunkReady{kKey, 0, {30, 31, 32}, 0, 0});
}

TEST(PrefillSide, SendsWhatIsReadyAndGrantedThenCommits) {
  P p(options(kP));
  EXPECT_TRUE(p.feed(StartSend{kKey, kD, 11, kDeadline}).empty());
  EXPECT_TRUE(p.feed(ChunkReady{kKey, 0, {30, 31}, 0, 0}).empty()) << "no grant yet";
  auto out = p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3)});
  ASSERT_EQ(all<SendUnit>(out).size(), 1U);
  const SendUnit first = all<SendUnit>(out)[0];
  EXPECT_EQ(first.range.page_count, 2U) << "neighbours travel together";
  EXPECT_EQ(first.source_pages, (std::vector<std::uint32_t>{30, 31}));
  EXPECT_EQ(first.byte_range, (ByteRange{0, 512}));
  // The last page, layer group by layer group.
  out = p.feed(ChunkReady{kKey, 2, {32}, 0, 1});
  EXPECT_EQ(all<SendUnit>(out)[0].byte_range, (ByteRange{0, 256}));
  out = p.feed(ChunkReady{kKey, 2, {32}, 1, 1});
  EXPECT_EQ(all<SendUnit>(out)[0].byte_range, (ByteRange{256, 256}));
  EXPECT_TRUE(p.feed(FirstToken{kKey, {5, ""}}).empty()) << "units are still in flight";
  p.feed(SendDone{name_at_prefill(), 2, true, 12});
  p.feed(SendDone{name_at_prefill(), 0, true, 10});
  out = p.feed(SendDone{name_at_prefill(), 1, true, 11});
  ASSERT_EQ(messages<CommitMessage>(out).size(), 1U);
  EXPECT_EQ(messages<CommitMessage>(out)[0].unit_count, 3U);
  EXPECT_EQ(messages<CommitMessage>(out)[0].payload.first_token, 5);
  out = p.feed(FromDecode{kD, AcceptedMessage{name_at_prefill()}});
  ASSERT_EQ(all<ReleaseSource>(out).size(), 1U);
  EXPECT_TRUE(all<ReleaseSource>(out)[0].status.ok());
  EXPECT_TRUE(p.feed(FromDecode{kD, AcceptedMessage{name_at_prefill()}}).empty());
  EXPECT_EQ(p.side.active_count(), 0U);
}

TEST(PrefillSide, AGrantMayComeFirstButNotForEver) {
  P p(options(kP));
  EXPECT_TRUE(p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3)}).empty());
  p.feed(StartSend{kKey, 0, 11, kDeadline});
  EXPECT_EQ(all<SendUnit>(p.feed(ChunkReady{kKey, 0, {30, 31, 32}, 0, 0})).size(), 2U);

  P orphan(options(kP));
  orphan.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3)});
  ASSERT_TRUE(orphan.side.next_deadline());
  const auto out = orphan.feed(TimePassed{}, *orphan.side.next_deadline());
  EXPECT_EQ(messages<CancelMessage>(out).size(), 1U);
  EXPECT_EQ(orphan.side.active_count(), 0U);
}

// The engine takes the request out of its inbox between two steps, and one may last.
TEST(PrefillSide, AGrantWaitsForTheEnginesStep) {
  SideOptions o = options(kP);
  o.orphan_ttl = SideOptions{}.orphan_ttl;
  P p(o);
  GrantMessage grant = grant_of(name_at_prefill(), 0, 3);
  grant.deadline_left = seconds(1800);
  p.feed(FromDecode{kD, grant});
  EXPECT_TRUE(p.feed(TimePassed{}, kStart + seconds(600)).empty());
  const Time late = kStart + seconds(601);
  p.feed(StartSend{kKey, kD, 11, late + seconds(60)}, late);
  EXPECT_EQ(all<SendUnit>(p.feed(ChunkReady{kKey, 0, {30, 31, 32}, 0, 0}, late)).size(), 2U);
}

TEST(PrefillSide, ARefusedSendAnswersTheGrantThatComesLater) {
  SideOptions o = options(kP);
  o.transfers_max = 1;
  P p(o);
  p.feed(StartSend{{8, 0}, kD, 11, kDeadline});
  EXPECT_EQ(all<SendRefused>(p.feed(StartSend{kKey, kD, 11, kDeadline})).size(), 1U);
  p.feed(CancelSend{{8, 0}, cancelled("left")});
  const auto out = p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3)});
  ASSERT_EQ(messages<CancelMessage>(out).size(), 1U);
  EXPECT_EQ(messages<CancelMessage>(out)[0].code, Code::kResourceExhausted);
}

TEST(PrefillSide, SourcePagesAreKeptUntilTheOwnSendsHaveEnded) {
  struct Row {
    const char* name;
    PrefillEvent event;
    Time now;
    Code code;
  };

  const Row rows[] = {
      {"engine cancels", CancelSend{kKey, cancelled("left")}, kStart, Code::kCancelled},
      {"decode cancels",
       FromDecode{kD, CancelMessage{name_at_prefill(), Code::kAborted, "no"}},
       kStart,
       Code::kAborted},
      {"decode is lost", PeerLost{kD, unavailable("gone")}, kStart, Code::kUnavailable},
      {"deadline", TimePassed{}, kDeadline, Code::kDeadlineExceeded},
      {"a send fails", SendDone{name_at_prefill(), 0, false, 0}, kStart, Code::kUnavailable},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    P p(options(kP));
    send_three_pages(p);
    EXPECT_EQ(p.side.units_in_flight(), 2U);
    EXPECT_TRUE(all<ReleaseSource>(p.feed(row.event, row.now)).empty());
    if (p.side.units_in_flight() == 2U) {
      EXPECT_TRUE(all<ReleaseSource>(p.feed(SendDone{name_at_prefill(), 0, true, 1})).empty());
    }
    const auto out = p.feed(SendDone{name_at_prefill(), 1, true, 1});
    ASSERT_EQ(all<ReleaseSource>(out).size(), 1U);
    EXPECT_EQ(all<ReleaseSource>(out)[0].status.code(), row.code);
    EXPECT_EQ(p.side.units_in_flight(), 0U);
  }
}

TEST(PrefillSide, WhatIsWantedAgainKeepsToTheLimitOfBytes) {
  SideOptions o = options(kP);
  // A unit of two pages and one of one, of 512 bytes each.
  o.bytes_in_flight_max = 1536;
  P p(o);
  EXPECT_EQ(all<SendUnit>(send_three_pages(p)).size(), 2U);
  EXPECT_TRUE(p.feed(FromDecode{kD, ResendMessage{name_at_prefill(), 0}}).empty());
  EXPECT_TRUE(all<SendUnit>(p.feed(SendDone{name_at_prefill(), 1, true, 1})).empty())
      << "one page is free, and two are wanted";
  const auto sent = all<SendUnit>(p.feed(SendDone{name_at_prefill(), 0, true, 1}));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].range.unit, 0U);
}

TEST(PrefillSide, WhatIsWantedAgainKeepsToTheLimitOfUnits) {
  SideOptions o = options(kP);
  o.units_in_flight_max = 2;
  P p(o);
  send_three_pages(p);
  p.feed(FirstToken{kKey, {5, ""}});
  EXPECT_EQ(p.side.units_in_flight(), 2U);
  const FromDecode first{kD, ResendMessage{name_at_prefill(), 0}};
  const FromDecode second{kD, ResendMessage{name_at_prefill(), 1}};
  EXPECT_TRUE(p.feed(first).empty());
  EXPECT_TRUE(p.feed(first).empty()) << "asking twice is asking once";
  EXPECT_TRUE(p.feed(second).empty());
  EXPECT_EQ(p.side.stats().units_bad_crc, 2U);
  auto sent = all<SendUnit>(p.feed(SendDone{name_at_prefill(), 1, true, 1}));
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].range.unit, 0U) << "in the order in which they were asked for";
  EXPECT_EQ(p.side.units_in_flight(), 2U);
  auto out = p.feed(SendDone{name_at_prefill(), 0, true, 1});
  EXPECT_EQ(messages<CommitMessage>(out).size(), 1U) << "all units were sent once";
  sent = all<SendUnit>(out);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0].range.unit, 1U) << "also when the commit is said";
  EXPECT_EQ(all<SendUnit>(p.feed(SendDone{name_at_prefill(), 0, true, 1})).size(), 0U);
  p.feed(SendDone{name_at_prefill(), 1, true, 1});
  EXPECT_EQ(p.side.units_in_flight(), 0U);
}

TEST(PrefillSide, LateGrantsOfAnEndedRequestHearTheReason) {
  P p(options(kP));
  p.feed(StartSend{kKey, kD, 11, kDeadline});
  p.feed(CancelSend{kKey, invalid_argument("prompt too long")});
  const auto out = p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3)});
  ASSERT_EQ(messages<CancelMessage>(out).size(), 1U);
  EXPECT_EQ(messages<CancelMessage>(out)[0].code, Code::kInvalidArgument);
  EXPECT_EQ(p.side.active_count(), 0U);
}

TEST(PrefillSide, GrantsThatMakeNoSenseEndTheTransferNotTheProcess) {
  struct Row {
    const char* name;
    GrantMessage message;
  };

  GrantMessage other_prefix = grant_of(name_at_prefill(), 0, 3);
  other_prefix.first_needed_page = 9;
  const Row rows[] = {
      {"other prompt length", grant_of(name_at_prefill(), 0, 3, 12)},
      {"beyond the prompt", grant_of(name_at_prefill(), 1, 3)},
      {"overflowing", grant_of(name_at_prefill(), 0xFFFFFFFFU, 0xFFFFFFFFU)},
      {"prefix beyond the prompt", other_prefix},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    P p(options(kP));
    p.feed(StartSend{kKey, kD, 11, kDeadline});
    const auto out = p.feed(FromDecode{kD, row.message});
    ASSERT_EQ(messages<CancelMessage>(out).size(), 1U);
    EXPECT_EQ(messages<CancelMessage>(out)[0].code, Code::kInvalidArgument);
    EXPECT_EQ(all<ReleaseSource>(out).size(), 1U);
  }
  P p(options(kP));
  const auto out = p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, 3, 4'000'000'000U)});
  EXPECT_EQ(messages<CancelMessage>(out).size(), 1U) << "no memory for a peer's number";
}

TEST(PrefillSide, UnitsInFlightAreBoundedAndShared) {
  SideOptions o = options(kP);
  o.unit_bytes = 512;
  o.units_in_flight_max = 3;
  o.units_in_flight_per_transfer = 2;
  P p(o);
  std::vector<std::uint32_t> source(10);
  std::map<std::uint64_t, int> sent;
  std::deque<SendUnit> flying;
  const auto take = [&](const std::vector<PrefillAction>& out) {
    for (const SendUnit& s : all<SendUnit>(out)) {
      ++sent[s.name.request_id];
      flying.push_back(s);
    }
    ASSERT_LE(flying.size(), 3U);
  };
  for (std::uint64_t r = 1; r <= 3; ++r) {
    const SendKey key{r, 0};
    TransferName name = name_at_prefill();
    name.request_id = r;
    name.slot = static_cast<std::uint32_t>(r);
    p.feed(StartSend{key, kD, 40, kDeadline});
    p.feed(ChunkReady{key, 0, source, 0, 0});
    take(p.feed(FromDecode{kD, grant_of(name, 0, 10, 40)}));
  }
  EXPECT_EQ(flying.size(), 3U);
  while (!flying.empty()) {
    const SendUnit s = flying.front();
    flying.pop_front();
    take(p.feed(SendDone{s.name, s.range.unit, true, 1}));
    if (sent[1] + sent[2] + sent[3] == 20) {
      EXPECT_GE(sent[3], 4) << "the youngest does not starve";
    }
  }
  EXPECT_EQ(sent[1] + sent[2] + sent[3], 30);
}

TEST(PrefillSide, LongUnitsHaveRoomBesideShortOnes) {
  const SideOptions o;
  EXPECT_GE(o.bytes_in_flight_max, o.units_in_flight_max * o.unit_bytes);
}

/// Of pages of 10 layers.
SideOptions cutting(std::uint64_t page_bytes,
                    std::uint32_t parts,
                    std::uint64_t run_bytes,
                    std::uint64_t unit_bytes) {
  SideOptions o = options(kP);
  o.layout.layer_count = 10;
  o.layout.page_bytes = page_bytes;
  o.layout.page_stride_bytes = page_bytes;
  o.layout.part_count = parts;
  o.run_bytes = run_bytes;
  o.unit_bytes = unit_bytes;
  o.list_part_bytes = 50;
  return o;
}

/// The units of a prompt that is ready and granted as a whole.
std::vector<SendUnit> cut(const SideOptions& o,
                          const std::vector<std::uint32_t>& source,
                          const std::vector<PrefillEvent>& before = {}) {
  P p(o);
  for (const PrefillEvent& event : before)
    p.feed(event);
  const auto pages = static_cast<std::uint32_t>(source.size());
  const std::uint32_t tokens = pages * o.layout.page_size;
  p.feed(StartSend{kKey, kD, tokens, kDeadline});
  p.feed(ChunkReady{kKey, 0, source, 0, 0});
  return all<SendUnit>(p.feed(FromDecode{kD, grant_of(name_at_prefill(), 0, pages, tokens)}));
}

TEST(PrefillSide, UnitsAreRunsOfMemoryWherePagesAreNeighbours) {
  struct Row {
    const char* name;
    std::vector<std::uint32_t> source;
    std::vector<std::uint32_t> want;  ///< pages of each unit
  };

  const Row rows[] = {
      {"neighbours", {4, 5, 6, 7, 8, 9, 10}, {3, 3, 1}},
      {"apart", {4, 6, 8, 10, 12, 14, 16}, {5, 2}},
      {"backwards", {9, 8, 7, 6, 5, 4}, {5, 1}},
      {"neighbours, and then not", {4, 5, 9, 3, 1, 7}, {5, 1}},
      {"the next run starts a unit", {4, 5, 6, 9, 10, 11}, {3, 3}},
      {"one", {4}, {1}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::uint32_t> counts;
    std::uint32_t next = 0;
    for (const SendUnit& unit : cut(cutting(100, 1, 300, 500), row.source)) {
      EXPECT_EQ(unit.range.first_page, next);
      next += unit.range.page_count;
      counts.push_back(unit.range.page_count);
    }
    EXPECT_EQ(counts, row.want);
    EXPECT_EQ(next, row.source.size());
  }
}

TEST(PrefillSide, UnitsAreLongForALocalPeer) {
  struct Row {
    const char* name;
    std::vector<PrefillEvent> before;
    std::size_t want;  ///< units of ten neighbours
  };

  const PeerLinked linked{kD};
  const PeerIsLocal local{kD};
  const Row rows[] = {
      {"linked", {linked}, 4},
      {"and local", {linked, local}, 2},
      {"another one is", {linked, PeerLinked{kD + 1}, PeerIsLocal{kD + 1}}, 4},
      {"was, and came back", {linked, local, PeerLost{kD, unavailable("gone")}, linked}, 4},
      {"told late, of one that is lost", {local, linked}, 4},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto units =
        cut(cutting(100, 1, 300, 500), {4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, row.before);
    EXPECT_EQ(units.size(), row.want);
  }
}

TEST(PrefillSide, PagesApartAreShortUnitsForANearPeer) {
  struct Row {
    const char* name;
    std::vector<PrefillEvent> before;
    std::vector<std::uint32_t> want;  ///< pages of each unit of seven that lie apart
  };

  const PeerLinked linked{kD};
  const PeerIsNear near{kD};
  const PeerIsLocal local{kD};
  const Row rows[] = {
      {"linked", {linked}, {5, 2}},
      {"and near", {linked, near}, {3, 3, 1}},
      {"another one is", {linked, PeerLinked{kD + 1}, PeerIsNear{kD + 1}}, {5, 2}},
      {"near, and then local", {linked, near, local}, {5, 2}},
      {"was, and came back", {linked, near, PeerLost{kD, unavailable("gone")}, linked}, {5, 2}},
      {"told late, of one that is lost", {near, linked}, {5, 2}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::uint32_t> counts;
    for (const SendUnit& unit :
         cut(cutting(100, 1, 300, 500), {4, 6, 8, 10, 12, 14, 16}, row.before))
      counts.push_back(unit.range.page_count);
    EXPECT_EQ(counts, row.want);
  }
}

TEST(PrefillSide, ShortPagesApartArePutTogetherForANearPeer) {
  for (const std::uint64_t page_bytes : {40, 50}) {
    const auto units =
        cut(cutting(page_bytes, 1, 150, 250), {4, 6, 8, 10, 12}, {PeerLinked{kD}, PeerIsNear{kD}});
    EXPECT_EQ(units.size(), page_bytes < 50 ? 1U : 2U) << page_bytes;
  }
}

TEST(PrefillSide, PagesLongerThanARunGoInParts) {
  std::vector<ByteRange> ranges;
  for (const SendUnit& unit : cut(cutting(1000, 5, 650, 1500), {4, 5})) {
    EXPECT_EQ(unit.range.page_count, 1U) << "parts of two pages lie apart";
    ranges.push_back(unit.byte_range);
  }
  const std::vector<ByteRange> page = {{0, 600}, {600, 400}};
  std::vector<ByteRange> want = page;
  want.insert(want.end(), page.begin(), page.end());
  EXPECT_EQ(ranges, want);
}

}  // namespace
}  // namespace tandem::handoff
