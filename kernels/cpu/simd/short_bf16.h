// Panels of WeightScheme::kShortBf16: bf16 in 12 bits each, with all bits of each.
//
// Idea: products of few rows take the time of reading their weight, and the 8 bits of a bf16
// exponent say little: nearly all weights of a panel have one of 15 or 16 exponents that follow
// each other. So the upper byte of a weight, its sign and the upper 7 bits of its exponent, is one
// of 16 and has a name (half a byte); the lower byte is kept as it is, and a weight is there again
// by one look-up. The few others are noted with their place. Others have found the same: "70% size,
// 100% accuracy" (DFloat11, arXiv 2504.11651), in codes of different lengths; here all have one, so
// that a line becomes B tiles in a dozen instructions.
//
// A panel: a line that begins with the table (below); per 32 k four units of 192 bytes; patches,
// the last of which is none. A unit becomes 4 lines of 64 bytes of a plain bf16 panel: [2][64]
// lower bytes, each for two lines, then [64] names, in the lower half of a byte those of the first
// two lines. The bytes of two lines are in the order that V::join_bytes undoes.
#pragma once

#include "kernels/cpu/simd/table.h"

namespace tandem::kernels::cpu {

/// Of a panel: [16] upper bytes by their names, eight positive ones next to each other and the same
/// with a sign. Where that of zero is none of them and some weight has it, it may have the name of
/// the smallest one with a sign.
inline constexpr std::size_t kShortHeaderBytes = 64;
inline constexpr std::size_t kShortStepK = 32;
inline constexpr std::size_t kShortStepBytes = 768;
inline constexpr std::size_t kShortUnitLines = 3;
inline constexpr std::size_t kPlainStepBytes = kShortStepK * kPanel * 2;

/// A weight whose upper byte has no name.
struct ShortPatch {
  std::uint32_t at;  ///< in elements of the plain panel; rising. kNoPatch: none
  std::uint16_t bits;
  std::uint16_t unused;
};

inline constexpr std::uint32_t kNoPatch = 0xffffffffU;

/// Of a panel with `k` inputs.
constexpr std::size_t short_steps(std::size_t k) {
  return (k + kShortStepK - 1) / kShortStepK;
}

/// Of a panel with `steps` steps: 2 in 1,000 weights may have one.
constexpr std::size_t short_patch_bytes(std::size_t steps) {
  return (1 + steps / 8) * 64;
}

constexpr std::size_t short_panel_bytes(std::size_t steps) {
  return kShortHeaderBytes + steps * kShortStepBytes + short_patch_bytes(steps);
}

template <class V>
struct ShortBf16 {
  using Int = typename V::Int;

  /// What makes plain lines of units of a panel.
  struct Table {
    Int upper;

    inline __attribute__((always_inline)) explicit Table(const std::byte* panel)
        : upper(V::load_table(panel)) {}

    /// The four plain lines of a unit.
    inline __attribute__((always_inline)) void make(const std::byte* unit, Int (&lines)[4]) const {
      make_half<0>(unit, &lines[0], &lines[1]);
      make_half<1>(unit, &lines[2], &lines[3]);
    }

    /// The first or the last two of them.
    template <int kHalf>
    inline __attribute__((always_inline)) void make_half(const std::byte* unit,
                                                         Int* first,
                                                         Int* second) const {
      const Int names = V::int_load(unit + 128);
      const Int own = kHalf == 0 ? V::low_nibbles(names) : V::high_nibbles(names);
      V::join_bytes(V::int_load(unit + kHalf * 64), V::look_up(upper, own), first, second);
    }

    inline __attribute__((always_inline)) void make(const std::byte* unit, std::byte* to) const {
      Int lines[4];
      make(unit, lines);
#pragma GCC unroll 4
      for (std::size_t line = 0; line < 4; ++line)
        V::int_store(to + line * 64, lines[line]);
    }
  };

  static const ShortPatch* patches(const std::byte* panel, std::size_t steps) {
    return reinterpret_cast<const ShortPatch*>(panel + kShortHeaderBytes + steps * kShortStepBytes);
  }

  /// Asks for what a panel has beside its units.
  static inline __attribute__((always_inline)) void ask(const std::byte* panel, std::size_t steps) {
    __builtin_prefetch(panel);
    __builtin_prefetch(patches(panel, steps));
  }

  /// Behind all steps for the patch that is none.
  static inline __attribute__((always_inline)) std::size_t step_of(const ShortPatch& patch) {
    return patch.at / kStepElements;
  }

  /// Whether a patch is for that step or one before.
  static inline __attribute__((always_inline)) bool is_due(const ShortPatch* patch,
                                                           std::size_t step) {
    return __builtin_expect(static_cast<long>(patch->at < (step + 1) * kStepElements), 0) != 0;
  }

  /// Sets what is not as its unit says in the plain lines of a step. Returns the patch behind.
  static inline __attribute__((always_inline)) const ShortPatch* mend(const ShortPatch* patch,
                                                                      std::size_t step,
                                                                      std::byte* to) {
    for (; is_due(patch, step); ++patch)
      __builtin_memcpy(to + (patch->at - step * kStepElements) * 2, &patch->bits, 2);
    return patch;
  }

  /// The same in the two lines of a half of a unit, the step's eight of which count from 0.
  static inline __attribute__((always_inline)) const ShortPatch* mend_half(
      const ShortPatch* patch, std::size_t step, std::size_t half, Int* first, Int* second) {
    const std::size_t begin = step * kStepElements + half * 64;
    for (; patch->at < begin + 64; ++patch)
      V::set_half(first, second, patch->at - begin, patch->bits);
    return patch;
  }

  /// The first patch for `step` or one behind it.
  static const ShortPatch* patches_from(const std::byte* panel,
                                        std::size_t steps,
                                        std::size_t step) {
    const ShortPatch* patch = patches(panel, steps);
    while (patch->at < step * kStepElements)
      ++patch;
    return patch;
  }

  /// A panel of `steps` steps of a plain one. False when more weights need a patch than have room;
  /// then it holds nothing.
  static bool shorten(const std::byte* plain, std::size_t steps, std::byte* panel) {
    // Mostly no weight is far larger than the others.
    return shorten_with(plain, steps, names_below_largest(plain, steps), panel) ||
           shorten_with(plain, steps, best_names(plain, steps), panel);
  }

 private:
  static constexpr std::size_t kStepElements = kPlainStepBytes / 2;
  static constexpr std::uint32_t kUnsigned = 8;  ///< upper bytes without a sign that have names
  static constexpr std::uint32_t kSigned = 8;    ///< in a name: with a sign

  /// Upper bytes that have names: base to base + 7 with either sign; or, with `zero` (base is not 0
  /// then), that of zero in place of the base with a sign.
  struct Named {
    std::uint32_t base;
    bool zero;

    [[nodiscard]] bool has(std::uint32_t byte) const {
      if (zero && byte == 0) return true;
      return (byte & 0x7fU) - base < kUnsigned && !(zero && byte == (0x80U | base));
    }
  };

  static Named names_below_largest(const std::byte* plain, std::size_t steps) {
    Int most = V::int_zero();
    Int least = V::int_load(plain);
    for (std::size_t at = 0; at < steps * kPlainStepBytes; at += 64) {
      const Int halves = V::int_load(plain + at);
      most = V::max_magnitudes(most, halves);
      least = V::min_magnitudes(least, halves);
    }
    alignas(64) std::uint16_t upper[32];
    alignas(64) std::uint16_t lower[32];
    V::int_store(upper, most);
    V::int_store(lower, least);
    std::uint32_t largest = kUnsigned - 1;
    bool zero = false;
    for (std::size_t i = 0; i < 32; ++i) {
      const std::uint32_t byte = upper[i] >> 8;
      largest = byte > largest ? byte : largest;
      zero |= lower[i] >> 8 == 0;
    }
    const std::uint32_t base = largest - (kUnsigned - 1);
    return {base, zero && base > 0};
  }

  /// Those that most weights have.
  static Named best_names(const std::byte* plain, std::size_t steps) {
    std::uint32_t counts[256] = {};
    for (std::size_t at = 1; at < steps * kPlainStepBytes; at += 2)
      ++counts[std::to_integer<std::uint32_t>(plain[at])];
    Named best{0, false};
    std::uint32_t most = 0;
    std::uint32_t named = 0;
    for (std::uint32_t byte = 0; byte < 128; ++byte) {
      named += counts[byte] + counts[0x80U | byte];
      if (byte < kUnsigned - 1) continue;
      const std::uint32_t base = byte - (kUnsigned - 1);
      const bool zero = base > 0 && counts[0] > counts[0x80U | base];
      const std::uint32_t all = zero ? named + counts[0] - counts[0x80U | base] : named;
      if (all > most) {
        most = all;
        best = {base, zero};
      }
      named -= counts[base] + counts[0x80U | base];
    }
    return best;
  }

  static bool shorten_with(const std::byte* plain,
                           std::size_t steps,
                           Named named,
                           std::byte* panel) {
    __builtin_memset(panel, 0, kShortHeaderBytes);
    for (std::uint32_t name = 0; name < kUnsigned; ++name) {
      panel[name] = static_cast<std::byte>(named.base + name);
      panel[kSigned | name] = static_cast<std::byte>(0x80U | (named.base + name));
    }
    if (named.zero) panel[kSigned] = std::byte{0};
    auto* patch = const_cast<ShortPatch*>(patches(panel, steps));
    // Behind the last one there is room for none.
    const ShortPatch* const end = patch + short_patch_bytes(steps) / sizeof(ShortPatch) - 1;
    for (std::size_t unit = 0; unit < steps * 4; ++unit) {
      const std::byte* from = plain + unit * 256;
      std::byte* to = panel + kShortHeaderBytes + unit * kShortUnitLines * 64;
      Int names[2];
      for (std::size_t half = 0; half < 2; ++half) {
        Int lower;
        const std::uint64_t others = V::name_upper_bytes(V::int_load(from + half * 128),
                                                         V::int_load(from + half * 128 + 64),
                                                         named.base,
                                                         named.zero,
                                                         &lower,
                                                         &names[half]);
        V::int_store(to + half * 64, lower);
        if (__builtin_expect(static_cast<long>(others != 0), 0) != 0 &&
            !note(from + half * 128, unit * 128 + half * 64, named, end, patch)) {
          return false;
        }
      }
      V::int_store(to + 128, V::pack_nibbles(names[0], names[1]));
    }
    *patch = {.at = kNoPatch, .bits = 0, .unused = 0};
    // The same bytes for the same weights.
    __builtin_memset(patch + 1, 0, static_cast<std::size_t>(end - patch) * sizeof(ShortPatch));
    return true;
  }

  /// Patches for those of two lines, the first element of which is `at`. False: there are too many.
  static bool note(const std::byte* lines,
                   std::size_t at,
                   Named named,
                   const ShortPatch* end,
                   ShortPatch*& patch) {
    for (std::size_t i = 0; i < 64; ++i) {
      std::uint16_t bits = 0;
      __builtin_memcpy(&bits, lines + i * 2, 2);
      if (named.has(bits >> 8U)) continue;
      if (patch == end) return false;
      *patch++ = {.at = static_cast<std::uint32_t>(at + i), .bits = bits, .unused = 0};
    }
    return true;
  }
};

}  // namespace tandem::kernels::cpu
