#include "common/balance/prefix_index.h"

#include "common/base/check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tandem::balance {

namespace {

__extension__ using Wide = unsigned __int128;

/// Both halves of the product, of which each hangs on all bits of both.
std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return fold(a ^ 0x9E3779B97F4A7C15ULL, b ^ 0xD1B54A32D192ED03ULL);
}

// Beside the index of a block, entries are counted in 32 bits.
constexpr std::uint64_t kBlocksKeptMax = 1U << 30U;

// Keys whose places are asked for at a time.
constexpr std::size_t kAhead = 32;

}  // namespace

PrefixIndex::PrefixIndex(Options options)
    : options_(options),
      blocks_kept_(std::clamp<std::uint64_t>(options.tokens_max / kBlockTokens, 1, kBlocksKeptMax)),
      blocks_max_(2 * blocks_kept_),
      buckets_(1, kNone) {
  for (std::uint64_t i = 0; i < secrets_.size(); ++i)
    secrets_[i] = mix(options_.seed, i + 1);
}

void PrefixIndex::keys_of(std::span<const core::TokenId> ids,
                          std::vector<std::uint64_t>& out) const {
  // Of a block each pair of words is folded by itself, as wyhash does: only the step from block to
  // block waits for the one before.
  constexpr std::size_t kWords = kBlockTokens / 2;
  static_assert(kBlockTokens % 4 == 0 && sizeof(core::TokenId) == 4);
  out.resize(ids.size() / kBlockTokens);
  std::uint64_t key = options_.seed;
  const core::TokenId* next = ids.data();
  for (std::uint64_t& each : out) {
    std::array<std::uint64_t, kWords> words{};
    std::memcpy(words.data(), next, sizeof words);
    next += kBlockTokens;
    std::uint64_t block = 0;
    for (std::size_t i = 0; i < kWords; i += 2)
      block ^= fold(words[i] ^ secrets_[i], words[i + 1] ^ secrets_[i + 1]);
    key = mix(key, block);
    each = key;
  }
}

PrefixIndex::Index PrefixIndex::owner_of(std::uint64_t worker) const {
  const auto found = owner_by_worker_.find(worker);
  return found == owner_by_worker_.end() ? kNone : found->second;
}

PrefixIndex::Index PrefixIndex::make_owner(std::uint64_t worker) {
  const auto [place, fresh] = owner_by_worker_.try_emplace(worker, kNone);
  if (!fresh) return place->second;
  if (free_owners_.empty()) {
    free_owners_.push_back(static_cast<Index>(owners_.size()));
    owners_.emplace_back();
  }
  place->second = free_owners_.back();
  free_owners_.pop_back();
  owners_[place->second] = {.worker = worker};
  return place->second;
}

std::size_t PrefixIndex::bucket_of(std::uint64_t key) const {
  // Buckets that were split in this doubling are told apart by one bit more.
  const std::size_t wide = key & (2 * round_ - 1);
  return wide < buckets_.size() ? wide : key & (round_ - 1);
}

void PrefixIndex::prefetch(std::span<const std::uint64_t> keys) const {
  for (const std::uint64_t key : keys)
    __builtin_prefetch(&buckets_[bucket_of(key)]);
  for (const std::uint64_t key : keys) {
    if (const Index first = buckets_[bucket_of(key)]; first != kNone)
      __builtin_prefetch(&at(first));
  }
}

PrefixIndex::Index PrefixIndex::find(std::uint64_t key, Index owner) const {
  Index index = buckets_[bucket_of(key)];
  while (index != kNone && (at(index).key != key || at(index).owner != owner))
    index = at(index).next;
  return index;
}

bool PrefixIndex::any_has(std::uint64_t key, const std::vector<bool>& owners) const {
  for (Index index = buckets_[bucket_of(key)]; index != kNone; index = at(index).next) {
    if (at(index).key == key && owners[at(index).owner]) return true;
  }
  return false;
}

std::size_t PrefixIndex::depth(std::span<const std::uint64_t> keys, std::uint64_t worker) const {
  const Index owner = owner_of(worker);
  if (owner == kNone) return 0;
  const auto end = std::ranges::partition_point(
      keys, [&](std::uint64_t key) { return find(key, owner) != kNone; });
  return static_cast<std::size_t>(end - keys.begin());
}

std::size_t PrefixIndex::deepest(std::span<const std::uint64_t> keys,
                                 std::span<const std::uint64_t> among,
                                 std::vector<std::uint64_t>& found) const {
  found.clear();
  std::vector<bool> wanted(owners_.size());
  for (const std::uint64_t worker : among) {
    if (const Index owner = owner_of(worker); owner != kNone) wanted[owner] = true;
  }
  // Who is placed is inserted next: then all of them are looked at.
  if (keys.size() <= kAhead) prefetch(keys);
  // Who has a prefix has all shorter ones, so the known ones come before the others.
  const auto end =
      std::ranges::partition_point(keys, [&](std::uint64_t key) { return any_has(key, wanted); });
  if (end == keys.begin()) return 0;
  const std::uint64_t last = *(end - 1);
  for (Index index = buckets_[bucket_of(last)]; index != kNone; index = at(index).next) {
    const Entry& entry = at(index);
    if (entry.key == last && wanted[entry.owner]) found.push_back(owners_[entry.owner].worker);
  }
  return static_cast<std::size_t>(end - keys.begin());
}

void PrefixIndex::insert(std::span<const std::uint64_t> keys, std::uint64_t worker) {
  if (keys.empty()) return;
  const Index owner = make_owner(worker);
  // From the end: so the beginning of a prompt is newer than what hangs on it, and goes after it.
  keys = keys.first(std::min(keys.size(), blocks_max_));
  // What is known was mostly used together last time and lies in order: it moves as one.
  Index oldest = kNone;
  Index newest = kNone;
  for (std::size_t i = keys.size(); i-- > 0;) {
    if (const std::size_t left = i + 1; (keys.size() - left) % kAhead == 0)
      prefetch(keys.first(left).last(std::min(left, kAhead)));
    const Index known = find(keys[i], owner);
    if (known != kNone) {
      if (newest == kNone || at(newest).newer != known) {
        renew(oldest, newest);
        oldest = known;
      }
      newest = known;
      continue;
    }
    renew(std::exchange(oldest, kNone), std::exchange(newest, kNone));
    if (owners_[owner].count >= blocks_max_) drop_oldest(owners_[owner]);
    add(keys[i], owner);
  }
  renew(oldest, newest);
}

bool PrefixIndex::trim(std::size_t entries_max) {
  for (const auto& [worker, index] : owner_by_worker_) {
    Owner& owner = owners_[index];
    for (; owner.count > blocks_kept_; --entries_max) {
      if (entries_max == 0) return false;
      drop_oldest(owner);
    }
  }
  return true;
}

void PrefixIndex::remove_worker(std::uint64_t worker) {
  const auto found = owner_by_worker_.find(worker);
  if (found == owner_by_worker_.end()) return;
  removed_.push_back(found->second);
  owner_by_worker_.erase(found);
}

bool PrefixIndex::sweep(std::size_t entries_max) {
  while (!removed_.empty()) {
    Owner& owner = owners_[removed_.back()];
    for (; owner.count > 0; --entries_max) {
      if (entries_max == 0) return false;
      drop_oldest(owner);
    }
    free_owners_.push_back(removed_.back());
    removed_.pop_back();
    release_if_empty();
  }
  return true;
}

std::uint64_t PrefixIndex::tokens_of(std::uint64_t worker) const {
  const Index owner = owner_of(worker);
  return owner == kNone ? 0 : owners_[owner].count * kBlockTokens;
}

PrefixIndex::Index PrefixIndex::take_entry() {
  if (free_ == kNone) {
    const auto first = static_cast<Index>(chunks_.size() * kChunkEntries);
    chunks_.push_back(std::make_unique<Entry[]>(kChunkEntries));
    for (Index i = kChunkEntries; i-- > 0;) {
      at(first + i).next = free_;
      free_ = first + i;
    }
  }
  const Index index = free_;
  free_ = at(index).next;
  return index;
}

void PrefixIndex::add(std::uint64_t key, Index owner) {
  const Index index = take_entry();
  if (++live_ > buckets_.size()) split_bucket();
  Index& head = buckets_[bucket_of(key)];
  at(index) = {.key = key, .owner = owner, .next = head};
  head = index;
  link_newest(index);
}

void PrefixIndex::drop_oldest(Owner& owner) {
  const Index index = owner.oldest;
  TANDEM_CHECK(index != kNone, "PrefixIndex: an owner without entries");
  Index* place = &buckets_[bucket_of(at(index).key)];
  while (*place != index)
    place = &at(*place).next;
  *place = at(index).next;
  unlink(index);
  at(index) = {.next = free_};
  free_ = index;
  --live_;
}

/// Deals the entries of the bucket whose turn it is to itself and a new one.
void PrefixIndex::split_bucket() {
  const std::size_t from = buckets_.size() - round_;
  const std::size_t to = buckets_.size();
  buckets_.push_back(kNone);
  Index index = std::exchange(buckets_[from], kNone);
  if (buckets_.size() == 2 * round_) round_ *= 2;
  // Those of the next split: buckets are split in order.
  if (const Index next = buckets_[buckets_.size() - round_]; next != kNone)
    __builtin_prefetch(&at(next));
  while (index != kNone) {
    const Index next = at(index).next;
    Index& head = buckets_[bucket_of(at(index).key)];
    TANDEM_CHECK(&head == &buckets_[from] || &head == &buckets_[to], "PrefixIndex: a split");
    at(index).next = head;
    head = index;
    index = next;
  }
}

void PrefixIndex::link_newest(Index index) {
  Owner& owner = owners_[at(index).owner];
  at(index).newer = kNone;
  at(index).older = owner.newest;
  if (owner.newest != kNone) at(owner.newest).newer = index;
  owner.newest = index;
  if (owner.oldest == kNone) owner.oldest = index;
  ++owner.count;
}

/// Entries of one owner that lie one after the other in its order of use, used now; or none.
void PrefixIndex::renew(Index oldest, Index newest) {
  if (newest == kNone) return;
  Owner& owner = owners_[at(newest).owner];
  if (owner.newest == newest) return;
  const Index older = at(oldest).older;
  const Index newer = at(newest).newer;
  at(newer).older = older;
  (older == kNone ? owner.oldest : at(older).newer) = newer;
  at(newest).newer = kNone;
  at(oldest).older = owner.newest;
  at(owner.newest).newer = oldest;
  owner.newest = newest;
}

void PrefixIndex::unlink(Index index) {
  const Entry& entry = at(index);
  Owner& owner = owners_[entry.owner];
  (entry.newer == kNone ? owner.newest : at(entry.newer).older) = entry.older;
  (entry.older == kNone ? owner.oldest : at(entry.older).newer) = entry.newer;
  --owner.count;
}

void PrefixIndex::release_if_empty() {
  if (live_ != 0) return;
  chunks_.clear();
  buckets_.assign(1, kNone);
  buckets_.shrink_to_fit();
  round_ = 1;
  free_ = kNone;
}

}  // namespace tandem::balance
