#include "common/weights/element_type.h"

#include <string>

namespace tandem::weights {
namespace {

struct Row {
  ElementType type;
  std::string_view name;
  std::size_t bytes;
};

/// In order of the enumerators.
constexpr Row kRows[] = {
    {ElementType::kF32, "F32", 4},
    {ElementType::kF16, "F16", 2},
    {ElementType::kBF16, "BF16", 2},
    {ElementType::kF64, "F64", 8},
    {ElementType::kI64, "I64", 8},
    {ElementType::kI32, "I32", 4},
    {ElementType::kI16, "I16", 2},
    {ElementType::kI8, "I8", 1},
    {ElementType::kU64, "U64", 8},
    {ElementType::kU32, "U32", 4},
    {ElementType::kU16, "U16", 2},
    {ElementType::kU8, "U8", 1},
    {ElementType::kBool, "BOOL", 1},
    {ElementType::kF8E4M3, "F8_E4M3", 1},
    {ElementType::kF8E5M2, "F8_E5M2", 1},
};

constexpr bool rows_match_enumerators() {
  std::size_t index = 0;
  for (const Row& row : kRows) {
    if (static_cast<std::size_t>(row.type) != index++) return false;
  }
  return true;
}

static_assert(rows_match_enumerators());

}  // namespace

std::size_t byte_size(ElementType type) {
  return kRows[static_cast<std::size_t>(type)].bytes;
}

std::string_view name(ElementType type) {
  return kRows[static_cast<std::size_t>(type)].name;
}

std::optional<ElementType> parse_element_type(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::string_view element_type_names() {
  static const std::string kNames = [] {
    std::string all;
    for (const Row& row : kRows) {
      if (!all.empty()) all += ", ";
      all += row.name;
    }
    return all;
  }();
  return kNames;
}

}  // namespace tandem::weights
