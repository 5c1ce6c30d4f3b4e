#include "common/json/integers.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tandem::json {
namespace {

using Run = IntegerRun (*)(const char*, const char*, const char*, std::span<std::int32_t>);
constexpr std::string_view kBefore = "[[[[[[[[";

/// The same byte for byte. `goes_on`: whether a next number could be taken.
std::vector<std::int32_t> read_slowly(std::string_view text, std::size_t* taken, bool* goes_on) {
  std::vector<std::int32_t> numbers;
  *taken = 0;
  while (true) {
    std::size_t at = *taken + (text.substr(*taken).starts_with(' ') ? 1 : 0);
    const std::size_t first = at;
    std::int32_t value = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9' && at - first < 8)
      value = value * 10 + (text[at++] - '0');
    const std::size_t digits = at - first;
    *goes_on = digits >= 1 && digits <= 7 && (digits == 1 || text[first] != '0') &&
               at < text.size() && text[at] == ',';
    if (!*goes_on) return numbers;
    numbers.push_back(value);
    *taken = at + 1;
  }
}

/// A run gives what stands there, and all of it but what is near the end or finds no room.
void expect_run(Run run, const std::string& list, std::size_t room) {
  SCOPED_TRACE(list + " room " + std::to_string(room));
  // In memory of its own and nothing behind it, for a sanitizer to see. (Not what loads half of a
  // vector reads.)
  const std::string text = std::string(kBefore) + list;
  const std::vector<char> bytes(text.begin(), text.end());
  const char* const begin = bytes.data();
  const char* const at = begin + kBefore.size();
  std::vector<std::int32_t> numbers(room + 8, -1);
  const IntegerRun got = run(begin, at, begin + bytes.size(), std::span(numbers).first(room));
  EXPECT_EQ(std::count(numbers.end() - 8, numbers.end(), -1), 8);
  std::size_t taken = 0;
  bool goes_on = false;
  const std::vector<std::int32_t> want = read_slowly(list, &taken, &goes_on);
  ASSERT_LE(got.count, std::min(room, want.size()));
  const auto count = static_cast<std::ptrdiff_t>(got.count);
  EXPECT_TRUE(std::equal(numbers.begin(), numbers.begin() + count, want.begin()));
  EXPECT_EQ(std::count(at, got.at, ','), count);
  EXPECT_TRUE(count == 0 || got.at[-1] == ',');
  if (got.count == room) return;
  // Where it stopped nothing could be taken, or less than a piece is left.
  const std::string_view rest(got.at, static_cast<std::size_t>(begin + bytes.size() - got.at));
  EXPECT_TRUE(rest.size() < 64 + 8 || read_slowly(rest, &taken, &goes_on).empty());
}

void expect_runs(const std::string& list, std::size_t room) {
  expect_run(&read_run_portable, list, room);
  expect_run(&read_run, list, room);
}

std::string random_list(Random& random, std::size_t bytes, std::string_view separator) {
  std::string list;
  while (list.size() < bytes) {
    if (!list.empty()) list += separator;
    std::uint64_t ten = 1;
    for (std::uint64_t digits = random.below(random.chance(0.02) ? 10 : 7); digits > 0; --digits)
      ten *= 10;
    list += std::to_string(random.below(ten * 10));
  }
  return list;
}

TEST(Integers, RunsOfEveryLength) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    for (const std::string_view separator : {",", ", ", " ,", ",  ", ",\n"}) {
      const std::string list = random_list(random, 150, separator) + "]";
      for (std::size_t size = 0; size <= list.size(); ++size)
        expect_runs(list.substr(0, size), 100);
      for (std::size_t room = 0; room <= 80; ++room)
        expect_runs(list, room);
    }
  }
}

TEST(Integers, RunsEndAtWhateverElseThereIs) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const std::string list = random_list(random, 150, random.chance(0.5) ? "," : ", ");
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (const char c : std::string_view("0 ,-.:/]\xB5\n")) {
        std::string damaged = list;
        damaged[i] = c;
        expect_runs(damaged, 100);
        damaged.insert(i, 1, list[i]);
        expect_runs(damaged, 100);
      }
    }
  }
}

TEST(Integers, NumbersOfEveryLengthAtEveryPlace) {
  for (std::size_t before = 0; before < 70; ++before) {
    for (const std::string number :
         {"0",       "7",        "10",        "999",        "1000", "99999", "100000",
          "9999999", "12345678", "999999999", "1000000000", "00",   "01",    "0000000",
          " 5",      "  5",      " 05",       "",           "-1",   "1.5"}) {
      std::string list;
      while (list.size() < before)
        list += list.size() + 2 == before ? "12" : list.size() % 2 == 0 ? "3" : ",";
      if (!list.empty() && list.back() != ',') list += ',';
      list += number;
      for (int i = 0; i < 70; ++i)
        list += ",8";
      expect_runs(list, 200);
    }
  }
}

TEST(Integers, CommasOfEveryLength) {
  Random random(5);
  std::string text;
  for (std::size_t size = 0; size < 700; ++size) {
    const auto want = static_cast<std::size_t>(std::count(text.begin(), text.end(), ','));
    ASSERT_EQ(count_commas(text), want) << text;
    ASSERT_EQ(count_commas_portable(text), want) << text;
    text += random.chance(0.7) ? ',' : '-';
  }
}

}  // namespace
}  // namespace tandem::json
