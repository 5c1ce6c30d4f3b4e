// Causal attention of up to kTileRows query rows over the paged keys of one kv head, or of one
// token over those of several.
//
// The arithmetic of one row, whatever tile it is in (this order is part of the numerics family):
//   for each block of 256 absolute positions that the row sees any of:
//     score[j] = scale * tree(16 lanes of one FMA chain over head_dim)
//     m = max, e[j] = exp(score[j] - m), l = tree(16 lanes, position % 16, in order)
//     o = sum of e[j] V[j], one FMA chain in order of positions
//     merge (M, L, O) with (m, l, o), rescaled to the larger of M and m
//   out = O / L
// Families with products of bf16 pairs (V::kBf16Pairs) take bf16 keys and values by pairs instead:
// q and e[] are rounded to bf16, a score is one chain of pairs over head_dim, and o one chain over
// pairs of positions (2 i, 2 i + 1), in which a position that the row does not see is zero on both
// sides; -0 becomes 0 in it. m, l, merge: as above. Many rows: attention_by_rows.h, the same bits.
// Keys and values of 8 bit become bf16 pairs or floats in registers where few rows of one token use
// whole lines of them (and V is quick at it: byte_sums.h, key_vectors.h), and else bf16 first: of
// several tokens those of a block at a time, of one those of a stride of one head.
// Rows only share loads: a tile of 4 rows x 4 keys reads each key once for 4 rows. Keys that a row
// does not see never enter its sums (not even times zero: the memory behind them may hold NaN).
// Bound: decode reads K and V once (in which order: token_asks.h, key_rows.h); prefill is bound by
// FMAs.
#pragma once

#include "kernels/cpu/simd/byte_copies.h"
#include "kernels/cpu/simd/byte_sums.h"
#include "kernels/cpu/simd/float_sums.h"
#include "kernels/cpu/simd/key_rows.h"
#include "kernels/cpu/simd/key_vectors.h"
#include "kernels/cpu/simd/merged_rows.h"
#include "kernels/cpu/simd/rows.h"
#include "kernels/cpu/simd/token_asks.h"

namespace tandem::kernels::cpu {

template <class V>
class Attention {
 public:
  static void run(const AttentionTile& tile) {
    if constexpr (kWidenedRows > 0) {
      if (widens(tile)) {
        const bool done = tile.dtype == DType::kFp8E5m2
                              ? Attention(tile).template run_as<DType::kFp8E5m2>()
                              : Attention(tile).template run_as<DType::kFp8E4m3>();
        if (done) return;
        // Once more, but what comes then was claimed.
        AttentionTile alone = tile;
        alone.next = nullptr;
        return run_plain(alone);
      }
    }
    run_plain(tile);
  }

 private:
  using Vec = typename V::Vec;
  using Keys = KeyRows<V>;
  using Copies = ByteCopies<V>;
  using Pairs = PairSums<V>;
  using Range = typename Keys::Range;
  using Asks = typename TokenAsks<V>::Asks;

  /// Whether V makes bf16 pairs of bytes where it uses them.
  static constexpr bool kWidens = V::kBf16Pairs && requires {
    &V::template widen_fp8_pairs<DType::kFp8E4m3>;
  };

  /// Or floats.
  static constexpr bool kWidensFloats = KeyVectors<V, DType::kFp8E4m3>::kWidens;
  /// For so many rows of a token at most: sums need registers, too.
  static constexpr std::size_t kWidenedRows = kWidens ? 4 : kWidensFloats ? 2 : 0;

  /// Whether keys and values of 8 bit are widened where they are used: a few rows of one token, and
  /// of theirs whole lines. Otherwise they become bf16 in memory first.
  static bool widens(const AttentionTile& tile) {
    return Rows<V>::is_fp8(tile.dtype) && tile.tokens == 1 && tile.heads <= kWidenedRows &&
           tile.head_dim % 64 == 0;
  }

  /// As f32, f16 or bf16.
  static void run_plain(const AttentionTile& tile) {
    Attention attention(tile);
    if (tile.dtype == DType::kF32) {
      attention.template run_as<DType::kF32>();
    } else if (tile.dtype == DType::kF16) {
      attention.template run_as<DType::kF16>();
    } else {
      if (Rows<V>::is_fp8(tile.dtype)) attention.make_copies();
      attention.template run_as<DType::kBf16>();
    }
  }

  /// Floats from one row of scores to the next: tiles of keys may write over the block's end.
  static constexpr std::size_t kScoreStride = Pairs::kWeightStride;

  explicit Attention(const AttentionTile& tile)
      : tile_(tile),
        rows_(tile.tokens * tile.kv_heads * tile.heads),
        dim_(tile.head_dim),
        padded_dim_((tile.head_dim + 31) / 32 * 32),
        keys_(tile,
              reinterpret_cast<const std::byte**>(reinterpret_cast<float*>(tile.scratch) +
                                                  kTileRows * (3 * padded_dim_ + kScoreStride))),
        asks_(tile, tile.scratch),
        merged_(reinterpret_cast<float*>(tile.scratch) + kTileRows * padded_dim_,
                reinterpret_cast<float*>(tile.scratch) + 2 * kTileRows * padded_dim_,
                padded_dim_) {
    // Largest: 3 * 32 * 512 + 32 * 272 floats, 608 and 272 pointers, 32 * 784 halves, 272 * 512
    // more: under 600 KiB.
    q_ = reinterpret_cast<float*>(tile.scratch);
    scores_ = q_ + 3 * kTileRows * padded_dim_;
    q_pairs_ = reinterpret_cast<std::byte*>(keys_.row + Keys::kPointers);
    weights_ = q_pairs_ + kTileRows * padded_dim_ * 2;
    row_at_ = keys_.row;
    value_offset_ = tile.value_offset;
  }

  /// Keys and values become bf16 before they are used.
  void make_copies() {
    std::byte* const room = weights_ + kTileRows * kScoreStride * 2;
    const std::size_t different = tile_.tokens == 1 ? Keys::kStrideMost : Copies::kRows;
    copies_.make(tile_, room, room + Copies::kPointerBytes, padded_dim_ * 2, different);
    row_at_ = copies_.rows();
    value_offset_ = 0;
  }

  /// Whether this dtype goes by pairs.
  template <DType D>
  static constexpr bool kPairs = V::kBf16Pairs&& D != DType::kF32&& D != DType::kF16;

  /// False, and nothing is put out: with V::load_fp8_split() a key or value was NaN, which does not
  /// show then, or a query is too large for KeyVectors::kFactor.
  template <DType D>
  bool run_as() {
    load_queries();
    if constexpr (kPairs<D>) {
      round_queries();
    } else if (!KeyVectors<V, D>::make_queries(q_, rows_ * padded_dim_)) {
      return false;
    }
    Range all = visible_[0];
    for (std::size_t row = 1; row < rows_; ++row) {
      all.begin = visible_[row].begin < all.begin ? visible_[row].begin : all.begin;
      all.end = visible_[row].end > all.end ? visible_[row].end : all.end;
    }
    const bool by_token = TokenAsks<V>::takes(tile_);
    if (by_token) asks_.begin(tile_);
    for (std::size_t base = all.begin / kKeyBlock * kKeyBlock; base < all.end; base += kKeyBlock) {
      const Range block = clip(all, base);
      keys_.find(base, block.begin, all.end);
      if (tile_.tokens == 1) {
        if (!by_token && base <= all.begin) keys_.ask_first(block);
        in_turn(block, 0, [&]<Asks A>(Range rows, std::size_t offset, Range positions) {
          score_heads<D, A>(rows, offset, positions);
        });
      } else {
        keys_.aim_all(block, 0);
        if (copies_.are_there()) copy<Asks::kRows>(block, 0);
        score_heads<D, Asks::kRows>({0, rows_}, 0, block);
      }
      for (std::size_t row = 0; row < rows_; ++row)
        seen_[row] = clip(visible_[row], base);
      for (std::size_t row = 0; row < rows_; ++row)
        softmax_row<D>(row);
      if (tile_.tokens == 1) {
        in_turn(block,
                tile_.value_offset,
                [&]<Asks A>(Range rows, std::size_t offset, Range positions) {
                  sum_head<D>(rows, A, copies_.are_there() ? 0 : offset, positions);
                });
      } else {
        keys_.aim_all(block, tile_.value_offset);
        if (copies_.are_there()) copy<Asks::kRows>(block, tile_.value_offset);
        sum_head<D>({0, rows_}, Asks::kRows, 0, {0, kKeyBlock});
      }
      for (std::size_t row = 0; row < rows_; ++row)
        if (seen_[row].begin < seen_[row].end) merged_.template merge<kPairs<D>>(row);
    }
    if (by_token) asks_.end();
    if constexpr (kWidensFloats && D == DType::kFp8E4m3) {
      if (V::met_nan(top_)) return false;
    }
    store_rows<D>();
    return true;
  }

  /// The part of `range` inside the block at `base`, relative to it.
  static Range clip(Range range, std::size_t base) {
    const std::size_t begin = range.begin > base ? range.begin - base : 0;
    const std::size_t end = range.end > base ? range.end - base : 0;
    return {begin < kKeyBlock ? begin : kKeyBlock, end < kKeyBlock ? end : kKeyBlock};
  }

  void load_queries() {
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    for (std::size_t row = 0; row < rows_; ++row) {
      const std::size_t token = row / heads;
      const float* q = tile_.q + token * tile_.q_stride + row % heads * dim_;
      float* to = q_ + row * padded_dim_;
      for (std::size_t i = 0; i < padded_dim_; i += 16)
        V::store(to + i, Rows<V>::load_within(q, i, dim_));
      visible_[row] = Keys::seen_by(tile_, token);
      merged_.clear(row);
    }
    // A tile of 3 rows computes a fourth one that nobody reads.
    for (std::size_t i = rows_ * padded_dim_; rows_ < kTileRows && i < (rows_ + 1) * padded_dim_;
         ++i)
      q_[i] = 0;
  }

  /// q to bf16, with the row behind the last one.
  void round_queries() {
    const std::size_t rows = rows_ < kTileRows ? rows_ + 1 : rows_;
    for (std::size_t i = 0; i < rows * padded_dim_; i += 16)
      V::store_bf16(q_pairs_ + i * 2, V::load(q_ + i));
  }

  /// fn<asks>(rows, offset, positions) for each kv head of a token, stride by stride of the block.
  /// What it reads lies `behind` key rows; `offset` is from the first head's to the head's.
  template <class Fn>
  void in_turn(Range block, std::size_t behind, Fn fn) {
    if (TokenAsks<V>::takes(tile_)) return in_turn<Asks::kToken>(block, asks_.stride(), behind, fn);
    in_turn<Asks::kRows>(block, keys_.stride(), behind, fn);
  }

  template <Asks A, class Fn>
  void in_turn(Range block, std::size_t stride, std::size_t behind, Fn fn) {
    for (std::size_t begin = block.begin / stride * stride; begin < block.end; begin += stride) {
      const Range positions = Keys::overlap(block, {begin, begin + stride});
      for (std::size_t head = 0; head < tile_.kv_heads; ++head) {
        const std::size_t offset = head * tile_.kv_head_stride;
        if constexpr (A == Asks::kToken) {
          asks_.begin_unit(positions);
        } else {
          const std::size_t unit = begin / stride * tile_.kv_heads + head;
          keys_.aim_from(block, unit, behind == 0 ? 0 : keys_.units(block));
        }
        if (copies_.are_there()) copy<A>(positions, offset + behind);
        fn.template operator()<A>(
            Range{head * tile_.heads, (head + 1) * tile_.heads}, offset, positions);
      }
    }
  }

  template <Asks A>
  void copy(Range positions, std::size_t offset) {
    copies_.copy(keys_, positions, offset, [&](std::size_t j) { return asked<A>(j)(0); });
  }

  /// What c positions further is asked for.
  template <Asks A>
  auto asked(std::size_t position) const {
    return asks_.template asked<A>(keys_, position);
  }

  template <Asks A>
  static inline __attribute__((always_inline)) void ask(const std::byte* line) {
    if constexpr (A != Asks::kNothing) Keys::ask(line);
  }

  /// Whoever copied has asked.
  template <DType D, Asks A>
  void score_heads(Range rows, std::size_t offset, Range positions) {
    if constexpr (D == DType::kBf16) {
      if (copies_.are_there()) return score_head<D, Asks::kNothing>(rows, 0, positions);
    }
    score_head<D, A>(rows, offset, positions);
  }

  template <DType D, Asks A>
  void score_head(Range rows, std::size_t offset, Range positions) {
    std::size_t row = rows.begin;
    if (row + 3 <= rows.end) {
      score_rows<D, 4, 4, A>(row, rows.end, offset, positions);
      row += 4;
    } else if (row + 2 == rows.end) {
      return score_rows<D, 2, 8, A>(row, rows.end, offset, positions);
    } else {
      return score_rows<D, 1, 16, A>(row, rows.end, offset, positions);
    }
    for (; row + 3 <= rows.end; row += 4)
      score_rows<D, 4, 4, Asks::kNothing>(row, rows.end, offset, positions);
    if (row + 2 == rows.end) {
      score_rows<D, 2, 8, Asks::kNothing>(row, rows.end, offset, positions);
    } else if (row + 1 == rows.end) {
      score_rows<D, 1, 16, Asks::kNothing>(row, rows.end, offset, positions);
    }
  }

  /// R rows (of which those below `end` count) x C keys at a time, R * C = 16 sums. `offset`: from
  /// the rows of keys_ to this head's.
  template <DType D, int R, int C, Asks A>
  void score_rows(std::size_t row, std::size_t end, std::size_t offset, Range block) {
    if constexpr (kPairs<D>) {
      if (dim_ == 128) return score_pairs<D, R, C, A, 128>(row, end, offset, block);
      return score_pairs<D, R, C, A, 0>(row, end, offset, block);
    } else {
      const float* q = q_ + row * padded_dim_;
      for (std::size_t j = block.begin; j < block.end; j += C) {
        Vec sums[16];
        constexpr int kKeysAtOnce = V::kScoreSums / R;
#pragma GCC unroll 4
        for (int first = 0; first < C; first += kKeysAtOnce) {
          const std::size_t position = j + static_cast<std::size_t>(first);
          const auto rows = asked<A>(position);
          const auto ask_line = [&](int c, std::size_t at) __attribute__((always_inline)) {
            ask<A>(rows(c) + at);
          };
          FloatSums<V, D>::template dot<R, kKeysAtOnce, C>(
              row_at_ + position, offset, q, padded_dim_, dim_, ask_line, &top_, sums + first);
        }
        store_scores<R, C>(row, end, j, KeyVectors<V, D>::sum16(sums));
      }
    }
  }

  /// The same by pairs. kDim: the dimensions, or 0.
  template <DType D, int R, int C, Asks A, std::size_t kDim>
  void score_pairs(std::size_t row, std::size_t end, std::size_t offset, Range block) {
    const std::byte* q = q_pairs_ + row * padded_dim_ * 2;
    for (std::size_t j = block.begin; j < block.end; j += C) {
      const auto rows = asked<A>(j);
      const auto ask_line = [&](int c, std::size_t at) __attribute__((always_inline)) {
        ask<A>(rows(c) + at);
      };
      Vec sums[R][C];
      PairSumsOf<V, D>::template dot<R, C, kDim>(
          row_at_ + j, offset, q, padded_dim_, dim_, ask_line, sums);
      store_scores<R, C>(row, end, j, V::sum16(&sums[0][0]));
    }
  }

  /// Of R rows x C keys from `position` on. Scores behind the end lie in the row's padding, where
  /// softmax_row() overwrites them.
  template <int R, int C>
  void store_scores(std::size_t row, std::size_t end, std::size_t position, Vec sums) {
    alignas(64) float out[16];
    V::store(out, V::mul(sums, V::broadcast(tile_.scale)));
    for (std::size_t r = 0; r < static_cast<std::size_t>(R) && row + r < end; ++r)
      __builtin_memcpy(
          scores_ + (row + r) * kScoreStride + position, out + r * C, C * sizeof(float));
  }

  /// Scores of the row's visible positions to weights, in place.
  template <DType D>
  void softmax_row(std::size_t row) {
    const Range seen = seen_[row];
    if (seen.begin >= seen.end) return;
    const float lowest = -__builtin_inff();
    float* scores = scores_ + row * kScoreStride;
    const std::size_t begin = seen.begin / 16 * 16;
    const std::size_t end = (seen.end + 15) / 16 * 16;
    for (std::size_t j = begin; j < seen.begin; ++j)
      scores[j] = lowest;
    for (std::size_t j = seen.end; j < end; ++j)
      scores[j] = lowest;

    Vec best = V::broadcast(lowest);
    for (std::size_t j = begin; j < end; j += 16)
      best = V::max(V::load(scores + j), best);
    const float largest = V::max_lane(best);
    const Vec max = V::broadcast(largest == lowest ? 0.0F : largest);
    Vec sum = V::zero();
    for (std::size_t j = begin; j < end; j += 16) {
      const Vec weight = Rows<V>::exp_down(V::sub(V::load(scores + j), max));
      if constexpr (kPairs<D>) {
        V::store_bf16_of_exp(weights_ + (row * kScoreStride + j) * 2, weight);
      } else {
        V::store(scores + j, V::mul(weight, V::broadcast(KeyVectors<V, D>::kFactor)));
      }
      sum = V::add(sum, weight);
    }
    merged_.begin_part(row, largest, V::sum(sum));
  }

  template <DType D>
  void sum_head(Range rows, Asks first, std::size_t offset, Range positions) {
    std::size_t row = rows.begin;
    const auto asks = [&] {
      return row == rows.begin && !copies_.are_there() ? first : Asks::kNothing;
    };
    if constexpr (kPairs<D>) {
      for (; row + 4 <= rows.end; row += 4)
        sum_pair_rows<D, 4, 2>(row, asks(), offset, positions);
      if (row + 2 <= rows.end) {
        sum_pair_rows<D, 2, 4>(row, asks(), offset, positions);
        row += 2;
      }
      if (row < rows.end)
        sum_row_pairs<D>(row, asks(), offset, Keys::overlap(seen_[row], positions));
    } else {
      if constexpr (!KeyVectors<V, D>::kWidens) {
        for (; row + 4 <= rows.end; row += 4)
          sum_rows<D, 4, V::kValueChunks>(row, asks(), offset, positions);
      }
      if (row + 2 <= rows.end) {
        sum_rows<D, 2, V::kValueChunksTwoRows>(row, asks(), offset, positions);
        row += 2;
      }
      if (row < rows.end) {
        sum_keys<D, 1, V::kValueChunksOneRow>(
            row, asks(), offset, Keys::overlap(seen_[row], positions));
      }
    }
  }

  /// R rows share the positions that all of them see; what only some see comes before or after.
  template <DType D, int R, int C>
  void sum_rows(std::size_t row, Asks asks, std::size_t offset, Range positions) {
    constexpr auto kRows = static_cast<std::size_t>(R);
    Range seen[kRows];
    Range common = positions;
    for (std::size_t r = 0; r < kRows; ++r) {
      seen[r] = Keys::overlap(seen_[row + r], positions);
      common = Keys::overlap(common, seen[r]);
    }
    if (common.begin >= common.end) {
      for (std::size_t r = 0; r < kRows; ++r)
        sum_keys<D, 1, V::kValueChunksOneRow>(row + r, Asks::kNothing, offset, seen[r]);
      return;
    }
    for (std::size_t r = 0; r < kRows; ++r)
      sum_keys<D, 1, V::kValueChunksOneRow>(
          row + r, Asks::kNothing, offset, {seen[r].begin, common.begin});
    sum_keys<D, R, C>(row, asks, offset, common);
    for (std::size_t r = 0; r < kRows; ++r)
      sum_keys<D, 1, V::kValueChunksOneRow>(
          row + r, Asks::kNothing, offset, {common.end, seen[r].end});
  }

  /// As sum_rows, by pairs: shared are the pairs that all rows see whole. Positions are whole
  /// pairs, too.
  template <DType D, int R, int C>
  void sum_pair_rows(std::size_t row, Asks asks, std::size_t offset, Range positions) {
    constexpr auto kRows = static_cast<std::size_t>(R);
    Range seen[kRows];
    Range common = {0, kKeyBlock};
    for (std::size_t r = 0; r < kRows; ++r) {
      seen[r] = Keys::overlap(seen_[row + r], positions);
      common = Keys::overlap(common, {(seen[r].begin + 1) / 2 * 2, seen[r].end / 2 * 2});
    }
    if (common.begin >= common.end) {
      for (std::size_t r = 0; r < kRows; ++r)
        sum_row_pairs<D>(row + r, Asks::kNothing, offset, seen[r]);
      return;
    }
    for (std::size_t r = 0; r < kRows; ++r)
      sum_row_pairs<D>(row + r, Asks::kNothing, offset, {seen[r].begin, common.begin});
    sum_pair_chunks<D, R, C>(row, asks, offset, common);
    for (std::size_t r = 0; r < kRows; ++r)
      sum_row_pairs<D>(row + r, Asks::kNothing, offset, {common.end, seen[r].end});
  }

  /// One row over `keys`, whose ends may halve a pair.
  template <DType D>
  void sum_row_pairs(std::size_t row, Asks asks, std::size_t offset, Range keys) {
    if (keys.begin < keys.end) sum_pair_chunks<D, 1, 4>(row, asks, offset, keys);
  }

  /// R rows, C times 32 dimensions of the values at a time.
  template <DType D, int R, int C>
  void sum_pair_chunks(std::size_t row, Asks asks, std::size_t offset, Range keys) {
    constexpr auto kLeast = static_cast<int>(PairSumsOf<V, D>::kLineParts);
    constexpr auto kWidth = static_cast<std::size_t>(C) * 32;
    std::size_t at = 0;
    for (; at + kWidth <= dim_; at += kWidth)
      sum_pair_chunk<D, R, C>(row, asks, offset, keys, at);
    for (; at < dim_; at += static_cast<std::size_t>(kLeast) * 32)
      sum_pair_chunk<D, R, kLeast>(row, asks, offset, keys, at);
  }

  /// R rows, C times 32 dimensions of the values from `at` on; how a part has them: mixed.h.
  template <DType D, int R, int C>
  void sum_pair_chunk(std::size_t row, Asks asks, std::size_t offset, Range keys, std::size_t at) {
    if (asks == Asks::kToken) return sum_pair_chunk<D, R, C, Asks::kToken>(row, offset, keys, at);
    if (asks == Asks::kRows) return sum_pair_chunk<D, R, C, Asks::kRows>(row, offset, keys, at);
    sum_pair_chunk<D, R, C, Asks::kNothing>(row, offset, keys, at);
  }

  template <DType D, int R, int C, Asks A>
  void sum_pair_chunk(std::size_t row, std::size_t head_offset, Range keys, std::size_t at) {
    using Sums = PairSumsOf<V, D>;
    float* part = merged_.part(row) + at;
    const std::byte* weights = weights_ + row * kScoreStride * 2;
    const std::size_t offset = head_offset + value_offset_ + at * Sums::kBytes;
    const std::size_t count = dim_ - at;
    Vec acc[R][2 * C];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * C; ++c)
        acc[r][c] = V::load(part + static_cast<std::size_t>(r) * padded_dim_ + c * 16);
    }
    std::size_t j = keys.begin / 2 * 2;
    if (j < keys.begin) {
      Sums::template add<R, C, Pairs::kOdd>(
          nullptr, row_at_[j + 1] + offset, weights + j * 2, count, acc);
      j += 2;
    }
    for (; j + 2 <= keys.end; j += 2) {
      const auto rows = asked<A>(j);
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
#pragma GCC unroll 8
        for (std::size_t line = 0; line < C / Sums::kLineParts; ++line)
          ask<A>(rows(k) + at * Sums::kBytes + line * 64);
      }
      Sums::template add<R, C, Pairs::kBoth>(
          row_at_[j] + offset, row_at_[j + 1] + offset, weights + j * 2, count, acc);
    }
    if (j < keys.end) {
      Sums::template add<R, C, Pairs::kEven>(
          row_at_[j] + offset, nullptr, weights + j * 2, count, acc);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < 2 * C; ++c)
        V::store(part + static_cast<std::size_t>(r) * padded_dim_ + c * 16, acc[r][c]);
    }
  }

  template <DType D, int R, int C>
  void sum_keys(std::size_t row, Asks asks, std::size_t offset, Range keys) {
    if (keys.begin >= keys.end) return;
    constexpr auto kWidth = static_cast<std::size_t>(C) * 16;
    std::size_t i = 0;
    using Vectors = KeyVectors<V, D>;
    for (; i + kWidth <= dim_; i += kWidth) {
      // Once a line.
      const bool begins = i * Vectors::kBytes % 64 == 0;
      sum_chunk<D, R, C>(row, begins ? asks : Asks::kNothing, offset, keys, i);
    }
    for (; i + Vectors::kDims <= dim_; i += Vectors::kDims)
      sum_chunk<D, R, Vectors::kVectors, false, Asks::kNothing>(row, offset, keys, i);
    if constexpr (!Vectors::kWidens) {
      if (i < dim_) sum_chunk<D, R, 1, true, Asks::kNothing>(row, offset, keys, i);
    }
  }

  template <DType D, int R, int C>
  void sum_chunk(std::size_t row, Asks asks, std::size_t offset, Range keys, std::size_t at) {
    if (asks == Asks::kToken) return sum_chunk<D, R, C, false, Asks::kToken>(row, offset, keys, at);
    if (asks == Asks::kRows) return sum_chunk<D, R, C, false, Asks::kRows>(row, offset, keys, at);
    sum_chunk<D, R, C, false, Asks::kNothing>(row, offset, keys, at);
  }

  /// R rows, C vectors of the value rows from dimension `at` on.
  template <DType D, int R, int C, bool kPart, Asks A>
  void sum_chunk(std::size_t row, std::size_t head_offset, Range keys, std::size_t at) {
    constexpr std::size_t kBytes = KeyVectors<V, D>::kBytes;
    const std::size_t offset = head_offset + value_offset_ + at * kBytes;
    const auto ask_line = [&](std::size_t j, std::size_t line) __attribute__((always_inline)) {
      ask<A>(asked<A>(j)(0) + at * kBytes + line);
    };
    FloatSums<V, D>::template add<R, C, kPart>(row_at_,
                                               keys.begin,
                                               keys.end,
                                               offset,
                                               scores_ + row * kScoreStride,
                                               kScoreStride,
                                               dim_ - at,
                                               ask_line,
                                               &top_,
                                               merged_.part(row) + at,
                                               padded_dim_);
  }

  template <DType D>
  void store_rows() const {
    const std::size_t heads = tile_.kv_heads * tile_.heads;
    for (std::size_t row = 0; row < rows_; ++row) {
      float* out = tile_.out + row / heads * tile_.out_stride + row % heads * dim_;
      if constexpr (kPairs<D>) {
        merged_.template write<PairSumsOf<V, D>::kMixed>(row, dim_, out);
      } else {
        merged_.template write<KeyVectors<V, D>::kMixed>(row, dim_, out);
      }
    }
  }

  const AttentionTile& tile_;
  std::size_t rows_;
  std::size_t dim_;
  std::size_t padded_dim_;
  Keys keys_;
  TokenAsks<V> asks_;
  MergedRows<V> merged_;
  const std::byte* const* row_at_ = nullptr;  // rows that are computed with
  std::size_t value_offset_ = 0;              // from one of them to its value
  Copies copies_;                             // of keys and values of 8 bit
  float* q_;                                  // [rows][padded_dim]
  float* scores_;                             // [rows][kKeyBlock]
  std::byte* q_pairs_;                        // [rows][padded_dim] bf16
  std::byte* weights_;                        // [rows][kScoreStride] bf16
  typename V::Int top_ = V::int_zero();       // of keys and values, see KeyVectors
  Range visible_[kTileRows];
  Range seen_[kTileRows];  // visible_ inside the block
};

}  // namespace tandem::kernels::cpu
