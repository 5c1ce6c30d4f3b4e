#include "common/weights/checkpoint.h"
#include "common/weights/element_type.h"
#include "common/weights/safetensors.h"
#include "tests/fuzz/feeds.h"
#include "tests/fuzz/own_folder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace tandem::fuzz {
namespace {

std::string shard(std::string_view header, std::size_t data, char byte) {
  const std::uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  return bytes.append(header).append(data, byte);
}

/// A model folder of two shards.
struct ModelFolder : OwnFolder {
  ModelFolder() : OwnFolder("model") {
    write("one.safetensors",
          shard(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, '\1'));
    write("two.safetensors",
          shard(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                R"("c":{"dtype":"I8","shape":[],"data_offsets":[4,5]}})",
                5,
                '\2'));
  }
};

}  // namespace

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

void feed_index(Bytes bytes) {
  static const ModelFolder kFolder;
  constexpr const char* kIndex = "model.safetensors.index.json";
  const std::string text = text_of(bytes);
  kFolder.write(kIndex, text);
  const auto checkpoint = weights::Checkpoint::open(kFolder.path(), {});
  if (!checkpoint.ok()) {
    must(checkpoint.status().message().find(kIndex) != std::string::npos,
         "a refusal names the file");
    return;
  }
  nlohmann::json shards;
  for (const weights::StoredTensor& tensor : checkpoint->tensors()) {
    const bool first = tensor.name == "a";
    shards[std::string(tensor.name)] = first ? "one.safetensors" : "two.safetensors";
    must(std::ranges::all_of(tensor.bytes,
                             [&](std::byte b) { return b == std::byte(first ? 1 : 2); }),
         "a tensor is what its shard holds");
  }
  must(nlohmann::json::parse(text).at("weight_map") == shards, "and the index names that shard");
  must(shards.contains("b") == shards.contains("c"), "and all that it holds");
}

}  // namespace tandem::fuzz
