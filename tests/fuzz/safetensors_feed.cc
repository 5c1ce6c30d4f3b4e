#include "common/weights/checkpoint.h"
#include "common/weights/element_type.h"
#include "common/weights/safetensors.h"
#include "tests/fuzz/feeds.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tandem::fuzz {
namespace {

/// A model folder of two shards, one for the whole process, gone when it ends.
class ModelFolder {
 public:
  ModelFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("tandem-fuzz-model-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
    write("one.safetensors", file(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    write("two.safetensors",
          file(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
               R"("c":{"dtype":"I8","shape":[],"data_offsets":[4,5]}})",
               5));
  }

  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  ~ModelFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  void write(const char* name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc) << bytes;
  }

  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  static std::string file(std::string_view header, std::size_t data) {
    const std::uint64_t size = header.size();
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    return bytes.append(header).append(data, '\1');
  }

  std::filesystem::path path_;
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
  kFolder.write(kIndex, text_of(bytes));
  const auto checkpoint = weights::Checkpoint::open(kFolder.path(), {});
  if (!checkpoint.ok()) {
    must(checkpoint.status().message().find(kIndex) != std::string::npos,
         "a refusal names the file");
    return;
  }
  const auto tensors = checkpoint->tensors();
  std::string names;
  for (const weights::StoredTensor& tensor : tensors) {
    names += tensor.name;
    must(std::ranges::all_of(tensor.bytes, [](std::byte b) { return b == std::byte{1}; }),
         "a tensor is what its shard holds");
  }
  // What no shard of the index holds is not missed.
  must(names == "a" || names == "bc" || names == "abc", "and all that it holds");
}

}  // namespace tandem::fuzz
