#include "common/transfer/slots.h"

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/transfer/transport_test_support.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <thread>

namespace tandem::transfer {
namespace {

using testing::BackEnd;
using testing::content;
using testing::fill_page;
using testing::Node;
using testing::test_name;
using testing::unit_header;

TEST(Slots, OfferSurvivesTheWireAndDamageIsSeen) {
  for (const MemoryKind kind : {MemoryKind::kSlots, MemoryKind::kPool}) {
    MemoryOffer offer{.kind = kind, .from = 0x01020304, .key = {.pid = 77, .fd = 12, .token = {}}};
    offer.key.token.fill(std::byte{0x5A});
    const MemoryOfferBytes bytes = encode(offer);
    EXPECT_EQ(decode_memory_offer(bytes), offer);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      MemoryOfferBytes damaged = bytes;
      damaged[i] ^= std::byte{1};
      EXPECT_FALSE(decode_memory_offer(damaged).has_value()) << i;
    }
    EXPECT_FALSE(decode_memory_offer(std::span(bytes).first(bytes.size() - 1)).has_value());
  }
}

TEST(Slots, WhatIsPutInIsReadByThePeer) {
  SlotMemory mine;
  ASSERT_TRUE(mine.create().ok());
  std::memset(mine.slot(3), 0x42, kSlotBytes);
  const auto theirs = PeerSlots::open(mine.key());
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  EXPECT_TRUE(mine.shareable());
  EXPECT_EQ(std::memcmp(theirs->slot(3), mine.slot(3), kSlotBytes), 0);
}

/// From now on memfd_create is refused to this process, as in a sandbox.
bool refuse_memfd() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{.len = std::size(filter), .filter = filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(Slots, WithoutASharedFileTheyAreTheProcesssOwn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // the filter stays with the process
  const auto works = [] {
    if (!refuse_memfd() || ::memfd_create("refused", MFD_CLOEXEC) >= 0) return false;
    SlotMemory mine;
    if (!mine.create().ok() || mine.shareable()) return false;
    std::memset(mine.slot(kSlotCount - 1), 0x42, kSlotBytes);
    return mine.take().has_value();
  };
  EXPECT_EXIT(::_exit(works() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

TEST(Slots, EachIsTakenOnce) {
  SlotMemory mine;
  ASSERT_TRUE(mine.create().ok());
  std::set<std::uint32_t> taken;
  for (auto slot = mine.take(); slot; slot = mine.take())
    EXPECT_TRUE(taken.insert(*slot).second);
  EXPECT_EQ(taken.size(), kSlotCount);
  mine.give(5);
  EXPECT_EQ(mine.take(), 5U);
}

/// What else is refused: shared_memory_test.cc.
TEST(Slots, MemoryOfAnotherSizeIsRefused) {
  SlotMemory mine;
  ASSERT_TRUE(mine.create().ok());
  EXPECT_TRUE(PeerSlots::open(mine.key()).ok());
  for (const std::size_t bytes : {std::size_t{4096}, (kSlotCount + 1) * kSlotBytes}) {
    const auto other = SharedMemory::create(kSlotsName, bytes);
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(PeerSlots::open(other->key()).status().code(), Code::kUnavailable);
  }
}

struct TlsRow {
  const char* variable;
  bool allowed;
};

TEST(Slots, ObeyUcxTls) {
  constexpr TlsRow kRows[] = {{nullptr, true},
                              {"all", true},
                              {"tcp", false},
                              {"tcp,self", false},
                              {"shm,tcp", true},
                              {"self,posix", true},
                              {"rc_verbs,tcp", false},
                              {"^tcp", true},
                              {"^posix,sysv", false},
                              {"mm,tcp", true},
                              {"^mm", false},
                              {"^shm", false},
                              {"tcp,smx", false}};
  for (const TlsRow& row : kRows)
    EXPECT_EQ(slots_allowed(row.variable), row.allowed) << (row.variable ? row.variable : "unset");
}

struct Pair {
  explicit Pair(const Node::Options& options) : sender(options), receiver(options) {
    for (std::uint32_t page = 0; page < options.pages; ++page)
      fill_page(sender.memory, page, page);
    sender.transport->connect(2, receiver.transport->address());
    receiver.transport->connect(1, sender.transport->address());
    EXPECT_TRUE(sender.next<PeerConnectedEvent>());
    EXPECT_TRUE(receiver.next<PeerConnectedEvent>());
  }

  /// Sends page `unit` to page pages-1-unit of the receiver; whether it came whole.
  bool move(std::uint32_t unit, std::uint32_t generation) {
    const auto name = test_name(generation);
    receiver.transport->open_landing(name, unit, {sender.memory.page_count - 1 - unit});
    UnitHeader header = unit_header(sender.memory, unit, unit, 1);
    header.name = name;
    sender.transport->send({.peer = 2, .header = header, .source_pages = {unit}});
    const auto landed = receiver.next<UnitLandedEvent>();
    const auto done = sender.next<SendDoneEvent>();
    receiver.transport->close_landing(name);
    EXPECT_TRUE(receiver.next<LandingClosedEvent>());
    return landed && landed->crc_ok && done && done->status.ok();
  }

  /// Units through slots, once the two know each other: the offer and its answer take a moment.
  std::uint64_t in_slots() {
    const Time deadline = steady_clock().now() + seconds(20);
    std::uint64_t count = 0;
    for (std::uint32_t generation = 1; count == 0 && steady_clock().now() < deadline;
         ++generation) {
      EXPECT_TRUE(move(0, generation));
      count = sender.transport->stats().sent_in_slots;
      if (count == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return count;
  }

  Node sender;
  Node receiver;
};

TEST(TransportSlots, PeersOfOneMachineUseThem) {
  Pair pair({.back_end = BackEnd::kUcx});
  ASSERT_GT(pair.in_slots(), 0U);
  for (std::uint32_t page = 0; page < 16; ++page) {
    ASSERT_TRUE(pair.move(page, 1000 + page));
    for (std::uint64_t i = 0; i < 4096; ++i)
      ASSERT_EQ(pair.receiver.memory.page(15 - page)[i], content(page, i));
  }
  EXPECT_EQ(pair.receiver.transport->stats().bad_crc, 0U);
}

TEST(TransportSlots, NotWhenTheUserWantsTcp) {
  Pair pair({.back_end = BackEnd::kUcxTcp});
  for (std::uint32_t i = 1; i < 20; ++i)
    ASSERT_TRUE(pair.move(i % 16, i));
  EXPECT_EQ(pair.sender.transport->stats().sent_in_slots, 0U);
  EXPECT_FALSE(pair.sender.next<PeerIsLocalEvent>(0));
}

TEST(TransportSlots, DamageIsSeen) {
  Pair pair({.back_end = BackEnd::kUcx});
  ASSERT_GT(pair.in_slots(), 0U);
  ASSERT_TRUE(failpoint::configure("transfer.corrupt=1*error").ok());
  EXPECT_FALSE(pair.move(3, 2000));
  ASSERT_TRUE(failpoint::configure("").ok());
  EXPECT_TRUE(pair.move(3, 2001));
  EXPECT_EQ(pair.receiver.transport->stats().bad_crc, 1U);
}

/// The peer has offered its slots once, to the endpoint before the one that it is known by now. The
/// old one stays open, so that nothing else tells the sender.
TEST(TransportSlots, ReceiverThatConnectsAgainStillAnswers) {
  Pair pair({.back_end = BackEnd::kUcx});
  ASSERT_GT(pair.in_slots(), 0U);
  pair.receiver.transport->connect(0, pair.sender.transport->address());
  ASSERT_TRUE(pair.receiver.next<PeerConnectedEvent>());
  const auto name = test_name(3000);
  pair.receiver.transport->open_landing(name, 0, {7});
  UnitHeader header = unit_header(pair.sender.memory, 0, 0, 1);
  header.name = name;
  pair.sender.transport->send({.peer = 2, .header = header, .source_pages = {4}});
  const auto done = pair.sender.next<SendDoneEvent>();
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(done->status.ok()) << done->status.message();
  const auto landed = pair.receiver.next<UnitLandedEvent>();
  ASSERT_TRUE(landed.has_value());
  EXPECT_TRUE(landed->crc_ok);
}

/// Connects another receiver to the sender as `peer`, and waits until units go to it in slots.
void add_receiver(Node& sender, Node& receiver, std::uint64_t peer) {
  sender.transport->connect(peer, receiver.transport->address());
  receiver.transport->connect(1, sender.transport->address());
  ASSERT_TRUE(sender.next<PeerConnectedEvent>());
  ASSERT_TRUE(receiver.next<PeerConnectedEvent>());
  const std::uint64_t before = sender.transport->stats().sent_in_slots;
  const Time deadline = steady_clock().now() + seconds(20);
  while (sender.transport->stats().sent_in_slots == before && steady_clock().now() < deadline) {
    sender.transport->send(
        {.peer = peer, .header = unit_header(sender.memory, 0, 0, 1), .source_pages = {0}});
    ASSERT_TRUE(sender.next<SendDoneEvent>());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_GT(sender.transport->stats().sent_in_slots, before);
}

/// Two peers that do not go on hold every slot between them; a third is served all the same.
TEST(TransportSlots, StoppedPeersDelayNobodyElse) {
  constexpr std::uint32_t kPages = 16;
  const Node::Options options{.back_end = BackEnd::kUcx, .pages = kPages};
  Node live(options);
  Node stopped(options);
  Pair pair(options);  // the sender, and the other that stops
  ASSERT_GT(pair.in_slots(), 0U);
  add_receiver(pair.sender, stopped, 3);
  add_receiver(pair.sender, live, 4);
  const auto name = test_name(6000);
  std::vector<std::uint32_t> pages(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i)
    pages[i] = i;
  for (Node* node : {&pair.receiver, &stopped, &live})
    node->transport->open_landing(name, 0, pages);
  const auto send_all = [&](std::uint64_t peer) {
    for (std::uint32_t unit = 0; unit < kPages; ++unit) {
      UnitHeader header = unit_header(pair.sender.memory, unit, unit, 1);
      header.name = name;
      pair.sender.transport->send({.peer = peer, .header = header, .source_pages = {unit}});
    }
  };
  {
    // Their progress threads stand still when their first unit has landed, before it is answered.
    const std::scoped_lock hold(pair.receiver.mutex, stopped.mutex);
    send_all(2);
    send_all(3);
    send_all(4);
    for (std::uint32_t unit = 0; unit < kPages; ++unit) {
      const auto landed = live.next<UnitLandedEvent>();
      ASSERT_TRUE(landed.has_value()) << unit;
      EXPECT_TRUE(landed->crc_ok);
    }
  }
  for (std::uint32_t unit = 0; unit < 3 * kPages; ++unit) {
    const auto done = pair.sender.next<SendDoneEvent>();
    ASSERT_TRUE(done.has_value()) << unit;
    EXPECT_TRUE(done->status.ok());
  }
  for (Node* node : {&pair.receiver, &stopped}) {
    for (std::uint32_t unit = 0; unit < kPages; ++unit) {
      const auto landed = node->next<UnitLandedEvent>();
      ASSERT_TRUE(landed.has_value()) << unit;
      EXPECT_EQ(landed->header.unit, unit);  // none overtakes another
    }
  }
}

/// More units than slots: each ends once, none waits for ever; a disconnect ends the rest.
TEST(TransportSlots, MoreUnitsThanSlots) {
  constexpr std::uint32_t kPages = 64;
  Pair pair({.back_end = BackEnd::kUcx, .pages = kPages, .page_bytes = 65536});
  ASSERT_GT(pair.in_slots(), 0U);
  std::vector<std::uint32_t> pages(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i)
    pages[i] = kPages - 1 - i;
  const auto name = test_name(5000);
  pair.receiver.transport->open_landing(name, 0, pages);
  for (std::uint32_t unit = 0; unit < kPages; ++unit) {
    UnitHeader header = unit_header(pair.sender.memory, unit, unit, 1);
    header.name = name;
    pair.sender.transport->send({.peer = 2, .header = header, .source_pages = {unit}});
  }
  for (std::uint32_t unit = 0; unit < kPages; ++unit) {
    const auto done = pair.sender.next<SendDoneEvent>();
    ASSERT_TRUE(done.has_value());
    EXPECT_TRUE(done->status.ok());
    const auto landed = pair.receiver.next<UnitLandedEvent>();
    ASSERT_TRUE(landed.has_value());
    EXPECT_TRUE(landed->crc_ok);
  }
  for (std::uint32_t unit = 0; unit < kPages; ++unit) {
    UnitHeader header = unit_header(pair.sender.memory, unit, unit, 1);
    header.name = test_name(5001);
    pair.sender.transport->send({.peer = 2, .header = header, .source_pages = {unit}});
  }
  pair.sender.transport->disconnect(2);
  for (std::uint32_t unit = 0; unit < kPages; ++unit)
    ASSERT_TRUE(pair.sender.next<SendDoneEvent>().has_value()) << unit;
}

}  // namespace
}  // namespace tandem::transfer
