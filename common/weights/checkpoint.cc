#include "common/weights/checkpoint.h"

#include "common/base/random.h"
#include "common/json/field.h"
#include "common/json/parse.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <utility>

namespace tandem::weights {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::size_t kIndexBytesMax = std::size_t{256} << 20U;

/// A shard lies in the model folder itself: no path, no hidden file.
Status check_shard_name(const json::Field& field, std::string_view name) {
  const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
                     name.ends_with(".safetensors");
  if (plain) return {};
  return field.mismatch("the name of a .safetensors file in the same folder");
}

/// weight_map of the index: tensor -> shard.
using WeightMap = std::map<std::string, std::string, std::less<>>;

Result<WeightMap> parse_index(const json::Field& root) {
  TANDEM_TRY(const json::Field map_field, root.at("weight_map"));
  TANDEM_TRY(const auto members, map_field.members());
  if (members.empty() || members.size() > kTensorCountMax) {
    return map_field.error(
        fmt::format("names {} tensors, expected 1 to {}", members.size(), kTensorCountMax));
  }
  WeightMap map;
  std::set<std::string_view> shards;
  for (const auto& [name, field] : members) {
    TANDEM_TRY(const std::string_view shard, field.as_string());
    TANDEM_TRY(check_shard_name(field, shard));
    shards.insert(shard);
    if (shards.size() > kShardCountMax) {
      return map_field.error(fmt::format("names more than {} shards", kShardCountMax));
    }
    map.emplace(name, shard);
  }
  return map;
}

Result<WeightMap> read_index(const std::string& path) {
  TANDEM_TRY(const json::Value value,
             json::parse_file(path,
                              {.max_bytes = kIndexBytesMax,
                               .max_depth = 8,
                               .max_values = 2 * kTensorCountMax,
                               .reject_duplicate_keys = true}));
  auto map = parse_index(json::Field(value));
  if (!map.ok()) return map.status().with_context(path);
  return map;
}

struct StateFree {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

/// A running XXH3-128.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    TANDEM_CHECK(state_ != nullptr, "no memory for a hash state");
    XXH3_128bits_reset(state_.get());
  }

  void add(const void* data, std::size_t size) { XXH3_128bits_update(state_.get(), data, size); }

  void add(std::uint64_t number) { add(&number, sizeof number); }

  [[nodiscard]] Digest digest() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.high64, hash.low64};
  }

 private:
  std::unique_ptr<XXH3_state_t, StateFree> state_;
};

/// The parts of a tensor of `size` bytes that enter a digest, in order.
std::vector<std::pair<std::uint64_t, std::uint64_t>> sampled(std::uint64_t size) {
  if (size <= kDigestWholeBytes) return {{0, size}};
  const std::uint64_t last = size - kDigestSampleBytes;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
  for (std::uint64_t i = 0; i < kDigestSampleCount; ++i) {
    // last / 15 * i cannot overflow; the final piece is taken at the very end.
    const std::uint64_t at =
        i + 1 == kDigestSampleCount ? last : last / (kDigestSampleCount - 1) * i;
    parts.emplace_back(at, kDigestSampleBytes);
  }
  return parts;
}

}  // namespace

std::string Digest::hex() const {
  return fmt::format("{:016x}{:016x}", high, low);
}

Digest digest_of(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

bool has_checkpoint(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  return fs::exists(fs::path(folder) / kSingleName, error) ||
         fs::exists(fs::path(folder) / kIndexName, error);
}

Result<Checkpoint> Checkpoint::open(const std::string& folder, const Options& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return not_found(fmt::format("{}: is not a folder, expected a model folder", folder));
  }
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  // The index wins when both exist: that is what the folder's author split by.
  if (fs::exists(fs::path(folder) / kIndexName, error)) {
    TANDEM_TRY(checkpoint.open_sharded(folder, options));
    return checkpoint;
  }
  if (!fs::exists(fs::path(folder) / kSingleName, error)) {
    return not_found(fmt::format("{}: holds neither {} nor {}", folder, kSingleName, kIndexName));
  }
  TANDEM_TRY(auto entries, checkpoint.add_file(folder, kSingleName, options));
  for (TensorEntry& entry : entries) {
    std::string name = entry.name;
    checkpoint.by_name_.emplace(std::move(name), Place{0, std::move(entry)});
  }
  return checkpoint;
}

Result<std::vector<TensorEntry>> Checkpoint::add_file(const std::string& folder,
                                                      const std::string& file_name,
                                                      const Options& options) {
  const std::string path = (std::filesystem::path(folder) / file_name).string();
  TANDEM_TRY(FileBytes file, FileBytes::open(path, options.mode, options.file_bytes_max));
  TANDEM_TRY(auto entries, parse_safetensors(file.bytes(), path));
  if (files_.size() >= kShardsOpenMax) file.close_file();
  files_.push_back(std::move(file));
  return entries;
}

Status Checkpoint::open_sharded(const std::string& folder, const Options& options) {
  const std::string index_path = (std::filesystem::path(folder) / kIndexName).string();
  TANDEM_TRY(const WeightMap map, read_index(index_path));
  std::set<std::string> shards;
  for (const auto& [name, shard] : map)
    shards.insert(shard);
  for (const std::string& shard : shards) {
    auto opened = add_file(folder, shard, options);
    if (!opened.ok()) return opened.status().with_context(index_path + " names a shard");
    for (TensorEntry& entry : *opened) {
      const auto listed = map.find(entry.name);
      if (listed == map.end() || listed->second != shard) {
        return invalid_argument(
            fmt::format("{}: tensor '{}' lies in {}, but weight_map says {}",
                        index_path,
                        entry.name,
                        shard,
                        listed == map.end() ? "nothing about it" : listed->second));
      }
      std::string name = entry.name;
      by_name_.emplace(std::move(name), Place{files_.size() - 1, std::move(entry)});
    }
  }
  for (const auto& [name, shard] : map) {
    if (!by_name_.contains(name)) {
      return invalid_argument(
          fmt::format("{}: weight_map places tensor '{}' in {}, which does not hold it",
                      index_path,
                      name,
                      shard));
    }
  }
  return {};
}

StoredTensor Checkpoint::stored(const Place& place) const {
  const auto file = files_[place.file].bytes();
  return {.name = place.entry.name,
          .type = place.entry.type,
          .shape = place.entry.shape,
          .bytes = file.subspan(place.entry.offset, place.entry.byte_count)};
}

Result<StoredTensor> Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return stored(found->second);
  return not_found(fmt::format("{}: tensor '{}' is missing from the {} tensors of the checkpoint",
                               folder_,
                               name,
                               by_name_.size()));
}

std::vector<StoredTensor> Checkpoint::tensors() const {
  std::vector<StoredTensor> all;
  all.reserve(by_name_.size());
  for (const auto& [name, place] : by_name_)
    all.push_back(stored(place));
  return all;
}

std::uint64_t Checkpoint::byte_count() const {
  std::uint64_t total = 0;
  for (const auto& [name, place] : by_name_)
    total += place.entry.byte_count;
  return total;
}

Status Checkpoint::read(const std::byte* from, std::span<std::byte> out) const {
  const auto holds = [from](const FileBytes& file) {
    return std::less_equal<>()(file.bytes().data(), from) &&
           std::less<>()(from, file.bytes().data() + file.bytes().size());
  };
  const auto file = std::find_if(files_.begin(), files_.end(), holds);
  TANDEM_CHECK(file != files_.end() || out.empty(), "the bytes are those of a tensor");
  if (out.empty()) return {};
  return file->read(static_cast<std::uint64_t>(from - file->bytes().data()), out);
}

bool Checkpoint::is_cached() const {
  if (!std::all_of(files_.begin(), files_.end(), std::mem_fn(&FileBytes::is_open))) return false;
  // Asking for a page that is not there makes some systems read it: other processes, and this one
  // the next time, must not ask for the same ones.
  Random random(system_random());
  std::uint64_t looked_at = 0;
  std::uint64_t missing = 0;
  for (const auto& [name, place] : by_name_) {
    const auto& [file, entry] = place;
    for (std::uint64_t begin = 0; begin < entry.byte_count; begin += kCachedStep) {
      const std::uint64_t size = std::min(kCachedStep, entry.byte_count - begin);
      ++looked_at;
      missing += files_[file].is_cached(entry.offset + begin + random.below(size)) ? 0U : 1U;
    }
  }
  return missing <= looked_at / kCachedMissing;
}

Result<Digest> Checkpoint::digest() const {
  Hasher hasher;
  std::vector<std::byte> part(kDigestWholeBytes);
  for (const auto& [name, place] : by_name_) {
    const StoredTensor tensor = stored(place);
    hasher.add(name.size());
    hasher.add(name.data(), name.size());
    hasher.add(static_cast<std::uint64_t>(tensor.type));
    hasher.add(tensor.shape.size());
    for (const std::int64_t extent : tensor.shape)
      hasher.add(static_cast<std::uint64_t>(extent));
    for (const auto& [offset, size] : sampled(tensor.bytes.size())) {
      const std::span<std::byte> bytes(part.data(), size);
      TANDEM_TRY(files_[place.file].read(place.entry.offset + offset, bytes));
      hasher.add(bytes.data(), bytes.size());
    }
  }
  return hasher.digest();
}

}  // namespace tandem::weights
