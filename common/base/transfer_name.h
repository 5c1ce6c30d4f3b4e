// TransferName: what one hand-off of KV from a prefill to a decode process is called, everywhere.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace tandem {

/// Carried by every control message and every data header. Two transfers never share a name: the
/// decode process draws its incarnation at random when it starts and counts the generation of a
/// slot up at each reuse, so what belongs to an earlier life cannot be mistaken for the present
/// one.
struct TransferName {
  std::uint64_t request_id = 0;          ///< the router's room
  std::uint32_t attempt = 0;             ///< counts the router's tries of one request
  std::uint64_t decode_incarnation = 0;  ///< of the receiving process; never 0 in a live name
  std::uint32_t slot = 0;                ///< index into the receiver's table of transfers
  std::uint32_t generation = 0;          ///< of that slot
  friend constexpr auto operator<=>(const TransferName&, const TransferName&) = default;
};

/// "7f3a/0@c0ffee.3.12": request/attempt@incarnation.slot.generation, for logs (numbers in hex but
/// the last two).
inline std::string to_string(const TransferName& name) {
  constexpr auto kHex = [](std::uint64_t v) {
    std::string s;
    do {
      s.insert(s.begin(), "0123456789abcdef"[v & 15U]);
      v >>= 4U;
    } while (v != 0);
    return s;
  };
  return kHex(name.request_id) + "/" + kHex(name.attempt) + "@" + kHex(name.decode_incarnation) +
         "." + std::to_string(name.slot) + "." + std::to_string(name.generation);
}

}  // namespace tandem
