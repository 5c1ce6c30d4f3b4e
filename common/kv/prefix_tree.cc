#include "common/kv/prefix_tree.h"

#include "common/base/check.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

namespace tandem::kv {

PrefixTree::PrefixTree(BlockPool& pool, std::int32_t page_size)
    : pool_(pool), page_size_(static_cast<std::size_t>(page_size)) {
  TANDEM_CHECK(page_size >= 1, "PrefixTree: page_size");
  const auto pages = static_cast<std::size_t>(pool.total());
  records_.resize(pages);
  tokens_.resize(pages * page_size_);
  buckets_.assign(std::bit_ceil(pages + 1), kNoPage);
}

std::span<const TokenId> PrefixTree::tokens_of(Node node) const {
  return std::span(tokens_).subspan(node.value * page_size_, page_size_);
}

std::size_t PrefixTree::bucket(Node parent, std::span<const TokenId> tokens) const {
  std::uint64_t hash = 0x9E3779B97F4A7C15ULL ^ parent.value;
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xFF51AFD7ED558CCDULL;
    hash ^= hash >> 32U;
  }
  return static_cast<std::size_t>(hash) & (buckets_.size() - 1);
}

PrefixTree::Node PrefixTree::find_child(Node parent, std::span<const TokenId> tokens) const {
  for (PageId node = buckets_[bucket(parent, tokens)]; node != kNoPage;
       node = records_[node.value].next_in_bucket) {
    if (records_[node.value].parent == parent && std::ranges::equal(tokens_of(node), tokens)) {
      return node;
    }
  }
  return kRoot;
}

bool PrefixTree::evictable_leaf(const Record& record) const {
  return record.in_tree && record.children == 0 && record.pins == 0;
}

void PrefixTree::leave_order(Node node) {
  if (node == kRoot || !evictable_leaf(records_[node.value])) return;
  left_ = order_.extract({records_[node.value].last_use, node.value});
}

void PrefixTree::enter_order(Node node) {
  if (node == kRoot || !evictable_leaf(records_[node.value])) return;
  const std::pair key{records_[node.value].last_use, node.value};
  if (left_.empty()) {
    order_.insert(key);
  } else {
    left_.value() = key;
    order_.insert(std::move(left_));
  }
}

void PrefixTree::touch(Node node) {
  leave_order(node);
  records_[node.value].last_use = use_clock_;
  enter_order(node);
}

PrefixTree::Node PrefixTree::match(std::span<const TokenId> tokens,
                                   std::int64_t max_pages,
                                   std::vector<PageId>* pages) {
  ++use_clock_;
  Node at = kRoot;
  for (std::int64_t i = 0; i < max_pages && tokens.size() >= page_size_; ++i) {
    const Node child = find_child(at, tokens.first(page_size_));
    if (child == kRoot) break;
    touch(child);
    pages->push_back(child);
    at = child;
    tokens = tokens.subspan(page_size_);
  }
  return at;
}

std::int64_t PrefixTree::match_length(std::span<const TokenId> tokens) const {
  std::int64_t length = 0;
  Node at = kRoot;
  for (; tokens.size() >= page_size_; tokens = tokens.subspan(page_size_)) {
    at = find_child(at, tokens.first(page_size_));
    if (at == kRoot) break;
    ++length;
  }
  return length;
}

void PrefixTree::link(Node node, Node parent, std::span<const TokenId> tokens) {
  Record& record = records_[node.value];
  TANDEM_CHECK(!record.in_tree, "PrefixTree: a page is in the tree already");
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(node.value * page_size_));
  PageId& head = buckets_[bucket(parent, tokens)];
  record =
      Record{.parent = parent, .next_in_bucket = head, .last_use = use_clock_, .in_tree = true};
  head = node;
  if (parent != kRoot) ++records_[parent.value].children;
  ++node_count_;
}

void PrefixTree::unlink(Node node) {
  Record& record = records_[node.value];
  PageId* at = &buckets_[bucket(record.parent, tokens_of(node))];
  while (*at != node) {
    TANDEM_CHECK(*at != kNoPage, "PrefixTree: a node is not in its bucket");
    at = &records_[at->value].next_in_bucket;
  }
  *at = record.next_in_bucket;
  const Node parent = record.parent;
  const std::uint64_t last_use = record.last_use;
  record = Record{};
  --node_count_;
  if (parent == kRoot) return;
  --records_[parent.value].children;
  // extend() does not walk up, so a prefix may look older than what was used below it.
  records_[parent.value].last_use = std::max(records_[parent.value].last_use, last_use);
  enter_order(parent);
}

PrefixTree::Node PrefixTree::extend(Node from,
                                    std::span<const TokenId> tokens,
                                    std::span<PageId> pages,
                                    Owner owner) {
  TANDEM_CHECK(tokens.size() == pages.size() * page_size_, "PrefixTree::extend: sizes differ");
  ++use_clock_;
  Node at = from;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const auto page_tokens = tokens.subspan(i * page_size_, page_size_);
    if (const Node known = find_child(at, page_tokens); known != kRoot) {
      TANDEM_CHECK(known != pages[i], "PrefixTree::extend: the page is the tree's already");
      pool_.release(pages[i], owner);
      pages[i] = known;
      touch(known);
      at = known;
      continue;
    }
    pool_.move(pages[i], owner, kTreeOwner);
    leave_order(at);
    link(pages[i], at, page_tokens);
    at = pages[i];
  }
  // A new node enters the order only here: on the way it had a child at once.
  if (at != from) enter_order(at);
  return at;
}

void PrefixTree::lock(Node node) {
  if (node == kRoot) return;
  TANDEM_CHECK(records_[node.value].in_tree, "PrefixTree::lock: not a node");
  if (records_[node.value].locks++ > 0) return;
  for (Node at = node; at != kRoot; at = records_[at.value].parent) {
    leave_order(at);
    if (records_[at.value].pins++ > 0) return;
    ++pinned_count_;
  }
}

void PrefixTree::unlock(Node node) {
  if (node == kRoot) return;
  TANDEM_CHECK(records_[node.value].locks > 0, "PrefixTree::unlock: not locked");
  if (--records_[node.value].locks > 0) return;
  for (Node at = node; at != kRoot; at = records_[at.value].parent) {
    if (--records_[at.value].pins > 0) return;
    --pinned_count_;
    enter_order(at);
  }
}

std::int64_t PrefixTree::evict(std::int64_t count) {
  std::int64_t evicted = 0;
  for (; evicted < count && !order_.empty(); ++evicted) {
    const Node node{order_.begin()->second};
    left_ = order_.extract(order_.begin());
    unlink(node);
    pool_.release(node, kTreeOwner);
  }
  return evicted;
}

void PrefixTree::drop(Node node) {
  while (node != kRoot && evictable_leaf(records_[node.value])) {
    const Node parent = records_[node.value].parent;
    leave_order(node);
    unlink(node);
    pool_.release(node, kTreeOwner);
    node = parent;
  }
}

void PrefixTree::clear() {
  evict(std::numeric_limits<std::int64_t>::max());
}

Status PrefixTree::check_node(Node node) const {
  const Record& record = records_[node.value];
  const std::string name = "prefix tree: node of page " + std::to_string(node.value);
  if (pool_.owner(node) != kTreeOwner) return internal_error(name + " is not the tree's page");
  if (record.parent != kRoot && !records_[record.parent.value].in_tree) {
    return internal_error(name + " hangs below a page that is not in the tree");
  }
  if (find_child(record.parent, tokens_of(node)) != node) {
    return internal_error(name + " is not found by its tokens");
  }
  const bool listed = order_.contains({record.last_use, node.value});
  if (listed != evictable_leaf(record)) {
    return internal_error(name + (listed ? " may not be evicted" : " is missing among the leaves"));
  }
  return {};
}

Status PrefixTree::check() const {
  std::int64_t nodes = 0;
  std::int64_t pinned = 0;
  std::size_t leaves = 0;
  std::vector<std::uint32_t> children(records_.size());
  std::vector<std::uint32_t> pins(records_.size());
  for (std::uint32_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    if (!record.in_tree) continue;
    TANDEM_TRY(check_node(Node{i}));
    ++nodes;
    pinned += record.pins > 0 ? 1 : 0;
    leaves += evictable_leaf(record) ? 1U : 0U;
    pins[i] += record.locks > 0 ? 1U : 0U;
    if (record.parent == kRoot) continue;
    ++children[record.parent.value];
    pins[record.parent.value] += record.pins > 0 ? 1U : 0U;
  }
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (children[i] != records_[i].children || pins[i] != records_[i].pins) {
      return internal_error("prefix tree: page " + std::to_string(i) + " counts " +
                            std::to_string(records_[i].children) + " children and " +
                            std::to_string(records_[i].pins) + " pins, found " +
                            std::to_string(children[i]) + " and " + std::to_string(pins[i]));
    }
  }
  if (nodes != node_count_ || pinned != pinned_count_ || leaves != order_.size() ||
      nodes != pool_.count(OwnerKind::kTree)) {
    return internal_error("prefix tree: counters differ from what the walk found");
  }
  return {};
}

}  // namespace tandem::kv
