// BlockPool: who owns each page of the KV arena. Bookkeeping of ids; the memory belongs to the
// engine.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::kv {

/// Index of a page in the KV arena.
using PageId = Id<struct PageTag, std::uint32_t>;

/// Never a page.
inline constexpr PageId kNoPage{0xFFFFFFFFU};

/// Most pages of one pool: ids fit a signed 32-bit kernel argument.
inline constexpr std::int64_t kMaxPages = (std::int64_t{1} << 31) - 2;

enum class OwnerKind : std::uint8_t {
  kFree,
  kSequence,  ///< one sequence that runs or waits with its pages
  kTransfer,  ///< one sequence whose pages are promised to or held for a transfer
  kTree,      ///< the prefix tree
};

/// The one owner of a page. `id` names the sequence; 0 for the free list and the tree.
struct Owner {
  OwnerKind kind = OwnerKind::kFree;
  std::uint64_t id = 0;
  friend bool operator==(const Owner&, const Owner&) = default;
};

inline constexpr Owner kTreeOwner{OwnerKind::kTree, 0};

/// A fixed number of pages, each with exactly one owner at any time. Passing a page from the wrong
/// owner is a broken invariant (TANDEM_CHECK). Not thread-safe; nothing allocates after
/// construction.
class BlockPool {
 public:
  /// 1 <= page_count <= kMaxPages.
  explicit BlockPool(std::int64_t page_count);

  /// Fills `out` with free pages that now belong to `owner`; false, and nothing changes, when there
  /// are too few. The lowest released page is not preferred: last released, first given (it is
  /// warm).
  [[nodiscard]] bool allocate(std::span<PageId> out, Owner owner);
  /// Back to the free list; the page's generation grows.
  void release(PageId page, Owner from);
  /// Passes a page on.
  void move(PageId page, Owner from, Owner to);

  [[nodiscard]] Owner owner(PageId page) const { return owners_[page.value]; }

  /// Grows each time the page is released: (page, generation) never names two uses.
  [[nodiscard]] std::uint32_t generation(PageId page) const { return generations_[page.value]; }

  [[nodiscard]] std::int64_t total() const { return static_cast<std::int64_t>(owners_.size()); }

  [[nodiscard]] std::int64_t free_count() const { return count(OwnerKind::kFree); }

  [[nodiscard]] std::int64_t count(OwnerKind kind) const {
    return counts_[static_cast<std::size_t>(kind)];
  }

  /// Pages that nobody has had yet. They are the highest ones, and are given, in rising order, when
  /// no other page is free.
  [[nodiscard]] std::int64_t fresh_count() const { return total() - used_end_; }

  /// Recounts everything from the per-page records: O(pages). Names the first page that is wrong.
  [[nodiscard]] Status check() const;

 private:
  std::vector<Owner> owners_;
  std::vector<std::uint32_t> generations_;
  std::vector<PageId> free_;
  std::int64_t counts_[4] = {0, 0, 0, 0};
  std::int64_t used_end_ = 0;  ///< behind the highest page that somebody has had
};

}  // namespace tandem::kv
