// RawWords: the tokens of a byte-level vocabulary by the bytes they stand for, so that a word need
// not be spelt in the byte-level alphabet to be looked up.
#pragma once

#include "common/token/vocabulary.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::token {

/// Immutable; any thread. One cache line and no pointer to follow for tokens of up to 8 bytes.
class RawWords {
 public:
  /// Unusable until made.
  RawWords() = default;
  /// Unusable when some byte has no token of its own.
  explicit RawWords(const Vocabulary& vocabulary);

  [[nodiscard]] bool usable() const { return !slots_.empty(); }

  /// Id of the token that stands for exactly these bytes; -1 when there is none. Not for empty
  /// text.
  [[nodiscard]] std::int32_t find(std::string_view bytes) const;

  [[nodiscard]] std::int32_t byte_id(char byte) const {
    return byte_ids_[static_cast<unsigned char>(byte)];
  }

 private:
  struct Slot {
    std::uint64_t key = 0;  ///< the bytes themselves, or their hash
    std::uint32_t byte_count = 0;
    std::int32_t id = -1;
  };

  void insert(std::string_view bytes, std::uint64_t key, std::int32_t id);
  void insert_all(const Vocabulary& vocabulary);
  [[nodiscard]] bool is_at(const Slot& slot, std::string_view bytes) const;

  std::vector<Slot> slots_;
  std::array<std::int32_t, 256> byte_ids_{};
  /// Bytes of the long tokens: id i has them from long_begin_[i] on.
  std::string long_bytes_;
  std::vector<std::uint32_t> long_begin_;
};

}  // namespace tandem::token
