// Y = X W^T for weights whose inputs become bytes, where a product of bytes is one of pairs that
// end in words of 16 bits (maddubs: one side unsigned, the other signed), from a few rows on.
//
// Idea: such a word must not overflow, and what is done against that decides how many operations 32
// products take. Both ways sum the same integers as ByteTile, so the bits are the same.
//   4 bit: q are 0 to 15, so sums of eight such words fit 16 bits, too. They become 32 bits by the
//     product with the group's step; offsets are multiplied with sums of the row's bytes. Two
//     operations for 32 products, and some more for every 256.
//   8 bit: weights plus 128 are the unsigned side, and 128 * (sum of the row's bytes) is taken off
//     at the end. 255 * 128 fits, so pairs of a row's bytes may not come to more than 128: what is
//     above is taken out of the row when it is packed, and multiplied apart. Large values are rare
//     in a row whose largest one is 127; rows of a group where they are not stay as they are. Three
//     operations for 32 products, where giving a weight the sign of x (V::dot4) takes four.
// Weights become unsigned bytes a cut of k at a time, once for all rows; sums wait in memory.
//
// Bound: processors of this kind start two vectors of products in a cycle. One of FMAs has 8, one
// of 4 bit nearly 32, and of 8 bit it takes two for 32. Measured: docs/kernels.md.
#pragma once

#include "kernels/cpu/simd/quant.h"

namespace tandem::kernels::cpu {

/// What ByteCuts and its weights keep in a task's scratch, beside the rows' words and scales.
template <class V>
struct CutRoom {
  /// Words of four k in a cut, and in a step of it.
  static constexpr std::size_t kWords = kInt4HeaderGroups * kInt4Group / 4;
  static constexpr std::size_t kStepWords = 8;

  /// What was taken out of a word of a row of a group.
  struct Excess {
    std::uint32_t row : 8;
    std::uint32_t word : 24;
    std::uint32_t bytes;
  };

  static std::size_t word_count(const LinearBlock& block) {
    return Int8DynamicTile<V>::word_count(block);
  }

  /// Of the group of rows that begins with `row`.
  static std::uint32_t* words(const LinearBlock& block, std::size_t row) {
    return Linear<V>::words_of(block) + row * word_count(block);
  }

  /// Nothing was taken out of a group's words: too many had more than fits.
  static constexpr std::uint32_t kSigned = ~std::uint32_t{0};

  /// What was taken out of that group's words, in their order.
  static Excess* excess(const LinearBlock& block, std::size_t row) {
    return reinterpret_cast<Excess*>(block.scratch + kExcessAt) + row * word_count(block);
  }

  /// How many words of that group had more than fits, or kSigned.
  static std::uint32_t* excess_count(const LinearBlock& block, std::size_t row) {
    return reinterpret_cast<std::uint32_t*>(block.scratch + kCountsAt) + row;
  }

  /// Sums of a row's bytes: one for a row, or of the group of rows that begins with `row` one for
  /// every kInt4Group.
  static std::uint32_t* byte_sums(const LinearBlock& block, std::size_t row) {
    return reinterpret_cast<std::uint32_t*>(block.scratch + kByteSumsAt) + row;
  }

  /// The first words of `sums` to as many rows.
  static void put(typename V::Int sums, std::size_t rows, std::uint32_t* to) {
    alignas(64) std::uint32_t each[kPanel];
    V::int_store(each, sums);
    for (std::size_t r = 0; r < rows; ++r)
      to[r] = each[r];
  }

  /// [rows][16 outputs], words of 32 bits.
  static std::byte* sums(const LinearBlock& block, std::size_t row) {
    return reinterpret_cast<std::byte*>(block.scratch + kSumsAt + row * kPanel);
  }

  /// A cut's weights, [words][16 outputs][4], and what else is made of its panel.
  static std::byte* weights(const LinearBlock& block) {
    return reinterpret_cast<std::byte*>(block.scratch + kWeightsAt);
  }

 private:
  // In floats. A row has k / 4 + 1 words at most, and pack_group() writes a line more.
  static constexpr std::size_t kWordsMost = kPackedFloats / 4 + kMostRows + kPanel;
  static constexpr std::size_t kExcessAt = kWordsMost;
  static constexpr std::size_t kByteSumsAt = kExcessAt + 2 * kWordsMost;
  static constexpr std::size_t kCountsAt = kPackedFloats + kMostRows;  // behind the rows' scales
  static constexpr std::size_t kSumsAt = kCountsAt + kMostRows;
  static constexpr std::size_t kWeightsAt = kSumsAt + kMostRows * kPanel;
  static_assert(sizeof(Excess) == 2 * sizeof(float) && kMaxByteInputs / 4 < 1 << 24);
  static_assert(kByteSumsAt + kPackedFloats / kInt4Group + kMostRows <= kPackedFloats);
  static_assert(kWeightsAt + (kWords + 2 * kInt4HeaderGroups) * kPanel <=
                kTilesRoom / sizeof(float));
};

/// Weights of WeightScheme::kInt8Dynamic for ByteCuts.
template <class V>
struct OffsetBytes {
  using Int = typename V::Int;
  using Room = CutRoom<V>;

  /// Rows of a group at most: sums, weights, products and the ones that add_dot4 takes have 16
  /// registers together.
  static constexpr int kRows = V::kRowStep - 1;
  /// Up to so many rows V::dot4 takes less time than making weights unsigned.
  static constexpr std::size_t kFewRows = 5;

  /// Bytes from a panel's beginning to a word.
  static constexpr std::size_t at(std::size_t word) { return kByteHeaderBytes + word * 64; }

  /// Sums the packed rows [row, row + rows), and takes out of them what does not fit.
  static void prepare(const LinearBlock& block, std::size_t row, std::size_t rows) {
    static_assert(kRows < 16);  // a bit for each byte
    const std::uint64_t own = (std::uint64_t{1} << (4 * rows)) - 1;
    const std::size_t words = Room::word_count(block);
    std::uint32_t* x = Room::words(block, row);
    std::size_t bytes = 0;
    Int pairs;
    Int sums = V::int_zero();
    for (std::size_t word = 0; word < words; ++word) {
      const std::uint64_t above = bytes_above(x + word * rows, &pairs) & own;
      sums = V::add_words(sums, pairs);
      if (above != 0) bytes += static_cast<std::size_t>(__builtin_popcountll(above));
    }
    Room::put(sums, rows, Room::byte_sums(block, row));
    std::uint32_t* count = Room::excess_count(block, row);
    *count = Room::kSigned;
    if (bytes * kExcessMost > words * rows * 4) return;
    typename Room::Excess* excess = Room::excess(block, row);
    for (std::size_t word = 0; bytes != 0 && word < words; ++word, x += rows) {
      if ((bytes_above(x, &pairs) & own) == 0) continue;
      for (std::size_t r = 0; r < rows; ++r) {
        const std::uint32_t taken = take_excess(x + r);
        if (taken == 0) continue;
        excess->row = static_cast<std::uint8_t>(r);
        excess->word = word & 0xffffffU;
        excess->bytes = taken;
        ++excess;
      }
    }
    *count = static_cast<std::uint32_t>(excess - Room::excess(block, row));
  }

  /// Words [begin, begin + count) of a panel, 128 added to each byte.
  static void make(const std::byte* panel, std::size_t begin, std::size_t count, std::byte* to) {
    const std::byte* from = panel + at(begin);
    for (std::size_t i = 0; i < count * 64; i += 64)
      V::int_store(to + i, V::offset_bytes(V::int_load(from + i)));
  }

  /// Adds to `sums` the products of R rows with `count` words of the cut.
  template <int R>
  static void add(const LinearBlock& block,
                  std::size_t row,
                  std::size_t begin,
                  std::size_t count,
                  const typename PanelAsks<V>::Part& next) {
    const std::uint32_t* x = Room::words(block, row) + begin * R;
    const std::byte* weights = Room::weights(block);
    std::byte* sums = Room::sums(block, row);
    if (*Room::excess_count(block, row) == Room::kSigned)
      return add_signed<R>(x, weights, count, next, sums);
    Int acc[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      acc[r] = V::int_load(sums + r * 64);
    for (std::size_t word = 0; word < count;) {
      const std::size_t end = count - word < Room::kStepWords ? count : word + Room::kStepWords;
      next.ask(word / Room::kStepWords);
      for (; word < end; ++word, x += R) {
        const Int w = V::int_load(weights + word * 64);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
          V::add_dot4(&acc[r], w, x + r);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      V::int_store(sums + r * 64, acc[r]);
  }

  /// What the cuts left: the excess of R rows, whose pairs hold one product each, and offsets.
  template <int R>
  static void finish(const LinearBlock& block, std::size_t row, const std::byte* panel) {
    const std::uint32_t count = *Room::excess_count(block, row);
    if (count == Room::kSigned) return;
    std::byte* sums = Room::sums(block, row);
    const typename Room::Excess* excess = Room::excess(block, row);
    for (const typename Room::Excess* end = excess + count; excess != end; ++excess) {
      std::byte* sum_at = sums + excess->row * 64;
      Int sum = V::int_load(sum_at);
      V::add_dot4(&sum, V::offset_bytes(V::int_load(panel + at(excess->word))), &excess->bytes);
      V::int_store(sum_at, sum);
    }
    for (int r = 0; r < R; ++r) {
      const std::uint32_t offset = 128 * Room::byte_sums(block, row)[r];
      const Int sum = V::int_load(sums + r * 64);
      V::int_store(sums + r * 64, V::int_sub(sum, V::int_broadcast(offset)));
    }
  }

 private:
  static constexpr int kMostOfPair = 128;
  /// Where more than one byte of so many is of a pair with more, taking it out costs more than it
  /// saves.
  static constexpr std::size_t kExcessMost = 8;

  /// A bit for each byte of pairs of x that do not fit; `sums`: of the pairs.
  static inline __attribute__((always_inline)) std::uint64_t bytes_above(const std::uint32_t* x,
                                                                         Int* sums) {
    *sums = V::byte_products(V::byte_ones(), V::int_load(x));
    return V::halves_above(*sums, kMostOfPair);
  }

  /// add() for rows that kept what does not fit.
  template <int R>
  static void add_signed(const std::uint32_t* x,
                         const std::byte* weights,
                         std::size_t count,
                         const typename PanelAsks<V>::Part& next,
                         std::byte* sums) {
    for (std::size_t word = 0; word < count; ++word, x += R) {
      if (word % Room::kStepWords == 0) next.ask(word / Room::kStepWords);
      const Int w = V::offset_bytes(V::int_load(weights + word * 64));
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Int sum = V::int_load(sums + r * 64);
        V::int_store(sums + r * 64, V::dot4(sum, V::bytes_of(x[r]), w));
      }
    }
  }

  /// Brings either pair of four bytes down to kMostOfPair. Returns what was taken of each byte.
  static std::uint32_t take_excess(std::uint32_t* four) {
    std::int8_t bytes[4];
    std::int8_t taken[4] = {};
    __builtin_memcpy(bytes, four, sizeof(bytes));
    for (int i = 0; i < 4; i += 2) {
      const int sum = bytes[i] + bytes[i + 1];
      const int fits = sum > kMostOfPair ? kMostOfPair : (sum < -kMostOfPair ? -kMostOfPair : sum);
      // No more than the byte itself, since the other one is no more than 128.
      taken[i] = static_cast<std::int8_t>(sum - fits);
      bytes[i] = static_cast<std::int8_t>(bytes[i] - taken[i]);
    }
    __builtin_memcpy(four, bytes, sizeof(bytes));
    std::uint32_t out = 0;
    __builtin_memcpy(&out, taken, sizeof(taken));
    return out;
  }
};

/// Weights of WeightScheme::kInt4Group128 for ByteCuts.
template <class V>
struct NibbleWords {
  using Int = typename V::Int;
  using Room = CutRoom<V>;
  using Panel = PanelNibbles<V>;

  // As of OffsetBytes:

  static constexpr int kRows = V::kRowStep;
  static constexpr std::size_t kFewRows = 1;

  static constexpr std::size_t at(std::size_t word) { return Panel::at(word * 4); }

  /// Sums the bytes of the packed rows [row, row + rows).
  static void prepare(const LinearBlock& block, std::size_t row, std::size_t rows) {
    const std::uint32_t* x = Room::words(block, row);
    std::uint32_t* to = group_sums(block, row);
    const std::size_t words = Room::word_count(block);
    for (std::size_t word = 0; word < words; to += rows) {
      const std::size_t end = words - word < kGroupWords ? words : word + kGroupWords;
      Int sums = V::int_zero();
      for (; word < end; ++word, x += rows)
        sums = V::add_words(sums, V::byte_products(V::byte_ones(), V::int_load(x)));
      Room::put(sums, rows, to);
    }
  }

  /// Half bytes as bytes, and behind them of each group its steps and offsets.
  static void make(const std::byte* panel, std::size_t begin, std::size_t count, std::byte* to) {
    for (std::size_t group = 0; group < kInt4HeaderGroups; ++group) {
      Int step;
      Int offset;
      V::load_affine_halves(panel + Panel::affine_at(begin / kGroupWords + group), &step, &offset);
      std::byte* affine = to + (Room::kWords + 2 * group) * 64;
      V::int_store(affine, step);
      V::int_store(affine + 64, offset);
    }
    const std::byte* from = panel + at(begin);
    for (std::size_t i = 0; i < count; i += 2, from += 64) {
      const Int raw = V::int_load(from);
      V::int_store(to + i * 64, V::low_nibbles(raw));
      V::int_store(to + (i + 1) * 64, V::high_nibbles(raw));
    }
  }

  template <int R>
  static void add(const LinearBlock& block,
                  std::size_t row,
                  std::size_t begin,
                  std::size_t count,
                  const typename PanelAsks<V>::Part& next) {
    const std::uint32_t* x = Room::words(block, row) + begin * R;
    const std::uint32_t* x_sums = group_sums(block, row) + begin / kGroupWords * R;
    const std::byte* weights = Room::weights(block);
    const std::byte* affine = weights + Room::kWords * 64;
    std::byte* sums = Room::sums(block, row);
    for (std::size_t word = 0; word < count;) {
      const std::size_t end = count - word < Room::kStepWords ? count : word + Room::kStepWords;
      next.ask(word / Room::kStepWords);
      Int acc[R];
      multiply<false, R>(weights + word * 64, x, acc);
      for (++word, x += R; word < end; ++word, x += R)
        multiply<true, R>(weights + word * 64, x, acc);
      const Int step = V::int_load(affine);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Int sum = V::int_load(sums + r * 64);
        V::int_store(sums + r * 64, V::int_add(sum, V::half_products(acc[r], step)));
      }
      if (word != count && word % kGroupWords != 0) continue;
      const Int offset = V::int_load(affine + 64);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Int sum = V::int_load(sums + r * 64);
        const Int product = V::half_products(offset, V::int_broadcast(x_sums[r]));
        V::int_store(sums + r * 64, V::int_sub(sum, product));
      }
      affine += 128;
      x_sums += R;
    }
  }

  template <int R>
  static void finish(const LinearBlock& /*block*/,
                     std::size_t /*row*/,
                     const std::byte* /*panel*/) {}

 private:
  static constexpr std::size_t kGroupWords = kInt4Group / 4;
  /// Products of a step fit 16 bits.
  static_assert(Room::kStepWords * 2 * 15 * 128 < 1 << 15);

  /// acc, or what is added to it: products of a word of R rows, of 16 bits.
  template <bool kAdd, int R>
  static inline __attribute__((always_inline)) void multiply(const std::byte* weights,
                                                             const std::uint32_t* x,
                                                             Int (&acc)[R]) {
    const Int w = V::int_load(weights);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if constexpr (kAdd) {
        V::add_byte_products(&acc[r], w, x + r);
      } else {
        V::set_byte_products(&acc[r], w, x + r);
      }
    }
  }

  /// Of the group of rows that begins with `row`: [groups of k][rows].
  static std::uint32_t* group_sums(const LinearBlock& block, std::size_t row) {
    const std::size_t groups = (Room::word_count(block) + kGroupWords - 1) / kGroupWords;
    return Room::byte_sums(block, row * groups);
  }
};

/// All rows of a block against its panels, a cut of k at a time.
template <class V, class Weights>
struct ByteCuts {
  static_assert(!V::kOffsetBytes);  // of rows

  using Vec = typename V::Vec;
  using Room = CutRoom<V>;

  static bool takes(const LinearBlock& block) {
    return block.rows > Weights::kFewRows && block.k > 0;
  }

  static void run(const LinearBlock& block) {
    if (!block.packed) {
      Int8DynamicTile<V>::template pack<Weights::kRows>(block);
      Linear<V>::template for_groups<Weights::kRows>(
          block, [&](std::size_t row, std::size_t rows) { Weights::prepare(block, row, rows); });
    }
    for (std::size_t panel = block.panel_begin; panel < block.panel_end; ++panel)
      run_panel(block, panel);
  }

 private:
  static void run_panel(const LinearBlock& block, std::size_t panel) {
    std::size_t groups = 0;
    Linear<V>::template for_groups<Weights::kRows>(block,
                                                   [&](std::size_t, std::size_t) { ++groups; });
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    const std::size_t words = Room::word_count(block);
    for (std::size_t row = 0; row < block.rows; ++row)
      V::int_store(Room::sums(block, row), V::int_zero());
    for (std::size_t begin = 0; begin < words; begin += Room::kWords) {
      const std::size_t count = words - begin < Room::kWords ? words - begin : Room::kWords;
      const bool last = begin + count == words;
      Weights::make(weight, begin, count, Room::weights(block));
      const std::byte* next = last ? PanelAsks<V>::panels_behind(block, panel + 1)
                                   : weight + Weights::at(begin + count);
      constexpr std::size_t kBytes = Weights::at(Room::kWords) - Weights::at(0);
      std::size_t group = 0;
      Linear<V>::template for_groups<Weights::kRows>(block, [&](std::size_t row, std::size_t rows) {
        const auto part =
            PanelAsks<V>::part_of(next, kBytes, group++, groups, Room::kWords / Room::kStepWords);
        Linear<V>::with_rows(rows, [&]<int R>() {
          if constexpr (R <= Weights::kRows) {
            if (last) Linear<V>::template ask_outputs<R, 1>(block, row, panel);
            Weights::template add<R>(block, row, begin, count, part);
            if (last) finish<R>(block, row, panel);
          }
        });
      });
    }
  }

  template <int R>
  static void finish(const LinearBlock& block, std::size_t row, std::size_t panel) {
    const std::byte* weight = block.weight + panel * block.panel_bytes;
    Weights::template finish<R>(block, row, weight);
    Vec outputs[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const std::size_t own = row + static_cast<std::size_t>(r);
      outputs[r] =
          Int8DynamicTile<V>::output(block, own, weight, V::int_load(Room::sums(block, own)));
    }
    Linear<V>::template finish_tile<R, 1>(block, row, panel, outputs);
  }
};

}  // namespace tandem::kernels::cpu
