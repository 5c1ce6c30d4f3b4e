#include "kernels/cpu/features.h"

#include <gtest/gtest.h>

namespace tandem::kernels::cpu {
namespace {

// Signatures as AMD's processor programming references and revision guides have them.
TEST(Features, EachZenReadsInItsOrder) {
  struct Row {
    const char* name;
    std::uint32_t signature;
    ReadOrder order;
  };

  const Row rows[] = {
      {"Zen 2, Rome", 0x00830F10, ReadOrder::kSideBySide},
      {"Zen 3, Milan", 0x00A00F11, ReadOrder::kSideBySide},
      {"Zen 3, Milan-X", 0x00A00F12, ReadOrder::kSideBySide},
      {"Zen 3, Vermeer", 0x00A20F10, ReadOrder::kSideBySide},
      {"Zen 3+, Rembrandt", 0x00A40F41, ReadOrder::kSideBySide},
      {"Zen 3, Cezanne", 0x00A50F00, ReadOrder::kSideBySide},
      {"Zen 4, Genoa", 0x00A10F11, ReadOrder::kOneStream},
      {"Zen 4, Storm Peak", 0x00A10F81, ReadOrder::kOneStream},
      {"Zen 4, Raphael", 0x00A60F12, ReadOrder::kOneStream},
      {"Zen 4, Phoenix", 0x00A70F41, ReadOrder::kOneStream},
      {"Zen 4c, Bergamo", 0x00AA0F02, ReadOrder::kOneStream},
      {"Zen 5, Turin", 0x00B00F21, ReadOrder::kNextTile},
      {"Zen 5, Granite Ridge", 0x00B40F40, ReadOrder::kNextTile},
  };
  for (const Row& row : rows)
    EXPECT_EQ(read_order_of_amd(row.signature), row.order) << row.name;
}

}  // namespace
}  // namespace tandem::kernels::cpu
