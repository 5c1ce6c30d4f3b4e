// The tile unit itself, and the table of the amx family: avx512 (every processor with tiles has
// VNNI) with products of bf16, 8 and 4 bit and attention over bf16 on tiles, or with their bits.
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/attention.h"
#include "kernels/cpu/amx/emulated.h"
#include "kernels/cpu/amx/linear.h"
#include "kernels/cpu/avx512/vbmi.h"
#include "kernels/cpu/avx512/vec.h"

namespace tandem::kernels::cpu {
namespace {

// Own assembly instead of <amxtileintrin.h>: GCC 12 tells the optimiser that ldtilecfg reads 8 of
// its 64 bytes and drops the other stores. Volatile statements keep their order among each other.
struct HardwareTiles {
  void configure(const TileConfig& config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }

  void release() { __asm__ volatile("tilerelease" ::: "memory"); }

  template <int C>
  void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(C));
  }

  template <int Tile>
  void load(const void* from, std::size_t stride_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(Tile)
                     : "memory");
  }

  /// With the hint that the data need not stay in the first level of caches.
  template <int Tile>
  void load_passing(const void* from, std::size_t stride_bytes) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(Tile)
                     : "memory");
  }

  template <int Tile>
  void store(void* to, std::size_t stride_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(Tile)
                     : "memory");
  }

  template <int C, int A, int B>
  void multiply_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }

  template <int C, int A, int B>
  void multiply_int8() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

/// What attention needs beyond. Assembly where the flags of this file do not have an instruction.
struct Avx512TileVec : WithVbmi<Avx512Vec> {
  static Int int_broadcast(std::uint32_t word) { return _mm512_set1_epi32(static_cast<int>(word)); }

  static Int int_or(Int a, Int b) { return _mm512_or_si512(a, b); }

  static Vec dot2(Vec acc, Int x, Int w) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
  }

  static std::uint32_t greater_mask(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

  static Int powers(Vec low, Vec high, Int table) {
    const Int fixed = _mm512_packus_epi32(_mm512_cvtps_epi32(low), _mm512_cvtps_epi32(high));
    const __mmask64 even = 0x5555555555555555U;
    Int less;
    __asm__("vpermb %2, %1, %0%{%3%}%{z%}"
            : "=v"(less)
            : "v"(_mm512_srli_epi16(fixed, 3)), "v"(table), "Yk"(even));
    return _mm512_srli_epi16(_mm512_subs_epu16(fixed, less), 2);
  }

  static Int nan_halves(Vec low, Vec high) {
    return _mm512_packs_epi32(_mm512_movm_epi32(_mm512_cmp_ps_mask(low, low, _CMP_UNORD_Q)),
                              _mm512_movm_epi32(_mm512_cmp_ps_mask(high, high, _CMP_UNORD_Q)));
  }

  static Int keep_halves(Int v, std::uint32_t which) { return _mm512_maskz_mov_epi16(which, v); }

  static Int pair_halves(Int v) {
    const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(order));
  }
};

template <class T>
void linear(const LinearBlock& block) {
  if (!AmxLinear<Avx512Vec, T>::run(block)) avx512_fixed_int8_linear(block);
}

template <class T>
void attention(const AttentionTile& tile) {
  using Attention = TileAttention<Avx512TileVec, T>;
  if (Attention::takes(tile.dtype)) return Attention::run(tile);
  avx512_kernels().attention(tile);
}

template <class T>
std::size_t attention_rows(DType dtype, std::size_t head_dim) {
  using Attention = TileAttention<Avx512TileVec, T>;
  if (Attention::takes(dtype)) return Attention::most_rows(dtype, head_dim);
  return avx512_kernels().attention_rows(dtype, head_dim);
}

template <class T>
Kernels kernels_on() {
  Kernels kernels = avx512_kernels();
  kernels.linear = &linear<T>;
  kernels.row_step = 32;
  kernels.many_rows_tasks = kLongTasks;
  kernels.most_rows = &AmxLinear<Avx512Vec, T>::most_rows;
  kernels.rows_in_parts = &AmxLinear<Avx512Vec, T>::rows_in_parts;
  kernels.shares_rows = &AmxLinear<Avx512Vec, T>::shares_rows;
  kernels.takes_gated = &AmxLinear<Avx512Vec, T>::takes_gated;
  kernels.pack_rows = &AmxLinear<Avx512Vec, T>::pack_rows;
  kernels.takes_packed = &AmxLinear<Avx512Vec, T>::takes_packed;
  kernels.pack_part = &AmxLinear<Avx512Vec, T>::pack_part;
  kernels.shorten = &ShortBf16<Avx512Vec>::shorten;
  kernels.attention = &attention<T>;
  kernels.attention_rows = &attention_rows<T>;
  return kernels;
}

}  // namespace

Kernels amx_kernels() {
  return kernels_on<HardwareTiles>();
}

Kernels emulated_amx_avx512_kernels() {
  return kernels_on<EmulatedTiles<Avx512TileVec>>();
}

}  // namespace tandem::kernels::cpu
