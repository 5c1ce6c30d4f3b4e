#include "kernels/api/backend.h"

#include <utility>

namespace tandem::kernels {
namespace {

std::unique_ptr<PackedWeight> fill_one(const Backend& backend,
                                       std::unique_ptr<PackedWeight> weight,
                                       std::span<const MatrixView> parts,
                                       ThreadPool& pool) {
  if (weight == nullptr) return nullptr;
  PackJob job{.to = weight.get(), .parts = {parts.begin(), parts.end()}};
  return backend.fill_exactly({&job, 1}, pool) ? std::move(weight) : nullptr;
}

}  // namespace

std::unique_ptr<PackedWeight> Backend::allocate(std::size_t n,
                                                std::size_t k,
                                                WeightFormat store,
                                                std::size_t count) const {
  auto weight =
      std::make_unique<PackedWeight>(layout(), store, n, k, packed_bytes(n, k, store), count);
  return weight->data() == nullptr ? nullptr : std::move(weight);
}

PackedWeight Backend::over(std::byte* memory,
                           std::size_t n,
                           std::size_t k,
                           WeightFormat store) const {
  return PackedWeight::over(memory, layout(), store, n, k, packed_bytes(n, k, store));
}

bool Backend::fill_exactly(std::span<PackJob> jobs, ThreadPool& pool) const {
  fill(jobs, pool);
  for (PackJob& job : jobs) {
    if (!job.misfit) continue;
    if (!make_plain(*job.to)) return false;
    job.misfit = false;
    fill({&job, 1}, pool);
  }
  return true;
}

bool Backend::make_plain(PackedWeight& weight) const {
  auto plain = allocate(weight.n(), weight.k(), DType::kBf16, weight.count());
  if (plain == nullptr) return false;
  weight = std::move(*plain);
  return true;
}

std::unique_ptr<PackedWeight> Backend::pack(std::span<const MatrixView> parts,
                                            WeightFormat store,
                                            ThreadPool& pool) const {
  std::size_t n = 0;
  for (const MatrixView& part : parts)
    n += part.rows;
  const std::size_t k = parts.empty() ? 0 : parts[0].cols;
  return fill_one(*this, allocate(n, k, store, 1), parts, pool);
}

std::unique_ptr<PackedWeight> Backend::pack_stack(std::span<const MatrixView> weights,
                                                  WeightFormat store,
                                                  ThreadPool& pool) const {
  const MatrixView& first = weights[0];
  return fill_one(*this, allocate(first.rows, first.cols, store, weights.size()), weights, pool);
}

void Backend::prepare_heads(const PrepareHeadsArgs& args, ThreadPool& pool) const {
  struct Part {
    float* x;
    std::size_t heads;
    const float* norm;
  };

  for (const Part& part :
       {Part{args.q, args.heads, args.q_norm}, Part{args.k, args.kv.kv_heads, args.k_norm}}) {
    if (part.norm != nullptr) {
      head_norm({.x = part.x,
                 .x_stride = args.stride,
                 .weight = part.norm,
                 .tokens = args.batch.tokens,
                 .heads = part.heads,
                 .head_dim = args.kv.head_dim,
                 .eps = args.eps},
                pool);
    }
    rope({.x = part.x,
          .x_stride = args.stride,
          .positions = args.batch.position,
          .cos = args.cos,
          .sin = args.sin,
          .tokens = args.batch.tokens,
          .heads = part.heads,
          .head_dim = args.kv.head_dim},
         pool);
  }
  write_kv({.k = args.k,
            .v = args.v,
            .k_stride = args.stride,
            .v_stride = args.stride,
            .batch = args.batch,
            .kv = args.kv},
           pool);
}

}  // namespace tandem::kernels
