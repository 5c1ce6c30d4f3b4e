// Strings <-> ids, packed: one arena, one hash table.
#pragma once

#include "common/base/status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::token {

/// Ids must stay below this: nothing known comes near, and tables are sized by the largest id.
inline constexpr std::int32_t kMaxTokenIds = 1 << 22;

/// Const access from many threads is safe.
class Vocabulary {
 public:
  /// A token with its hash: for many at a time, whose places are asked for ahead.
  struct Key {
    std::string_view text;
    std::uint32_t hash = 0;
  };

  [[nodiscard]] static Key key(std::string_view token);

  /// Room for so many tokens: what grows otherwise is copied and hashed again each time.
  void reserve(std::size_t token_count);

  /// Errors: an id outside [0, kMaxTokenIds), an id or a token given twice.
  Status add(const Key& key, std::int64_t id);

  Status add(std::string_view token, std::int64_t id) { return add(key(token), id); }

  [[nodiscard]] std::optional<std::int32_t> find(const Key& key) const;

  [[nodiscard]] std::optional<std::int32_t> find(std::string_view token) const {
    return find(key(token));
  }

  /// Asks for the memory that add() and find() of this key look at first; it takes as long as some
  /// ten of them.
  void prefetch(const Key& key) const;
  /// And what they look at then; for when the first has come.
  void prefetch_token(const Key& key) const;

  /// Empty for an id without a token; see has().
  [[nodiscard]] std::string_view token(std::int32_t id) const;
  [[nodiscard]] bool has(std::int32_t id) const;

  /// Largest id + 1.
  [[nodiscard]] std::size_t id_end() const { return entries_.size(); }

  [[nodiscard]] std::size_t token_count() const { return token_count_; }

 private:
  struct Entry {
    std::uint64_t offset = kNoToken;
    std::uint32_t byte_count = 0;
  };

  static constexpr std::uint64_t kNoToken = ~std::uint64_t{0};

  /// With a part of the hash beside the id, few tokens are looked at in vain.
  struct Slot {
    std::int32_t id = -1;  ///< -1: free
    std::uint32_t hash = 0;
  };

  void resize_slots(std::size_t count);
  /// Where the token is, or the free slot where it would be.
  [[nodiscard]] std::size_t slot_of(const Key& key) const;

  std::string arena_;
  std::vector<Entry> entries_;
  /// Open addressing.
  std::vector<Slot> slots_;
  std::size_t token_count_ = 0;
};

}  // namespace tandem::token
