#include "common/base/random.h"
#include "common/transfer/landing_table.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tandem::transfer {
namespace {

TransferName name(std::uint32_t generation = 1) {
  return {.request_id = 0x0102030405060708ULL,
          .attempt = 0x11121314,
          .decode_incarnation = 0x2122232425262728ULL,
          .slot = 3,
          .generation = generation};
}

UnitHeader header(std::uint32_t first_page, std::uint32_t page_count) {
  return {.name = name(),
          .unit = 9,
          .first_page = first_page,
          .page_count = page_count,
          .page_offset = 0,
          .page_length = 200,
          .first_part = 0,
          .part_count = 2,
          .payload_crc = 0xCAFEBABE};
}

TEST(UnitHeader, BytesLieWhereTheDocumentSays) {
  const UnitHeaderBytes bytes = encode(header(0x31323334, 2));
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  EXPECT_EQ(at(0), 'T');
  EXPECT_EQ(at(1), 'K');
  EXPECT_EQ(at(2), 1U);
  EXPECT_EQ(at(8), 0x08U) << "little-endian request id";
  EXPECT_EQ(at(15), 0x01U);
  EXPECT_EQ(at(16), 0x28U) << "incarnation";
  EXPECT_EQ(at(24), 0x14U) << "attempt";
  EXPECT_EQ(at(28), 3U) << "slot";
  EXPECT_EQ(at(32), 1U) << "generation";
  EXPECT_EQ(at(36), 9U) << "unit";
  EXPECT_EQ(at(40), 0x34U) << "first page";
  EXPECT_EQ(at(44), 2U) << "page count";
  EXPECT_EQ(at(52), 200U) << "page length";
  EXPECT_EQ(at(58), 2U) << "part count";
  EXPECT_EQ(at(60), 0xBEU) << "payload CRC";
}

TEST(UnitHeader, EveryBitAndEveryLengthIsChecked) {
  const UnitHeader want = header(4, 2);
  const UnitHeaderBytes good = encode(want);
  const auto read = decode_unit_header(good.data(), good.size());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, want);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    UnitHeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_unit_header(bad.data(), bad.size()).ok()) << "bit " << bit;
  }
  for (std::size_t size = 0; size < 64; ++size)
    EXPECT_EQ(decode_unit_header(good.data(), size).status().code(), Code::kDataLoss) << size;
}

TEST(UnitHeader, SizesAreBounded) {
  struct Row {
    const char* name;
    std::uint32_t page_count;
    std::uint32_t page_length;
  };

  for (const Row& row : {Row{"no page", 0, 64},
                         Row{"too many pages", kUnitPagesMax + 1, 1},
                         Row{"no byte", 1, 0},
                         Row{"too long", 4096, 0xFFFFFFFFU}}) {
    SCOPED_TRACE(row.name);
    UnitHeader h = header(0, row.page_count);
    h.page_length = row.page_length;
    const UnitHeaderBytes bytes = encode(h);
    EXPECT_FALSE(decode_unit_header(bytes.data(), bytes.size()).ok());
  }
}

LandingTable table() {
  return LandingTable(
      {.pool_pages = 16, .part_offsets = {0, 100, 200}, .planted_skip_generation_check = false});
}

TEST(LandingTable, OnlyExactNamesPagesAndPartsLand) {
  struct Row {
    const char* name;
    void (*change)(UnitHeader&);
    LandingVerdict want;
  };

  const Row rows[] = {
      {"exact", [](UnitHeader&) {}, LandingVerdict::kLand},
      {"one part",
       [](UnitHeader& h) { h.part_count = 1, h.page_length = 100; },
       LandingVerdict::kLand},
      {"older generation", [](UnitHeader& h) { --h.name.generation; }, LandingVerdict::kStaleName},
      {"other attempt", [](UnitHeader& h) { ++h.name.attempt; }, LandingVerdict::kStaleName},
      {"other request", [](UnitHeader& h) { ++h.name.request_id; }, LandingVerdict::kStaleName},
      {"other life",
       [](UnitHeader& h) { ++h.name.decode_incarnation; },
       LandingVerdict::kStaleName},
      {"other slot", [](UnitHeader& h) { ++h.name.slot; }, LandingVerdict::kStaleName},
      {"page before", [](UnitHeader& h) { h.first_page = 3; }, LandingVerdict::kOutOfRange},
      {"page after", [](UnitHeader& h) { h.first_page = 6; }, LandingVerdict::kOutOfRange},
      {"overflow", [](UnitHeader& h) { h.first_page = 0xFFFFFFFFU; }, LandingVerdict::kOutOfRange},
      {"no part", [](UnitHeader& h) { h.part_count = 0; }, LandingVerdict::kOutOfRange},
      {"part after", [](UnitHeader& h) { h.first_part = 1; }, LandingVerdict::kOutOfRange},
      {"offset", [](UnitHeader& h) { h.page_offset = 1; }, LandingVerdict::kOutOfRange},
      {"length", [](UnitHeader& h) { h.page_length = 201; }, LandingVerdict::kOutOfRange},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    LandingTable t = table();
    t.open(name(), 4, std::vector<std::uint32_t>{7, 9, 2});
    UnitHeader h = header(5, 2);
    row.change(h);
    Landing landing;
    EXPECT_EQ(t.begin(h, &landing), row.want);
    if (row.want == LandingVerdict::kLand) {
      EXPECT_EQ(landing.pages, (std::vector<std::uint32_t>{9, 2}));
    }
  }
}

TEST(LandingTable, WhatHasLandedWellNeverLandsAgain) {
  LandingTable t = table();
  t.open(name(), 4, std::vector<std::uint32_t>{7});
  Landing landing;
  ASSERT_EQ(t.begin(header(4, 1), &landing), LandingVerdict::kLand);
  Landing second;
  EXPECT_EQ(t.begin(header(4, 1), &second), LandingVerdict::kDuplicate) << "it is landing";
  EXPECT_FALSE(t.finish(landing, false));
  ASSERT_EQ(t.begin(header(4, 1), &landing), LandingVerdict::kLand) << "it came badly";
  EXPECT_FALSE(t.finish(landing, true));
  EXPECT_EQ(t.begin(header(4, 1), &second), LandingVerdict::kDuplicate);
}

TEST(LandingTable, ClosesWhenTheLastUnitInFlightHasEnded) {
  LandingTable t = table();
  t.open(name(), 4, std::vector<std::uint32_t>{7, 8});
  Landing a;
  Landing b;
  ASSERT_EQ(t.begin(header(4, 1), &a), LandingVerdict::kLand);
  ASSERT_EQ(t.begin(header(5, 1), &b), LandingVerdict::kLand);
  EXPECT_FALSE(t.close(name()));
  EXPECT_EQ(t.closing_count(), 1U);
  Landing c;
  EXPECT_EQ(t.begin(header(4, 1), &c), LandingVerdict::kStaleName) << "nothing new begins";
  EXPECT_FALSE(t.finish(b, true));
  EXPECT_TRUE(t.finish(a, false));
  EXPECT_EQ(t.open_count(), 0U);
  EXPECT_TRUE(t.close(name())) << "closing twice, or nothing, is closed";
}

}  // namespace
}  // namespace tandem::transfer
