#include "common/token/raw_words.h"

#include "common/token/byte_level.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tandem::token {
namespace {

constexpr std::size_t kShortBytes = 8;
constexpr std::uint64_t kMul = 0x9E3779B97F4A7C15ULL;

std::uint64_t load8(const char* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, 8);
  return word;
}

std::uint64_t load4(const char* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, 4);
  return word;
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a ^ kMul) * (b ^ 0xE7037ED1A0B428DBULL);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

// With the length, one to one for up to eight bytes; a hash beyond.
std::uint64_t key_of(std::string_view bytes) {
  const char* p = bytes.data();
  const std::size_t size = bytes.size();
  if (size > kShortBytes) {
    std::uint64_t hash = size;
    std::size_t at = 0;
    for (; at + 8 < size; at += 8)
      hash = mix(hash, load8(p + at));
    return mix(hash, load8(p + size - 8));
  }
  if (size >= 4) return load4(p) | (load4(p + size - 4) << 32U);
  const auto byte = [p](std::size_t i) -> std::uint64_t {
    return static_cast<unsigned char>(p[i]);
  };
  return byte(0) | (byte(size / 2) << 8U) | (byte(size - 1) << 16U);
}

std::size_t place_of(std::uint64_t key, std::size_t size) {
  return static_cast<std::size_t>(mix(key, size));
}

}  // namespace

RawWords::RawWords(const Vocabulary& vocabulary) {
  byte_ids_.fill(-1);
  std::size_t count = 1024;
  while (count < vocabulary.token_count() * 2)
    count *= 2;
  slots_.resize(count);
  long_begin_.resize(vocabulary.id_end());
  insert_all(vocabulary);
  if (std::find(byte_ids_.begin(), byte_ids_.end(), -1) != byte_ids_.end()) slots_.clear();
}

/// Some at a time: their slots, which lie all over the table, come from memory together.
void RawWords::insert_all(const Vocabulary& vocabulary) {
  struct Word {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::uint64_t key = 0;
    std::int32_t id = -1;
  };

  std::array<Word, 16> words;
  std::string all_bytes;
  std::size_t count = 0;
  const auto bytes_of = [&](const Word& word) {
    return std::string_view(all_bytes).substr(word.begin, word.end - word.begin);
  };
  const auto insert_words = [&] {
    for (std::size_t i = 0; i < count; ++i)
      insert(bytes_of(words[i]), words[i].key, words[i].id);
    count = 0;
    all_bytes.clear();
  };
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < vocabulary.id_end(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    Word& word = words[count];
    word.begin = all_bytes.size();
    if (!append_byte_level_bytes(all_bytes, vocabulary.token(id))) continue;
    word.end = all_bytes.size();
    if (word.begin == word.end) continue;
    const std::string_view bytes = bytes_of(word);
    if (bytes.size() == 1) byte_ids_[static_cast<unsigned char>(bytes.front())] = id;
    word.key = key_of(bytes);
    word.id = id;
    __builtin_prefetch(&slots_[place_of(word.key, bytes.size()) & mask], 1);
    if (++count == words.size()) insert_words();
  }
  insert_words();
}

void RawWords::insert(std::string_view bytes, std::uint64_t key, std::int32_t id) {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = place_of(key, bytes.size()) & mask;
  while (slots_[slot].id >= 0)
    slot = (slot + 1) & mask;
  slots_[slot] = {key, static_cast<std::uint32_t>(bytes.size()), id};
  if (bytes.size() <= kShortBytes) return;
  long_begin_[static_cast<std::size_t>(id)] = static_cast<std::uint32_t>(long_bytes_.size());
  long_bytes_ += bytes;
}

bool RawWords::is_at(const Slot& slot, std::string_view bytes) const {
  if (bytes.size() <= kShortBytes) return true;
  const std::uint32_t begin = long_begin_[static_cast<std::size_t>(slot.id)];
  return std::memcmp(long_bytes_.data() + begin, bytes.data(), bytes.size()) == 0;
}

std::int32_t RawWords::find(std::string_view bytes) const {
  const std::uint64_t key = key_of(bytes);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = place_of(key, bytes.size()) & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.id < 0) return -1;
    if (slot.key == key && slot.byte_count == bytes.size() && is_at(slot, bytes)) return slot.id;
  }
}

}  // namespace tandem::token
