// Short integers in a text, many of them in a row. Private to room json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tandem::json {

/// A whole number of 1 to 9 digits, as JSON writes it; without digits it is something else.
struct ShortNumber {
  std::size_t digits = 0;
  std::int32_t value = 0;
};

/// What stands at `at`, before `end`.
ShortNumber read_short_number(const char* at, const char* end);

struct IntegerRun {
  const char* at = nullptr;  ///< what is not taken
  std::size_t count = 0;
};

/// Takes "1,2, 3," from the front, numbers of at most 7 digits with at most one space before each,
/// as many as there is room for. Stops at whatever else there is, and somewhere near the ends of
/// the text, which begins at `begin`. Pre: right before `at` is an
/// ASCII character that is no digit.
IntegerRun read_run(const char* begin,
                    const char* at,
                    const char* end,
                    std::span<std::int32_t> room);

/// How many commas there are.
std::size_t count_commas(std::string_view text);

/// What the two above do where vectors of 32 bytes are not to be had. Apart for tests.
IntegerRun read_run_portable(const char* begin,
                             const char* at,
                             const char* end,
                             std::span<std::int32_t> room);
std::size_t count_commas_portable(std::string_view text);
/// Whether they are.
[[nodiscard]] bool can_read_wide();

}  // namespace tandem::json
