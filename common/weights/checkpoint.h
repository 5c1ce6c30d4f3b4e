// The weights of one model folder: `model.safetensors`, or shards named by
// `model.safetensors.index.json`.
#pragma once

#include "common/base/status.h"
#include "common/weights/file_bytes.h"
#include "common/weights/safetensors.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::weights {

inline constexpr std::size_t kShardCountMax = 10'000;

/// Shards that stay open until release_files(); the others are read through their mappings.
inline constexpr std::size_t kShardsOpenMax = 64;

/// A tensor of the checkpoint. Borrowed: valid while the Checkpoint lives.
struct StoredTensor {
  std::string_view name;
  ElementType type{};
  std::span<const std::int64_t> shape;
  std::span<const std::byte> bytes;  ///< Row-major, little-endian; may be unaligned.
};

/// 128 bits that name a checkpoint (XXH3), as 32 hex digits when printed.
struct Digest {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
  [[nodiscard]] std::string hex() const;
};

/// Whether a model folder holds what Checkpoint::open starts from: model.safetensors or its index.
bool has_checkpoint(const std::string& folder);

/// XXH3-128 of some bytes.
Digest digest_of(std::string_view bytes);

/// All tensors of a model folder, headers checked, bytes mapped (or read). Read-only after open, so
/// any thread may use it.
class Checkpoint {
 public:
  struct Options {
    ReadMode mode = ReadMode::kMmap;
    std::uint64_t file_bytes_max = std::uint64_t{1} << 42;  ///< Per file.
  };

  /// Errors name file, tensor, the value found and what was expected. Shard names must be plain
  /// file names: one that leads out of the folder is refused. Every tensor of the index must be in
  /// the shard that it names, and every tensor of a shard must be in the index.
  static Result<Checkpoint> open(const std::string& folder, const Options& options);

  /// The named tensor; NotFound names it and the folder.
  [[nodiscard]] Result<StoredTensor> find(std::string_view name) const;

  [[nodiscard]] bool contains(std::string_view name) const { return by_name_.contains(name); }

  /// In order of name.
  [[nodiscard]] std::vector<StoredTensor> tensors() const;

  [[nodiscard]] std::size_t tensor_count() const { return by_name_.size(); }

  /// Copies `out.size()` bytes from `from` on, which lie in the bytes of one file's tensors: see
  /// FileBytes::read. Any thread.
  Status read(const std::byte* from, std::span<std::byte> out) const;

  /// Whether a page of every kCachedStep bytes of every tensor, drawn anew by each call, can be
  /// read without waiting (FileBytes::is_cached), but for one of kCachedMissing: a system may take
  /// single pages out of its cache at any time. False when a file is not open.
  [[nodiscard]] bool is_cached() const;

  /// FileBytes::release_pages of every file.
  void release_pages() {
    for (FileBytes& file : files_)
      file.release_pages();
  }

  /// To be called when tensors have been read: release_pages(), and FileBytes::close_file of every
  /// file. What is read later comes from the mapping.
  void release_files() {
    for (FileBytes& file : files_)
      file.close_file();
    release_pages();
  }

  /// Sum over all tensors.
  [[nodiscard]] std::uint64_t byte_count() const;

  /// Names, dtypes, shapes and sampled content of all tensors in order of name, so that the way in
  /// which tensors are spread over shards does not matter. Tensors up to kDigestWholeBytes enter
  /// whole, larger ones with kDigestSampleCount evenly spaced pieces of kDigestSampleBytes, first
  /// and last included. This tells two models or two fine-tunes apart at the cost of a few pages
  /// per tensor; it is no proof against somebody who forges a file.
  /// kDataLoss when a file cannot be read any more.
  [[nodiscard]] Result<Digest> digest() const;

 private:
  struct Place {
    std::size_t file = 0;
    TensorEntry entry;
  };

  Checkpoint() = default;
  Result<std::vector<TensorEntry>> add_file(const std::string& folder,
                                            const std::string& file_name,
                                            const Options& options);
  Status open_sharded(const std::string& folder, const Options& options);
  [[nodiscard]] StoredTensor stored(const Place& place) const;

  std::string folder_;
  std::vector<FileBytes> files_;
  std::map<std::string, Place, std::less<>> by_name_;
};

inline constexpr std::uint64_t kCachedStep = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kCachedMissing = 32;

inline constexpr std::uint64_t kDigestWholeBytes = 64 * 1024;
inline constexpr std::uint64_t kDigestSampleBytes = 4096;
inline constexpr std::uint64_t kDigestSampleCount = 16;

}  // namespace tandem::weights
