// The amx family in plain code.
#include "kernels/cpu/amx/emulated.h"

#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/linear.h"
#include "kernels/cpu/generic/vec.h"

namespace tandem::kernels::cpu {
namespace {

using Tiles = AmxLinear<GenericVec, EmulatedTiles<GenericVec>>;

void linear(const LinearBlock& block) {
  if (!Tiles::run(block)) generic_kernels().linear(block);
}

}  // namespace

Kernels emulated_amx_kernels() {
  Kernels kernels = generic_kernels();
  kernels.linear = &linear;
  kernels.row_step = 32;
  kernels.most_rows = &Tiles::most_rows;
  return kernels;
}

}  // namespace tandem::kernels::cpu
