// PrefixIndex: which worker was sent which prompt prefix, so that the next prompt with that prefix
// can go where its KV probably still is. A guess from what was sent, not a report of what is held.
#pragma once

#include "common/core/sampling_params.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace tandem::balance {

/// A radix tree over blocks of token ids, kept as one table: a block's key is a hash of its ids and
/// of the key before it, so that a key stands for a whole prefix. An entry is (key, worker); a
/// worker that has a prefix has all that are shorter. Two prefixes of one 64-bit key would be taken
/// for each other, which costs a placement and nothing else.
///
/// Memory: 28 bytes an entry, which stands for 16 tokens; how many there may be is set in advance,
/// whatever is sent. The table grows with each entry and what is cut is cut in slices: no call
/// takes long because the table is large. One user at a time. No clock: entries are ordered by use.
class PrefixIndex {
 public:
  /// Ids of one block. A tail that fills none is not remembered.
  static constexpr std::size_t kBlockTokens = 16;

  struct Options {
    /// Tokens that trim() leaves of each worker, in whole blocks and at least one. Between two
    /// trims a worker has at most twice as many.
    std::uint64_t tokens_max = 1U << 26U;
    /// Keys depend on it, so that nobody can send prompts that all fall into one place of the
    /// table.
    std::uint64_t seed = 0;
  };

  explicit PrefixIndex(Options options);

  /// Keys of the whole blocks of `ids`, the shortest prefix first; `out` is overwritten.
  void keys_of(std::span<const core::TokenId> ids, std::vector<std::uint64_t>& out) const;

  /// How many of `keys`, from the first on, `worker` was sent and is still known for. Not a use.
  [[nodiscard]] std::size_t depth(std::span<const std::uint64_t> keys, std::uint64_t worker) const;

  /// The largest depth to which any of `among` was sent `keys`; `found` is overwritten with those
  /// of `among` that were. Nobody: 0. Not a use.
  std::size_t deepest(std::span<const std::uint64_t> keys,
                      std::span<const std::uint64_t> among,
                      std::vector<std::uint64_t>& found) const;

  /// `worker` is sent this prompt now. What it has not been sent for longest goes when there is no
  /// room.
  void insert(std::span<const std::uint64_t> keys, std::uint64_t worker);

  /// Cuts every worker down to tokens_max, what was not used for longest first; of one prefix the
  /// end before the beginning. At most `entries_max` now; true: nothing is left to cut.
  bool trim(std::size_t entries_max);

  /// Forgets it at once. Its entries are freed by later calls of sweep().
  void remove_worker(std::uint64_t worker);
  /// Frees at most `entries_max` entries of workers that were removed; true: none is left.
  bool sweep(std::size_t entries_max);

  /// Of all workers, the removed ones included until they are swept.
  [[nodiscard]] std::uint64_t tokens() const { return live_ * kBlockTokens; }

  [[nodiscard]] std::uint64_t tokens_of(std::uint64_t worker) const;

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};
  static constexpr std::size_t kChunkEntries = 4096;

  struct Entry {
    std::uint64_t key = 0;
    Index owner = kNone;  // place in owners_
    Index next = kNone;   // of the same bucket; of the free ones when unused
    Index newer = kNone;  // of the same owner, in order of use
    Index older = kNone;
  };

  /// One worker's entries in order of use.
  struct Owner {
    std::uint64_t worker = 0;
    std::size_t count = 0;
    Index newest = kNone;
    Index oldest = kNone;
  };

  Entry& at(Index index) { return chunks_[index / kChunkEntries][index % kChunkEntries]; }

  [[nodiscard]] const Entry& at(Index index) const {
    return chunks_[index / kChunkEntries][index % kChunkEntries];
  }

  [[nodiscard]] Index owner_of(std::uint64_t worker) const;
  Index make_owner(std::uint64_t worker);
  [[nodiscard]] std::size_t bucket_of(std::uint64_t key) const;
  /// Asks for the memory in which find() of these keys looks, so that it comes together.
  void prefetch(std::span<const std::uint64_t> keys) const;
  [[nodiscard]] Index find(std::uint64_t key, Index owner) const;
  [[nodiscard]] bool any_has(std::uint64_t key, const std::vector<bool>& owners) const;
  Index take_entry();
  void add(std::uint64_t key, Index owner);
  void drop_oldest(Owner& owner);
  void split_bucket();
  void link_newest(Index index);
  void renew(Index oldest, Index newest);
  void unlink(Index index);
  void release_if_empty();

  Options options_;
  // What the words of a block are hidden with, from the seed.
  std::array<std::uint64_t, kBlockTokens / 2> secrets_{};
  std::size_t blocks_kept_;  // of one worker by trim()
  std::size_t blocks_max_;   // of one worker at any time
  // Entries never move; unused ones form a list.
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  Index free_ = kNone;
  std::size_t live_ = 0;
  // Linear hashing: one bucket more with each entry, instead of all of them again now and then.
  std::vector<Index> buckets_;
  std::size_t round_ = 1;  // buckets at the beginning of this doubling
  std::vector<Owner> owners_;
  std::vector<Index> free_owners_;
  std::vector<Index> removed_;  // owners whose entries wait for sweep()
  std::map<std::uint64_t, Index> owner_by_worker_;
};

}  // namespace tandem::balance
