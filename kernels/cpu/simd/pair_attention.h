// Attention of many query rows over bf16 keys, or keys of 8 bit that become bf16, by products of
// pairs, with the bits of simd/attention.h, which takes few.
//
// Idea: 16 rows are the lanes of a group. A pair of a key's dimensions is broadcast to all lanes,
// so that the 16 sums of a score, which simd/attention.h has side by side in a vector, are vectors
// of their own, and their tree is additions without shuffles; maximum and sum cross no lanes
// either. Weights are words of two positions, of which each row's is broadcast against value rows
// that were interleaved once for all rows. Loads are fewer than products: 12 for 16 in scores (two
// keys and four groups), 10 for 16 in values (eight rows and two vectors).
//
// A position that a row does not see has weight 0 here, not no weight: that only matters for -0,
// which both make 0, and for values that are not finite. Those rows are summed again alone.
#pragma once

#include "kernels/cpu/simd/byte_copies.h"
#include "kernels/cpu/simd/lane_sums.h"

namespace tandem::kernels::cpu {

template <class V>
class PairAttention {
 public:
  /// Query rows of a tile at most.
  static constexpr std::size_t kRows = 64;

  /// Several tokens, DType::kBf16 or of 8 bit, head_dim a multiple of 32.
  static void run(const AttentionTile& tile) { PairAttention(tile).run_all(); }

 private:
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  using Keys = KeyRows<V>;
  using Range = typename Keys::Range;
  using Lanes = LaneRows<V>;

  static constexpr std::size_t kLanes = Lanes::kLanes;
  static constexpr std::size_t kGroups = kRows / kLanes;
  static constexpr std::size_t kWord = Lanes::kWordBytes;
  static constexpr std::size_t kLine = kLanes * kWord;  ///< a word of each row of a group
  /// Positions of a group's scores: those computed together may reach over the block's end.
  static constexpr std::size_t kScores = kKeyBlock + 16;
  /// Rows whose weighted values are summed together.
  static constexpr std::size_t kSumRows = 8;

  static constexpr std::size_t kPointerBytes =
      (Keys::kPointers * sizeof(void*) + ByteCopies<V>::kPointerBytes + 63) / 64 * 64;

  static_assert(kPointerBytes + kGroups * (kMaxHeadDim / 2 * kLine + kScores * kLine) +
                        kKeyBlock / 2 * kMaxHeadDim * kWord + kGroups * kKeyBlock / 2 * kLine +
                        2 * kRows * kMaxHeadDim * sizeof(float) <=
                    kPackedFloats * sizeof(float),
                "more than the scratch of a thread");

  explicit PairAttention(const AttentionTile& tile)
      : tile_(tile),
        dim_(tile.head_dim),
        words_(tile.head_dim / 2),
        rows_(tile),
        sums_(rows_),
        keys_(tile, reinterpret_cast<const std::byte**>(tile.scratch)) {
    q_ = tile.scratch + kPointerBytes;
    values_ = q_ + kGroups * words_ * kLine;
    weights_ = values_ + kKeyBlock / 2 * dim_ * kWord;
    scores_ = reinterpret_cast<float*>(weights_ + kGroups * kKeyBlock / 2 * kLine);
    part_ = scores_ + kGroups * kScores * kLanes;
    merged_ = part_ + kRows * dim_;
    row_at_ = keys_.row;
    if (!Rows<V>::is_fp8(tile.dtype)) return;
    // Where values come when scores are there.
    copies_.make(
        tile, tile.scratch + Keys::kPointers * sizeof(void*), values_, dim_ * 2, kKeyBlock);
    row_at_ = copies_.rows();
  }

  void run_all() {
    rows_.load_queries(words_, false, values_, q_);
    const std::size_t last = rows_.last();
    for (std::size_t base = rows_.first() / kKeyBlock * kKeyBlock; base < last; base += kKeyBlock) {
      rows_.enter(base);
      keys_.find(base, rows_.block().begin, last);
      score_block();
      for (std::size_t g = 0; g < rows_.group_count(); ++g)
        weigh(g);
      keys_.aim_all(rows_.block(), tile_.value_offset);
      interleave(rows_.block());
      sum_block();
      for (std::size_t g = 0; g < rows_.group_count(); ++g)
        finish(g);
    }
    rows_.template write<32>(merged_, dim_, sums_.sums());
  }

  void score_block() {
    keys_.aim_all(rows_.block(), 0);
    if (copies_.are_there()) {
      const auto asked = [&](std::size_t j) { return keys_.ahead[j]; };
      copies_.copy(keys_, rows_.block(), 0, asked);
    }
    const std::size_t count = rows_.group_count();
    std::size_t g = 0;
    for (; g + 4 <= count; g += 4)
      score<4, 2>(g);
    if (g + 2 <= count) {
      score<2, 4>(g);
      g += 2;
    }
    if (g < count) score<1, 8>(g);
  }

  /// Scores of G groups, K keys at a time, [group][position][row].
  template <int G, int K>
  void score(std::size_t g) {
    const Range some = rows_.some_of(g, G);
    for (std::size_t j = some.begin; j < some.end; j += static_cast<std::size_t>(K)) {
      if (g == 0 && !copies_.are_there()) {
        for (std::size_t at = 0; at < dim_ * 2; at += 64)
          keys_.template ask<K>(keys_.ahead + j, at);
      }
      score_keys<G, K>(g, j);
    }
  }

  template <int G, int K>
  void score_keys(std::size_t g, std::size_t j) {
    const std::byte* const* keys = row_at_ + j;
    Vec tree[4][G][K];
    // In this order a sum meets its partner of the tree as soon as both are there: i and i + 8
    // (in lanes()), i + 4, i + 2, i + 1.
    lanes<G, K>(g, keys, 0, tree[0]);
    lanes<G, K>(g, keys, 4, tree[1]);
    add<G, K>(tree[0], tree[1]);
    lanes<G, K>(g, keys, 2, tree[1]);
    lanes<G, K>(g, keys, 6, tree[2]);
    add<G, K>(tree[1], tree[2]);
    add<G, K>(tree[0], tree[1]);
    lanes<G, K>(g, keys, 1, tree[1]);
    lanes<G, K>(g, keys, 5, tree[2]);
    add<G, K>(tree[1], tree[2]);
    lanes<G, K>(g, keys, 3, tree[2]);
    lanes<G, K>(g, keys, 7, tree[3]);
    add<G, K>(tree[2], tree[3]);
    add<G, K>(tree[1], tree[2]);
    add<G, K>(tree[0], tree[1]);
    const Vec scale = V::broadcast(tile_.scale);
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
      float* to = scores_ + ((g + static_cast<std::size_t>(i)) * kScores + j) * kLanes;
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
        V::store(to + static_cast<std::size_t>(k) * kLanes, V::mul(tree[0][i][k], scale));
    }
  }

  template <int G, int K>
  static inline __attribute__((always_inline)) void add(Vec (&to)[G][K], const Vec (&from)[G][K]) {
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
        to[i][k] = V::add(to[i][k], from[i][k]);
    }
  }

  /// Sums of the pairs `lane` and `lane` + 8 of every 16, each one chain, added.
  template <int G, int K>
  inline __attribute__((always_inline)) void lanes(std::size_t g,
                                                   const std::byte* const* keys,
                                                   std::size_t lane,
                                                   Vec (&out)[G][K]) const {
    Vec low[G][K];
    Vec high[G][K];
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) {
        low[i][k] = V::zero();
        high[i][k] = V::zero();
      }
    }
    const std::byte* q = q_ + (g * words_ + lane) * kLine;
    for (std::size_t word = lane; word < words_; word += 16, q += 16 * kLine) {
      Int first[K];
      Int second[K];
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) {
        first[k] = V::int_broadcast(word_at(keys[k], word));
        second[k] = V::int_broadcast(word_at(keys[k], word + 8));
      }
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i) {
        const std::byte* from = q + static_cast<std::size_t>(i) * words_ * kLine;
        const Int one = V::int_load(from);
        const Int two = V::int_load(from + 8 * kLine);
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
          low[i][k] = V::dot2(low[i][k], one, first[k]);
          high[i][k] = V::dot2(high[i][k], two, second[k]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
        out[i][k] = V::add(low[i][k], high[i][k]);
    }
  }

  static std::uint32_t word_at(const std::byte* from, std::size_t word) {
    std::uint32_t value = 0;
    __builtin_memcpy(&value, from + word * kWord, kWord);
    return value;
  }

  /// Scores of a group to weights, [pair of positions][row].
  void weigh(std::size_t g) {
    std::byte* words = weights_ + g * kKeyBlock / 2 * kLine;
    const auto put = [&](std::size_t j, Vec even, Vec odd) __attribute__((always_inline)) {
      V::int_store(words + j / 2 * kLine, V::half_words_of_exp(even, odd));
    };
    sums_.weigh(g, scores_ + g * kScores * kLanes, put);
  }

  /// Value rows to words, [32 dimensions][pair of positions][2][16], zeros for positions outside of
  /// `seen`; V::interleave mixes dimensions.
  void interleave(Range seen) {
    for (std::size_t j = seen.begin / 2 * 2; j < seen.end; j += 2) {
      const std::byte* even = j >= seen.begin ? keys_.row[j] + tile_.value_offset : nullptr;
      const std::byte* odd = j + 1 < seen.end ? keys_.row[j + 1] + tile_.value_offset : nullptr;
      std::byte* to = values_ + j * kLine;
      for (std::size_t at = 0; at < dim_; at += 32, to += kKeyBlock * kLine) {
        const std::size_t byte = copies_.are_there() ? at : at * 2;
        if (byte % 64 == 0) keys_.template ask<2>(keys_.ahead + j, byte);
        const Int a = even == nullptr ? V::int_zero() : halves(even, at);
        const Int b = odd == nullptr ? V::int_zero() : halves(odd, at);
        Int low;
        Int high;
        V::interleave(a, b, &low, &high);
        V::int_store(to, low);
        V::int_store(to + kLine, high);
      }
    }
  }

  /// 32 dimensions of a row in a page, from `at` on.
  inline __attribute__((always_inline)) Int halves(const std::byte* row, std::size_t at) const {
    if (!copies_.are_there()) return V::int_load(row + at * 2);
    return ByteRows<V>::halves(row + at, tile_.dtype);
  }

  /// Weighted values of all rows, 32 dimensions at a time: these stay near.
  void sum_block() {
    for (std::size_t at = 0; at < dim_; at += 32) {
      for (std::size_t g = 0; g < rows_.group_count(); ++g) {
        for (std::size_t lane = 0; lane < kLanes; lane += kSumRows)
          sum_rows(g, lane, rows_.group(g).some, at, part_ + (g * kLanes + lane) * dim_ + at);
      }
    }
  }

  /// 32 dimensions from `at` on of kSumRows rows; `part`: rows dim_ apart.
  void sum_rows(std::size_t g, std::size_t lane, Range some, std::size_t at, float* part) const {
    constexpr auto kR = static_cast<int>(kSumRows);
    const std::byte* values = values_ + at / 32 * kKeyBlock * kLine;
    const std::byte* weights = weights_ + g * kKeyBlock / 2 * kLine;
    Vec acc[kR][2];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      acc[r][0] = V::zero();
      acc[r][1] = V::zero();
    }
    for (std::size_t pair = some.begin / 2; pair < (some.end + 1) / 2; ++pair) {
      const Int low = V::int_load(values + pair * 2 * kLine);
      const Int high = V::int_load(values + pair * 2 * kLine + kLine);
      const std::byte* words = weights + pair * kLine;
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const Int weight = V::int_broadcast(word_at(words, lane + static_cast<std::size_t>(r)));
        acc[r][0] = V::dot2(acc[r][0], weight, low);
        acc[r][1] = V::dot2(acc[r][1], weight, high);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      V::store(part + static_cast<std::size_t>(r) * dim_, V::add(acc[r][0], V::zero()));
      V::store(part + static_cast<std::size_t>(r) * dim_ + 16, V::add(acc[r][1], V::zero()));
    }
  }

  void sum_alone(std::size_t g, std::size_t lane) {
    const std::size_t row = rows_.group(g).row + lane;
    const Range seen = rows_.seen(row);
    interleave(seen);
    const std::size_t first = lane / kSumRows * kSumRows;
    // Scores are not needed any more.
    for (std::size_t at = 0; at < dim_; at += 32)
      sum_rows(g, first, seen, at, scores_ + at);
    __builtin_memcpy(part_ + row * dim_, scores_ + (lane - first) * dim_, dim_ * sizeof(float));
  }

  /// Mends and merges a group's sums.
  void finish(std::size_t g) {
    const std::size_t first = rows_.group(g).row;
    const auto part = [&](std::size_t lane, std::size_t column) {
      return V::load(part_ + (first + lane) * dim_ + column * kLanes);
    };
    const std::size_t columns = dim_ / kLanes;
    sums_.mend(g, columns, part, [&](std::size_t lane) { sum_alone(g, lane); });
    sums_.merge(g, columns, merged_, part, [](Vec score, Vec largest) {
      return Rows<V>::exp_down(V::sub(score, largest));
    });
  }

  const AttentionTile& tile_;
  std::size_t dim_;
  std::size_t words_;  ///< pairs of dimensions
  Lanes rows_;
  LaneSums<V> sums_;
  Keys keys_;
  const std::byte* const* row_at_;  // rows of keys that are computed with
  ByteCopies<V> copies_;            // of keys of 8 bit
  std::byte* q_;                    // [group][pair of dimensions][row]
  std::byte* values_;               // see interleave()
  std::byte* weights_;              // [group][pair of positions][row]
  float* scores_;                   // [group][kScores][row]
  float* part_;                     // [row][dim], o
  float* merged_;                   // [row][dim], O
};

}  // namespace tandem::kernels::cpu
