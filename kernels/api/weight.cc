#include "kernels/api/weight.h"

namespace tandem::kernels {

PackedWeight::PackedWeight(
    WeightLayout layout, WeightFormat format, std::size_t n, std::size_t k, std::size_t bytes)
    : layout_(layout), format_(format), n_(n), k_(k), bytes_(bytes) {
  data_.reset(static_cast<std::byte*>(
      ::operator new[](bytes == 0 ? 64 : bytes, std::align_val_t{64}, std::nothrow)));
}

}  // namespace tandem::kernels
