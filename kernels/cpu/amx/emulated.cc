// The amx family in plain code.
#include "kernels/cpu/amx/emulated.h"

#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/attention.h"
#include "kernels/cpu/amx/linear.h"
#include "kernels/cpu/generic/vec.h"

namespace tandem::kernels::cpu {
namespace {

using Tiles = AmxLinear<GenericVec, EmulatedTiles<GenericVec>>;

void linear(const LinearBlock& block) {
  if (!Tiles::run(block)) generic_kernels().linear(block);
}

using Attention = TileAttention<GenericVec, EmulatedTiles<GenericVec>>;

void attention(const AttentionTile& tile) {
  if (tile.dtype == DType::kBf16) return Attention::run(tile);
  generic_kernels().attention(tile);
}

}  // namespace

Kernels emulated_amx_kernels() {
  Kernels kernels = generic_kernels();
  kernels.linear = &linear;
  kernels.row_step = 32;
  kernels.most_rows = &Tiles::most_rows;
  kernels.shares_rows = &Tiles::shares_rows;
  kernels.pack_rows = &Tiles::pack_rows;
  kernels.takes_packed = &Tiles::takes_packed;
  kernels.pack_part = &Tiles::pack_part;
  kernels.attention = &attention;
  kernels.attention_rows = &Attention::most_rows;
  return kernels;
}

}  // namespace tandem::kernels::cpu
