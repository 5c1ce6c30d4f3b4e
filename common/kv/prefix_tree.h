// PrefixTree: which token prefixes have their KV in which pages, shared by all sequences.
#pragma once

#include "common/core/sampling_params.h"
#include "common/kv/block_pool.h"

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace tandem::kv {

using core::TokenId;

/// A radix tree over whole pages of tokens: a node is one page and the page_size tokens whose KV it
/// holds, given all tokens of the nodes above it. Since a page is in the tree at most once, a node
/// is named by its page and all records are arrays indexed by page: bounded, no allocation per
/// insert except one entry in the eviction order, and none in evict().
///
/// A locked node and everything above it stay. Unlocked leaves are evicted, least recently used
/// first; use is counted by a logical clock that each match and each extend advances.
/// Not thread-safe.
class PrefixTree {
 public:
  /// A node, or kRoot: the empty prefix.
  using Node = PageId;
  static constexpr Node kRoot = kNoPage;

  /// `pool` is borrowed and outlives the tree. page_size >= 1.
  PrefixTree(BlockPool& pool, std::int32_t page_size);

  /// The longest known prefix of `tokens`, at most max_pages pages. Appends its pages to `*pages`,
  /// marks them as used and returns the deepest node.
  Node match(std::span<const TokenId> tokens, std::int64_t max_pages, std::vector<PageId>* pages);

  /// Pages that match() would give; changes nothing.
  [[nodiscard]] std::int64_t match_length(std::span<const TokenId> tokens) const;

  /// Adds pages below `from`: pages[i] holds the KV of tokens [i * page_size, (i + 1) * page_size)
  /// of `tokens`. Each page belongs to `owner` and is consumed: it becomes the tree's, or, where
  /// the tree knows these tokens already, is released and pages[i] replaced by the tree's page.
  /// tokens.size() == pages.size() * page_size. Returns the deepest node.
  Node extend(Node from, std::span<const TokenId> tokens, std::span<PageId> pages, Owner owner);

  void lock(Node node);
  void unlock(Node node);

  /// Releases up to `count` pages to the pool; returns how many it could.
  std::int64_t evict(std::int64_t count);
  /// Releases `node` and the nodes above it, as far as nothing else hangs on or locks them.
  void drop(Node node);
  /// Releases everything that no lock holds.
  void clear();

  /// Pages that evict() could release now.
  [[nodiscard]] std::int64_t evictable_pages() const { return node_count_ - pinned_count_; }

  /// Pages on the path of some lock.
  [[nodiscard]] std::int64_t pinned_pages() const { return pinned_count_; }

  [[nodiscard]] std::int64_t page_count() const { return node_count_; }

  /// Walks everything: links, pins, hash table, eviction order, ownership in the pool.
  [[nodiscard]] Status check() const;

 private:
  struct Record {
    Node parent = kRoot;
    PageId next_in_bucket = kNoPage;
    std::uint32_t children = 0;
    std::uint32_t locks = 0;
    /// Own lock (0 or 1) plus children that are pinned: > 0 means that a lock is here or below.
    std::uint32_t pins = 0;
    std::uint64_t last_use = 0;
    bool in_tree = false;
  };

  [[nodiscard]] std::span<const TokenId> tokens_of(Node node) const;
  [[nodiscard]] std::size_t bucket(Node parent, std::span<const TokenId> tokens) const;
  [[nodiscard]] Node find_child(Node parent, std::span<const TokenId> tokens) const;
  void link(Node node, Node parent, std::span<const TokenId> tokens);
  void unlink(Node node);
  void touch(Node node);
  /// The entry of a node in the eviction order must be re-made around any change of its key.
  void leave_order(Node node);
  void enter_order(Node node);
  [[nodiscard]] bool evictable_leaf(const Record& record) const;
  [[nodiscard]] Status check_node(Node node) const;

  BlockPool& pool_;
  std::size_t page_size_;
  std::vector<Record> records_;
  std::vector<TokenId> tokens_;
  std::vector<PageId> buckets_;
  using Order = std::set<std::pair<std::uint64_t, std::uint32_t>>;
  Order order_;
  /// The entry that left last: the next one to come takes its memory.
  Order::node_type left_;
  std::int64_t node_count_ = 0;
  std::int64_t pinned_count_ = 0;
  std::uint64_t use_clock_ = 0;
};

}  // namespace tandem::kv
