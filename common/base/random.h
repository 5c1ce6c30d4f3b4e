// Random numbers: a seeded stream for simulations and jitter, a counter-based one for sampling, the
// operating system's for identities.
#pragma once

#include <array>
#include <cstdint>

namespace tandem {

/// SplitMix64 (Steele, Lea, Flood 2014): small seeded stream for tests, simulations and back-off
/// jitter.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31U);
  }

  /// Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>((static_cast<Wide>(next()) * bound) >> 64U);
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1.0p-53; }

  bool chance(double probability) { return uniform() < probability; }

 private:
  __extension__ using Wide = unsigned __int128;
  std::uint64_t state_;
};

/// Philox4x32-10 (Salmon et al., SC 2011): a pure function of (key, counter), the same on every
/// machine.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// Uniform in (0, 1) with 53 bits: the sampling noise of (seed, position, stream). Nothing else
/// enters.
double counter_uniform(std::uint64_t seed, std::uint64_t position, std::uint32_t stream);

/// 64 bits from the operating system: incarnations, rooms, request ids.
std::uint64_t system_random();

/// The same for what is drawn with every request: taken from the system 32 at a time for each
/// thread. Not in a child that forks and does not exec, which would draw what its parent draws.
std::uint64_t system_random_ahead();

}  // namespace tandem
