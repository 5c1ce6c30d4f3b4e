// Products that the tile unit makes while vector code does something else.
//
// Idea: the unit takes 16 cycles for a product and gives its result 52 later, and the window of the
// processor holds some hundred instructions. So it works beside other code only where their
// instructions alternate in the program, a product at a time.
#pragma once

#include "kernels/cpu/amx/tiles.h"

namespace tandem::kernels::cpu {

/// Chains of steps, each with two A tiles and two B tiles whose four products go onto four sums.
/// Distances are in tiles.
struct TileChains {
  const std::byte* a;
  const std::byte* b;
  std::byte* to;
  std::ptrdiff_t a_step;  ///< from one step of a chain to the next
  std::ptrdiff_t b_step;
  std::ptrdiff_t a_chain;  ///< from one chain's first step to the next one's
  std::ptrdiff_t b_chain;
  std::ptrdiff_t to_chain;
  std::ptrdiff_t a_second;  ///< from the first A tile to the second
  std::ptrdiff_t b_second;
  std::ptrdiff_t to_a_second;  ///< from sums of the first A tile to those of the second
  std::ptrdiff_t to_b_second;
  std::size_t length;  ///< steps of a chain
  std::size_t count;   ///< chains; 0: none
  bool onto;           ///< what `to` holds, else zero
};

/// Tiles: C 0 to 3, A 4 and 5, B 6 and 7, all of 16 rows.
template <class V, class T>
class TileProducts {
 public:
  explicit TileProducts(T& tiles) : tiles_(tiles) {}

  /// Nothing may be left of what was begun before.
  void begin(const TileChains& first, const TileChains& second) {
    now_ = first;
    next_ = second;
    if (now_.count == 0) follow();
    step_ = 0;
  }

  /// The kQuarter-th product of a step; all four have their turn one after the other.
  template <int kQuarter>
  inline __attribute__((always_inline)) void make() {
    if (now_.count == 0) return;
    if (step_ == 0) {
      store<kQuarter>();
      start<kQuarter>();
    }
    if constexpr (kQuarter == 0) {
      tiles_.template load<4>(now_.a, kTileRowBytes);
      tiles_.template load<6>(now_.b, kTileRowBytes);
      tiles_.template multiply_bf16<0, 4, 6>();
    } else if constexpr (kQuarter == 1) {
      tiles_.template load<7>(now_.b + now_.b_second * kTile, kTileRowBytes);
      tiles_.template multiply_bf16<1, 4, 7>();
    } else if constexpr (kQuarter == 2) {
      tiles_.template load<5>(now_.a + now_.a_second * kTile, kTileRowBytes);
      tiles_.template multiply_bf16<2, 5, 6>();
    } else {
      tiles_.template multiply_bf16<3, 5, 7>();
      advance();
    }
  }

  /// All four of a step, if one is left.
  void make_step() {
    make<0>();
    make<1>();
    make<2>();
    make<3>();
  }

  /// All that is left, and the sums to memory.
  void finish() {
    while (now_.count != 0)
      make_step();
    store<0>();
    store<1>();
    store<2>();
    store<3>();
    to_ = nullptr;
  }

 private:
  static constexpr auto kTile = static_cast<std::ptrdiff_t>(kTileBytes);

  void follow() {
    now_ = next_;
    next_.count = 0;
  }

  inline __attribute__((always_inline)) void advance() {
    now_.a += now_.a_step * kTile;
    now_.b += now_.b_step * kTile;
    if (++step_ < now_.length) return;
    step_ = 0;
    to_ = now_.to;
    to_a_second_ = now_.to_a_second;
    to_b_second_ = now_.to_b_second;
    const auto length = static_cast<std::ptrdiff_t>(now_.length);
    now_.a += (now_.a_chain - length * now_.a_step) * kTile;
    now_.b += (now_.b_chain - length * now_.b_step) * kTile;
    now_.to += now_.to_chain * kTile;
    if (--now_.count == 0) follow();
  }

  /// A sum of the chain before, which had time to be made.
  template <int kQuarter>
  inline __attribute__((always_inline)) void store() {
    if (to_ == nullptr) return;
    std::byte* to = to_ + ((kQuarter / 2) * to_a_second_ + (kQuarter % 2) * to_b_second_) * kTile;
    tiles_.template store<kQuarter>(to, kTileRowBytes);
  }

  template <int kQuarter>
  inline __attribute__((always_inline)) void start() {
    if (!now_.onto) return tiles_.template zero<kQuarter>();
    const std::byte* from =
        now_.to + ((kQuarter / 2) * now_.to_a_second + (kQuarter % 2) * now_.to_b_second) * kTile;
    tiles_.template load<kQuarter>(from, kTileRowBytes);
  }

  T& tiles_;
  TileChains now_{};
  TileChains next_{};
  std::size_t step_ = 0;
  std::byte* to_ = nullptr;  ///< of the chain before; null: stored already
  std::ptrdiff_t to_a_second_ = 0;
  std::ptrdiff_t to_b_second_ = 0;
};

}  // namespace tandem::kernels::cpu
