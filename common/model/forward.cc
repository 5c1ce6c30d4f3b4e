// The forward pass: checks, then blocks over a ragged batch.
#include "common/base/failpoint.h"
#include "common/base/load_ahead.h"
#include "common/base/near_code.h"
#include "common/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tandem::model {
namespace {

kernels::RaggedTokens ragged(const ForwardBatch& batch) {
  return {.tokens = batch.token_ids.size(),
          .sequence = batch.sequence.data(),
          .position = batch.positions.data(),
          .sequences = batch.sequences.data(),
          .sequence_count = batch.sequences.size()};
}

Status out_of_range(const char* what, std::size_t row, std::int64_t value, std::int64_t end) {
  return invalid_argument(
      fmt::format("forward: {} of row {} is {}, expected 0 to {}", what, row, value, end - 1));
}

bool outside(std::int64_t value, std::int64_t end) {
  return value < 0 || value >= end;
}

/// Each row is the one after the row before it.
bool consecutive(std::span<const std::int32_t> rows) {
  return std::ranges::adjacent_find(
             rows, [](std::int32_t a, std::int32_t b) { return b != a + 1; }) == rows.end();
}

/// Whether the pass leaves only the rows that logits are wanted of, which can move to the front one
/// by one.
bool leaves_wanted_rows(const ForwardBatch& batch) {
  if (batch.keep_rows || batch.hidden_states != nullptr) return false;
  return std::ranges::adjacent_find(batch.logit_rows, std::ranges::greater_equal()) ==
         batch.logit_rows.end();
}

/// Rows, more or less, that go through a dense MLP together: what one product leaves for the next
/// is still in caches then, which is worth more than reading the weights again. The same for norm,
/// QKV and attention gained nothing.
constexpr std::size_t kMlpRows = 512;

/// What the frames of a pass take without those of ops, and more (a kilobyte). An op's may take
/// 14 KiB, and nobody looks at them again.
constexpr std::size_t kFramesBytes = 2048;

/// The pool outlives the model, and a pass may end in an exception.
class KeepNear {
 public:
  KeepNear(kernels::ThreadPool* pool, void (*ask)(const void*), const void* context) : pool_(pool) {
    pool_->keep_near(ask, context);
  }

  KeepNear(const KeepNear&) = delete;
  KeepNear& operator=(const KeepNear&) = delete;

  ~KeepNear() { pool_->keep_near(nullptr, nullptr); }

 private:
  kernels::ThreadPool* pool_;
};

void load_weight_ahead(const std::unique_ptr<kernels::PackedWeight>& weight) {
  if (weight != nullptr) load_ahead(*weight);
}

/// What says where a layer's weights lie, not they themselves.
void load_layer_ahead(const LayerWeights& layer) {
  load_ahead(layer);
  for (const Linear* part : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
    load_weight_ahead(part->weight);
  const ExpertWeights& experts = layer.experts;
  for (const auto* part : {&experts.router, &experts.gate, &experts.up, &experts.down})
    load_weight_ahead(*part);
}

/// Packed rows lie in what they would take as f32, if that is as long at least; else null.
std::byte* packed_within(FloatBuffer& rows, std::size_t floats, std::size_t packed_bytes) {
  if (packed_bytes == 0 || packed_bytes > floats * sizeof(float)) return nullptr;
  return reinterpret_cast<std::byte*>(rows.data());
}

}  // namespace

Status Model::check_rows(std::span<const std::int32_t> rows, std::size_t token_count) const {
  if (rows.size() > static_cast<std::size_t>(limits_.logit_row_count_max)) {
    return invalid_argument(fmt::format("forward: logits of {} rows are wanted, the limit is {}",
                                        rows.size(),
                                        limits_.logit_row_count_max));
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (outside(rows[i], static_cast<std::int64_t>(token_count))) {
      return out_of_range("logit row", i, rows[i], static_cast<std::int64_t>(token_count));
    }
  }
  return {};
}

Status Model::check_batch(const ForwardBatch& batch) const {
  const std::size_t tokens = batch.token_ids.size();
  if (tokens > static_cast<std::size_t>(limits_.token_count_max) ||
      batch.sequences.size() > static_cast<std::size_t>(limits_.sequence_count_max)) {
    return invalid_argument(
        fmt::format("forward: {} tokens of {} sequences, the limits are {} and {}",
                    tokens,
                    batch.sequences.size(),
                    limits_.token_count_max,
                    limits_.sequence_count_max));
  }
  if (batch.positions.size() != tokens || batch.sequence.size() != tokens ||
      batch.kv.page_size == 0) {
    return invalid_argument(
        fmt::format("forward: {} token ids, {} positions, {} sequence indices, pages of {} tokens",
                    tokens,
                    batch.positions.size(),
                    batch.sequence.size(),
                    batch.kv.page_size));
  }
  const auto sequence_count = static_cast<std::int64_t>(batch.sequences.size());
  for (std::size_t row = 0; row < tokens; ++row) {
    if (outside(batch.token_ids[row], config_.vocab_size)) {
      return out_of_range("token id", row, batch.token_ids[row], config_.vocab_size);
    }
    if (outside(batch.positions[row], context_length_)) {
      return out_of_range("position", row, batch.positions[row], context_length_);
    }
    if (outside(batch.sequence[row], sequence_count)) {
      return out_of_range("sequence", row, batch.sequence[row], sequence_count);
    }
    // The page that this row is written to; those it reads were written by rows checked like it.
    const SequencePages& pages = batch.sequences[static_cast<std::size_t>(batch.sequence[row])];
    const std::size_t index = static_cast<std::size_t>(batch.positions[row]) / batch.kv.page_size;
    if (index >= pages.page_count) {
      return out_of_range("page index",
                          row,
                          static_cast<std::int64_t>(index),
                          static_cast<std::int64_t>(pages.page_count));
    }
    if (outside(pages.pages[index], static_cast<std::int64_t>(batch.kv.page_count))) {
      return out_of_range(
          "page", row, pages.pages[index], static_cast<std::int64_t>(batch.kv.page_count));
    }
  }
  return check_rows(batch.logit_rows, tokens);
}

Status Model::forward(const ForwardBatch& batch, ForwardOutput& output) {
  TANDEM_TRY(failpoint::hit("model.forward"));
  kept_rows_.reset();
  TANDEM_TRY(check_batch(batch));
  rope_.reach(batch.positions, *pool_);
  frame_ = static_cast<const std::byte*>(__builtin_frame_address(0));
  layer_ = 0;
  const KeepNear near(pool_, ask_for_near, this);
  backend_->embedding({.table = weights_.embedding,
                       .ids = batch.token_ids.data(),
                       .tokens = batch.token_ids.size(),
                       .out = workspace_.hidden.data()},
                      *pool_);
  const bool narrow = leaves_wanted_rows(batch);
  TANDEM_TRY(with_late_weights([&] {
    run_layers(batch, narrow);
    const float* rows = narrow ? workspace_.hidden.data() : together(batch.logit_rows);
    run_head(rows, batch.logit_rows.size(), output);
  }));
  if (batch.keep_rows) kept_rows_ = batch.token_ids.size();
  return {};
}

Status Model::logits(std::span<const std::int32_t> rows, ForwardOutput& output) {
  if (!kept_rows_) {
    return failed_precondition(
        "logits: no pass came before, or it failed, or was not asked to keep its rows (keep_rows)");
  }
  TANDEM_TRY(check_rows(rows, *kept_rows_));
  return with_late_weights([&] { run_head(together(rows), rows.size(), output); });
}

/// What is looked at between this op and the next ones.
void Model::ask_for_near(const void* model) {
  const Model& self = *static_cast<const Model*>(model);
  load_code_between_ops_ahead();
  load_virtual_functions_ahead(*self.backend_);
  // The pass's own frames, behind those of the op and the pool: calls return through them, and
  // arguments of the next op will lie there.
  const auto* here = static_cast<const std::byte*>(__builtin_frame_address(0));
  const std::size_t bytes = std::min(static_cast<std::size_t>(self.frame_ - here), kFramesBytes);
  load_ahead_bytes(self.frame_ - bytes, bytes);
  load_ahead(self.config_.window[self.layer_]);
  load_ahead(self);
  const std::vector<LayerWeights>& layers = self.weights_.layers;
  load_layer_ahead(layers[self.layer_]);
  if (self.layer_ + 1 < layers.size()) {
    load_layer_ahead(layers[self.layer_ + 1]);
  } else {
    load_weight_ahead(self.weights_.lm_head.weight);
  }
}

template <class Pass>
Status Model::with_late_weights(Pass pass) {
  if (late_ == nullptr) {
    pass();
    return {};
  }
  late_->begin_pass();
  pass();
  TANDEM_TRY(late_->end_pass());
  update_late_weights();
  return {};
}

TANDEM_BETWEEN_OPS void Model::linear(Linear& layer, kernels::LinearArgs args) {
  args.bias = layer.bias.empty() ? nullptr : layer.bias.data();
  if (!layer.late.empty()) return late_->linear(layer, args);
  args.weight = layer.weight.get();
  backend_->linear(args, *pool_);
}

TANDEM_BETWEEN_OPS void Model::gated_linear(Linear& layer, kernels::GatedLinearArgs args) {
  args.bias = layer.bias.empty() ? nullptr : layer.bias.data();
  if (!layer.late.empty()) return late_->gated_linear(layer, args);
  args.weight = layer.weight.get();
  backend_->gated_linear(args, *pool_);
}

TANDEM_BETWEEN_OPS std::size_t Model::bytes_of_packed_rows(PackedSize& last,
                                                           std::size_t tokens,
                                                           std::size_t k,
                                                           kernels::WeightFormat weight) const {
  if (last.tokens != tokens || last.k != k || last.weight != weight) {
    last.tokens = tokens;
    last.k = k;
    last.weight = weight;
    last.bytes = last.whole_rows ? backend_->packed_whole_rows_bytes(tokens, k, weight)
                                 : backend_->packed_rows_bytes(tokens, k, weight);
  }
  return last.bytes;
}

/// Where the op before a product writes its rows packed. Null: they stay f32. Products with late
/// weights take them as they come.
TANDEM_BETWEEN_OPS std::byte* Model::packed_rows(const Linear& layer,
                                                 std::size_t tokens,
                                                 FloatBuffer& rows,
                                                 PackedSize& last) const {
  if (!layer.late.empty()) return nullptr;
  const kernels::PackedWeight& weight = *layer.weight;
  return packed_within(
      rows, tokens * weight.k(), bytes_of_packed_rows(last, tokens, weight.k(), weight.format()));
}

/// normed = norm(x). Returns where it lies packed for the product `next`; null: it is f32, as
/// always without `next`.
TANDEM_BETWEEN_OPS std::byte* Model::norm_rows(const float* x,
                                               const float* weight,
                                               const Linear* next,
                                               std::size_t tokens) {
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  std::byte* packed = nullptr;
  kernels::WeightFormat format = kernels::DType::kBf16;
  if (next != nullptr && next->late.empty()) {
    format = next->weight->format();
    packed = packed_within(workspace_.normed,
                           tokens * hidden,
                           bytes_of_packed_rows(normed_size_, tokens, hidden, format));
  }
  backend_->rms_norm({.x = x,
                      .weight = weight,
                      .y = workspace_.normed.data(),
                      .y_packed = packed,
                      .y_packed_for = format,
                      .rows = tokens,
                      .dim = hidden,
                      .eps = static_cast<float>(config_.rms_norm_eps)},
                     *pool_);
  return packed;
}

/// narrow: see leaves_wanted_rows().
TANDEM_BETWEEN_OPS void Model::run_layers(const ForwardBatch& batch, bool narrow) {
  capture(batch, 0);
  const std::size_t layer_count = weights_.layers.size();
  kernels::RaggedTokens tokens = ragged(batch);
  const KvLayout layout = kv_layout(static_cast<std::int64_t>(batch.kv.page_size));
  for (std::size_t layer = 0; layer < layer_count; ++layer) {
    layer_ = layer;
    const kernels::KvLayer kv = layout.layer(batch.kv.base, layer);
    prepare_attention(batch, kv, layer);
    // What others leave in the last layer nobody reads.
    if (narrow && layer + 1 == layer_count) tokens = wanted_tokens(batch);
    if (tokens.tokens > 0) {
      attention(tokens, kv, layer);
      mlp_block(layer, tokens.tokens);
    }
    // Nobody else writes it. An atomic addition would wait for the stores of the last op's outputs.
    progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    capture(batch, layer + 1);
  }
}

/// Floats from the queries, keys and values of one token to the next.
TANDEM_BETWEEN_OPS std::size_t Model::qkv_stride() const {
  return static_cast<std::size_t>(config_.query_size() + 2 * config_.kv_size());
}

/// Those that logits are wanted of: their queries and hidden states move to the front.
TANDEM_BETWEEN_OPS kernels::RaggedTokens Model::wanted_tokens(const ForwardBatch& batch) {
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const auto query = static_cast<std::size_t>(config_.query_size());
  const auto move =
      [](float* rows, std::size_t stride, std::size_t to, std::size_t from, std::size_t count) {
        if (to != from)
          std::memcpy(rows + to * stride, rows + from * stride, count * sizeof(float));
      };
  for (std::size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const auto row = static_cast<std::size_t>(batch.logit_rows[i]);
    move(workspace_.qkv.data(), qkv_stride(), i, row, query);
    move(workspace_.hidden.data(), hidden, i, row, hidden);
    workspace_.row_positions[i] = batch.positions[row];
    workspace_.row_sequences[i] = batch.sequence[row];
  }
  kernels::RaggedTokens tokens = ragged(batch);
  tokens.tokens = batch.logit_rows.size();
  tokens.position = workspace_.row_positions.data();
  tokens.sequence = workspace_.row_sequences.data();
  return tokens;
}

/// Queries, and keys and values in their pages: rope(norm(qkv(norm(hidden))))
TANDEM_BETWEEN_OPS void Model::prepare_attention(const ForwardBatch& batch,
                                                 const kernels::KvLayer& kv,
                                                 std::size_t layer) {
  LayerWeights& weights = weights_.layers[layer];
  const std::size_t tokens = batch.token_ids.size();
  float* query = workspace_.qkv.data();
  float* key = query + config_.query_size();
  const std::byte* normed =
      norm_rows(workspace_.hidden.data(), weights.input_norm.data(), &weights.qkv, tokens);
  linear(weights.qkv,
         {.x = workspace_.normed.data(),
          .x_packed = normed,
          .x_whole_rows = true,
          .y = query,
          .tokens = tokens});

  // Written before it is read, also within this batch: a token sees its chunk's K and V through
  // the pages, rounded to their dtype, exactly as a later chunk will.
  backend_->prepare_heads(
      {.q = query,
       .k = key,
       .v = key + config_.kv_size(),
       .stride = qkv_stride(),
       .heads = static_cast<std::size_t>(config_.head_count),
       .q_norm = weights.query_norm.empty() ? nullptr : weights.query_norm.data(),
       .k_norm = weights.key_norm.empty() ? nullptr : weights.key_norm.data(),
       .eps = static_cast<float>(config_.rms_norm_eps),
       .cos = rope_.cos(),
       .sin = rope_.sin(),
       .batch = ragged(batch),
       .kv = kv},
      *pool_);
  if (batch.observer != nullptr) batch.observer->on_layer_done(static_cast<std::int64_t>(layer));
}

/// hidden += output(attention(queries))
TANDEM_BETWEEN_OPS void Model::attention(const kernels::RaggedTokens& batch,
                                         const kernels::KvLayer& kv,
                                         std::size_t layer) {
  LayerWeights& weights = weights_.layers[layer];
  const auto head_dim = static_cast<std::size_t>(config_.head_dim);
  std::byte* mixed =
      head_dim % kernels::kPackedHeadStep == 0
          ? packed_rows(weights.output, batch.tokens, workspace_.attention, mixed_size_)
          : nullptr;
  backend_->attention({.q = workspace_.qkv.data(),
                       .q_stride = qkv_stride(),
                       .out = workspace_.attention.data(),
                       .out_packed = mixed,
                       .batch = batch,
                       .kv = kv,
                       .heads = static_cast<std::size_t>(config_.head_count),
                       .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
                       .window = config_.window[layer]},
                      *pool_);
  linear(weights.output,
         {.x = workspace_.attention.data(),
          .x_packed = mixed,
          .y = workspace_.hidden.data(),
          .tokens = batch.tokens,
          .accumulate = true});
}

/// hidden += MLP(norm(hidden)), dense or of experts
TANDEM_BETWEEN_OPS void Model::mlp_block(std::size_t layer, std::size_t token_count) {
  LayerWeights& weights = weights_.layers[layer];
  float* hidden = workspace_.hidden.data();
  if (weights.experts.router != nullptr) {
    norm_rows(hidden, weights.post_attention_norm.data(), nullptr, token_count);
    experts(weights.experts, token_count);
    return;
  }
  // Weights that are packed for each product, for all rows at once.
  const bool late = !weights.gate_up.late.empty() || !weights.down.late.empty();
  const std::size_t slices =
      late ? 1 : std::max<std::size_t>((token_count + kMlpRows / 2) / kMlpRows, 1);
  // Even ones, of whole blocks of products.
  constexpr std::size_t kStep = 32;
  const std::size_t even = (token_count + slices - 1) / slices;
  const std::size_t rows = slices == 1 ? token_count : (even + kStep - 1) / kStep * kStep;
  for (std::size_t begin = 0; begin < token_count; begin += rows) {
    dense_mlp(weights,
              hidden + begin * static_cast<std::size_t>(config_.hidden_size),
              std::min(rows, token_count - begin));
  }
}

/// rows += down(silu(gate) * up) of norm(rows)
TANDEM_BETWEEN_OPS void Model::dense_mlp(LayerWeights& weights,
                                         float* rows,
                                         std::size_t row_count) {
  const std::byte* normed =
      norm_rows(rows, weights.post_attention_norm.data(), &weights.gate_up, row_count);
  float* inner = workspace_.inner.data();
  std::byte* packed = normed == nullptr
                          ? nullptr
                          : packed_rows(weights.down, row_count, workspace_.inner, inner_size_);
  gated_linear(weights.gate_up,
               {.x = workspace_.normed.data(),
                .x_packed = normed,
                .y = inner,
                .y_packed = packed,
                .tokens = row_count});
  linear(weights.down,
         {.x = inner, .x_packed = packed, .y = rows, .tokens = row_count, .accumulate = true});
}

/// hidden += the sum over the chosen experts of weight * down(silu(gate) * up)
TANDEM_BETWEEN_OPS void Model::experts(const ExpertWeights& weights, std::size_t token_count) {
  const auto count = static_cast<std::size_t>(config_.experts.count);
  const auto top_k = static_cast<std::size_t>(config_.experts.per_token);
  const std::size_t rows = token_count * top_k;
  // The parts of the workspace for routing, each as long as this batch needs.
  float* logits = workspace_.routing.data();
  float* chosen_weights = logits + token_count * count;
  float* row_weights = chosen_weights + rows;
  auto* ids = reinterpret_cast<std::int32_t*>(row_weights + rows);
  backend_->linear({.x = workspace_.normed.data(),
                    .weight = weights.router.get(),
                    .bias = nullptr,
                    .y = logits,
                    .tokens = token_count},
                   *pool_);
  backend_->route({.logits = logits,
                   .tokens = token_count,
                   .experts = count,
                   .top_k = top_k,
                   .normalize = config_.experts.normalize,
                   .ids = ids,
                   .weights = chosen_weights},
                  *pool_);
  backend_->expert_mlp({.x = workspace_.normed.data(),
                        .gate = weights.gate.get(),
                        .up = weights.up.get(),
                        .down = weights.down.get(),
                        .ids = ids,
                        .weights = chosen_weights,
                        .tokens = token_count,
                        .top_k = top_k,
                        .y = workspace_.hidden.data(),
                        .inner = workspace_.inner.data(),
                        .rows = ids + rows,
                        .row_weights = row_weights},
                       *pool_);
}

/// Where these rows of the residual stream lie one after the other.
TANDEM_BETWEEN_OPS const float* Model::together(std::span<const std::int32_t> rows) const {
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const float* x = workspace_.hidden.data();
  if (consecutive(rows))
    return rows.empty() ? x : x + static_cast<std::size_t>(rows.front()) * hidden;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const float* from = x + static_cast<std::size_t>(rows[i]) * hidden;
    std::memcpy(workspace_.rows.data() + i * hidden, from, hidden * sizeof(float));
  }
  return workspace_.rows.data();
}

/// Of rows one after the other.
TANDEM_BETWEEN_OPS void Model::run_head(const float* x, std::size_t rows, ForwardOutput& output) {
  if (rows > 0) {
    backend_->rms_norm({.x = x,
                        .weight = weights_.final_norm.data(),
                        .y = workspace_.rows_normed.data(),
                        .rows = rows,
                        .dim = static_cast<std::size_t>(config_.hidden_size),
                        .eps = static_cast<float>(config_.rms_norm_eps)},
                       *pool_);
    linear(weights_.lm_head,
           {.x = workspace_.rows_normed.data(), .y = workspace_.logits.data(), .tokens = rows});
  }
  output = {.logits = workspace_.logits.data(),
            .rows = rows,
            .vocab_size = static_cast<std::size_t>(config_.vocab_size)};
}

/// Copies the residual stream out for tests; the last entry goes through the final norm.
TANDEM_BETWEEN_OPS void Model::capture(const ForwardBatch& batch, std::size_t index) {
  if (batch.hidden_states == nullptr) return;
  const auto hidden = static_cast<std::size_t>(config_.hidden_size);
  const std::size_t tokens = batch.token_ids.size();
  float* out = batch.hidden_states + index * tokens * hidden;
  if (index < weights_.layers.size()) {
    std::memcpy(out, workspace_.hidden.data(), tokens * hidden * sizeof(float));
    return;
  }
  backend_->rms_norm({.x = workspace_.hidden.data(),
                      .weight = weights_.final_norm.data(),
                      .y = out,
                      .rows = tokens,
                      .dim = hidden,
                      .eps = static_cast<float>(config_.rms_norm_eps)},
                     *pool_);
}

}  // namespace tandem::model
