#include "common/weights/element_type.h"
#include "common/weights/safetensors.h"
#include "tests/fuzz/feeds.h"

#include <cstddef>
#include <cstring>

namespace tandem::fuzz {

void feed_safetensors(Bytes bytes) {
  const auto entries = weights::parse_safetensors(std::as_bytes(bytes), "f");
  if (!entries.ok()) {
    must(entries.status().message().starts_with("f: "), "a refusal names the file");
    return;
  }
  std::uint64_t header = 0;
  must(bytes.size() >= sizeof(header), "a file has a header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  // The data begin behind the header, and are all of the rest.
  std::uint64_t end = sizeof(header) + header;
  for (const weights::TensorEntry& entry : *entries) {
    must(entry.offset == end, "tensors tile the file");
    end += entry.byte_count;
    std::uint64_t count = 1;
    for (const std::int64_t extent : entry.shape) {
      must(extent >= 0, "extents are sizes");
      count *= static_cast<std::uint64_t>(extent);
    }
    must(entry.byte_count == count * weights::byte_size(entry.type),
         "a tensor is as large as its shape");
  }
  must(end == bytes.size(), "and nothing is left over");
}

}  // namespace tandem::fuzz
