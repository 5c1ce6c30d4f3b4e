// TextMemory: ids of the beginnings of texts that one thread has met lately. A conversation comes
// again with each of its turns, and prompts share instructions: only what is new becomes words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::token {

/// Bounded (kBytesMost, and a slot's struct each); belongs to one thread. A text that begins as
/// another one takes its place.
class TextMemory {
 public:
  /// Shorter texts are not worth a look.
  static constexpr std::size_t kLeastBytes = 256;

  /// Where a text may be cut: no word reaches across, and neither the words before nor those behind
  /// depend on what is on the other side, but for kBehindCut bytes behind the cut.
  struct Cut {
    std::uint32_t bytes;
    std::uint32_t ids;  ///< of what lies before
  };

  static constexpr std::size_t kBehindCut = 2;

  class Entry {
   public:
    /// Forgets what `text` does not begin with, and gives the last cut that is left.
    Cut keep_common(std::string_view text);

    /// Of all before that cut.
    [[nodiscard]] std::span<const std::int32_t> ids() const { return ids_; }

    /// Adds cuts in `text`, which keep_common() has seen; `ids` are those behind its cut.
    void extend(std::string_view text,
                std::span<const Cut> cuts,
                std::span<const std::int32_t> ids);

   private:
    friend class TextMemory;

    [[nodiscard]] std::size_t byte_count() const;

    std::uint32_t owner_ = 0;
    std::string text_;  ///< up to kBehindCut bytes behind the last cut
    std::vector<std::int32_t> ids_;
    std::vector<Cut> cuts_;
  };

  TextMemory();

  /// That of texts which begin as `text` (kLeastBytes at least), maybe empty. `owner` is a number
  /// that no two models share. Valid until the next call.
  Entry& at(std::uint32_t owner, std::string_view text);

  /// Whether `text` may be cut at `pos`, where a word begins.
  static bool may_cut(std::string_view text, std::size_t pos) {
    return pos + 1 < text.size() && text[pos] == ' ' && text[pos + 1] > ' ' && text[pos + 1] < 0x7F;
  }

  /// Bytes from one cut to the next, at least.
  static constexpr std::size_t kCutBytes = 32;
  /// Of one text; what lies behind is not remembered.
  static constexpr std::size_t kTextBytesMost = std::size_t{32} << 10U;
  /// Of all.
  static constexpr std::size_t kBytesMost = std::size_t{4} << 20U;

 private:
  /// A text may lie in one of kWays slots side by side: so many that those which are in use at a
  /// time, a quarter of all slots or so, hardly ever push each other out.
  static constexpr std::size_t kWays = 16;
  static constexpr std::size_t kSlots = 256;

  [[nodiscard]] std::size_t slot_of(std::uint64_t key, std::uint32_t owner) const;
  void make_room();

  [[nodiscard]] bool is_at(std::size_t slot, std::uint64_t key, std::uint32_t owner) const {
    return keys_[slot] == key && slots_[slot].owner_ == owner;
  }

  std::vector<Entry> slots_;
  std::vector<std::uint64_t> keys_;  ///< of the slots, where a search finds them in two lines
  /// When each slot was last asked for, in calls of at().
  std::vector<std::uint64_t> used_;
  std::uint64_t calls_ = 0;
  std::size_t last_ = 0;    ///< the slot that at() gave, whose size may have changed since
  std::size_t last_bytes_;  ///< what it had then
  std::size_t bytes_;       ///< of all slots, as they were then
  std::size_t hand_ = 0;    ///< the slot that is emptied next
};

}  // namespace tandem::token
