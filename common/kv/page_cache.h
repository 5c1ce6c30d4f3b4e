// PageCache: pool and prefix tree as one, and the page table of a sequence on top of them.
#pragma once

#include "common/kv/block_pool.h"
#include "common/kv/prefix_tree.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tandem::kv {

/// The pages of one sequence, in order of its tokens. The first shared_count belong to the prefix
/// tree, which is locked at `lock`; the others to the sequence alone. Made and changed by PageCache
/// only.
struct PageTable {
  std::vector<PageId> pages;
  std::int64_t shared_count = 0;
  PrefixTree::Node lock = PrefixTree::kRoot;
  Owner owner;
};

struct PageCacheOptions {
  std::int64_t page_count = 1;
  std::int32_t page_size = 1;  ///< tokens in a page
  bool prefix_reuse = true;    ///< false: --disable-radix-cache, no tree at all
};

/// Not thread-safe. A sequence that was opened must be closed.
class PageCache {
 public:
  explicit PageCache(const PageCacheOptions& options);

  /// Takes the longest cached prefix of `tokens` (at most match_limit tokens of it), locks it and
  /// allocates pages for the rest, evicting where needed, so that KV of all `tokens` has a place
  /// and at least `spare_pages` pages stay available. False, and nothing changes, when that cannot
  /// be. `table` must be empty.
  [[nodiscard]] bool open(PageTable* table,
                          Owner owner,
                          std::span<const TokenId> tokens,
                          std::int64_t match_limit,
                          std::int64_t spare_pages);

  /// Makes room for KV of token_count tokens; false, and nothing changes, when there are no pages.
  [[nodiscard]] bool grow(PageTable* table, std::int64_t token_count);

  /// Shares the full pages of `tokens` (whose KV is computed) with later sequences, and keeps them
  /// locked. Own pages may be replaced by equal ones that the tree holds already.
  void publish(PageTable* table, std::span<const TokenId> tokens);

  /// Gives all pages back: those that `tokens` (whose KV is good) fills go to the tree, the rest to
  /// the free list. Leaves the table empty.
  void close(PageTable* table, std::span<const TokenId> tokens);

  /// Gives all pages back to the free list; what the tree got from this sequence leaves it too, as
  /// far as nobody else uses it. For KV that is not to be trusted. Leaves the table empty.
  void discard(PageTable* table);

  /// Changes the owner of the private pages.
  void change_owner(PageTable* table, Owner to);

  /// Whole pages of `tokens` that are cached now; changes nothing.
  [[nodiscard]] std::int64_t match_length(std::span<const TokenId> tokens) const;

  /// Free pages and those that eviction would free.
  [[nodiscard]] std::int64_t available_pages() const;
  [[nodiscard]] std::int64_t pages_for(std::int64_t token_count) const;
  /// Drops every cached page that nobody uses.
  void clear_unused();

  [[nodiscard]] const BlockPool& pool() const { return pool_; }

  [[nodiscard]] std::int32_t page_size() const { return page_size_; }

  /// Pages of the tree that no sequence uses, and that some sequence uses.
  [[nodiscard]] std::int64_t unused_cached_pages() const;
  [[nodiscard]] std::int64_t shared_pages() const;

  /// Proves that every page has exactly one owner, given all open tables: pool, tree and tables
  /// agree, no page is lost, none is in two places.
  [[nodiscard]] Status check(std::span<const PageTable* const> open_tables) const;

 private:
  [[nodiscard]] bool allocate(std::span<PageId> out, Owner owner);
  void release_private(const PageTable& table);

  std::int32_t page_size_;
  BlockPool pool_;
  std::optional<PrefixTree> tree_;
};

}  // namespace tandem::kv
