// Arguments of every op: plain pointers and sizes over ragged batches of tokens. A batch is T
// tokens of any number of sequences, in any order; nothing here assumes one sequence.
//
// Activations are f32, or packed as the product that comes next reads them
// (Backend::packed_rows_bytes, packed_whole_rows_bytes). "stride" counts elements from one token's
// row to the next; 0 means dense (written at the field). Unless a comment says so, inputs and
// outputs must not overlap. Preconditions are the caller's to keep: kernels check nothing that
// comes from a client. All outputs of a token depend on that token's inputs only: the same bits
// alone or in a batch, at any row, with any number of threads.
#pragma once

#include "kernels/api/weight.h"

#include <cstddef>
#include <cstdint>

namespace tandem::kernels {

/// Largest head_dim that attention and rope accept.
inline constexpr std::size_t kMaxHeadDim = 512;

/// Of head_dim, where attention's outputs go packed.
inline constexpr std::size_t kPackedHeadStep = 32;

/// Most experts in a layer that route and expert_mlp accept.
inline constexpr std::size_t kMaxExperts = 1024;

/// out[t, :] = table[ids[t], :], widened to f32.
struct EmbeddingArgs {
  MatrixView table;                   ///< [vocab, hidden]
  const std::int32_t* ids = nullptr;  ///< [tokens], each in [0, vocab)
  std::size_t tokens = 0;
  float* out = nullptr;  ///< [tokens, hidden], dense
};

/// y[t, n] = sum over k of x[t, k] * weight[n, k], + bias[n], + y[t, n] if accumulate.
/// The sum runs in the family's fixed order; then bias, then the old y are added, one rounding
/// each. Quantised weights: WeightScheme.
struct LinearArgs {
  const float* x = nullptr;  ///< [tokens, k]
  std::size_t x_stride = 0;  ///< 0: k
  /// x as Backend::packed_rows_bytes says, or packed_whole_rows_bytes; null: x
  const std::byte* x_packed = nullptr;
  bool x_whole_rows = false;  ///< which of them
  const PackedWeight* weight = nullptr;
  const float* bias = nullptr;  ///< [n] or null
  float* y = nullptr;           ///< [tokens, n]; must not overlap x
  std::size_t y_stride = 0;     ///< 0: n
  std::size_t tokens = 0;
  bool accumulate = false;  ///< for y = residual + W x
};

/// y[t, i] = silu(g[t, i]) * u[t, i] of [g | u] = x W^T + bias: linear and silu_mul in one, the
/// same bits; g and u do not go through memory.
struct GatedLinearArgs {
  const float* x = nullptr;  ///< [tokens, k]
  std::size_t x_stride = 0;  ///< 0: k
  /// x as Backend::packed_whole_rows_bytes says; null: x
  const std::byte* x_packed = nullptr;
  const PackedWeight* weight = nullptr;  ///< [2 * dim, k]: gate, then up
  const float* bias = nullptr;           ///< [2 * dim] or null
  float* y = nullptr;                    ///< [tokens, dim]; must not overlap x
  std::size_t y_stride = 0;              ///< 0: dim
  std::byte* y_packed = nullptr;         ///< where y goes packed; null: y. Only with x_packed
  std::size_t tokens = 0;
};

/// y[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) * weight. (Zhang and Sennrich 2019, RMSNorm.)
/// With `residual`: first residual[r, :] += x[r, :], then the norm of residual[r, :].
struct RmsNormArgs {
  const float* x = nullptr;       ///< [rows, dim]
  std::size_t x_stride = 0;       ///< 0: dim
  float* residual = nullptr;      ///< [rows, dim] dense, updated in place; or null
  const float* weight = nullptr;  ///< [dim]
  float* y = nullptr;             ///< [rows, dim]; may be x itself when the strides are equal
  std::size_t y_stride = 0;       ///< 0: dim
  /// Where y goes packed, as Backend::packed_whole_rows_bytes says for such weights; null: y.
  std::byte* y_packed = nullptr;
  WeightFormat y_packed_for = DType::kBf16;  ///< what y_packed was sized for
  std::size_t rows = 0;
  std::size_t dim = 0;
  float eps = 1e-6F;
};

/// RMSNorm of each head of each token, in place (Qwen3's q_norm and k_norm).
struct HeadNormArgs {
  float* x = nullptr;             ///< [tokens, heads, head_dim]; heads of a token are contiguous
  std::size_t x_stride = 0;       ///< elements from token to token; 0: heads * head_dim
  const float* weight = nullptr;  ///< [head_dim]
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t head_dim = 0;
  float eps = 1e-6F;
};

/// Rotates each head in place (Su et al. 2021; half-split pairing as in Llama):
///   a = x[i], b = x[i + r/2]:  x[i] = a cos - b sin,  x[i + r/2] = b cos + a sin,   r =
///   rotary_dim.
/// Dimensions from rotary_dim on stay as they are.
struct RopeArgs {
  float* x = nullptr;        ///< [tokens, heads, head_dim]; heads of a token are contiguous
  std::size_t x_stride = 0;  ///< 0: heads * head_dim
  const std::int32_t* positions = nullptr;  ///< [tokens], each in [0, rows of the tables)
  const float* cos = nullptr;               ///< [max_positions, rotary_dim / 2]
  const float* sin = nullptr;               ///< [max_positions, rotary_dim / 2]
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t head_dim = 0;
  std::size_t rotary_dim = 0;  ///< even, <= head_dim; 0: head_dim
};

/// out[t, i] = silu(gate[t, i]) * up[t, i], silu(g) = g / (1 + exp(-g)).
struct SiluMulArgs {
  const float* gate = nullptr;  ///< [tokens, dim]
  const float* up = nullptr;    ///< [tokens, dim]; a fused [gate|up] row: up = gate + dim
  std::size_t in_stride = 0;    ///< of both; 0: dim (2 * dim for a fused row)
  float* out = nullptr;         ///< [tokens, dim]; may be gate when the strides are equal
  std::size_t out_stride = 0;   ///< 0: dim
  std::size_t tokens = 0;
  std::size_t dim = 0;
};

/// The experts of each token (Shazeer et al. 2017; transformers' modeling_qwen3_moe.py): those with
/// the top_k largest logits, largest first, the lower id first among equals (torch.topk leaves that
/// open). weights[t, r] is the softmax over all experts of the one at rank r; with `normalize`
/// divided by the sum of the token's top_k, in order of rank. A row that holds NaN gets experts 0
/// to top_k - 1 with weights NaN.
struct RouteArgs {
  const float* logits = nullptr;  ///< [tokens, experts]
  std::size_t tokens = 0;
  std::size_t experts = 0;      ///< 1 to kMaxExperts
  std::size_t top_k = 0;        ///< 1 to experts
  bool normalize = false;       ///< norm_topk_prob
  std::int32_t* ids = nullptr;  ///< [tokens, top_k], in [0, experts)
  float* weights = nullptr;     ///< [tokens, top_k]
};

/// y[t, :] += sum over r of weights[t, r] * down[e](silu(gate[e] x[t, :]) * (up[e] x[t, :])), with
/// e = ids[t, r]. The terms are added in order of e, one rounding each for the product and the sum:
/// the order does not depend on the batch, and a weight is read once for all of its tokens. Weights
/// of experts that no token has are not touched.
struct ExpertMlpArgs {
  const float* x = nullptr;            ///< [tokens, hidden]
  std::size_t x_stride = 0;            ///< 0: hidden
  const PackedWeight* gate = nullptr;  ///< stack of experts, [inner, hidden] each
  const PackedWeight* up = nullptr;    ///< as gate
  const PackedWeight* down = nullptr;  ///< stack of experts, [hidden, inner] each
  const std::int32_t* ids = nullptr;   ///< [tokens, top_k], the ids of a token all different
  const float* weights = nullptr;      ///< [tokens, top_k]
  std::size_t tokens = 0;              ///< tokens * top_k < 2^31
  std::size_t top_k = 0;
  float* y = nullptr;        ///< [tokens, hidden]; must not overlap x
  std::size_t y_stride = 0;  ///< 0: hidden
  // Room to work in; what it holds afterwards means nothing.
  float* inner = nullptr;        ///< [tokens * top_k, 2 * inner]
  std::int32_t* rows = nullptr;  ///< [tokens * top_k]
  float* row_weights = nullptr;  ///< [tokens * top_k]
};

/// One layer of a page-major KV pool [page][layer][K|V][kv_head][slot][head_dim]. Position p of a
/// sequence is slot p % page_size of page pages[p / page_size]. Borrowed.
struct KvLayer {
  std::byte* base = nullptr;           ///< page 0
  std::size_t page_stride_bytes = 0;   ///< from one page to the next
  std::size_t layer_offset_bytes = 0;  ///< of this layer's K inside a page; V follows K directly
  std::size_t page_size = 0;           ///< slots in a page, >= 1
  std::size_t kv_heads = 0;
  std::size_t head_dim = 0;  ///< <= kMaxHeadDim
  DType dtype = DType::kF32;

  /// Bytes of this layer in one page: K and V.
  [[nodiscard]] constexpr std::size_t layer_bytes() const {
    return 2 * kv_heads * page_size * head_dim * dtype_bytes(dtype);
  }
};

/// The page table of one sequence. Borrowed.
struct SequencePages {
  const std::int32_t* pages = nullptr;  ///< [page_count]
  std::size_t page_count = 0;
};

/// Where each token of a ragged batch sits.
struct RaggedTokens {
  std::size_t tokens = 0;
  const std::int32_t* sequence = nullptr;  ///< [tokens], index into `sequences`
  const std::int32_t* position =
      nullptr;  ///< [tokens], absolute, 0-based; its page must be in the table
  const SequencePages* sequences = nullptr;  ///< [sequence_count]
  std::size_t sequence_count = 0;
};

/// Stores k and v rows at (sequence, position), rounded to the pool's dtype (nearest, ties to
/// even). Of 8 bit what is too large, also infinities, becomes the largest finite value; NaN stays.
struct WriteKvArgs {
  const float* k = nullptr;  ///< [tokens, kv_heads, head_dim]; heads of a token are contiguous
  const float* v = nullptr;  ///< as k
  std::size_t k_stride = 0;  ///< 0: kv_heads * head_dim
  std::size_t v_stride = 0;  ///< 0: kv_heads * head_dim
  RaggedTokens batch;
  KvLayer kv;
};

/// What becomes of queries, keys and values before attention, token by token: head_norm of q and k
/// where they have norms, rope of both, write_kv. The same bits as those ops, one pass over memory.
/// q and k are changed in place; what k holds afterwards means nothing.
struct PrepareHeadsArgs {
  float* q = nullptr;             ///< [tokens, heads, head_dim]; heads of a token are contiguous
  float* k = nullptr;             ///< [tokens, kv.kv_heads, head_dim], likewise
  const float* v = nullptr;       ///< as k
  std::size_t stride = 0;         ///< of all three, from token to token
  std::size_t heads = 0;          ///< of q
  const float* q_norm = nullptr;  ///< [head_dim], or null: no norm
  const float* k_norm = nullptr;  ///< likewise
  float eps = 1e-6F;
  const float* cos = nullptr;  ///< [max_positions, head_dim / 2], row by absolute position
  const float* sin = nullptr;  ///< likewise
  RaggedTokens batch;
  KvLayer kv;
};

/// Causal attention of each query over its own sequence's pages (which must already hold the token
/// itself): softmax(scale * q K^T) V over positions [max(0, p - window + 1), p]. Bits depend on q
/// and on the visible K and V in order, and on nothing else: not on page size, chunking, batch or
/// threads. Positions outside the window are never read, so their pages may be gone (table entry
/// unused).
struct AttentionArgs {
  const float* q = nullptr;    ///< [tokens, heads, head_dim]; heads of a token are contiguous
  std::size_t q_stride = 0;    ///< 0: heads * head_dim
  float* out = nullptr;        ///< [tokens, heads, head_dim]
  std::size_t out_stride = 0;  ///< 0: heads * head_dim
  /// Where out goes packed; null: out. Only for a head_dim of whole kPackedHeadStep.
  std::byte* out_packed = nullptr;
  RaggedTokens batch;
  KvLayer kv;
  std::size_t heads =
      0;  ///< a multiple of kv.kv_heads; query head h reads kv head h / (heads / kv_heads)
  float scale = 1.0F;       ///< usually 1 / sqrt(head_dim)
  std::int32_t window = 0;  ///< 0: all; w: a token sees itself and the w - 1 before it
};

/// What log-softmax needs of one row: log p[i] = logits[i] - max - log_sum.
struct LogSoftmaxStats {
  float max = 0;
  double log_sum = 0;  ///< log of sum of exp(logits[i] - max)

  [[nodiscard]] double log_prob(float logit) const {
    return static_cast<double>(logit) - static_cast<double>(max) - log_sum;
  }
};

struct TopEntry {
  std::int32_t id = 0;
  float value = 0;
};

}  // namespace tandem::kernels
