// TANDEM_CHECK: a broken invariant ends the process with context. Never for bad input or a lost
// peer.
#pragma once

#include <string_view>

namespace tandem::internal {
[[noreturn, gnu::cold]] void check_failed(const char* file,
                                          int line,
                                          const char* condition,
                                          std::string_view context);
}  // namespace tandem::internal

/// TANDEM_CHECK(condition) or TANDEM_CHECK(condition, "what was being done"). Active in every
/// build.
#define TANDEM_CHECK(condition, ...)                                      \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::tandem::internal::check_failed(                                   \
          __FILE__, __LINE__, #condition, std::string_view{__VA_ARGS__}); \
  } while (false)
