#include "common/token/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace tandem::token {
namespace {

constexpr std::size_t kSlotsFirst = 1024;

}  // namespace

Vocabulary::Key Vocabulary::key(std::string_view token) {
  return {token, static_cast<std::uint32_t>(std::hash<std::string_view>{}(token))};
}

std::size_t Vocabulary::slot_of(const Key& key) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = key.hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.id < 0 || (slot.hash == key.hash && token(slot.id) == key.text)) return at;
  }
}

void Vocabulary::prefetch(const Key& key) const {
  if (!slots_.empty()) __builtin_prefetch(&slots_[key.hash & (slots_.size() - 1)]);
}

void Vocabulary::prefetch_token(const Key& key) const {
  if (slots_.empty()) return;
  const std::int32_t id = slots_[key.hash & (slots_.size() - 1)].id;
  if (id >= 0) __builtin_prefetch(&entries_[static_cast<std::size_t>(id)]);
}

void Vocabulary::resize_slots(std::size_t count) {
  const std::vector<Slot> old = std::move(slots_);
  slots_.assign(count, Slot{});
  for (const Slot& slot : old) {
    if (slot.id >= 0) slots_[slot_of({token(slot.id), slot.hash})] = slot;
  }
}

void Vocabulary::reserve(std::size_t token_count) {
  std::size_t count = std::max(slots_.size(), kSlotsFirst);
  while (count < token_count * 2)
    count *= 2;
  if (count > slots_.size()) resize_slots(count);
  entries_.reserve(token_count);
}

Status Vocabulary::add(const Key& key, std::int64_t id) {
  const std::string_view token = key.text;
  if (id < 0 || id >= kMaxTokenIds) {
    return invalid_argument(
        fmt::format("token \"{}\": id {} is outside 0..{}", token, id, kMaxTokenIds - 1));
  }
  const auto small = static_cast<std::int32_t>(id);
  if (has(small)) {
    return invalid_argument(
        fmt::format("id {} is given to \"{}\" and to \"{}\"", id, this->token(small), token));
  }
  if ((token_count_ + 1) * 2 > slots_.size())
    resize_slots(std::max(slots_.size() * 2, kSlotsFirst));
  Slot& slot = slots_[slot_of(key)];
  if (slot.id >= 0) {
    return invalid_argument(fmt::format("token \"{}\" has the ids {} and {}", token, slot.id, id));
  }
  const auto index = static_cast<std::size_t>(small);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {arena_.size(), static_cast<std::uint32_t>(token.size())};
  arena_ += token;
  slot = {small, key.hash};
  ++token_count_;
  return {};
}

std::optional<std::int32_t> Vocabulary::find(const Key& key) const {
  if (slots_.empty()) return std::nullopt;
  const std::int32_t id = slots_[slot_of(key)].id;
  if (id < 0) return std::nullopt;
  return id;
}

bool Vocabulary::has(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < entries_.size() &&
         entries_[static_cast<std::size_t>(id)].offset != kNoToken;
}

std::string_view Vocabulary::token(std::int32_t id) const {
  if (!has(id)) return {};
  const Entry& entry = entries_[static_cast<std::size_t>(id)];
  return std::string_view(arena_).substr(entry.offset, entry.byte_count);
}

}  // namespace tandem::token
