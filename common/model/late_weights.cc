#include "common/model/late_weights.h"

#include "common/base/failpoint.h"
#include "kernels/api/convert.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace tandem::model {
namespace {

// Two pieces for each thread, of the size in which panels are packed.
constexpr std::size_t kThreadBytes = std::size_t{4} << 20;
constexpr std::size_t kChunkBytesMax = std::size_t{64} << 20;

// What fill_while_fast() may take: so many times as long as packing alone, since new memory is at
// least cleared, and some more, since the first pieces of it say little.
constexpr int kSlowTimes = 2;
constexpr Duration kSlowBy = milliseconds(15);

/// What is packed in vain: as the file has it, which takes least time.
kernels::WeightFormat staged_format(const kernels::PackedWeight& weight) {
  return weight.dtype();
}

/// Rows [begin, end) of stacked matrices.
std::vector<kernels::MatrixView> cut(const std::vector<kernels::MatrixView>& parts,
                                     std::size_t begin,
                                     std::size_t end) {
  std::vector<kernels::MatrixView> cuts;
  std::size_t first = 0;
  for (const kernels::MatrixView& part : parts) {
    const std::size_t from = std::max(begin, first);
    const std::size_t to = std::min(end, first + part.rows);
    if (from < to) {
      const std::size_t stride =
          kernels::stride_or(part.row_stride, part.cols) * kernels::dtype_bytes(part.dtype);
      kernels::MatrixView view = part;
      view.data = static_cast<const std::byte*>(part.data) + (from - first) * stride;
      view.rows = to - from;
      cuts.push_back(view);
    }
    first += part.rows;
  }
  return cuts;
}

}  // namespace

Result<std::unique_ptr<LateWeights>> LateWeights::make(DecoderWeights& weights,
                                                       std::unique_ptr<WeightSource> source,
                                                       const kernels::Backend& backend,
                                                       kernels::ThreadPool& pool,
                                                       std::size_t chunk_bytes,
                                                       const Clock& clock) {
  std::unique_ptr<LateWeights> late(new LateWeights(std::move(source), backend, pool, clock));
  const auto add = [&late](Linear& layer) {
    if (!layer.late.empty()) late->waiting_.push_back(&layer);
  };
  for (LayerWeights& layer : weights.layers) {
    add(layer.qkv);
    add(layer.output);
    add(layer.gate_up);
    add(layer.down);
  }
  add(weights.lm_head);
  const std::size_t for_threads =
      pool.thread_count() > 2 ? std::min(pool.thread_count() * kThreadBytes, kChunkBytesMax) : 0;
  late->chunk_bytes_ = std::max(chunk_bytes, for_threads);
  std::size_t staging_bytes = 0;
  for (const Linear* layer : late->waiting_) {
    const kernels::PackedWeight& weight = *layer->weight;
    const std::size_t rows = std::min(late->chunk_rows(*layer), weight.n());
    staging_bytes =
        std::max(staging_bytes, backend.packed_bytes(rows, weight.k(), staged_format(weight)));
  }
  if (staging_bytes > 0) {
    TANDEM_TRY(late->staging_,
               tensor::HostBuffer::allocate({.bytes = staging_bytes,
                                             .bytes_max = staging_bytes,
                                             .purpose = "packing weights",
                                             .huge_pages = true}));
  }
  return late;
}

std::size_t LateWeights::waiting_bytes() const {
  std::size_t bytes = 0;
  for (const Linear* layer : waiting_) {
    const kernels::PackedWeight& weight = *layer->weight;
    bytes += backend_.packed_bytes(weight.n() - layer->filled, weight.k(), weight.format());
  }
  return bytes;
}

std::size_t LateWeights::chunk_rows(const Linear& layer) const {
  constexpr std::size_t kStep = kernels::Backend::kOutputStep;
  const std::size_t step_bytes =
      backend_.packed_bytes(kStep, layer.weight->k(), staged_format(*layer.weight));
  return std::max<std::size_t>(chunk_bytes_ / std::max<std::size_t>(step_bytes, 1), 1) * kStep;
}

/// A view of its own memory.
kernels::PackedWeight LateWeights::rows_of(Linear& layer,
                                           std::size_t begin,
                                           std::size_t end) const {
  kernels::PackedWeight& weight = *layer.weight;
  const std::size_t offset =
      begin == 0 ? 0 : backend_.packed_bytes(begin, weight.k(), weight.format());
  return backend_.over(weight.mutable_data() + offset, end - begin, weight.k(), weight.format());
}

/// False when the rows do not fit the format of `to`.
bool LateWeights::pack(std::vector<kernels::MatrixView> parts, kernels::PackedWeight& to) {
  kernels::PackJob job{.to = &to, .parts = std::move(parts), .reader = source_->reader()};
  backend_.fill({&job, 1}, pool_);
  Status status = source_->take_read_status();
  if (failure_.ok()) failure_ = std::move(status);
  return !job.misfit;
}

/// For one product. False when the rows cannot be read.
bool LateWeights::pack_in_vain(std::vector<kernels::MatrixView> parts, kernels::PackedWeight& to) {
  const Time began = clock_.now();
  (void)pack(std::move(parts), to);
  in_vain_.ns += (clock_.now() - began).ns;
  return failure_.ok();
}

/// False when the rows cannot be read.
bool LateWeights::fill_next(Linear& layer) {
  if (failure_ = failpoint::hit("model.fill"); !failure_.ok()) return false;
  const std::size_t end = std::min(layer.filled + chunk_rows(layer), layer.weight->n());
  kernels::PackedWeight rows = rows_of(layer, layer.filled, end);
  const bool fits = pack(cut(layer.late, layer.filled, end), rows);
  if (!failure_.ok()) return false;
  if (!fits) return begin_again(layer);
  layer.filled = end;
  if (end == layer.weight->n()) layer.late.clear();
  return true;
}

/// A layer that does not fit its format, as plain bf16. False when there is no memory.
bool LateWeights::begin_again(Linear& layer) {
  if (!backend_.make_plain(*layer.weight)) {
    failure_ = resource_exhausted("no memory to pack weights as plain bf16");
    return false;
  }
  layer.filled = 0;
  return true;
}

void LateWeights::drop_filled() {
  while (!waiting_.empty() && waiting_.front()->late.empty())
    waiting_.pop_front();
}

Status LateWeights::fill_while_fast() {
  failure_ = {};
  if (waiting_.empty()) return {};
  // Once for the memory, then for the time; the least of some, since others may be at work.
  const Linear& first = *waiting_.front();
  const kernels::PackedWeight& weight = *first.weight;
  const std::size_t rows = std::min(chunk_rows(first), weight.n());
  Duration pack_time = nanoseconds(INT64_MAX);
  std::size_t pack_bytes = 0;
  for (int i = 0; i < kTrials; ++i) {
    kernels::PackedWeight staged =
        backend_.over(staging_.data(), rows, weight.k(), weight.format());
    pack_bytes = staged.bytes();
    const Time began = clock_.now();
    (void)pack(cut(first.late, 0, rows), staged);
    pack_time = std::min(pack_time, clock_.now() - began);
  }
  const std::size_t all = waiting_bytes();
  const Time began = clock_.now();
  while (failure_.ok() && !waiting_.empty()) {
    (void)fill_next(*waiting_.front());
    drop_filled();
    const double pieces = static_cast<double>(all - waiting_bytes()) /
                          static_cast<double>(std::max<std::size_t>(pack_bytes, 1));
    const double limit = kSlowTimes * pieces * pack_time.seconds() + kSlowBy.seconds();
    if ((clock_.now() - began).seconds() > limit) break;
  }
  return end_pass();
}

void LateWeights::begin_pass() {
  // The first token is what somebody waits for; then it is cheaper to pack for good than again and
  // again.
  fill_until_ = clock_.now();
  if (!first_pass_) fill_until_ = fill_until_ + std::max(kPassTime, in_vain_);
  first_pass_ = false;
  in_vain_ = {};
  failure_ = {};
}

void LateWeights::fill_in_time(Linear& layer) {
  while (failure_.ok() && !layer.late.empty() && clock_.now() < fill_until_)
    (void)fill_next(layer);
}

void LateWeights::linear(Linear& layer, const kernels::LinearArgs& args) {
  fill_in_time(layer);
  // Nothing that this pass computes will be looked at.
  if (!failure_.ok()) return;
  const kernels::PackedWeight& weight = *layer.weight;
  const auto multiply = [&](const kernels::PackedWeight& rows, std::size_t begin) {
    kernels::LinearArgs some = args;
    some.weight = &rows;
    if (some.bias != nullptr) some.bias += begin;
    some.y += begin;
    some.y_stride = kernels::stride_or(args.y_stride, weight.n());
    backend_.linear(some, pool_);
  };
  if (layer.late.empty()) return multiply(weight, 0);
  if (layer.filled > 0) multiply(rows_of(layer, 0, layer.filled), 0);
  for (std::size_t begin = layer.filled; begin < weight.n();) {
    const std::size_t end = std::min(begin + chunk_rows(layer), weight.n());
    kernels::PackedWeight rows =
        backend_.over(staging_.data(), end - begin, weight.k(), staged_format(weight));
    if (!pack_in_vain(cut(layer.late, begin, end), rows)) return;
    multiply(rows, begin);
    begin = end;
  }
}

void LateWeights::gated_linear(Linear& layer, const kernels::GatedLinearArgs& args) {
  fill_in_time(layer);
  if (!failure_.ok()) return;
  const kernels::PackedWeight& weight = *layer.weight;
  const std::size_t dim = weight.n() / 2;
  kernels::GatedLinearArgs some = args;
  some.y_stride = kernels::stride_or(args.y_stride, dim);
  if (layer.late.empty()) {
    some.weight = &weight;
    return backend_.gated_linear(some, pool_);
  }
  // Rows of gate go with as many of up, which are filled last: what is filled of gate waits.
  std::vector<float> bias;
  for (std::size_t begin = 0; begin < dim;) {
    const std::size_t end = std::min(begin + chunk_rows(layer) / 2, dim);
    std::vector<kernels::MatrixView> parts = cut(layer.late, begin, end);
    const std::vector<kernels::MatrixView> up = cut(layer.late, dim + begin, dim + end);
    parts.insert(parts.end(), up.begin(), up.end());
    kernels::PackedWeight rows =
        backend_.over(staging_.data(), 2 * (end - begin), weight.k(), staged_format(weight));
    if (!pack_in_vain(std::move(parts), rows)) return;
    if (args.bias != nullptr) {
      bias.assign(args.bias + begin, args.bias + end);
      bias.insert(bias.end(), args.bias + dim + begin, args.bias + dim + end);
      some.bias = bias.data();
    }
    some.weight = &rows;
    some.y = args.y + begin;
    backend_.gated_linear(some, pool_);
    begin = end;
  }
}

Status LateWeights::end_pass() {
  drop_filled();
  return std::exchange(failure_, Status());
}

Status LateWeights::fill_some() {
  failure_ = {};
  if (!waiting_.empty()) (void)fill_next(*waiting_.front());
  return end_pass();
}

}  // namespace tandem::model
