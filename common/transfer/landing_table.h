// LandingTable: which unit may land where, now. The receiver's fence: a unit whose name is not in
// the table, word for word, never gets a place to land.
#pragma once

#include "common/base/transfer_name.h"
#include "common/transfer/unit_header.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace tandem::transfer {

struct LandingLimits {
  std::uint32_t pool_pages = 0;  ///< page ids are below it
  /// Where the parts (layer groups) of a page begin, and the page's end: part p is bytes
  /// [part_offsets[p], part_offsets[p + 1]). At most 16 parts.
  std::vector<std::uint64_t> part_offsets;
  /// Tests only: a unit lands by its slot, whatever its generation says.
  bool planted_skip_generation_check = false;
};

enum class LandingVerdict : std::uint8_t {
  kLand,
  kStaleName,   ///< no landing of that name is open: an old life, or closed already
  kOutOfRange,  ///< pages or parts that are not open, or byte ranges that are not the parts'
  kDuplicate,   ///< some of it has landed well, or is landing, already
};
inline constexpr std::size_t kLandingVerdicts = 4;

/// A unit that may land: the page ids in the order of the payload.
struct Landing {
  TransferName name;  ///< of the landing, equal to the unit's
  UnitHeader header;
  std::vector<std::uint32_t> pages;
};

/// Pure bookkeeping, owns no memory. Copyable. Owner: the progress thread of a transport.
class LandingTable {
 public:
  explicit LandingTable(LandingLimits limits);

  /// Prompt pages first_page + i may land in pages[i]. Pages of one name are opened in order
  /// without gaps; anything else is a broken invariant of the caller.
  void open(const TransferName& name,
            std::uint32_t first_page,
            std::span<const std::uint32_t> pages);

  /// May this unit land, and where. With kLand it counts as in flight until finish().
  LandingVerdict begin(const UnitHeader& header, Landing* landing);

  /// The unit's bytes are in place, or will never be. True: this was the last one in flight of a
  /// closing name, which is closed now.
  bool finish(const Landing& landing, bool landed_well);

  /// Nothing more may begin. True: closed at once (also for a name that is not open).
  bool close(const TransferName& name);

  [[nodiscard]] std::size_t open_count() const { return landings_.size(); }

  /// Names that wait for units in flight.
  [[nodiscard]] std::size_t closing_count() const;
  [[nodiscard]] std::uint64_t fingerprint() const;

 private:
  struct Page {
    std::uint32_t page = 0;
    std::uint16_t landed = 0;  ///< parts
    std::uint16_t landing = 0;
  };

  struct Entry {
    std::uint32_t first_page = 0;
    std::vector<Page> pages;
    std::uint32_t in_flight = 0;
    bool closing = false;
  };

  std::map<TransferName, Entry>::iterator find(const TransferName& name);

  LandingLimits limits_;
  std::map<TransferName, Entry> landings_;
};

}  // namespace tandem::transfer
