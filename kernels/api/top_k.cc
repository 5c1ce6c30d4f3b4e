#include "kernels/api/backend.h"

#include <algorithm>

namespace tandem::kernels {
namespace {

// Whether a comes before b in the answer.
bool before(const TopEntry& a, const TopEntry& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

}  // namespace

std::int32_t argmax(std::span<const float> values) {
  std::int32_t best = -1;
  float best_value = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Written so that NaN (all comparisons false) never wins, and an equal value later does not
    // either.
    if (values[i] > best_value || (best < 0 && values[i] == values[i])) {
      best = static_cast<std::int32_t>(i);
      best_value = values[i];
    }
  }
  return best;
}

std::size_t top_k(std::span<const float> values, std::size_t count, TopEntry* out) {
  const std::size_t limit = std::min(count, values.size());
  if (limit == 0) return 0;
  std::size_t size = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const TopEntry entry{.id = static_cast<std::int32_t>(i), .value = values[i]};
    if (entry.value != entry.value) continue;
    if (size < limit) {
      out[size++] = entry;
      std::push_heap(out, out + size, before);
    } else if (entry.value > out[0].value) {
      // out[0] is the worst kept one; an equal value with a higher id never displaces it.
      std::pop_heap(out, out + size, before);
      out[size - 1] = entry;
      std::push_heap(out, out + size, before);
    }
  }
  std::sort_heap(out, out + size, before);
  return size;
}

}  // namespace tandem::kernels
