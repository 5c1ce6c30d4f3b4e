// WordCache: ids of the words that one thread has met lately. Texts repeat their words, within a
// request and from one to the next.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tandem::token {

/// Direct-mapped and bounded (about 100 KiB); belongs to one thread. `owner` is a number that no
/// two models share. A newer word takes the place of an older one.
class WordCache {
 public:
  static constexpr std::size_t kBytesMax = 16;
  static constexpr std::size_t kIdsMax = 6;

  struct Key {
    std::uint64_t low;
    std::uint64_t high;
    std::uint32_t owner;
    std::uint8_t byte_count;

    friend bool operator==(const Key&, const Key&) = default;
  };

  /// `bytes`: 1 to kBytesMax of them. One to one.
  static Key key_of(std::uint32_t owner, std::string_view bytes) {
    Key key{0, 0, owner, static_cast<std::uint8_t>(bytes.size())};
    const char* const first = bytes.data();
    const char* const end = first + bytes.size();
    // Two loads that overlap: their sizes are known, and no call is needed.
    if (bytes.size() >= 8) {
      std::memcpy(&key.low, first, 8);
      std::memcpy(&key.high, end - 8, 8);
    } else if (bytes.size() >= 4) {
      std::uint32_t low = 0;
      std::uint32_t high = 0;
      std::memcpy(&low, first, 4);
      std::memcpy(&high, end - 4, 4);
      key.low = low | (std::uint64_t{high} << 32U);
    } else {
      const auto byte = [](const char* at) -> std::uint64_t {
        return static_cast<unsigned char>(*at);
      };
      key.low = byte(first) | (byte(first + bytes.size() / 2) << 8U) | (byte(end - 1) << 16U);
    }
    return key;
  }

  /// Writes the ids of the word to `to`, which has room for kIdsMax whatever their number. 0: it is
  /// not here.
  std::size_t copy(const Key& key, std::int32_t* to) const {
    const Entry& entry = entries_[place_of(key)];
    if (entry.key != key) return 0;
    // All, since how many there are is not to be guessed.
    for (std::size_t i = 0; i < kIdsMax; ++i)
      to[i] = entry.ids[i];
    return entry.id_count;
  }

  /// Keeps the ids from out[first] on, unless they are too many.
  void keep(const Key& key, const std::vector<std::int32_t>& out, std::size_t first) {
    const std::size_t count = out.size() - first;
    if (count == 0 || count > kIdsMax) return;
    Entry& entry = entries_[place_of(key)];
    entry.key = key;
    entry.id_count = static_cast<std::uint8_t>(count);
    std::memcpy(entry.ids.data(), out.data() + first, count * sizeof(std::int32_t));
  }

 private:
  static constexpr std::size_t kEntries = 2048;

  struct Entry {
    Key key{};
    std::uint8_t id_count = 0;
    std::array<std::int32_t, kIdsMax> ids{};
  };

  static std::size_t place_of(const Key& key) {
    std::uint64_t hash = (key.low ^ (key.high << 1U) ^ key.byte_count) * 0x9E3779B97F4A7C15ULL;
    hash ^= (hash >> 29U) ^ (key.high * 0xE7037ED1A0B428DBULL >> 17U);
    return static_cast<std::size_t>((hash * 0x9E3779B97F4A7C15ULL) >> 53U) % kEntries;
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace tandem::token
