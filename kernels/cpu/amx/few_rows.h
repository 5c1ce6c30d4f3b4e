// Products of few rows in vectors, with the sums of the tile unit.
//
// Idea: such a product takes the time of reading its weight, and where a tile load waits for the
// last of its lines, vectors go on with others. So the unit's bf16 products are made by fused
// multiply-adds: per 32 k a chain over the even and one over the odd k of each output, from zero,
// and their sum goes onto C. Subnormals count as zero meanwhile (V::begin_flushing). The bits are
// those of the tiles that W has for more rows, where x, its order and what a weight becomes are the
// same.
//
// Bound: memory bandwidth.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

/// W::few_pairs: the pairs of k in 64 bytes of a panel.
template <class V, class W>
class FewRows {
  using Vec = typename V::Vec;

 public:
  /// More inputs do not fit into the scratch.
  static constexpr std::size_t kMostK = 28 * 1024;

  /// R to W::kFewRows rows.
  template <std::size_t R = 1>
  static void run(const LinearBlock& block) {
    if (block.rows == R) return FewRows(block).template run_rows<R>();
    if constexpr (R < W::kFewRows) run<R + 1>(block);
  }

 private:
  static constexpr std::size_t kStepK = 32;
  static_assert(W::kStepK == kStepK);
  static constexpr std::size_t kStepLines = W::kMadeOf / 64;
  static constexpr std::size_t kLinePairs = kStepK / 2 / kStepLines;
  static constexpr std::size_t kAheadSteps = Linear<V>::kAheadBytes / W::kMadeOf;
  /// The level of caches, as __builtin_prefetch counts: the second one, if little is done for each
  /// line; with several rows, or lines of two pairs, that is 2 to 4 % slower.
  template <std::size_t R>
  static constexpr int kAskedInto = R == 1 && kLinePairs == 1 ? 2 : 3;
  static constexpr std::size_t kRows = 4;  ///< at most
  static_assert(W::kFewRows <= kRows);
  /// Panels side by side: four streams are read fastest.
  template <std::size_t R>
  static constexpr std::size_t kWide = R == 1 ? 4 : 2;
  /// Scratch: lines of x as tiles have them, x as f32, sums of panels.
  static constexpr std::size_t kXAt = kRows * kMostK * 2;
  static constexpr std::size_t kSumsAt = kXAt + kRows * kMostK * 4;
  static_assert(kSumsAt + 4 * kRows * kTileRowBytes <= kRowsBytes);

  explicit FewRows(const LinearBlock& block)
      : block_(block),
        steps_((block.k + kStepK - 1) / kStepK),
        x_(reinterpret_cast<float*>(base() + kXAt)),
        sums_(reinterpret_cast<float*>(base() + kSumsAt)) {}

  [[nodiscard]] std::byte* base() const { return reinterpret_cast<std::byte*>(block_.scratch); }

  template <std::size_t R>
  void run_rows() {
    if (!block_.packed) pack<R>();
    std::size_t panel = block_.panel_begin;
    for (; panel + kWide<R> <= block_.panel_end; panel += kWide<R>)
      run_panels<R, kWide<R>>(panel);
    for (; panel < block_.panel_end; ++panel)
      run_panels<R, 1>(panel);
  }

  /// x to [k][R].
  template <std::size_t R>
  void pack() {
    for (std::size_t r = 0; r < R; ++r) {
      std::byte* lines = base() + r * kTileRowBytes;
      W::pack(block_, r, steps_, {lines, R * kTileRowBytes});
      for (std::size_t step = 0; step < steps_; ++step) {
        alignas(64) float x[kStepK];
        V::store(x, V::load_bf16(lines + step * R * kTileRowBytes));
        V::store(x + 16, V::load_bf16(lines + step * R * kTileRowBytes + 32));
        for (std::size_t i = 0; i < kStepK; ++i)
          x_[(step * kStepK + i) * R + r] = x[i];
      }
    }
  }

  template <std::size_t R, std::size_t P>
  void run_panels(std::size_t panel) {
    for (std::size_t r = 0; r < R; ++r) {
      const float* y = Linear<V>::y_row(block_, r) + panel * kPanel;
      for (std::size_t p = 0; p < P; ++p)
        __builtin_prefetch(y + p * kPanel, 1);
    }
    const std::uint32_t before = V::begin_flushing();
    sum<R, P>(panel);
    V::end_flushing(before);
    for (std::size_t p = 0; p < P; ++p)
      finish<R>(panel + p, reinterpret_cast<std::byte*>(sums_ + p * R * kPanel));
  }

  /// Outputs of a panel, whose sums are [R][16].
  template <std::size_t R>
  void finish(std::size_t panel, const std::byte* sums) {
    for (std::size_t r = 0; r < R; ++r)
      Linear<V>::finish(block_, r, panel, W::outputs(block_, r, panel, sums + r * kTileRowBytes));
  }

  /// C of P panels to [P][R][16].
  template <std::size_t R, std::size_t P>
  inline __attribute__((always_inline)) void sum(std::size_t panel) const {
    const std::byte* weight = block_.weight + panel * block_.panel_bytes;
    const std::byte* then = Linear<V>::panels_behind(block_, panel + P);
    const float* x = x_;
    Vec c[R * P];
    clear(c);
    for (std::size_t step = 0; step < steps_; ++step) {
      const bool inside = step + kAheadSteps < steps_;
      const std::size_t ahead = inside ? step + kAheadSteps : step + kAheadSteps - steps_;
      const std::byte* ask = (inside ? weight : then) + W::at(ahead);
      const std::size_t left = block_.k - step * kStepK;
      const std::byte* from = weight + W::at(step);
      if (left > kStepK) {
        add_lines<R, P, true>(x, from, ask, kStepLines, c);
      } else {
        add_lines<R, P, false>(x, from, ask, (left + kLinePairs * 2 - 1) / (kLinePairs * 2), c);
      }
      x += kStepK * R;
    }
#pragma GCC unroll 16
    for (std::size_t p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (std::size_t r = 0; r < R; ++r)
        V::store(sums_ + (p * R + r) * kPanel, c[r * P + p]);
    }
  }

  template <std::size_t Count>
  static inline __attribute__((always_inline)) void clear(Vec (&sums)[Count]) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < Count; ++i)
      sums[i] = V::zero();
  }

  /// Adds to c the sums of a step: of P panels at `from`, whose first `lines` lines are there, and
  /// inputs `x`. kMore: all of them, and something behind them.
  template <std::size_t R, std::size_t P, bool kMore>
  inline __attribute__((always_inline)) void add_lines(const float* x,
                                                       const std::byte* from,
                                                       const std::byte* ask,
                                                       std::size_t lines,
                                                       Vec (&c)[R * P]) const {
    Vec even[R * P];
    Vec odd[R * P];
    clear(even);
    clear(odd);
    for (std::size_t line = 0; line < (kMore ? kStepLines : lines); ++line) {
#pragma GCC unroll 4
      for (std::size_t p = 0; p < P; ++p) {
        const std::size_t at = p * block_.panel_bytes + line * 64;
        __builtin_prefetch(ask + at, 0, kAskedInto<R>);
        Vec first[kLinePairs];
        Vec second[kLinePairs];
        W::few_pairs(from + at, first, second);
#pragma GCC unroll 4
        for (std::size_t pair = 0; pair < kLinePairs; ++pair) {
#pragma GCC unroll 8
          for (std::size_t r = 0; r < R; ++r) {
            const std::size_t i = r * P + p;
            even[i] = V::fma(V::broadcast(x[pair * 2 * R + r]), first[pair], even[i]);
            odd[i] = V::fma(V::broadcast(x[(pair * 2 + 1) * R + r]), second[pair], odd[i]);
          }
        }
      }
      x += kLinePairs * 2 * R;
    }
#pragma GCC unroll 16
    for (std::size_t i = 0; i < R * P; ++i) {
      if (!kMore && lines < kStepLines) {
        // The products of zeros behind the last k make 0 of -0.
        even[i] = V::add(even[i], V::zero());
        odd[i] = V::add(odd[i], V::zero());
      }
      c[i] = V::add(c[i], V::add(even[i], odd[i]));
    }
  }

  const LinearBlock& block_;
  std::size_t steps_;
  float* x_;
  float* sums_;
};

}  // namespace tandem::kernels::cpu
