#include "common/handoff/messages.h"

#include "common/handoff/fingerprint.h"

namespace tandem::handoff {

std::uint64_t unit_digest(const UnitRange& range, std::uint32_t crc) {
  return Fingerprint()
      .add((std::uint64_t{range.unit} << 32U) | crc)
      .add((std::uint64_t{range.first_page} << 32U) | range.page_count)
      .add((std::uint64_t{range.first_part} << 32U) | range.part_count)
      .value();
}

const TransferName& name_of(const DecodeToPrefill& message) {
  return std::visit([](const auto& m) -> const TransferName& { return m.name; }, message);
}

const TransferName& name_of(const PrefillToDecode& message) {
  return std::visit([](const auto& m) -> const TransferName& { return m.name; }, message);
}

}  // namespace tandem::handoff
