// Fingerprint: an order-dependent 64-bit hash of a machine's state, for explorers and tests.
#pragma once

#include "common/base/transfer_name.h"

#include <cstdint>
#include <string_view>

namespace tandem::handoff {

class Fingerprint {
 public:
  Fingerprint& add(std::uint64_t v) {
    // The finaliser of SplitMix64 over state + value: every input bit reaches every output bit.
    std::uint64_t z = (state_ ^ v) + 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
    state_ = z ^ (z >> 31U);
    return *this;
  }

  Fingerprint& add(std::string_view text) {
    add(text.size());
    for (const char c : text)
      add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    return *this;
  }

  Fingerprint& add(const TransferName& name) {
    return add(name.request_id)
        .add((std::uint64_t{name.attempt} << 32U) | name.slot)
        .add(name.decode_incarnation)
        .add(name.generation);
  }

  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace tandem::handoff
