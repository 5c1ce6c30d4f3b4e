#include "kernels/ref/ref_backend.h"

#include "kernels/api/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

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

float scale_of_int8(const float* x, std::size_t k) {
  float largest = 0;
  for (std::size_t i = 0; i < k; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(x[i]));
  }
  return largest / 127.0F;
}

// Nearest, ties to even, clamped; what a scale of NaN gives is never seen.
std::int8_t nearest(float scaled, float low, float high) {
  const float clamped = std::clamp(scaled, low, high);
  return std::isnan(clamped) ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(clamped));
}

std::int8_t round_to(float value, float scale, float low, float high) {
  return nearest(value / (scale == 0.0F ? 1.0F : scale), low, high);
}

// Of inputs: a product, where 1 / scale is an ordinary number.
std::int8_t input_to_int8(float value, float scale) {
  const bool inverts = scale >= 0x1p-100F && scale <= 0x1p100F;
  return inverts ? nearest(value * (1.0F / scale), -127.0F, 127.0F)
                 : round_to(value, scale, -127.0F, 127.0F);
}

float bf16(float value) {
  return bf16_to_f32(f32_to_bf16(value));
}

// The parts of a quantised weight (WeightLayout::kRowMajor).
struct Quantized {
  std::size_t k;
  std::int8_t* q;
  float* scale;
};

Quantized parts_of(const PackedWeight& weight, std::byte* data) {
  Quantized parts{};
  parts.k = weight.k();
  parts.scale = reinterpret_cast<float*>(data);
  parts.q = reinterpret_cast<std::int8_t*>(parts.scale + weight.n());
  return parts;
}

// A group of kInt4Group128, in units of its output's scale, in steps of so many of them.
struct Steps {
  std::vector<float> values;  ///< integers
  float error;                ///< sum of squares, in the order of vectors of 16
};

Steps in_steps(const std::vector<float>& units, float ends, float step) {
  // No NaN is clamped: the scale of its output is NaN, and q does not matter.
  const float centred = 7.5F * step - 0.5F * ends;
  const float offset =
      std::isnan(centred) ? 0.0F : std::round(std::clamp(centred, 15.0F * step - 127.0F, 127.0F));
  Steps out;
  float errors[16] = {};
  for (std::size_t i = 0; i < units.size(); ++i) {
    const std::int8_t q = nearest((units[i] + offset) * (1.0F / step), 0.0F, 15.0F);
    out.values.push_back(static_cast<float>(q) * step - offset);
    const float off = out.values.back() - units[i];
    errors[i % 16] += off * off;
  }
  for (std::size_t width = 8; width >= 1; width /= 2) {
    for (std::size_t i = 0; i < width; ++i)
      errors[i] += errors[i + width];
  }
  out.error = errors[0];
  return out;
}

// The integers that q of 4 bit stand for.
void quantize_group(const float* x, std::size_t count, float scale, std::int8_t* q) {
  std::vector<float> units(x, x + count);
  for (float& value : units)
    value /= scale > 0.0F ? scale : 1.0F;
  const auto [low, high] = std::minmax_element(units.begin(), units.end());
  const float steps = (*high - *low) / 16.0F;
  const float step = steps > 1.0F ? std::min(std::ceil(steps), 16.0F) : 1.0F;
  Steps best = in_steps(units, *low + *high, step);
  if (step > 1.0F) {
    Steps finer = in_steps(units, *low + *high, step - 1.0F);
    if (finer.error < best.error) best = std::move(finer);
  }
  std::transform(best.values.begin(), best.values.end(), q, [](float value) {
    return static_cast<std::int8_t>(value);
  });
}

void quantize_row(const std::vector<float>& x,
                  std::size_t row,
                  WeightScheme scheme,
                  Quantized out) {
  std::int8_t* q = out.q + row * out.k;
  out.scale[row] = scale_of_int8(x.data(), out.k);
  if (scheme == WeightScheme::kInt4Group128) {
    for (std::size_t i = 0; i < out.k; i += kInt4Group)
      quantize_group(x.data() + i, std::min(kInt4Group, out.k - i), out.scale[row], q + i);
    return;
  }
  for (std::size_t i = 0; i < out.k; ++i)
    q[i] = round_to(x[i], out.scale[row], -127.0F, 127.0F);
}

// Sum of x times the widened weights of one output.
double product(const Quantized& weight, std::size_t output, const float* x) {
  double sum = 0;
  for (std::size_t i = 0; i < weight.k; ++i)
    sum += static_cast<double>(x[i]) * weight.q[output * weight.k + i];
  return sum * static_cast<double>(weight.scale[output]);
}

// The same with x rounded to bf16 and then to 8 bit.
double rounded_product(const Quantized& weight, std::size_t output, const float* x) {
  std::vector<float> rounded(weight.k);
  std::transform(x, x + weight.k, rounded.begin(), bf16);
  const float scale = scale_of_int8(rounded.data(), weight.k);
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < weight.k; ++i)
    sum += input_to_int8(rounded[i], scale) * weight.q[output * weight.k + i];
  return static_cast<double>(sum) * static_cast<double>(weight.scale[output]) *
         static_cast<double>(scale);
}

double float_product(const PackedWeight& weight,
                     std::size_t index,
                     std::size_t output,
                     const float* x) {
  const std::byte* data = weight.data(index);
  double sum = 0;
  for (std::size_t i = 0; i < weight.k(); ++i) {
    sum += static_cast<double>(x[i]) *
           static_cast<double>(load_element(data, weight.dtype(), output * weight.k() + i));
  }
  return sum;
}

// Sum of x times output `output` of weight `index` of a stack.
double any_product(const PackedWeight& weight,
                   std::size_t index,
                   std::size_t output,
                   const float* x) {
  if (weight.scheme() == WeightScheme::kFloat) return float_product(weight, index, output, x);
  // parts_of() serves packing, too; nothing is written here.
  const Quantized parts = parts_of(weight, const_cast<std::byte*>(weight.data(index)));
  return rounds_to_bytes(weight.scheme()) ? rounded_product(parts, output, x)
                                          : product(parts, output, x);
}

void pack_quantized(std::span<const MatrixView> parts,
                    PackedWeight& packed,
                    std::size_t index,
                    ThreadPool& pool) {
  const Quantized out = parts_of(packed, packed.mutable_data(index));
  std::size_t first = 0;
  for (const MatrixView& part : parts) {
    pool.parallel_for(part.rows, [&](std::size_t row, std::size_t) {
      std::vector<float> wide(out.k);
      for (std::size_t col = 0; col < out.k; ++col)
        wide[col] = load_element(part, row, col);
      quantize_row(wide, first + row, packed.scheme(), out);
    });
    first += part.rows;
  }
}

// `parts`, stacked along rows, become weight `index` of the stack.
void pack_at(std::span<const MatrixView> parts,
             PackedWeight& packed,
             std::size_t index,
             ThreadPool& pool) {
  if (packed.scheme() != WeightScheme::kFloat) return pack_quantized(parts, packed, index, pool);
  const DType dtype = packed.dtype();
  const std::size_t k = packed.k();
  std::byte* out = packed.mutable_data(index);
  for (const MatrixView& part : parts) {
    pool.parallel_for(part.rows, [&](std::size_t row, std::size_t) {
      for (std::size_t col = 0; col < k; ++col)
        store_element(out, dtype, row * k + col, load_element(part, row, col));
    });
    out += part.rows * k * dtype_bytes(dtype);
  }
}

std::vector<std::byte> read_whole(const MatrixView& part, ElementReader& reader) {
  const std::size_t stride = stride_or(part.row_stride, part.cols);
  const std::size_t count = part.rows == 0 ? 0 : (part.rows - 1) * stride + part.cols;
  std::vector<std::byte> bytes(count * dtype_bytes(part.dtype));
  reader.read(static_cast<const std::byte*>(part.data), bytes.size(), bytes.data());
  return bytes;
}

void route_row(const RouteArgs& args, std::size_t token) {
  const std::span logits(args.logits + token * args.experts, args.experts);
  std::int32_t* ids = args.ids + token * args.top_k;
  float* weights = args.weights + token * args.top_k;
  TopEntry best[kMaxExperts];
  const std::size_t found = top_k(logits, args.top_k, best);
  const double max = found == 0 ? 0.0 : static_cast<double>(best[0].value);
  double total = 0;
  for (const float logit : logits)
    total += std::exp(static_cast<double>(logit) - max);
  if (std::isnan(total)) {
    std::iota(ids, ids + args.top_k, 0);
    std::fill_n(weights, args.top_k, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  double divisor = args.normalize ? 0.0 : total;
  for (std::size_t r = 0; args.normalize && r < args.top_k; ++r)
    divisor += std::exp(static_cast<double>(best[r].value) - max);
  for (std::size_t r = 0; r < args.top_k; ++r) {
    ids[r] = best[r].id;
    weights[r] = static_cast<float>(std::exp(static_cast<double>(best[r].value) - max) / divisor);
  }
}

double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

}  // namespace

void ReferenceBackend::fill(std::span<PackJob> jobs, ThreadPool& pool) const {
  for (const PackJob& job : jobs) {
    const std::size_t each = job.parts.size() / job.to->count();
    for (std::size_t i = 0; i < job.to->count(); ++i) {
      std::vector<MatrixView> parts(
          job.parts.begin() + static_cast<std::ptrdiff_t>(i * each),
          job.parts.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
      std::vector<std::vector<std::byte>> elements;
      if (job.reader != nullptr) {
        for (MatrixView& part : parts)
          part.data = elements.emplace_back(read_whole(part, *job.reader)).data();
      }
      pack_at(parts, *job.to, i, pool);
    }
  }
}

std::size_t ReferenceBackend::packed_bytes(std::size_t n, std::size_t k, WeightFormat store) const {
  if (store.scheme == WeightScheme::kFloat) return n * k * dtype_bytes(store.dtype);
  return n * k + n * sizeof(float);
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
      double sum = any_product(weight, 0, output, x);
      if (args.bias != nullptr) sum += static_cast<double>(args.bias[output]);
      float& y = args.y[token * stride_or(args.y_stride, n) + output];
      y = static_cast<float>(args.accumulate ? sum + static_cast<double>(y) : sum);
    }
  });
}

void ReferenceBackend::gated_linear(const GatedLinearArgs& args, ThreadPool& pool) const {
  const PackedWeight& weight = *args.weight;
  const std::size_t dim = weight.n() / 2;
  pool.parallel_for(args.tokens * dim, [&](std::size_t task, std::size_t) {
    const std::size_t token = task / dim;
    const float* x = args.x + token * stride_or(args.x_stride, weight.k());
    const auto product = [&](std::size_t output) {
      const double sum = any_product(weight, 0, output, x);
      const double bias = args.bias == nullptr ? 0.0 : static_cast<double>(args.bias[output]);
      return static_cast<double>(static_cast<float>(sum + bias));
    };
    args.y[token * stride_or(args.y_stride, dim) + task % dim] =
        static_cast<float>(silu(product(task % dim)) * product(dim + task % dim));
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
      out[i] = static_cast<float>(silu(g) * static_cast<double>(up[i]));
    }
  });
}

void ReferenceBackend::route(const RouteArgs& args, ThreadPool& pool) const {
  pool.parallel_for(args.tokens, [&](std::size_t token, std::size_t) { route_row(args, token); });
}

void ReferenceBackend::expert_mlp(const ExpertMlpArgs& args, ThreadPool& pool) const {
  const std::size_t hidden = args.gate->k();
  const std::size_t inner = args.gate->n();
  pool.parallel_for(args.tokens * args.top_k, [&](std::size_t row, std::size_t) {
    const float* x = args.x + row / args.top_k * stride_or(args.x_stride, hidden);
    const auto expert = static_cast<std::size_t>(args.ids[row]);
    for (std::size_t i = 0; i < inner; ++i) {
      const double gate = static_cast<float>(any_product(*args.gate, expert, i, x));
      const double up = static_cast<float>(any_product(*args.up, expert, i, x));
      args.inner[row * inner + i] = static_cast<float>(silu(gate) * up);
    }
  });
  pool.parallel_for(args.tokens * hidden, [&](std::size_t task, std::size_t) {
    const std::size_t token = task / hidden;
    float& y = args.y[token * stride_or(args.y_stride, hidden) + task % hidden];
    double sum = static_cast<double>(y);
    // Rank by rank: sums in double have room for any order.
    for (std::size_t row = token * args.top_k; row < (token + 1) * args.top_k; ++row) {
      sum += static_cast<double>(args.weights[row]) *
             any_product(*args.down,
                         static_cast<std::size_t>(args.ids[row]),
                         task % hidden,
                         args.inner + row * inner);
    }
    y = static_cast<float>(sum);
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
