// The safetensors container (huggingface/safetensors, README "Format"): an 8-byte little-endian
// header length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
#pragma once

#include "common/base/status.h"
#include "common/weights/element_type.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tandem::weights {

/// Limits of what a header may claim; a file over one of them is refused.
inline constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit
inline constexpr std::size_t kTensorCountMax = 1'000'000;
inline constexpr std::size_t kRankMax = 8;
inline constexpr std::size_t kNameBytesMax = 1024;

/// One tensor as its header describes it, checked: `byte_count` == product(shape) * size(type) and
/// [offset, offset + byte_count) lies inside the file.
struct TensorEntry {
  std::string name;
  ElementType type{};
  std::vector<std::int64_t> shape;  ///< Outermost first, every extent >= 0.
  std::uint64_t offset = 0;         ///< From the start of the file.
  std::uint64_t byte_count = 0;
};

/// "[2048, 192]"
std::string shape_text(std::span<const std::int64_t> shape);

/// Reads and checks the header of one whole file. The tensors must tile the data without overlap or
/// gap, as the format demands. Entries come back in order of offset. `file_name` is for messages,
/// which name file, tensor, what was found and what was expected.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file,
                                                   const std::string& file_name);

}  // namespace tandem::weights
