#include "kernels/ref/ref_backend.h"

#include "kernels/api/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::kernels {
namespace {

double square_mean(const float* x, std::size_t dim) {
  double sum = 0;
  for (std::size_t i = 0; i < dim; ++i)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum / static_cast<double>(dim);
}

void norm_row(const float* x, const float* weight, float* y, std::size_t dim, float eps) {
  const double inverse = 1.0 / std::sqrt(square_mean(x, dim) + static_cast<double>(eps));
  for (std::size_t i = 0; i < dim; ++i) {
    y[i] = static_cast<float>(static_cast<double>(x[i]) * inverse * static_cast<double>(weight[i]));
  }
}

void rotate_head(float* x, const float* cos, const float* sin, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const double a = static_cast<double>(x[i]);
    const double b = static_cast<double>(x[i + half]);
    const double c = static_cast<double>(cos[i]);
    const double s = static_cast<double>(sin[i]);
    x[i] = static_cast<float>(a * c - b * s);
    x[i + half] = static_cast<float>(b * c + a * s);
  }
}

// K row of a position; the V row lies `value_offset` bytes further.
std::byte* kv_row(const KvLayer& kv,
                  const SequencePages& sequence,
                  std::size_t position,
                  std::size_t kv_head) {
  const auto page = static_cast<std::size_t>(sequence.pages[position / kv.page_size]);
  const std::size_t row = kv_head * kv.page_size + position % kv.page_size;
  return kv.base + page * kv.page_stride_bytes + kv.layer_offset_bytes +
         row * kv.head_dim * dtype_bytes(kv.dtype);
}

void attend(const AttentionArgs& args, std::size_t token, std::size_t head) {
  const KvLayer& kv = args.kv;
  const std::size_t dim = kv.head_dim;
  const std::size_t kv_head = head / (args.heads / kv.kv_heads);
  const SequencePages& sequence = args.batch.sequences[args.batch.sequence[token]];
  const auto last = static_cast<std::size_t>(args.batch.position[token]);
  const auto window = static_cast<std::size_t>(args.window);
  const std::size_t first = window != 0 && last + 1 > window ? last + 1 - window : 0;
  const float* q = args.q + token * stride_or(args.q_stride, args.heads * dim) + head * dim;
  float* out = args.out + token * stride_or(args.out_stride, args.heads * dim) + head * dim;

  const auto score = [&](std::size_t position) {
    const std::byte* key = kv_row(kv, sequence, position, kv_head);
    double sum = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      sum += static_cast<double>(q[i]) * static_cast<double>(load_element(key, kv.dtype, i));
    }
    return sum * static_cast<double>(args.scale);
  };
  double max = -std::numeric_limits<double>::infinity();
  for (std::size_t position = first; position <= last; ++position)
    max = std::max(max, score(position));

  double sums[kMaxHeadDim] = {};
  double total = 0;
  for (std::size_t position = first; position <= last; ++position) {
    const double weight = std::exp(score(position) - max);
    const std::byte* value = kv_row(kv, sequence, position, kv_head) + kv.layer_bytes() / 2;
    total += weight;
    for (std::size_t i = 0; i < dim; ++i) {
      sums[i] += weight * static_cast<double>(load_element(value, kv.dtype, i));
    }
  }
  for (std::size_t i = 0; i < dim; ++i)
    out[i] = static_cast<float>(sums[i] / total);
}

}  // namespace

std::unique_ptr<PackedWeight> ReferenceBackend::pack(std::span<const MatrixView> parts,
                                                     DType store,
                                                     ThreadPool& pool) const {
  std::size_t n = 0;
  for (const MatrixView& part : parts)
    n += part.rows;
  const std::size_t k = parts.empty() ? 0 : parts[0].cols;
  auto packed = std::make_unique<PackedWeight>(
      WeightLayout::kRowMajor, store, n, k, packed_bytes(n, k, store));
  if (packed->data() == nullptr) return nullptr;
  std::byte* out = packed->mutable_data();
  for (const MatrixView& part : parts) {
    pool.parallel_for(part.rows, [&](std::size_t row, std::size_t) {
      for (std::size_t col = 0; col < k; ++col) {
        store_element(out, store, row * k + col, load_element(part, row, col));
      }
    });
    out += part.rows * k * dtype_bytes(store);
  }
  return packed;
}

std::size_t ReferenceBackend::packed_bytes(std::size_t n, std::size_t k, DType store) const {
  return n * k * dtype_bytes(store);
}

void ReferenceBackend::embedding(const EmbeddingArgs& args, ThreadPool& pool) const {
  pool.parallel_for(args.tokens, [&](std::size_t token, std::size_t) {
    const auto row = static_cast<std::size_t>(args.ids[token]);
    float* out = args.out + token * args.table.cols;
    for (std::size_t i = 0; i < args.table.cols; ++i)
      out[i] = load_element(args.table, row, i);
  });
}

void ReferenceBackend::linear(const LinearArgs& args, ThreadPool& pool) const {
  const PackedWeight& weight = *args.weight;
  const std::size_t n = weight.n();
  const std::size_t k = weight.k();
  pool.parallel_for(n, [&](std::size_t output, std::size_t) {
    for (std::size_t token = 0; token < args.tokens; ++token) {
      const float* x = args.x + token * stride_or(args.x_stride, k);
      double sum = 0;
      for (std::size_t i = 0; i < k; ++i) {
        sum += static_cast<double>(x[i]) *
               static_cast<double>(load_element(weight.data(), weight.dtype(), output * k + i));
      }
      if (args.bias != nullptr) sum += static_cast<double>(args.bias[output]);
      float& y = args.y[token * stride_or(args.y_stride, n) + output];
      y = static_cast<float>(args.accumulate ? sum + static_cast<double>(y) : sum);
    }
  });
}

void ReferenceBackend::rms_norm(const RmsNormArgs& args, ThreadPool& pool) const {
  pool.parallel_for(args.rows, [&](std::size_t row, std::size_t) {
    const float* x = args.x + row * stride_or(args.x_stride, args.dim);
    float* y = args.y + row * stride_or(args.y_stride, args.dim);
    if (args.residual != nullptr) {
      float* residual = args.residual + row * args.dim;
      for (std::size_t i = 0; i < args.dim; ++i)
        residual[i] += x[i];
      x = residual;
    }
    norm_row(x, args.weight, y, args.dim, args.eps);
  });
}

void ReferenceBackend::head_norm(const HeadNormArgs& args, ThreadPool& pool) const {
  pool.parallel_for(args.tokens, [&](std::size_t token, std::size_t) {
    for (std::size_t head = 0; head < args.heads; ++head) {
      float* x = args.x + token * stride_or(args.x_stride, args.heads * args.head_dim) +
                 head * args.head_dim;
      norm_row(x, args.weight, x, args.head_dim, args.eps);
    }
  });
}

void ReferenceBackend::rope(const RopeArgs& args, ThreadPool& pool) const {
  const std::size_t half = stride_or(args.rotary_dim, args.head_dim) / 2;
  pool.parallel_for(args.tokens, [&](std::size_t token, std::size_t) {
    const std::size_t table_row = static_cast<std::size_t>(args.positions[token]) * half;
    for (std::size_t head = 0; head < args.heads; ++head) {
      float* x = args.x + token * stride_or(args.x_stride, args.heads * args.head_dim) +
                 head * args.head_dim;
      rotate_head(x, args.cos + table_row, args.sin + table_row, half);
    }
  });
}

void ReferenceBackend::silu_mul(const SiluMulArgs& args, ThreadPool& pool) const {
  pool.parallel_for(args.tokens, [&](std::size_t token, std::size_t) {
    const float* gate = args.gate + token * stride_or(args.in_stride, args.dim);
    const float* up = args.up + token * stride_or(args.in_stride, args.dim);
    float* out = args.out + token * stride_or(args.out_stride, args.dim);
    for (std::size_t i = 0; i < args.dim; ++i) {
      const double g = static_cast<double>(gate[i]);
      out[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]));
    }
  });
}

void ReferenceBackend::write_kv(const WriteKvArgs& args, ThreadPool& pool) const {
  const KvLayer& kv = args.kv;
  const std::size_t dense = kv.kv_heads * kv.head_dim;
  pool.parallel_for(args.batch.tokens, [&](std::size_t token, std::size_t) {
    const SequencePages& sequence = args.batch.sequences[args.batch.sequence[token]];
    const auto position = static_cast<std::size_t>(args.batch.position[token]);
    for (std::size_t head = 0; head < kv.kv_heads; ++head) {
      const float* k = args.k + token * stride_or(args.k_stride, dense) + head * kv.head_dim;
      const float* v = args.v + token * stride_or(args.v_stride, dense) + head * kv.head_dim;
      std::byte* row = kv_row(kv, sequence, position, head);
      for (std::size_t i = 0; i < kv.head_dim; ++i) {
        store_element(row, kv.dtype, i, k[i]);
        store_element(row + kv.layer_bytes() / 2, kv.dtype, i, v[i]);
      }
    }
  });
}

void ReferenceBackend::attention(const AttentionArgs& args, ThreadPool& pool) const {
  pool.parallel_for(args.batch.tokens * args.heads, [&](std::size_t task, std::size_t) {
    attend(args, task / args.heads, task % args.heads);
  });
}

LogSoftmaxStats ReferenceBackend::log_softmax_stats(std::span<const float> logits) const {
  LogSoftmaxStats stats{.max = -std::numeric_limits<float>::infinity(), .log_sum = 0};
  for (const float logit : logits)
    stats.max = std::max(stats.max, logit);
  if (stats.max == -std::numeric_limits<float>::infinity()) return stats;
  double sum = 0;
  for (const float logit : logits)
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(stats.max));
  stats.log_sum = std::log(sum);
  return stats;
}

}  // namespace tandem::kernels
