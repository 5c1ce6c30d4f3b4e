#include "common/kv/block_pool.h"

#include "common/base/check.h"

#include <algorithm>
#include <array>
#include <string>

namespace tandem::kv {

BlockPool::BlockPool(std::int64_t page_count) {
  TANDEM_CHECK(page_count >= 1 && page_count <= kMaxPages, "BlockPool: page_count");
  const auto n = static_cast<std::size_t>(page_count);
  owners_.resize(n);
  generations_.resize(n, 1);
  free_.reserve(n);
  // Filled backwards, so that a fresh pool hands out pages in rising order.
  for (std::size_t i = n; i-- > 0;) {
    free_.push_back(PageId{static_cast<std::uint32_t>(i)});
  }
  counts_[static_cast<std::size_t>(OwnerKind::kFree)] = page_count;
}

bool BlockPool::allocate(std::span<PageId> out, Owner owner) {
  TANDEM_CHECK(owner.kind != OwnerKind::kFree, "BlockPool::allocate for nobody");
  if (out.size() > free_.size()) return false;
  for (PageId& page : out) {
    page = free_.back();
    free_.pop_back();
    owners_[page.value] = owner;
    used_end_ = std::max(used_end_, std::int64_t{page.value} + 1);
  }
  const auto n = static_cast<std::int64_t>(out.size());
  counts_[static_cast<std::size_t>(OwnerKind::kFree)] -= n;
  counts_[static_cast<std::size_t>(owner.kind)] += n;
  return true;
}

void BlockPool::release(PageId page, Owner from) {
  move(page, from, Owner{});
  ++generations_[page.value];
  free_.push_back(page);
}

void BlockPool::move(PageId page, Owner from, Owner to) {
  TANDEM_CHECK(page.value < owners_.size(), "BlockPool: no such page");
  TANDEM_CHECK(owners_[page.value] == from, "BlockPool: a page is not its giver's");
  TANDEM_CHECK(from.kind != OwnerKind::kFree, "BlockPool: a free page was given");
  owners_[page.value] = to;
  --counts_[static_cast<std::size_t>(from.kind)];
  ++counts_[static_cast<std::size_t>(to.kind)];
}

Status BlockPool::check() const {
  std::array<std::int64_t, 4> counted{};
  for (const Owner& owner : owners_) {
    ++counted[static_cast<std::size_t>(owner.kind)];
  }
  for (std::size_t kind = 0; kind < counted.size(); ++kind) {
    if (counted[kind] == counts_[kind]) continue;
    return internal_error("block pool: " + std::to_string(counted[kind]) + " pages of owner kind " +
                          std::to_string(kind) + ", the counter says " +
                          std::to_string(counts_[kind]));
  }
  if (static_cast<std::int64_t>(free_.size()) != free_count()) {
    return internal_error("block pool: the free list holds " + std::to_string(free_.size()) +
                          " pages, the counter says " + std::to_string(free_count()));
  }
  std::vector<bool> listed(owners_.size());
  for (const PageId page : free_) {
    if (owners_[page.value].kind != OwnerKind::kFree || listed[page.value]) {
      return internal_error("block pool: page " + std::to_string(page.value) +
                            " is in the free list and " +
                            (listed[page.value] ? "listed twice" : "owned"));
    }
    listed[page.value] = true;
  }
  return {};
}

}  // namespace tandem::kv
