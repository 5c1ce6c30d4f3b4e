// The tile unit itself, and the table of the amx family: avx512 (every processor with tiles has
// VNNI) with products of bf16, 8 and 4 bit and attention over bf16 on tiles.
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/attention.h"
#include "kernels/cpu/amx/emulated.h"
#include "kernels/cpu/amx/linear.h"
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

template <class T>
void linear(const LinearBlock& block) {
  if (!AmxLinear<Avx512Vec, T>::run(block)) avx512_vnni_linear(block);
}

template <class T>
void attention(const AttentionTile& tile) {
  if (tile.dtype == DType::kBf16) return TileAttention<Avx512Vec, T>::run(tile);
  avx512_kernels().attention(tile);
}

template <class T>
Kernels kernels_on() {
  Kernels kernels = avx512_kernels();
  kernels.linear = &linear<T>;
  kernels.row_step = 32;
  kernels.most_rows = &AmxLinear<Avx512Vec, T>::most_rows;
  kernels.shares_rows = &AmxLinear<Avx512Vec, T>::shares_rows;
  kernels.pack_rows = &AmxLinear<Avx512Vec, T>::pack_rows;
  kernels.takes_packed = &AmxLinear<Avx512Vec, T>::takes_packed;
  kernels.pack_part = &AmxLinear<Avx512Vec, T>::pack_part;
  kernels.attention = &attention<T>;
  kernels.attention_rows = &TileAttention<Avx512Vec, T>::most_rows;
  return kernels;
}

}  // namespace

Kernels amx_kernels() {
  return kernels_on<HardwareTiles>();
}

Kernels emulated_amx_avx512_kernels() {
  return kernels_on<EmulatedTiles<Avx512Vec>>();
}

}  // namespace tandem::kernels::cpu
