// Y = X W^T on panels of 16 outputs.
//
// Idea: each output is one chain of fused multiply-adds over k, in order, in one lane of one
// register. A tile of R rows x P panels keeps R * P such registers; how rows and panels are grouped
// therefore cannot change a bit, and one row costs the same order of sums as a tile of 512. x is
// first copied to [k][R], so that the inner loop reads two forward streams. Bound: few rows read
// the weight once, at memory bandwidth; many run at the FMA peak (12 x 2: 24 for 2 loads, 12
// broadcasts).
#pragma once

#include "kernels/cpu/simd/panel_asks.h"
#include "kernels/cpu/simd/rows.h"

namespace tandem::kernels::cpu {

template <class V, class T>
struct FloatCuts;  // float_cuts.h

template <class V>
struct Linear {
  using Vec = typename V::Vec;
  using Asks = PanelAsks<V>;

  /// Bytes from one panel that is multiplied beside others to the next.
  static std::size_t apart(const LinearBlock& block) {
    return block.panel_step * block.panel_bytes;
  }

  /// What lies `at` bytes from where each of P panels begins.
  template <int P>
  static inline __attribute__((always_inline)) void load_panels(const std::byte* weight,
                                                                std::size_t at,
                                                                std::size_t apart,
                                                                typename V::Int (&raw)[P]) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
      raw[p] = V::int_load(weight + at + static_cast<std::size_t>(p) * apart);
  }

  /// acc to sums[r * P + p].
  template <int R, int P>
  static inline __attribute__((always_inline)) void put(const Vec (&acc)[R][P], Vec* sums) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        sums[r * P + p] = acc[r][p];
    }
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void clear(Vec (&acc)[R][P]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        acc[r][p] = V::zero();
    }
  }

  template <int R, int P>
  static inline __attribute__((always_inline)) void step(const float* x,
                                                         const Vec (&w)[P],
                                                         Vec (&acc)[R][P]) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec xv = V::broadcast(x[r]);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        acc[r][p] = V::fma(xv, w[p], acc[r][p]);
    }
  }

  /// Row `row` of x.
  static const float* x_row(const LinearBlock& block, std::size_t row) {
    if (block.x_rows != nullptr) row = static_cast<std::size_t>(block.x_rows[row]);
    return block.x + row * block.x_stride;
  }

  /// Row `row` of y.
  static float* y_row(const LinearBlock& block, std::size_t row) {
    if (block.y_rows != nullptr) row = static_cast<std::size_t>(block.y_rows[row]);
    return block.y + row * block.y_stride;
  }

  /// Scales, adds bias and the old y, stores the lanes that exist.
  static void finish(const LinearBlock& block,
                     std::size_t row,
                     std::size_t panel,
                     const Vec& value) {
    // By reference: see docs/kernels.md, one row and GCC.
    Vec sum = value;
    const std::size_t column = panel * kPanel;
    const std::size_t count = block.n - column < kPanel ? block.n - column : kPanel;
    if (block.row_scale != nullptr) sum = V::mul(sum, V::broadcast(block.row_scale[row]));
    float* y = y_row(block, row) + column;
    if (count == kPanel) {
      if (block.bias != nullptr) sum = V::add(sum, V::load(block.bias + column));
      if (block.accumulate) sum = V::add(sum, V::load(y));
      V::store(y, sum);
      return;
    }
    if (block.bias != nullptr) sum = V::add(sum, Rows<V>::load_part(block.bias + column, count));
    if (block.accumulate) sum = V::add(sum, Rows<V>::load_part(y, count));
    Rows<V>::store_part(y, sum, count);
  }

  template <class T, int R, int P, class A>
  static void run_tile(const LinearBlock& block,
                       std::size_t row,
                       std::size_t panel,
                       const A& ahead) {
    ask_outputs<R, P>(block, row, panel);
    Vec sums[R * P];
    T::template sums<R, P>(block, row, panel, ahead, sums);
    finish_tile<R, P>(block, row, panel, sums);
  }

  /// fn(number of a sum, where it goes) for R rows and P panels, where rows follow each other in y.
  template <int R, int P, class Fn>
  static inline __attribute__((always_inline)) void for_outputs(const LinearBlock& block,
                                                                std::size_t row,
                                                                std::size_t panel,
                                                                Fn fn) {
    float* y = block.y + row * block.y_stride + panel * kPanel;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        fn(r * P + p, y + static_cast<std::size_t>(p) * block.panel_step * kPanel);
      y += block.y_stride;
    }
  }

  /// Asks for the lines that finish_tile() writes: stores go to memory in order, and each would
  /// wait for its own (docs/kernels.md).
  template <int R, int P>
  static inline __attribute__((always_inline)) void ask_outputs(const LinearBlock& block,
                                                                std::size_t row,
                                                                std::size_t panel) {
    if (R <= Asks::kFewRows || block.y_rows != nullptr) return;
    for_outputs<R, P>(block, row, panel, [](int, const float* to) { __builtin_prefetch(to, 1); });
  }

  /// To y, as finish() does: the sums of R rows and P panels.
  template <int R, int P>
  static inline __attribute__((always_inline)) void finish_tile(const LinearBlock& block,
                                                                std::size_t row,
                                                                std::size_t panel,
                                                                const Vec* sums) {
    // Most tiles, without questions for each sum.
    const bool plain = block.row_scale == nullptr && block.bias == nullptr &&
                       block.y_rows == nullptr &&
                       (panel + (P - 1) * block.panel_step + 1) * kPanel <= block.n;
    if (plain && block.accumulate) {
      return for_outputs<R, P>(
          block, row, panel, [&](int i, float* to) __attribute__((always_inline)) {
            V::store(to, V::add(sums[i], V::load(to)));
          });
    }
    if (plain) {
      return for_outputs<R, P>(
          block, row, panel, [&](int i, float* to) __attribute__((always_inline)) {
            V::store(to, sums[i]);
          });
    }
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) {
        finish(block,
               row + static_cast<std::size_t>(r),
               panel + static_cast<std::size_t>(p) * block.panel_step,
               sums[r * P + p]);
      }
    }
  }

  /// Rows that are packed together when `left` remain. kMost: V::kRowStep, or 5 where that is 6.
  template <int kMost = V::kRowStep>
  static std::size_t group_rows(std::size_t left) {
    static_assert(kMost == V::kRowStep || (kMost == 5 && V::kRowStep == 6));
    // 4 rows have too few chains to hide the latency of each other: 8 and 8 are better.
    if (kMost >= 12 && left >= 12 && left != 16) return 12;
    if (kMost >= 8 && left >= 8) return 8;
    if (kMost > 6 && left >= 6) return 6;
    if (kMost == 6 || kMost == 5) {
      // As even as can be: up to 4 rows take the same time, that of one chain.
      const std::size_t groups = (left + kMost - 1) / kMost;
      return (left + groups - 1) / groups;
    }
    return left < 4 ? left : 4;
  }

  /// fn.template operator()<R>() for a group of R rows, as group_rows makes them.
  template <class Fn>
  static void with_rows(std::size_t rows, Fn fn) {
    switch (rows) {
      case 12:
        if constexpr (V::kRowStep >= 12) fn.template operator()<12>();
        return;
      case 8:
        if constexpr (V::kRowStep >= 8) fn.template operator()<8>();
        return;
      case 6:
        if constexpr (V::kRowStep >= 6) fn.template operator()<6>();
        return;
      case 5:
        if constexpr (V::kRowStep == 6) fn.template operator()<5>();
        return;
      case 4:
        return fn.template operator()<4>();
      case 3:
        return fn.template operator()<3>();
      case 2:
        return fn.template operator()<2>();
      default:
        return fn.template operator()<1>();
    }
  }

  /// All groups of rows against panels [panel, panel + P): the weight of P panels stays in cache
  /// for them.
  template <class T, int P>
  static void run_panels(const LinearBlock& block, std::size_t panel) {
    std::size_t groups = 0;
    for_groups(block, [&](std::size_t, std::size_t rows) {
      if (block.read_order == ReadOrder::kNextTile || rows > Asks::kFewRows) ++groups;
    });
    std::size_t group = 0;
    for_groups(block, [&](std::size_t row, std::size_t rows) {
      with_rows(rows, [&]<int R>() {
        if constexpr (R <= Asks::kFewRows) {
          if (!Asks::template next_in_order<P>(block))
            return run_tile<T, R, P>(
                block, row, panel, Asks::template ahead_in_panels<P>(block, true));
        }
        run_tile<T, R, P>(
            block, row, panel, Asks::template ahead_of<P>(block, panel, group, groups));
      });
      ++group;
    });
  }

  /// fn(first row, rows) for each group of rows that is packed together.
  template <int kMost = V::kRowStep, class Fn>
  static void for_groups(const LinearBlock& block, Fn fn) {
    for (std::size_t row = 0; row < block.rows;) {
      const std::size_t rows = group_rows<kMost>(block.rows - row);
      fn(row, rows);
      row += rows;
    }
  }

  /// Asks for the panels of a block's first tile while its rows are packed: nobody asked before,
  /// and memory has nothing else to do.
  class FirstPanels {
   public:
    /// This group's part, in `steps` steps.
    FirstPanels(const LinearBlock& block, std::size_t row, std::size_t rows, std::size_t steps) {
      if (block.rows <= Asks::kFewRows || steps == 0) return;
      const std::size_t panels = block.panel_end - block.panel_begin;
      const std::size_t wide = V::kWidePanels;
      const std::size_t bytes = (panels < wide ? panels : wide) * block.panel_bytes;
      if (bytes > Asks::kPanelsBytesMost) return;
      at_ = block.weight + block.panel_begin * block.panel_bytes + bytes * row / block.rows;
      step_ = (bytes * rows / block.rows + steps * 64 - 1) / (steps * 64) * 64;
    }

    void ask() {
      for (std::size_t i = 0; i < step_; i += 64)
        __builtin_prefetch(at_ + i, 0, 2);
      at_ += step_;
    }

   private:
    const std::byte* at_ = nullptr;
    std::size_t step_ = 0;
  };

  /// Words of a row that are packed together.
  static constexpr std::size_t kPackWords = 16;

  /// Rows [row, row + rows) of a block to [words][rows]: fill(r, first word, line) writes
  /// kPackWords words of row `row` + r, zeros behind its end, and returns where they are, `line` or
  /// elsewhere. Up to 12 words behind the group's are overwritten.
  template <class Fill>
  static inline __attribute__((always_inline)) void pack_group(const LinearBlock& block,
                                                               std::size_t row,
                                                               std::size_t rows,
                                                               std::size_t words,
                                                               std::uint32_t* to,
                                                               Fill fill) {
    FirstPanels first(block, row, rows, (words + kPackWords - 1) / kPackWords);
    alignas(64) std::byte lines[kPanel][64];
    alignas(64) std::byte turned[kPackWords * 64];
    const std::byte* from[kPanel];
    for (std::size_t r = 0; r < kPanel; ++r)
      from[r] = lines[0];
    for (std::size_t word = 0; word < words; word += kPackWords) {
      first.ask();
      for (std::size_t r = 0; r < rows; ++r)
        from[r] = fill(r, word, lines[r]);
      const std::size_t count = words - word < kPackWords ? words - word : kPackWords;
      if (rows <= Asks::kFewRows) {
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t i = 0; i < count; ++i)
            __builtin_memcpy(to + (word + i) * rows + r, from[r] + i * 4, 4);
        }
        continue;
      }
      V::transpose_words(from, 0, turned);
      // Each store writes 16 words, of which those behind the rows are the next one's.
      for (std::size_t i = 0; i < count; ++i)
        V::int_store(to + (word + i) * rows, V::int_load(turned + i * 64));
    }
  }

  /// x to groups of [k][rows of the group], back to back.
  static void pack_rows(const LinearBlock& block) {
    for_groups(block, [&](std::size_t row, std::size_t rows) {
      auto* to = reinterpret_cast<std::uint32_t*>(block.scratch + row * block.k);
      pack_group(block, row, rows, block.k, to, [&](std::size_t r, std::size_t k, std::byte* line) {
        const float* from = x_row(block, row + r) + k;
        if (k + kPackWords <= block.k) return reinterpret_cast<const std::byte*>(from);
        V::store(reinterpret_cast<float*>(line), Rows<V>::load_part(from, block.k - k));
        return const_cast<const std::byte*>(line);
      });
    });
  }

  /// The packed rows of tiles that pack words instead of floats.
  static std::uint32_t* words_of(const LinearBlock& block) {
    return reinterpret_cast<std::uint32_t*>(block.scratch);
  }

  template <class T, int P>
  static std::size_t run_wide(const LinearBlock& block, std::size_t panel) {
    constexpr auto kStep = static_cast<std::size_t>(P);
    for (; panel + kStep <= block.panel_end; panel += kStep)
      run_panels<T, P>(block, panel);
    return panel;
  }

  /// One group of R rows.
  template <class T, int R, class A>
  static std::size_t run_one_by_one(const LinearBlock& block, std::size_t panel, const A& ahead) {
    for (; panel < block.panel_end; ++panel)
      run_tile<T, R, 1>(block, 0, panel, ahead);
    return panel;
  }

  /// Few rows: P panels side by side, so that several chains hide the latency of each other; with
  /// ReadOrder::kNextTile one is enough, unless its chain is slow.
  template <class T, int R, int P>
  static std::size_t run_narrow(const LinearBlock& block, std::size_t panel) {
    using InPanels = typename Asks::AheadInPanels;
    if constexpr (T::kStreamRows > 0) {
      if (block.read_order == ReadOrder::kNextTile)
        return run_one_by_one<T, R>(block, panel, InPanels{});
    }
    if (Asks::template next_in_order<P>(block)) {
      for (; panel + P <= block.panel_end; panel += P)
        run_tile<T, R, P>(block, 0, panel, Asks::template ahead_of<P>(block, panel, 0, 1));
      return panel;
    }
    LinearBlock runs = block;
    for (; panel + P <= block.panel_end; panel += P * runs.panel_step) {
      runs.panel_step = Asks::run_length(block, (block.panel_end - panel) / P);
      for (std::size_t i = 0; i < runs.panel_step; ++i) {
        run_tile<T, R, P>(
            runs, 0, panel + i, Asks::template ahead_in_panels<P>(runs, i + 1 == runs.panel_step));
      }
    }
    return panel;
  }

  /// See ReadOrder::kOneStream.
  template <class T>
  static void run_stream(const LinearBlock& block) {
    static_assert(T::kStreamRows <= 4);  // more may be packed in several groups
    with_rows(block.rows, [&]<int R>() {
      if constexpr (R <= T::kStreamRows)
        run_one_by_one<T, R>(block, block.panel_begin, typename Asks::Nothing{});
    });
  }

  /// All of the block in tiles of T: FloatTile below, or one of quant.h.
  template <class T>
  static void run_tiles(const LinearBlock& block) {
    if (block.rows == 0) return;
    if (!block.packed) T::pack(block);
    if constexpr (T::kStreamRows > 0) {
      if (block.read_order == ReadOrder::kOneStream && block.rows <= T::kStreamRows)
        return run_stream<T>(block);
    }
    std::size_t panel = block.panel_begin;
    if constexpr (V::kCuts && T::kCuts) {
      if (block.rows > T::kFewRows && block.k > 0) {
        return FloatCuts<V, T>::run(block);
      }
    }
    if (block.rows == 1) {
      panel = run_narrow<T, 1, V::kOneRowPanels>(block, panel);
    } else if (block.rows == 2) {
      panel = run_narrow<T, 2, V::kNarrowPanels>(block, panel);
    } else if (block.rows == 3) {
      panel = run_narrow<T, 3, V::kNarrowPanels>(block, panel);
    } else if constexpr (V::kWidePanels > 1) {
      panel = run_wide<T, V::kWidePanels>(block, panel);
    }
    for (; panel < block.panel_end; ++panel)
      run_panels<T, 1>(block, panel);
  }

  /// Float weights.
  template <DType D>
  struct FloatTile {
    static constexpr bool kCuts = D != DType::kF32;
    /// Rows up to which one panel's sums keep up with memory, which then need not be read side by
    /// side; 0: one chain takes longer for a line.
    static constexpr std::size_t kStreamRows = 0;

    static void pack(const LinearBlock& block) { pack_rows(block); }

    /// Bytes from a panel's beginning to k, an even one.
    static constexpr std::size_t at(std::size_t k) { return k * kPanel * 2; }

    // For FloatCuts:

    static constexpr bool kLines = D == DType::kBf16;
    static constexpr std::size_t kFewRows = kLines ? 3 : V::kRowStep + 1;

    static const std::byte* make(const LinearBlock& /*block*/,
                                 const std::byte* panel,
                                 std::size_t begin,
                                 std::size_t count,
                                 std::byte* room) {
      const std::byte* from = panel + at(begin);
      if constexpr (kLines) {
        return from;
      } else {
        auto* to = reinterpret_cast<float*>(room);
        for (std::size_t i = 0; i < count; ++i)
          V::store(to + i * kPanel, Rows<V>::template load_as<D>(from + i * kPanel * 2));
        return room;
      }
    }

    static Vec output(const std::byte* /*panel*/, Vec sum) { return sum; }

    template <int R, int P, class A>
    static inline __attribute__((always_inline)) void sums(
        const LinearBlock& block, std::size_t row, std::size_t panel, const A& ahead, Vec* out) {
      const std::byte* weight = block.weight + panel * block.panel_bytes;
      const auto asked = [&](std::size_t line, std::size_t at) __attribute__((always_inline)) {
        Asks::template ask<R, P>(ahead, line, apart(block), weight, at);
      };
      Vec acc[R][P];
      clear<R, P>(acc);
      Asks::template ask_rest<R, P>(ahead, block.panel_bytes);
      add<R, P>(x_at<R>(block, row, 0), weight, apart(block), block.k, asked, acc);
      put<R, P>(acc, out);
    }

    /// Adds to acc the sums over k for R packed rows and P panels, and calls ask(line, its place in
    /// a panel) for each line.
    template <int R, int P, class Ask>
    static inline __attribute__((always_inline)) void add(const float* x,
                                                          const std::byte* weight,
                                                          std::size_t apart,
                                                          std::size_t k,
                                                          Ask ask,
                                                          Vec (&acc)[R][P]) {
      if constexpr (D == DType::kBf16) {
        for (std::size_t pair = 0; pair < k / 2; ++pair) {
          ask(pair, pair * 64);
          if constexpr (R == 1) {
            // Panel by panel: few registers.
            const Vec even = V::broadcast(x[2 * pair]);
            const Vec odd = V::broadcast(x[2 * pair + 1]);
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
              Vec first;
              Vec second;
              V::load_pairs(
                  weight + static_cast<std::size_t>(p) * apart + pair * 64, &first, &second);
              acc[0][p] = V::fma(even, first, acc[0][p]);
              acc[0][p] = V::fma(odd, second, acc[0][p]);
            }
          } else if constexpr (kHalfLines) {
            const std::byte* line = weight + pair * 64;
            add_half<false>(x + 2 * pair * R, line, apart, acc);
            add_half<true>(x + (2 * pair + 1) * R, line, apart, acc);
          } else {
            Vec first[P];
            Vec second[P];
#pragma GCC unroll 8
            for (int p = 0; p < P; ++p) {
              V::load_pairs(
                  weight + static_cast<std::size_t>(p) * apart + pair * 64, &first[p], &second[p]);
            }
            step<R, P>(x + 2 * pair * R, first, acc);
            step<R, P>(x + (2 * pair + 1) * R, second, acc);
          }
        }
        if constexpr (kHalfLines) {
          if (k % 2 != 0) add_half<false>(x + (k - 1) * R, weight + k / 2 * 64, apart, acc);
        } else if (k % 2 != 0) {
          Vec first[P];
          Vec second[P];
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) {
            V::load_pairs(
                weight + static_cast<std::size_t>(p) * apart + k / 2 * 64, &first[p], &second[p]);
          }
          step<R, P>(x + (k - 1) * R, first, acc);
        }
      } else {
        constexpr std::size_t kRowBytes = D == DType::kF32 ? 64 : 32;
        for (std::size_t i = 0; i < k; ++i) {
          ask(i * kRowBytes / 64, i * kRowBytes);
          Vec w[P];
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) {
            const std::byte* from = weight + static_cast<std::size_t>(p) * apart + i * kRowBytes;
            w[p] = Rows<V>::template load_as<D>(from);
          }
          step<R, P>(x + i * R, w, acc);
        }
      }
    }

    /// Whether V widens one k of a line alone, and multiplies with it, in the registers that there
    /// are.
    static constexpr bool kHalfLines = requires {
      &V::add_product;
    };

    /// The first or the second k of a line of each panel.
    template <bool kSecond, int R, int P>
    static inline __attribute__((always_inline)) void add_half(const float* x,
                                                               const std::byte* line,
                                                               std::size_t apart,
                                                               Vec (&acc)[R][P]) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p, line += apart) {
        Vec w;
        if constexpr (kSecond) {
          V::load_second(line, &w);
        } else {
          V::load_first(line, &w);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
          V::add_product(&acc[r][p], x + r, w);
      }
    }

    // For panels of kShortBf16 (short_linear.h):

    /// Of scratch, for rows.
    static constexpr std::size_t kRowFloats = kPackedFloats;

    /// x of R packed rows from an even k on.
    template <int R>
    static const float* x_at(const LinearBlock& block, std::size_t row, std::size_t k) {
      return block.scratch + row * block.k + k * R;
    }

    /// The same behind so many k.
    template <int R>
    static const float* x_behind(const float* x, std::size_t count) {
      return x + count * R;
    }

    /// A line of each panel: of a pair of k.
    template <int R, int P>
    static inline __attribute__((always_inline)) void add_line(const float* x,
                                                               const typename V::Int (&line)[P],
                                                               Vec (&acc)[R][P]) {
      Vec first[P];
      Vec second[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
        V::pairs_of(line[p], &first[p], &second[p]);
      step<R, P>(x, first, acc);
      step<R, P>(x + R, second, acc);
    }
  };

  static void run(const LinearBlock& block) {
    if (block.dtype == DType::kF32) run_tiles<FloatTile<DType::kF32>>(block);
    if (block.dtype == DType::kF16) run_tiles<FloatTile<DType::kF16>>(block);
    if (block.dtype == DType::kBf16) run_tiles<FloatTile<DType::kBf16>>(block);
  }
};

}  // namespace tandem::kernels::cpu
