// Attention of many query rows in f32, with the bits of simd/attention.h, which takes few.
//
// Idea: 16 rows are the lanes of a group, as in pair_attention.h. A key's dimension is broadcast to
// all lanes, so that the 16 sums of a score, which simd/attention.h has side by side in a vector,
// are vectors of their own, and their tree is additions without shuffles; maximum and sum cross no
// lanes either. Keys become floats once for all groups, values 32 dimensions at a time: these stay
// in the first level of caches while all rows take them.
//
// A position that a row does not see leaves its sums alone: where rows of a set see different
// positions, new and old sums are selected from.
#pragma once

#include "kernels/cpu/simd/lane_sums.h"

namespace tandem::kernels::cpu {

template <class V>
class LaneAttention {
 public:
  /// Query rows of a tile at most.
  static constexpr std::size_t kRows = 64;

  /// Several tokens, head_dim a multiple of 32.
  static void run(const AttentionTile& tile) { LaneAttention(tile).run_all(); }

 private:
  using Vec = typename V::Vec;
  using Keys = KeyRows<V>;
  using Range = typename Keys::Range;
  using Lanes = LaneRows<V>;

  static constexpr std::size_t kLanes = Lanes::kLanes;
  static constexpr std::size_t kGroups = kRows / kLanes;
  /// Dimensions whose values are floats at a time.
  static constexpr std::size_t kColumns = 32;
  /// Positions whose keys are floats at a time: whole steps of score_keys().
  static constexpr std::size_t kRun = 24;
  /// Groups and keys whose scores are computed together; keys of a group that is left over.
  static constexpr int kGroupsAtOnce = V::kLaneGroups;
  static constexpr int kKeysAtOnce = V::kLaneScores / V::kLaneGroups;
  static constexpr int kKeysOfOne = V::kLaneScores < 8 ? V::kLaneScores : 8;
  static_assert(kRun % kKeysAtOnce == 0 && kRun % kKeysOfOne == 0);
  /// Positions of a group's scores: those computed together may reach over the block's end.
  static constexpr std::size_t kScores = kKeyBlock + 16;

  static constexpr std::size_t kPointerFloats =
      (Keys::kPointers * sizeof(void*) + 63) / 64 * 64 / sizeof(float);

  static_assert(kPointerFloats + kGroups * (kMaxHeadDim + kScores) * kLanes + kRun * kMaxHeadDim +
                        kKeyBlock * kColumns + 2 * kRows * kMaxHeadDim <=
                    kPackedFloats,
                "more than the scratch of a thread");
  static_assert(kRows * kMaxHeadDim * sizeof(float) <= kAttentionOut);

  explicit LaneAttention(const AttentionTile& tile)
      : tile_(tile),
        dim_(tile.head_dim),
        rows_(tile),
        sums_(rows_),
        keys_(tile, reinterpret_cast<const std::byte**>(tile.scratch)) {
    q_ = reinterpret_cast<float*>(tile.scratch) + kPointerFloats;
    scores_ = q_ + kGroups * dim_ * kLanes;
    run_ = scores_ + kGroups * kScores * kLanes;
    values_ = run_ + kRun * dim_;
    part_ = values_ + kKeyBlock * kColumns;
    merged_ = part_ + kRows * dim_;
  }

  void run_all() {
    rows_.turn_queries(part_, q_);
    const std::size_t last = rows_.last();
    for (std::size_t base = rows_.first() / kKeyBlock * kKeyBlock; base < last; base += kKeyBlock) {
      rows_.enter(base);
      keys_.find(base, rows_.block().begin, last);
      with_dtype([&]<DType D>() { score_block<D>(); });
      for (std::size_t g = 0; g < rows_.group_count(); ++g)
        weigh(g);
      with_dtype([&]<DType D>() { sum_block<D>(); });
      for (std::size_t g = 0; g < rows_.group_count(); ++g)
        merge(g);
    }
    rows_.template write<0>(merged_, dim_, sums_.sums());
  }

  template <class Fn>
  void with_dtype(Fn fn) const {
    if (tile_.dtype == DType::kF32) fn.template operator()<DType::kF32>();
    if (tile_.dtype == DType::kF16) fn.template operator()<DType::kF16>();
    if (tile_.dtype == DType::kBf16) fn.template operator()<DType::kBf16>();
    if (tile_.dtype == DType::kFp8E5m2) fn.template operator()<DType::kFp8E5m2>();
    if (tile_.dtype == DType::kFp8E4m3) fn.template operator()<DType::kFp8E4m3>();
  }

  template <DType D>
  static constexpr std::size_t kBytes = dtype_bytes(D);

  /// 32 dimensions of a row in a page, from `at` on, to floats at `first` and `second`. Asks for
  /// those of the row `ahead`.
  template <DType D>
  static inline __attribute__((always_inline)) void widen(
      const std::byte* row, std::size_t at, const std::byte* ahead, float* first, float* second) {
    constexpr std::size_t kWidth = kColumns * kBytes<D>;
    const std::byte* from = row + at * kBytes<D>;
    if (kWidth >= 64 || at * kBytes<D> % 64 == 0) {
      for (std::size_t i = 0; i < kWidth; i += 64)
        Keys::ask(ahead + at * kBytes<D> + i);
    }
    if constexpr (Rows<V>::is_fp8(D)) {
      alignas(64) std::byte halves[kColumns * 2];
      V::int_store(halves, V::template widen_fp8<D>(from));
      V::store(first, V::load_bf16(halves));
      V::store(second, V::load_bf16(halves + kLanes * 2));
    } else {
      V::store(first, Rows<V>::template load_as<D>(from));
      V::store(second, Rows<V>::template load_as<D>(from + kLanes * kBytes<D>));
    }
  }

  template <DType D>
  void score_block() {
    keys_.aim_all(rows_.block(), 0);
    for (std::size_t j = rows_.block().begin; j < rows_.block().end; j += kRun) {
      const Range run = Keys::overlap(rows_.block(), {j, j + kRun});
      for (std::size_t i = j; i < run.end; ++i) {
        float* to = run_ + (i - j) * dim_;
        for (std::size_t at = 0; at < dim_; at += kColumns)
          widen<D>(keys_.row[i], at, keys_.ahead[i], to + at, to + at + kLanes);
      }
      score_run(run);
    }
  }

  /// Scores of all groups with the keys in run_, [group][position][row].
  void score_run(Range run) {
    const std::size_t count = rows_.group_count();
    std::size_t g = 0;
    for (; g + kGroupsAtOnce <= count; g += kGroupsAtOnce)
      score_groups<kGroupsAtOnce, kKeysAtOnce>(g, run);
    for (; g < count; ++g)
      score_groups<1, kKeysOfOne>(g, run);
  }

  template <int G, int K>
  void score_groups(std::size_t g, Range run) {
    const Range some = rows_.some_of(g, G);
    for (std::size_t j = run.begin; j < run.end && j < some.end; j += K) {
      if (j + K > some.begin) score_keys<G, K>(g, run_ + (j - run.begin) * dim_, j);
    }
  }

  template <int G, int K>
  void score_keys(std::size_t g, const float* keys, std::size_t j) {
    Vec sums[G][K];
    tree<G, K, 4>(q_ + g * dim_ * kLanes, keys, 0, sums);
    const Vec scale = V::broadcast(tile_.scale);
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
      float* to = scores_ + ((g + static_cast<std::size_t>(i)) * kScores + j) * kLanes;
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
        V::store(to + static_cast<std::size_t>(k) * kLanes, V::mul(sums[i][k], scale));
    }
  }

  /// The sum of 2^kLevel of the 16 sums over every 16th dimension, of which `first` is one: those
  /// that a vector's tree adds first are 8 apart.
  template <int G, int K, int kLevel>
  inline __attribute__((always_inline)) void tree(const float* q,
                                                  const float* keys,
                                                  std::size_t first,
                                                  Vec (&out)[G][K]) const {
    if constexpr (kLevel == 0) {
      chain<G, K>(q + first * kLanes, keys + first, out);
    } else {
      Vec other[G][K];
      tree<G, K, kLevel - 1>(q, keys, first, out);
      tree<G, K, kLevel - 1>(q, keys, first + (16 >> kLevel), other);
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i) {
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k)
          out[i][k] = V::add(out[i][k], other[i][k]);
      }
    }
  }

  /// Every 16th dimension of G groups with K keys.
  template <int G, int K>
  inline __attribute__((always_inline)) void chain(const float* q,
                                                   const float* keys,
                                                   Vec (&out)[G][K]) const {
    Vec acc[G][K];
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
        acc[i][k] = V::zero();
    }
    for (std::size_t at = 0; at < dim_; at += 16) {
      Vec rows[G];
#pragma GCC unroll 4
      for (int i = 0; i < G; ++i)
        rows[i] = V::load(q + (static_cast<std::size_t>(i) * dim_ + at) * kLanes);
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k) {
        const Vec key = V::broadcast(keys[static_cast<std::size_t>(k) * dim_ + at]);
#pragma GCC unroll 4
        for (int i = 0; i < G; ++i)
          acc[i][k] = V::fma(rows[i], key, acc[i][k]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < G; ++i) {
#pragma GCC unroll 8
      for (int k = 0; k < K; ++k)
        out[i][k] = acc[i][k];
    }
  }

  /// Scores of a group to weights, in place.
  void weigh(std::size_t g) {
    float* scores = scores_ + g * kScores * kLanes;
    sums_.weigh(
        g, scores, [&](std::size_t j, Vec even, Vec odd) __attribute__((always_inline)) {
          V::store(scores + j * kLanes, even);
          V::store(scores + (j + 1) * kLanes, odd);
        });
  }

  /// Weighted values of all rows, kColumns dimensions at a time.
  template <DType D>
  void sum_block() {
    keys_.aim_all(rows_.block(), tile_.value_offset);
    for (std::size_t at = 0; at < dim_; at += kColumns) {
      for (std::size_t j = rows_.block().begin; j < rows_.block().end; ++j) {
        float* to = values_ + j * kLanes;
        widen<D>(
            keys_.row[j] + tile_.value_offset, at, keys_.ahead[j], to, to + kKeyBlock * kLanes);
      }
      for (std::size_t g = 0; g < rows_.group_count(); ++g)
        sum_group(g, at);
    }
  }

  void sum_group(std::size_t g, std::size_t at) {
    constexpr int kLeft = static_cast<int>(kLanes) % V::kLaneRows;
    const std::size_t rows = rows_.group(g).rows;
    std::size_t lane = 0;
    for (; lane < rows && lane + V::kLaneRows <= kLanes; lane += V::kLaneRows)
      sum_rows<V::kLaneRows>(g, lane, at);
    if constexpr (kLeft != 0) {
      if (lane < rows) sum_rows<kLeft>(g, lane, at);
    }
  }

  /// R rows, the columns of values_; `at`: the first one's dimension.
  template <int R>
  void sum_rows(std::size_t g, std::size_t lane, std::size_t at) {
    constexpr int kC = V::kLaneColumns;
    constexpr auto kVectors = static_cast<std::size_t>(kC);
    const Sight<R> sight = sight_of<R>(g, lane);
    const float* weights = scores_ + g * kScores * kLanes + lane;
    float* part = part_ + (rows_.group(g).row + lane) * dim_ + at;
    for (std::size_t column = 0; column < kColumns / kLanes; column += kVectors)
      sum_columns<R, kC>(
          sight, weights, values_ + column * kKeyBlock * kLanes, part + column * kLanes);
  }

  /// What R rows see of the block.
  template <int R>
  struct Sight {
    float begin[R];
    float end[R];
    Range some;  ///< positions that any row sees
    Range all;   ///< those that every row sees
  };

  /// Rows that are not there see nothing, but do not count.
  template <int R>
  [[nodiscard]] Sight<R> sight_of(std::size_t g, std::size_t lane) const {
    Sight<R> sight = {.begin = {}, .end = {}, .some = {kKeyBlock, 0}, .all = {0, kKeyBlock}};
    for (std::size_t r = 0; r < static_cast<std::size_t>(R); ++r) {
      if (lane + r >= rows_.group(g).rows) continue;
      const Range seen = rows_.seen_of(g, lane + r);
      sight.begin[r] = static_cast<float>(seen.begin);
      sight.end[r] = static_cast<float>(seen.end);
      if (seen.begin < seen.end) sight.some = Lanes::either(sight.some, seen);
      sight.all = Keys::overlap(sight.all, seen);
    }
    return sight;
  }

  /// R rows, C vectors of each position's values, [vector][position][16].
  template <int R, int C>
  void sum_columns(const Sight<R>& sight,
                   const float* weights,
                   const float* values,
                   float* part) const {
    Vec acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c)
        acc[r][c] = V::zero();
    }
    std::size_t j = sight.some.begin;
    const std::size_t begin = sight.all.begin < sight.all.end ? sight.all.begin : sight.some.end;
    for (; j < begin; ++j)
      add_seen<R, C>(sight, weights, values, j, acc);
    for (; j < sight.all.end; ++j)
      add<R, C>(weights, values, j, acc);
    for (; j < sight.some.end; ++j)
      add_seen<R, C>(sight, weights, values, j, acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c)
        V::store(part + static_cast<std::size_t>(r) * dim_ + c * 16, acc[r][c]);
    }
  }

  template <int R, int C>
  static inline __attribute__((always_inline)) void add(const float* weights,
                                                        const float* values,
                                                        std::size_t j,
                                                        Vec (&acc)[R][C]) {
    Vec value[C];
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c)
      value[c] = V::load(values + (static_cast<std::size_t>(c) * kKeyBlock + j) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec weight = V::broadcast(weights[j * kLanes + static_cast<std::size_t>(r)]);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c)
        acc[r][c] = V::fma(weight, value[c], acc[r][c]);
    }
  }

  /// The same, of rows that see position j.
  template <int R, int C>
  static inline __attribute__((always_inline)) void add_seen(const Sight<R>& sight,
                                                             const float* weights,
                                                             const float* values,
                                                             std::size_t j,
                                                             Vec (&acc)[R][C]) {
    Vec with[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c)
        with[r][c] = acc[r][c];
    }
    add<R, C>(weights, values, j, with);
    const Vec at = V::broadcast(static_cast<float>(j));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec begin = V::broadcast(sight.begin[r]);
      const Vec end = V::broadcast(sight.end[r]);
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) {
        const Vec begun = V::select_greater(begin, at, acc[r][c], with[r][c]);
        acc[r][c] = V::select_greater(end, at, begun, acc[r][c]);
      }
    }
  }

  void merge(std::size_t g) {
    const std::size_t first = rows_.group(g).row;
    const auto part = [&](std::size_t lane, std::size_t column) {
      return V::load(part_ + (first + lane) * dim_ + column * kLanes);
    };
    sums_.merge(g, dim_ / kLanes, merged_, part, [](Vec score, Vec largest) {
      return Rows<V>::exp_down(V::sub(score, largest));
    });
  }

  const AttentionTile& tile_;
  std::size_t dim_;
  Lanes rows_;
  LaneSums<V> sums_;
  Keys keys_;
  float* q_;       // [group][dim][row]
  float* scores_;  // [group][kScores][row], then weights
  float* run_;     // [kRun][dim]
  float* values_;  // [kColumns / 16][kKeyBlock][16]
  float* part_;    // [row][dim], o
  float* merged_;  // [row][dim], O
};

}  // namespace tandem::kernels::cpu
