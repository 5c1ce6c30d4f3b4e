// Workers that leave tokens out or send more than were asked for.
#include "common/fleet/flight_fixture.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::fleet {
namespace {

TEST(FlightTable, AWorkerThatSendsMoreThanWasAskedForIsReplaced) {
  // Too many; far ahead; one left out, with the last one or not.
  for (const std::int32_t first : {2, 1000, 3}) {
    SCOPED_TRACE(first);
    Book book;
    ASSERT_TRUE(book.table.begin(request_of(7, 4), {}, book.out).ok());
    book.table.on_event({1}, tokens({7}, 0, 2), {}, book.out);
    book.take();
    book.table.on_event({1}, tokens({7}, first, first == 3 ? 1 : 3, true), {}, book.out);
    const auto actions = book.take();
    EXPECT_TRUE(all<Emit>(actions).empty());
    ASSERT_EQ(all<AbortAt>(actions).size(), 1U);
    EXPECT_EQ(all<AbortAt>(actions)[0].worker, WorkerKey{1});
    ASSERT_EQ(all<SubmitTo>(actions).size(), 1U);
    EXPECT_EQ(all<SubmitTo>(actions)[0].worker, WorkerKey{2});
    EXPECT_EQ(all<SubmitTo>(actions)[0].request->resumed_output_ids,
              (std::vector<core::TokenId>{100, 101}));
    // Nor does any other one keep count: the request ends, and says why.
    std::vector<Emit> emitted;
    std::vector<SubmitTo> next = all<SubmitTo>(actions);
    for (int turn = 0; turn < 20 && emitted.empty(); ++turn) {
      for (const SubmitTo& submit : next)
        book.table.on_event(submit.worker, tokens(submit.request->id, 2, 3), Time{0}, book.out);
      if (book.out.empty()) book.table.on_time(*book.table.next_deadline(), book.out);
      const auto turned = book.take();
      next = all<SubmitTo>(turned);
      emitted = all<Emit>(turned);
    }
    EXPECT_GE(book.table.stats().miscounted, 2U);
    ASSERT_EQ(emitted.size(), 1U);
    EXPECT_EQ(emitted[0].event.finish->status.code(), Code::kDataLoss);
    EXPECT_NE(emitted[0].event.finish->status.message().find("token 5 of a request for 4"),
              std::string::npos);
  }
}

TEST(FlightTable, DecodeLeavesOutPrefillsTokenAndNoOther) {
  // Another one: before, behind or beside it.
  for (const int where : {0, 1, 2}) {
    SCOPED_TRACE(where);
    Book book;
    book.prefill = {{11}, {12}};
    ASSERT_TRUE(book.table.begin(request_of(7, 8), {}, book.out).ok());
    book.take();
    if (where == 1) book.table.on_event({1}, tokens({7}, 1, 2), {}, book.out);
    if (where == 2) book.table.on_event({11}, tokens({7}, 0, 1), {}, book.out);
    book.take();
    book.table.on_event({1}, tokens({7}, where == 1 ? 4 : 2, 1), {}, book.out);
    const auto actions = book.take();
    EXPECT_EQ(all<AbortAt>(actions).size(), 2U);
    ASSERT_EQ(all<SubmitTo>(actions).size(), 2U);
    EXPECT_EQ(all<SubmitTo>(actions)[0].worker, WorkerKey{2});
    EXPECT_EQ(book.table.stats().miscounted, 1U);
    // The next attempt begins anew.
    const std::int32_t have = where == 2 ? 1 : 0;
    book.table.on_event({2}, tokens({1000}, have + 1, 7 - have, true), {}, book.out);
    book.table.on_event({11}, tokens({1000}, have, 1), {}, book.out);
    EXPECT_EQ(all<Emit>(book.take()).size(), 2U);
  }
}

TEST(FlightTable, WhatPrefillSaysBehindTheHandOffHarmsNothing) {
  Book book;
  book.prefill = {{11}};
  ASSERT_TRUE(book.table.begin(request_of(7), {}, book.out).ok());
  book.table.on_event({11}, tokens({7}, 0, 1), {}, book.out);
  book.table.on_event({1}, tokens({7}, 1, 1), {}, book.out);
  book.take();
  book.table.on_event({11}, tokens({7}, 90, 1), {}, book.out);
  EXPECT_TRUE(book.take().empty());
  book.table.on_event({1}, tokens({7}, 2, 2, true), {}, book.out);
  EXPECT_EQ(all<Emit>(book.take()).size(), 1U);
}

}  // namespace
}  // namespace tandem::fleet
