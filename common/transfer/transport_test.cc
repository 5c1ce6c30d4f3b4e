#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/transfer/splice_sends.h"
#include "common/transfer/transport_test_support.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
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

struct Pair {
  explicit Pair(Node::Options options) : sender(options), receiver((options.fill = 0xEE, options)) {
    sender.transport->connect(kReceiver, receiver.transport->address());
    receiver.transport->connect(kSender, sender.transport->address());
    EXPECT_TRUE(sender.next<PeerConnectedEvent>());
    EXPECT_TRUE(receiver.next<PeerConnectedEvent>());
  }

  void send(const UnitHeader& header, std::vector<std::uint32_t> source) {
    sender.transport->send(
        {.peer = kReceiver, .header = header, .source_pages = std::move(source)});
  }

  Node sender;
  Node receiver;
};

class Transport : public ::testing::TestWithParam<BackEnd> {
 protected:
  void TearDown() override { ASSERT_TRUE(failpoint::configure("").ok()); }

  [[nodiscard]] Node::Options options() const { return {.back_end = GetParam()}; }
};

void expect_page(const Node& node, std::uint32_t at, std::uint32_t page) {
  for (std::uint64_t i = 0; i < node.memory.part_offsets.back(); ++i) {
    ASSERT_EQ(node.memory.page(at)[i], content(page, i)) << "page " << page << " byte " << i;
  }
}

struct SizeRow {
  const char* name;
  std::uint64_t page_bytes;
  std::uint32_t unit_pages;
  std::vector<std::uint32_t> source;
  std::vector<std::uint32_t> landing;
};

void move_units_of_all_sizes(const Node::Options& options) {
  const SizeRow rows[] = {
      {"one small page", 64, 1, {0}, {5}},
      {"odd size", 1001, 2, {1, 0}, {3, 9}},
      {"neighbours", 4096, 4, {0, 1, 2, 3}, {8, 9, 10, 11}},
      {"scattered", 16384, 4, {3, 0, 9, 1}, {15, 2, 11, 4}},
      {"rendezvous, scattered", 262144, 4, {3, 0, 9, 1}, {15, 2, 11, 4}},
      {"rendezvous, neighbours", 262144, 4, {4, 5, 6, 7}, {0, 1, 2, 3}},
  };
  for (const SizeRow& row : rows) {
    SCOPED_TRACE(row.name);
    Node::Options o = options;
    o.page_bytes = row.page_bytes;
    Pair pair(o);
    for (std::uint32_t i = 0; i < row.unit_pages; ++i)
      fill_page(pair.sender.memory, row.source[i], i);
    pair.receiver.transport->open_landing(test_name(), 0, row.landing);
    pair.send(unit_header(pair.sender.memory, 9, 0, row.unit_pages), row.source);
    const auto done = pair.sender.next<SendDoneEvent>();
    ASSERT_TRUE(done);
    EXPECT_TRUE(done->status.ok()) << done->status.message();
    EXPECT_EQ(done->unit, 9U);
    const auto landed = pair.receiver.next<UnitLandedEvent>();
    ASSERT_TRUE(landed);
    EXPECT_TRUE(landed->crc_ok);
    EXPECT_EQ(landed->header.payload_crc, done->crc);
    for (std::uint32_t i = 0; i < row.unit_pages; ++i)
      expect_page(pair.receiver, row.landing[i], i);
    EXPECT_EQ(pair.receiver.memory.page(7)[0], std::byte{0xEE});
    pair.receiver.transport->close_landing(test_name());
    EXPECT_TRUE(pair.receiver.next<LandingClosedEvent>());
  }
}

TEST_P(Transport, MovesUnitsOfAllSizes) {
  move_units_of_all_sizes(options());
}

/// Over TCP units are sent whole unless rendezvous is asked for.
TEST(TransportRendezvous, MovesUnitsOfAllSizesOverTcp) {
  move_units_of_all_sizes({.back_end = BackEnd::kUcxTcp, .rendezvous_bytes = 1});
}

/// Moves units over TCP, one after the other, each into pages that lie apart.
class TcpUnits {
 public:
  explicit TcpUnits(std::uint64_t page_bytes)
      : pair_({.back_end = BackEnd::kUcxTcp, .pages = 32, .page_bytes = page_bytes}) {}

  void move(const std::vector<std::uint32_t>& source) {
    const std::uint32_t unit = ++units_;
    const auto count = static_cast<std::uint32_t>(source.size());
    std::vector<std::uint32_t> landing;
    for (std::uint32_t i = 0; i < count; ++i) {
      fill_page(pair_.sender.memory, source[i], unit + i);
      landing.push_back(30 - 2 * i);
    }
    pair_.receiver.transport->open_landing(test_name(unit), 0, landing);
    UnitHeader header = unit_header(pair_.sender.memory, unit, 0, count);
    header.name = test_name(unit);
    pair_.send(header, source);
    const auto landed = pair_.receiver.next<UnitLandedEvent>();
    ASSERT_TRUE(landed);
    EXPECT_TRUE(landed->crc_ok);
    for (std::uint32_t i = 0; i < count; ++i)
      expect_page(pair_.receiver, landing[i], unit + i);
    ASSERT_TRUE(pair_.sender.next<SendDoneEvent>());
  }

  /// After another unit, since it is counted behind the event of a send.
  std::uint64_t spliced(const std::vector<std::uint32_t>& source) {
    move(source);
    return pair_.sender.transport->stats().spliced_bytes;
  }

  [[nodiscard]] bool is_near() { return pair_.sender.next<PeerIsNearEvent>(0).has_value(); }

 private:
  Pair pair_;
  std::uint32_t units_ = 0;
};

constexpr std::uint64_t kKiB = 1024;

TEST(TransportTcp, NeighboursGoFromWhereTheyLie) {
  TcpUnits units(200 * kKiB);
  EXPECT_EQ(units.spliced({2, 5}), 0U);
  const bool splices = SpliceSends::is_worth_it_here();
  for (int i = 0; i < 2; ++i)
    units.move({4, 5});
  EXPECT_EQ(units.spliced({4, 5}) >= 400 * kKiB, splices);
  EXPECT_EQ(units.is_near(), splices);
  EXPECT_FALSE(units.is_near()) << "said once";
}

/// But they do not while it is not known that the peer is near: as a list it would copy them one by
/// one.
TEST(TransportTcp, LongPagesApartGoFromWhereTheyLie) {
  TcpUnits units(200 * kKiB);
  EXPECT_EQ(units.spliced({2, 5}), 0U);
  for (int i = 0; i < 4; ++i)
    units.move({2, 5});
  EXPECT_EQ(units.spliced({5, 2}) >= 400 * kKiB, SpliceSends::is_worth_it_here());
}

/// A slot is given to the next unit at once, so its bytes must be in the socket's own memory.
TEST(TransportTcp, OthersArePutTogetherInSlots) {
  struct Row {
    const char* name;
    std::uint64_t page_bytes;
    std::vector<std::uint32_t> source;
  };

  const Row rows[] = {
      {"short pages", 16 * kKiB, {1, 3, 5, 7, 9, 11, 13, 15}},
      {"more than a piece", 200 * kKiB, {1, 3, 5}},
      {"of a long unit one short run", 16 * kKiB, {1, 2, 3, 4, 5, 6, 7, 9}},
  };
  std::vector<std::uint32_t> neighbours(13);
  std::iota(neighbours.begin(), neighbours.end(), 16U);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    TcpUnits units(row.page_bytes);
    // A send that waits for the wire-up does not tell.
    for (int i = 0; i < 2; ++i)
      units.move(neighbours);
    const std::uint64_t before = units.spliced(row.source);
    EXPECT_EQ(units.is_near(), SpliceSends::is_worth_it_here());
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(units.spliced(row.source), before);
  }
}

TEST_P(Transport, PartsOfPagesLandSeparately) {
  Node::Options o = options();
  o.parts = 4;
  Pair pair(o);
  fill_page(pair.sender.memory, 2, 0);
  pair.receiver.transport->open_landing(test_name(), 0, {6});
  for (std::uint16_t part = 0; part < 4; ++part) {
    UnitHeader header = unit_header(pair.sender.memory, part, 0, 1);
    header.first_part = part;
    header.part_count = 1;
    header.page_offset = part * 1024U;
    header.page_length = 1024;
    pair.send(header, {2});
    ASSERT_TRUE(pair.receiver.next<UnitLandedEvent>());
  }
  expect_page(pair.receiver, 6, 0);
}

TEST_P(Transport, StaleGenerationsNeverLand) {
  Pair pair(options());
  pair.receiver.transport->open_landing(test_name(2), 0, {4});
  pair.send(unit_header(pair.sender.memory, 0, 0, 1, /*generation=*/1), {0});
  ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  // Behind it on the same connection: when this one is there, the stale one has been looked at.
  fill_page(pair.sender.memory, 1, 0);
  pair.send(unit_header(pair.sender.memory, 1, 0, 1, /*generation=*/2), {1});
  const auto landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_EQ(landed->header.name.generation, 2U);
  expect_page(pair.receiver, 4, 0);
  pair.receiver.transport->close_landing(test_name(2));
  EXPECT_TRUE(pair.receiver.next<LandingClosedEvent>());
  EXPECT_EQ(pair.receiver.count<UnitLandedEvent>(), 0U);
}

TEST_P(Transport, UnitsOutsideTheOpenPagesOrTwiceNeverLand) {
  Pair pair(options());
  fill_page(pair.sender.memory, 0, 0);
  pair.receiver.transport->open_landing(test_name(), 4, {4, 5});
  pair.send(unit_header(pair.sender.memory, 0, 3, 1), {0});     // before
  pair.send(unit_header(pair.sender.memory, 1, 5, 2), {0, 1});  // one too many
  UnitHeader sliver = unit_header(pair.sender.memory, 2, 4, 1);
  sliver.page_length = 8;  // not the part's length
  pair.send(sliver, {0});
  pair.send(unit_header(pair.sender.memory, 3, 4, 1), {0});
  auto landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_EQ(landed->header.unit, 3U);
  // Again, with other bytes: the good ones stay.
  fill_page(pair.sender.memory, 1, 99);
  pair.send(unit_header(pair.sender.memory, 4, 4, 1), {1});
  pair.send(unit_header(pair.sender.memory, 5, 5, 1), {1});
  landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_EQ(landed->header.unit, 5U);
  expect_page(pair.receiver, 4, 0);
  for (int i = 0; i < 6; ++i)
    EXPECT_TRUE(pair.sender.next<SendDoneEvent>());
}

TEST_P(Transport, DamagedUnitIsSeenAndMayComeAgain) {
  Pair pair(options());
  fill_page(pair.sender.memory, 0, 0);
  pair.receiver.transport->open_landing(test_name(), 0, {4});
  ASSERT_TRUE(failpoint::configure("transfer.corrupt=1*error").ok());
  pair.send(unit_header(pair.sender.memory, 0, 0, 1), {0});
  auto landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_FALSE(landed->crc_ok);
  pair.send(unit_header(pair.sender.memory, 0, 0, 1), {0});
  landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed);
  EXPECT_TRUE(landed->crc_ok);
  expect_page(pair.receiver, 4, 0);
}

TEST_P(Transport, NothingLandsAfterTheLandingIsClosed) {
  Node::Options o = options();
  o.page_bytes = 1U << 20U;
  Pair pair(o);
  pair.receiver.transport->open_landing(test_name(), 0, {0, 1, 2, 3, 4, 5, 6, 7});
  for (std::uint32_t unit = 0; unit < 8; ++unit) {
    fill_page(pair.sender.memory, unit, unit);
    pair.send(unit_header(pair.sender.memory, unit, unit, 1), {unit});
  }
  ASSERT_TRUE(pair.receiver.next<UnitLandedEvent>());
  pair.receiver.transport->close_landing(test_name());
  ASSERT_TRUE(pair.receiver.next<LandingClosedEvent>());
  // The pages belong to someone else now.
  std::fill(pair.receiver.bytes.begin(), pair.receiver.bytes.end(), std::byte{0x55});
  for (int i = 0; i < 8; ++i)
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>());
  for (const std::byte b : pair.receiver.bytes)
    ASSERT_EQ(b, std::byte{0x55});
  EXPECT_EQ(pair.receiver.count<LandingClosedEvent>(), 0U);
}

TEST_P(Transport, SendsToNobodyEndWithAnError) {
  Node node(options());
  node.transport->send(
      {.peer = 99, .header = unit_header(node.memory, 0, 0, 1), .source_pages = {0}});
  const auto done = node.next<SendDoneEvent>();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status.code(), Code::kUnavailable);
  for (const std::string address : {"", "garbage", "TKA1    garbage"}) {
    node.transport->connect(5, address);
    const auto error = node.next<PeerDataErrorEvent>();
    ASSERT_TRUE(error) << address;
    EXPECT_EQ(error->peer, 5U);
  }
  node.transport->close_landing(test_name());
  EXPECT_TRUE(node.next<LandingClosedEvent>()) << "a landing that was never open closes at once";
}

TEST_P(Transport, DisconnectEndsAllSends) {
  Node::Options o = options();
  o.page_bytes = 1U << 20U;
  Pair pair(o);
  pair.receiver.transport->open_landing(test_name(), 0, {0, 1, 2, 3, 4, 5, 6, 7});
  for (std::uint32_t unit = 0; unit < 8; ++unit)
    pair.send(unit_header(pair.sender.memory, unit, unit, 1), {unit});
  pair.sender.transport->disconnect(kReceiver);
  for (int i = 0; i < 8; ++i)
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>()) << i;
  pair.receiver.transport->disconnect(kSender);
  pair.receiver.transport->close_landing(test_name());
  EXPECT_TRUE(pair.receiver.next<LandingClosedEvent>());
}

std::size_t entries(const char* folder) {
  std::error_code error;
  std::size_t n = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; it != end; ++it)
    ++n;
  return n;
}

TEST_P(Transport, LeavesNothingBehind) {
  {
    const Pair warm(options());  // what UCX keeps for the life of the process
  }
  const std::size_t fds = entries("/proc/self/fd");
  const std::size_t threads = entries("/proc/self/task");
  const std::size_t shm = entries("/dev/shm");
  for (int i = 0; i < 3; ++i) {
    Pair pair(options());
    pair.receiver.transport->open_landing(test_name(), 0, {0});
    pair.send(unit_header(pair.sender.memory, 0, 0, 1), {0});
    ASSERT_TRUE(pair.receiver.next<UnitLandedEvent>());
  }
  // A thread that was joined is listed until the kernel has taken it down.
  const auto left = [&] {
    return entries("/proc/self/fd") > fds || entries("/proc/self/task") > threads ||
           entries("/dev/shm") > shm;
  };
  const Time deadline = steady_clock().now() + seconds(20);
  while (left() && steady_clock().now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(entries("/proc/self/fd"), fds);
  EXPECT_LE(entries("/proc/self/task"), threads);
  EXPECT_LE(entries("/dev/shm"), shm);
}

/// A peer whose pieces are longer than the buffer here would overflow it.
TEST(TransportSettings, TcpSizesAreTheSameEverywhere) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has not tamed UCX yet
  const auto same = [] {
    ::setenv("UCX_TCP_TX_SEG_SIZE", "8k", 1);
    ::setenv("UCX_TCP_RX_SEG_SIZE", "8k", 1);
    ::setenv("UCX_LOG_LEVEL", "info", 1);
    tame_ucx();
    return std::getenv("UCX_TCP_TX_SEG_SIZE") == std::string("512k") &&
           std::getenv("UCX_TCP_RX_SEG_SIZE") == std::string("512k") &&
           std::getenv("UCX_LOG_LEVEL") == std::string("info");
  };
  EXPECT_EXIT(::_exit(same() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(
    All,
    Transport,
    ::testing::Values(BackEnd::kInProcess, BackEnd::kUcx, BackEnd::kUcxPool, BackEnd::kUcxTcp),
    [](const auto& row) {
      switch (row.param) {
        case BackEnd::kInProcess:
          return "InProcess";
        case BackEnd::kUcx:
          return "Ucx";
        case BackEnd::kUcxPool:
          return "UcxPool";
        case BackEnd::kUcxTcp:
          return "UcxTcp";
      }
      return "?";
    });

}  // namespace
}  // namespace tandem::transfer
