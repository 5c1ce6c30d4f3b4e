#include "common/kv/page_cache.h"

#include "common/base/check.h"

#include <algorithm>
#include <string>

namespace tandem::kv {

PageCache::PageCache(const PageCacheOptions& options)
    : page_size_(options.page_size), pool_(options.page_count) {
  TANDEM_CHECK(options.page_size >= 1, "PageCache: page_size");
  if (options.prefix_reuse) tree_.emplace(pool_, options.page_size);
}

std::int64_t PageCache::pages_for(std::int64_t token_count) const {
  return (token_count + page_size_ - 1) / page_size_;
}

std::int64_t PageCache::available_pages() const {
  return pool_.free_count() + unused_cached_pages();
}

std::int64_t PageCache::unused_cached_pages() const {
  return tree_ ? tree_->evictable_pages() : 0;
}

std::int64_t PageCache::shared_pages() const {
  return tree_ ? tree_->pinned_pages() : 0;
}

std::int64_t PageCache::match_length(std::span<const TokenId> tokens) const {
  return tree_ ? tree_->match_length(tokens) : 0;
}

bool PageCache::allocate(std::span<PageId> out, Owner owner) {
  const auto want = static_cast<std::int64_t>(out.size());
  if (want > available_pages()) return false;
  if (const std::int64_t missing = want - pool_.free_count(); missing > 0) tree_->evict(missing);
  return pool_.allocate(out, owner);
}

bool PageCache::open(PageTable* table,
                     Owner owner,
                     std::span<const TokenId> tokens,
                     std::int64_t match_limit,
                     std::int64_t spare_pages) {
  TANDEM_CHECK(table->pages.empty(), "PageCache::open: the table is in use");
  const auto token_count = static_cast<std::int64_t>(tokens.size());
  if (tree_) {
    const std::int64_t limit = std::clamp<std::int64_t>(match_limit, 0, token_count) / page_size_;
    table->lock = tree_->match(tokens, limit, &table->pages);
    tree_->lock(table->lock);
  }
  table->owner = owner;
  table->shared_count = static_cast<std::int64_t>(table->pages.size());
  const std::int64_t needed = pages_for(token_count) - table->shared_count;
  if (needed + spare_pages <= available_pages() && grow(table, token_count)) return true;
  if (tree_) tree_->unlock(table->lock);
  *table = PageTable{};
  return false;
}

bool PageCache::grow(PageTable* table, std::int64_t token_count) {
  const auto held = table->pages.size();
  const auto wanted = static_cast<std::size_t>(pages_for(token_count));
  if (wanted <= held) return true;
  table->pages.resize(wanted);
  if (allocate(std::span(table->pages).subspan(held), table->owner)) return true;
  table->pages.resize(held);
  return false;
}

void PageCache::publish(PageTable* table, std::span<const TokenId> tokens) {
  const auto page_size = static_cast<std::size_t>(page_size_);
  const std::size_t full = std::min(tokens.size() / page_size, table->pages.size());
  const auto shared = static_cast<std::size_t>(table->shared_count);
  if (!tree_ || full <= shared) return;
  const auto node = tree_->extend(table->lock,
                                  tokens.subspan(shared * page_size, (full - shared) * page_size),
                                  std::span(table->pages).subspan(shared, full - shared),
                                  table->owner);
  tree_->lock(node);
  tree_->unlock(table->lock);
  table->lock = node;
  table->shared_count = static_cast<std::int64_t>(full);
}

void PageCache::close(PageTable* table, std::span<const TokenId> tokens) {
  publish(table, tokens);
  release_private(*table);
  if (tree_) tree_->unlock(table->lock);
  *table = PageTable{};
}

void PageCache::discard(PageTable* table) {
  release_private(*table);
  if (tree_) {
    tree_->unlock(table->lock);
    tree_->drop(table->lock);
  }
  *table = PageTable{};
}

void PageCache::release_private(const PageTable& table) {
  for (auto i = static_cast<std::size_t>(table.shared_count); i < table.pages.size(); ++i) {
    pool_.release(table.pages[i], table.owner);
  }
}

void PageCache::change_owner(PageTable* table, Owner to) {
  for (auto i = static_cast<std::size_t>(table->shared_count); i < table->pages.size(); ++i) {
    pool_.move(table->pages[i], table->owner, to);
  }
  table->owner = to;
}

void PageCache::clear_unused() {
  if (tree_) tree_->clear();
}

Status PageCache::check(std::span<const PageTable* const> open_tables) const {
  TANDEM_TRY(pool_.check());
  if (tree_) TANDEM_TRY(tree_->check());
  std::vector<bool> seen(static_cast<std::size_t>(pool_.total()));
  std::int64_t private_pages = 0;
  for (const PageTable* table : open_tables) {
    for (std::size_t i = 0; i < table->pages.size(); ++i) {
      const PageId page = table->pages[i];
      const bool shared = static_cast<std::int64_t>(i) < table->shared_count;
      if (pool_.owner(page) != (shared ? kTreeOwner : table->owner)) {
        return internal_error("page " + std::to_string(page.value) +
                              " is in the table of sequence " + std::to_string(table->owner.id) +
                              " but belongs to someone else");
      }
      if (shared) continue;
      if (seen[page.value]) {
        return internal_error("page " + std::to_string(page.value) + " is in two tables");
      }
      seen[page.value] = true;
      ++private_pages;
    }
  }
  const std::int64_t owned = pool_.count(OwnerKind::kSequence) + pool_.count(OwnerKind::kTransfer);
  if (owned != private_pages) {
    return internal_error("sequences own " + std::to_string(owned) + " pages, their tables hold " +
                          std::to_string(private_pages) + ": pages are lost");
  }
  return {};
}

}  // namespace tandem::kv
