// Units that a peer on the same machine reads where they lie.
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/transfer/short_message.h"
#include "common/transfer/transport_test_support.h"
#include "common/transfer/unit_copy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>

namespace tandem::transfer {
namespace {

using testing::BackEnd;
using testing::content;
using testing::fill_page;
using testing::Node;
using testing::test_name;
using testing::unit_header;

constexpr std::uint64_t kSender = 1;
constexpr std::uint64_t kReceiver = 2;
/// What the receiver's pages hold before anything lands.
constexpr unsigned char kEmpty = 0xEE;

struct Pair {
  explicit Pair(const Node::Options& options, BackEnd receivers = BackEnd::kUcx)
      : sender(options), receiver([&] {
          Node::Options mine = options;
          mine.back_end = receivers;
          mine.fill = kEmpty;
          mine.tell = {};
          return mine;
        }()) {
    sender.transport->connect(kReceiver, receiver.transport->address());
    receiver.transport->connect(kSender, sender.transport->address());
    EXPECT_TRUE(sender.next<PeerConnectedEvent>());
    EXPECT_TRUE(receiver.next<PeerConnectedEvent>());
  }

  void send(const TransferName& name,
            std::uint32_t unit,
            std::uint32_t first_page,
            std::vector<std::uint32_t> source) {
    UnitHeader header =
        unit_header(sender.memory, unit, first_page, static_cast<std::uint32_t>(source.size()));
    header.name = name;
    sender.transport->send(
        {.peer = kReceiver, .header = header, .source_pages = std::move(source)});
  }

  /// Units of other names go, wanted by nobody, until one has gone the way that `count` counts: the
  /// offer and its answer take a moment.
  void wait_for(std::uint64_t TransportStats::*count) {
    const Time deadline = steady_clock().now() + seconds(20);
    while (sender.transport->stats().*count == 0 && steady_clock().now() < deadline) {
      send(test_name(900'000), 0, 0, {0});
      ASSERT_TRUE(sender.next<SendDoneEvent>());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_GT(sender.transport->stats().*count, 0U);
  }

  Node sender;
  Node receiver;
};

class TransferPool : public ::testing::Test {
 protected:
  void TearDown() override { ASSERT_TRUE(failpoint::configure("").ok()); }
};

TEST_F(TransferPool, UnitsAreReadWhereTheyLie) {
  Pair pair({.back_end = BackEnd::kUcxPool});
  const auto local = pair.sender.next<PeerIsLocalEvent>();
  ASSERT_TRUE(local);
  EXPECT_EQ(local->peer, kReceiver);
  for (std::uint32_t i = 0; i < 4; ++i)
    fill_page(pair.sender.memory, 3 * i % 5, i);
  pair.wait_for(&TransportStats::sent_from_pool);
  const std::uint64_t slots = pair.sender.transport->stats().sent_in_slots;
  pair.receiver.transport->open_landing(test_name(), 0, {9, 2, 3, 15});
  pair.send(test_name(), 0, 0, {0, 3, 1, 4});
  const auto landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_TRUE(landed->crc_ok);
  const auto done = pair.sender.next<SendDoneEvent>();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->status.ok());
  EXPECT_EQ(done->crc, landed->header.payload_crc);
  EXPECT_EQ(pair.sender.transport->stats().sent_in_slots, slots);
  EXPECT_FALSE(pair.sender.next<PeerIsLocalEvent>(0)) << "said once";
  const std::uint32_t where[] = {9, 2, 3, 15};
  for (std::uint32_t page = 0; page < 4; ++page) {
    for (std::uint64_t i = 0; i < 4096; ++i)
      ASSERT_EQ(pair.receiver.memory.page(where[page])[i], content(page, i)) << page << " " << i;
  }
  EXPECT_EQ(pair.receiver.memory.page(8)[0], std::byte{kEmpty});
}

/// A unit in more pieces than a message names is put together in a slot.
TEST_F(TransferPool, ManyPiecesGoThroughASlot) {
  constexpr std::uint32_t kPages = 1024;
  Pair pair({.back_end = BackEnd::kUcxPool, .pages = kPages, .page_bytes = 64});
  std::vector<std::uint32_t> apart;  // every other page
  std::vector<std::uint32_t> landing;
  for (std::uint32_t i = 0; i < kPages / 2; ++i) {
    apart.push_back(2 * i);
    landing.push_back(i);
    fill_page(pair.sender.memory, 2 * i, i);
  }
  pair.wait_for(&TransportStats::sent_from_pool);
  const TransportStats before = pair.sender.transport->stats();
  pair.receiver.transport->open_landing(test_name(), 0, landing);
  pair.send(test_name(), 0, 0, apart);
  const auto landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_TRUE(landed->crc_ok);
  ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  for (std::uint32_t page = 0; page < kPages / 2; ++page)
    ASSERT_EQ(pair.receiver.memory.page(page)[5], content(page, 5)) << page;
  const TransportStats after = pair.sender.transport->stats();
  EXPECT_LE(after.sent_from_pool, before.sent_from_pool);
}

TEST_F(TransferPool, OnlyWhenThePoolIsShared) {
  Pair pair({.back_end = BackEnd::kUcx}, BackEnd::kUcxPool);
  pair.wait_for(&TransportStats::sent_in_slots);
  for (int i = 0; i < 20; ++i) {
    pair.send(test_name(2), 0, 0, {0});
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  }
  EXPECT_EQ(pair.sender.transport->stats().sent_from_pool, 0U);
  EXPECT_TRUE(pair.sender.next<PeerIsLocalEvent>(0)) << "but it reads the slots";
}

TEST_F(TransferPool, NotWhenTheUserWantsTcp) {
  Pair pair({.back_end = BackEnd::kUcxPool}, BackEnd::kUcxTcp);
  for (int i = 0; i < 20; ++i) {
    pair.send(test_name(2), 0, 0, {0});
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  }
  EXPECT_EQ(pair.sender.transport->stats().sent_from_pool, 0U);
}

TEST_F(TransferPool, DamageIsSeen) {
  Pair pair({.back_end = BackEnd::kUcxPool});
  fill_page(pair.sender.memory, 0, 0);
  pair.wait_for(&TransportStats::sent_from_pool);
  pair.receiver.transport->open_landing(test_name(), 0, {4});
  ASSERT_TRUE(failpoint::configure("transfer.corrupt=1*error").ok());
  for (const bool good : {false, true}) {
    pair.send(test_name(), 0, 0, {0});
    const auto landed = pair.receiver.next<UnitLandedEvent>();
    ASSERT_TRUE(landed);
    EXPECT_EQ(landed->crc_ok, good);
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  }
}

/// A peer that names memory outside of what it has offered costs its unit.
TEST_F(TransferPool, MemoryOutsideIsNotRead) {
  // Its pages are elsewhere, far from the memory that it offers.
  std::vector<std::byte> elsewhere(16 * 4096);
  Pair pair({.back_end = BackEnd::kUcxPool,
             .tell = [&](PageMemory& memory) { memory.base = elsewhere.data(); }});
  pair.receiver.transport->open_landing(test_name(), 0, {4});
  pair.wait_for(&TransportStats::sent_from_pool);
  const Time deadline = steady_clock().now() + seconds(20);
  while (pair.receiver.transport->stats().bad_headers == 0 && steady_clock().now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::uint64_t before = pair.receiver.transport->stats().bad_headers;
  ASSERT_GT(before, 0U);
  pair.send(test_name(), 0, 0, {0});
  const auto done = pair.sender.next<SendDoneEvent>();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->status.ok()) << "it is answered for like every unit that is not wanted";
  pair.receiver.transport->close_landing(test_name());
  ASSERT_TRUE(pair.receiver.next<LandingClosedEvent>());
  EXPECT_EQ(pair.receiver.count<UnitLandedEvent>(), 0U);
  EXPECT_EQ(pair.receiver.memory.page(4)[0], std::byte{kEmpty});
}

/// A sender may be told that its bytes are free while the receiver still reads, when one of the two
/// has taken the other for lost: what then lands does not count as good.
TEST_F(TransferPool, BytesThatChangeUnderTheReaderAreSeen) {
  Pair pair({.back_end = BackEnd::kUcxPool});
  fill_page(pair.sender.memory, 0, 0);
  fill_page(pair.sender.memory, 1, 1);
  pair.wait_for(&TransportStats::sent_from_pool);
  pair.receiver.transport->open_landing(test_name(), 0, {4, 5});
  {
    // Its progress thread stands still when the first unit has landed, before it is answered.
    const std::lock_guard hold(pair.receiver.mutex);
    pair.send(test_name(), 0, 0, {0});
    pair.send(test_name(), 1, 1, {1});
    const Time deadline = steady_clock().now() + seconds(20);
    while (pair.sender.transport->stats().lent_units < 2 && steady_clock().now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(pair.sender.transport->stats().lent_units, 2U);
    fill_page(pair.sender.memory, 1, 99);
  }
  for (std::uint32_t unit = 0; unit < 2; ++unit) {
    const auto landed = pair.receiver.next<UnitLandedEvent>();
    ASSERT_TRUE(landed);
    EXPECT_EQ(landed->header.unit, unit);
    EXPECT_EQ(landed->crc_ok, unit == 0);
  }
}

/// The owner of the pool is gone; its memory stays until the receiver has closed the endpoint.
TEST_F(TransferPool, ManyUnitsAndADisconnectInTheMiddle) {
  constexpr std::uint32_t kPages = 64;
  Pair pair({.back_end = BackEnd::kUcxPool, .pages = kPages, .page_bytes = 65536});
  pair.wait_for(&TransportStats::sent_from_pool);
  std::vector<std::uint32_t> pages;
  for (std::uint32_t i = 0; i < kPages; ++i)
    pages.push_back(kPages - 1 - i);
  pair.receiver.transport->open_landing(test_name(), 0, pages);
  for (std::uint32_t unit = 0; unit < kPages; ++unit)
    pair.send(test_name(), unit, unit, {unit});
  for (std::uint32_t unit = 0; unit < kPages; ++unit) {
    const auto landed = pair.receiver.next<UnitLandedEvent>();
    ASSERT_TRUE(landed);
    EXPECT_TRUE(landed->crc_ok);
    EXPECT_EQ(landed->header.unit, unit);  // none overtakes another
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  }
  pair.receiver.transport->open_landing(test_name(2), 0, pages);
  for (std::uint32_t unit = 0; unit < kPages; ++unit)
    pair.send(test_name(2), unit, unit, {unit});
  ASSERT_TRUE(pair.receiver.next<UnitLandedEvent>());
  pair.receiver.transport->disconnect(kSender);
  pair.receiver.transport->close_landing(test_name(2));
  ASSERT_TRUE(pair.receiver.next<LandingClosedEvent>());
  std::fill(pair.receiver.bytes.begin(), pair.receiver.bytes.end(), std::byte{0x55});
  pair.sender.transport->disconnect(kReceiver);
  for (std::uint32_t unit = 0; unit < kPages; ++unit)
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>()) << unit;
  for (const std::byte b : pair.receiver.bytes)
    ASSERT_EQ(b, std::byte{0x55});
  EXPECT_EQ(pair.sender.count<SendDoneEvent>(), 0U);
}

struct RunsRow {
  const char* name;
  std::vector<PoolRun> runs;
  std::uint64_t bytes;
  bool good;
};

TEST(PoolRuns, OnlyWhatLiesInThePool) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  const RunsRow rows[] = {
      {"all of it", {{0, 4096}}, 4096, true},
      {"its last byte", {{4095, 1}}, 1, true},
      {"two, backwards", {{100, 10}, {0, 5}}, 15, true},
      {"one byte too many", {{0, 4097}}, 4097, false},
      {"one byte behind", {{4096, 1}}, 1, false},
      {"ends behind", {{4000, 97}}, 97, false},
      {"far away", {{kMost, 1}}, 1, false},
      {"end wraps around", {{kMost - 9, 20}}, 20, false},
      {"one good, one not", {{0, 10}, {5000, 10}}, 20, false},
      {"an empty one", {{0, 10}, {10, 0}}, 10, false},
      {"fewer bytes than the unit", {{0, 10}}, 11, false},
      {"more bytes than the unit", {{0, 10}}, 9, false},
      {"none", {}, 0, false},
  };
  const std::vector<std::byte> pool(4096);
  for (const RunsRow& row : rows) {
    SCOPED_TRACE(row.name);
    std::vector<std::byte> message;
    for (const PoolRun& run : row.runs)
      append(message, run);
    const auto found = runs_in(pool, message, row.bytes);
    ASSERT_EQ(!found.empty(), row.good);
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].begin, pool.data() + row.runs[i].offset);
      EXPECT_EQ(found[i].bytes, row.runs[i].bytes);
    }
  }
}

TEST(PoolRuns, AreCopiedInOrderWhateverTheirLengths) {
  std::vector<std::byte> pool(10'000);
  for (std::size_t i = 0; i < pool.size(); ++i)
    pool[i] = content(7, i);
  std::vector<std::byte> out(4096);
  const SourceRun from[] = {{pool.data() + 5000, 1}, {pool.data() + 17, 2047}, {pool.data(), 1000}};
  const MemoryRun to[] = {{out.data() + 3000, 1000}, {out.data(), 1}, {out.data() + 64, 2047}};
  std::vector<std::byte> want;
  for (const SourceRun& run : from)
    want.insert(want.end(), run.begin, run.begin + run.bytes);
  EXPECT_EQ(copy_crc(from, to), crc32c(want.data(), want.size()));
  std::vector<std::byte> got;
  for (const MemoryRun& run : to)
    got.insert(got.end(), run.begin, run.begin + run.bytes);
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace tandem::transfer
