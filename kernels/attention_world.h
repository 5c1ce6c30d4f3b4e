// Shared by the tests of attention: keys, values and queries of some sequences in a paged pool.
#pragma once

#include "kernels/test_util.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace tandem::kernels::testing {

struct World {
  std::size_t heads = 4;
  Pool::Options kv;
  std::int32_t window = 0;
  float magnitude = 2.0F;
  float scale = 1.0F;  ///< of the usual one
};

// K, V and queries of every position of every sequence; the same values whatever the pool looks
// like.
struct Filled {
  explicit Filled(const World& w) : world(w), pool(w.kv) {
    const std::size_t kv_row = w.kv.kv_heads * w.kv.head_dim;
    for (std::size_t s = 0; s < w.kv.lengths.size(); ++s) {
      for (std::size_t p = 0; p < w.kv.lengths[s]; ++p) {
        sequence.push_back(static_cast<std::int32_t>(s));
        position.push_back(static_cast<std::int32_t>(p));
      }
    }
    Rng rng(99);
    k = rng.reals(sequence.size() * kv_row, w.magnitude);
    v = rng.reals(sequence.size() * kv_row, w.magnitude);
    q = rng.reals(sequence.size() * row(), w.magnitude);
  }

  void write(const Backend& backend, ThreadPool& threads) const {
    backend.write_kv(
        {.k = k.data(), .v = v.data(), .batch = pool.batch(sequence, position), .kv = pool.layer()},
        threads);
  }

  [[nodiscard]] std::size_t row() const { return world.heads * world.kv.head_dim; }

  // Some of all tokens.
  struct Some {
    std::vector<std::int32_t> sequence;
    std::vector<std::int32_t> position;
    std::vector<float> q;
  };

  [[nodiscard]] Some some(const std::vector<std::size_t>& index) const {
    Some found;
    for (const std::size_t i : index) {
      found.sequence.push_back(sequence[i]);
      found.position.push_back(position[i]);
      const auto from = q.begin() + static_cast<std::ptrdiff_t>(i * row());
      found.q.insert(found.q.end(), from, from + static_cast<std::ptrdiff_t>(row()));
    }
    return found;
  }

  // Attention of the tokens at `index` (into all tokens) as one batch, returned in the same order.
  [[nodiscard]] std::vector<float> attend(const Backend& backend,
                                          const std::vector<std::size_t>& index,
                                          ThreadPool& threads) const {
    return attend(backend, index, threads, pool.layer());
  }

  // The same over a copy of the pool.
  [[nodiscard]] std::vector<float> attend(const Backend& backend,
                                          const std::vector<std::size_t>& index,
                                          ThreadPool& threads,
                                          const KvLayer& kv) const {
    const Some tokens = some(index);
    std::vector<float> out(index.size() * row(), -7.0F);
    backend.attention({.q = tokens.q.data(),
                       .out = out.data(),
                       .batch = pool.batch(tokens.sequence, tokens.position),
                       .kv = kv,
                       .heads = world.heads,
                       .scale = world.scale / std::sqrt(static_cast<float>(world.kv.head_dim)),
                       .window = world.window},
                      threads);
    return out;
  }

  [[nodiscard]] std::vector<std::size_t> all() const {
    std::vector<std::size_t> index(sequence.size());
    for (std::size_t i = 0; i < index.size(); ++i)
      index[i] = i;
    return index;
  }

  World world;
  Pool pool;
  std::vector<std::int32_t> sequence;
  std::vector<std::int32_t> position;
  std::vector<float> k;
  std::vector<float> v;
  std::vector<float> q;
};

}  // namespace tandem::kernels::testing
