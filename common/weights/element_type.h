// Element types that a weight file may hold. More than the kernels compute with: a file is
// described as it is, and whoever uses a tensor says which types it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::weights {

enum class ElementType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
};

/// Bytes of one element.
std::size_t byte_size(ElementType type);

/// As safetensors writes it: "BF16".
std::string_view name(ElementType type);

/// Nothing when safetensors has no such type or we do not know it.
std::optional<ElementType> parse_element_type(std::string_view name);

/// "F32, F16, BF16, ...", for messages.
std::string_view element_type_names();

}  // namespace tandem::weights
