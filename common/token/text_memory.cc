#include "common/token/text_memory.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem::token {
namespace {

/// Bytes that tell texts apart before they are looked at.
constexpr std::size_t kKeyBytes = 64;
static_assert(kKeyBytes <= TextMemory::kLeastBytes);

std::size_t common_bytes(std::string_view a, std::string_view b) {
  const std::size_t size = std::min(a.size(), b.size());
  const auto differ_at = [&](std::size_t at) {
    std::uint64_t x = 0;
    std::uint64_t y = 0;
    std::memcpy(&x, a.data() + at, sizeof(x));
    std::memcpy(&y, b.data() + at, sizeof(y));
    return x ^ y;
  };
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  constexpr std::size_t kStep = 4 * kWord;
  std::size_t i = 0;
  while (i + kStep <= size && (differ_at(i) | differ_at(i + kWord) | differ_at(i + 2 * kWord) |
                               differ_at(i + 3 * kWord)) == 0)
    i += kStep;
  while (i < size && a[i] == b[i])
    ++i;
  return i;
}

}  // namespace

TextMemory::TextMemory()
    : slots_(kSlots),
      keys_(kSlots),
      used_(kSlots),
      last_bytes_(Entry().byte_count()),
      bytes_(kSlots * last_bytes_) {}

TextMemory::Cut TextMemory::Entry::keep_common(std::string_view text) {
  const std::size_t common = common_bytes(text_, text);
  while (!cuts_.empty() && cuts_.back().bytes + kBehindCut > common)
    cuts_.pop_back();
  const Cut last = cuts_.empty() ? Cut{0, 0} : cuts_.back();
  ids_.resize(last.ids);
  text_.resize(cuts_.empty() ? 0 : last.bytes + kBehindCut);
  return last;
}

void TextMemory::Entry::extend(std::string_view text,
                               std::span<const Cut> cuts,
                               std::span<const std::int32_t> ids) {
  if (cuts.empty()) return;
  const std::size_t known = ids_.size();
  const Cut last = cuts.back();
  // All or nothing, where there is no memory.
  cuts_.reserve(cuts_.size() + cuts.size());
  ids_.reserve(last.ids);
  text_.reserve(last.bytes + kBehindCut);
  cuts_.insert(cuts_.end(), cuts.begin(), cuts.end());
  ids_.insert(ids_.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(last.ids - known));
  text_.append(text, text_.size(), last.bytes + kBehindCut - text_.size());
}

std::size_t TextMemory::Entry::byte_count() const {
  return text_.capacity() + ids_.capacity() * sizeof(std::int32_t) + cuts_.capacity() * sizeof(Cut);
}

TextMemory::Entry& TextMemory::at(std::uint32_t owner, std::string_view text) {
  bytes_ += slots_[last_].byte_count() - last_bytes_;
  last_bytes_ = slots_[last_].byte_count();
  if (bytes_ > kBytesMost) make_room();
  const std::uint64_t key = XXH3_64bits_withSeed(text.data(), kKeyBytes, owner);
  last_ = slot_of(key, owner);
  used_[last_] = ++calls_;
  Entry& entry = slots_[last_];
  last_bytes_ = entry.byte_count();
  if (!is_at(last_, key, owner)) {
    entry.keep_common({});
    keys_[last_] = key;
    entry.owner_ = owner;
  }
  return entry;
}

/// Where the text is, or where it may be.
std::size_t TextMemory::slot_of(std::uint64_t key, std::uint32_t owner) const {
  const std::size_t first = key % (kSlots / kWays) * kWays;
  for (std::size_t slot = first; slot < first + kWays; ++slot) {
    if (is_at(slot, key, owner)) return slot;
  }
  const auto age = [this](std::size_t slot) -> std::uint64_t {
    return slots_[slot].cuts_.empty() ? 0 : used_[slot];
  };
  std::size_t oldest = first;
  for (std::size_t slot = first + 1; slot < first + kWays; ++slot) {
    if (age(slot) < age(oldest)) oldest = slot;
  }
  return oldest;
}

void TextMemory::make_room() {
  while (bytes_ > kBytesMost / 2) {
    bytes_ -= slots_[hand_].byte_count();
    Entry given_up;  // with its memory, which assigning an empty one would leave
    std::swap(slots_[hand_], given_up);
    bytes_ += slots_[hand_].byte_count();
    hand_ = (hand_ + 1) % kSlots;
  }
  last_bytes_ = slots_[last_].byte_count();
}

}  // namespace tandem::token
