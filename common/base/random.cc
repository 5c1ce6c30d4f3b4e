#include "common/base/random.h"

#include "common/base/check.h"

#include <sys/random.h>

namespace tandem {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMul0 = 0xD2511F53U;
  constexpr std::uint64_t kMul1 = 0xCD9E8D57U;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = kMul0 * counter[0];
    const std::uint64_t p1 = kMul1 * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32U) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32U) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

double counter_uniform(std::uint64_t seed, std::uint64_t position, std::uint32_t stream) {
  const auto word =
      philox4x32({static_cast<std::uint32_t>(position),
                  static_cast<std::uint32_t>(position >> 32U),
                  stream,
                  0},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)});
  const std::uint64_t bits = ((static_cast<std::uint64_t>(word[0]) << 32U) | word[1]) >> 11U;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

std::uint64_t system_random() {
  std::uint64_t value = 0;
  const ssize_t got = getrandom(&value, sizeof value, 0);
  TANDEM_CHECK(got == static_cast<ssize_t>(sizeof value), "getrandom");
  return value;
}

std::uint64_t system_random_ahead() {
  thread_local std::array<std::uint64_t, 32> drawn{};
  thread_local std::size_t left = 0;
  if (left == 0) {
    // Up to 256 bytes come whole.
    const ssize_t got = getrandom(drawn.data(), sizeof drawn, 0);
    TANDEM_CHECK(got == static_cast<ssize_t>(sizeof drawn), "getrandom");
    left = drawn.size();
  }
  return drawn[--left];
}

}  // namespace tandem
