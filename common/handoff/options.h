// Limits and switches of the two sides.
#pragma once

#include "common/base/ids.h"
#include "common/handoff/layout.h"

#include <cstdint>

namespace tandem::handoff {

/// Bugs that the simulator and the explorer must find. For tests only: no flag of any program
/// reaches them.
struct PlantedBugs {
  bool skip_generation_check = false;  ///< a slot takes what an earlier occupant was sent
  bool free_on_timer = false;          ///< pages go back at once, bytes may still be in flight
  bool double_accept = false;          ///< a repeated Commit is accepted and delivered again
};

struct SideOptions {
  LayoutDescriptor layout;
  std::uint64_t incarnation = 0;
  std::uint32_t transfers_max = 1024;  ///< at once, per side
  std::uint32_t pages_max = 65536;     ///< of one prompt
  std::uint32_t grant_pages_max = 1024;
  std::uint32_t commit_bytes_max = 4U << 20U;
  /// Decode: pages granted ahead of the verified ones. 0 grants the whole prompt at once.
  std::uint32_t window_pages = 64;
  /// Bad CRCs of one unit before the transfer fails.
  std::uint32_t resends_max = 3;
  /// Prefill: a unit is at most this long (and at least one page part).
  std::uint64_t unit_bytes = 1U << 20U;
  /// Prefill: and this long where it is one run of memory, for peers that are not local: what goes
  /// over TCP in one piece (docs/protocols/transfer.md), which the receiver need not put together.
  std::uint64_t run_bytes = kRunBytes;
  /// Prefill: pages, or parts of them, of this length and more need not be one run for that, if the
  /// peer is near.
  std::uint64_t list_part_bytes = kListPartBytes;
  std::uint32_t units_in_flight_max = 128;  ///< of the whole side
  /// More than that, and what was read for its CRC has left the caches before it goes.
  std::uint32_t units_in_flight_per_transfer = 32;
  /// Of the whole side. Not less than that many units, or short ones leave no room for long ones.
  std::uint64_t bytes_in_flight_max = 128U << 20U;
  /// Prefill: how long a grant is kept at most for a request that the own engine has not named yet.
  /// The engine may be in a step meanwhile: longer than any.
  Duration orphan_ttl = seconds(3600);
  /// Prefill: ended requests that are remembered, to answer late grants with the reason.
  std::uint32_t ended_max = 1024;
  PlantedBugs bugs;
};

/// What was dropped and why, and what went through. Monotonic.
struct SideStats {
  std::uint64_t started = 0;
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;
  std::uint64_t refused = 0;
  std::uint64_t stale_dropped = 0;         ///< wrong incarnation, generation, attempt, or sender
  std::uint64_t unknown_dropped = 0;       ///< no such transfer (any more)
  std::uint64_t out_of_order_dropped = 0;  ///< the state does not take this event (duplicates)
  std::uint64_t invalid = 0;               ///< values out of range
  std::uint64_t units = 0;
  std::uint64_t units_bad_crc = 0;
  std::uint64_t peer_drained = 0;
};

}  // namespace tandem::handoff
