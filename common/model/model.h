// A decoder that is loaded and ready: ragged batches in, logits out.
#pragma once

#include "common/base/status.h"
#include "common/model/config.h"
#include "common/model/decoder_weights.h"
#include "common/model/forward_batch.h"
#include "common/model/kv_layout.h"
#include "common/model/late_weights.h"
#include "common/model/memory_plan.h"
#include "common/model/quantization.h"
#include "common/model/workspace.h"
#include "common/weights/checkpoint.h"
#include "kernels/api/backend.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::model {

/// --dtype. Weights and, unless LoadOptions says otherwise, KV are kept in it; activations are f32
/// in all of them, rounded only where a kernel family needs it (AMX rounds the inputs of matrix
/// products to bf16).
enum class DTypeChoice : std::uint8_t {
  kAuto,  ///< What config.json says; f32 when it says nothing, as transformers does.
  kF32,
  kF16,
  kBf16,
};

kernels::DType resolve_dtype(DTypeChoice choice, const ModelConfig& config);

struct LoadOptions {
  std::string folder;
  DTypeChoice dtype = DTypeChoice::kAuto;
  std::optional<kernels::DType> kv_dtype = {};  ///< Of keys and values; unset: as `dtype`.
  Quantization quantization = Quantization::kNone;
  std::string override_json;                  ///< --json-model-override-args; empty: none.
  const kernels::Backend* backend = nullptr;  ///< Borrowed; must outlive the model.
  kernels::ThreadPool* pool = nullptr;        ///< Borrowed; for load(), forward(), pool().
  PassLimits limits;
  weights::ReadMode read_mode = weights::ReadMode::kMmap;
  bool dummy_weights = false;  ///< --load-format dummy: only config.json is read.
  std::uint64_t dummy_seed = 0;
  /// Weights that need no conversion, in files which lie in the system's cache and are not large,
  /// may be packed after load(), by the first passes and by pack_some(), where memory is slow. What
  /// is read cannot change meanwhile unless somebody writes into the files.
  bool pack_late = false;
  /// Borrowed until load() returns; null: never. Once another thread makes it true, loading ends
  /// soon with kCancelled: nothing more is read.
  const std::atomic<bool>* stop = nullptr;
};

/// Owned and driven by the engine thread; only progress() may be called from others.
class Model {
 public:
  /// Reads config and weights. Errors name file, field or tensor, what was found and what was
  /// expected.
  static Result<std::unique_ptr<Model>> load(const LoadOptions& options);

  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model();

  [[nodiscard]] const ModelConfig& config() const { return config_; }

  /// Of weights that are not quantised.
  [[nodiscard]] kernels::DType dtype() const { return dtype_; }

  /// Of keys and values in pages.
  [[nodiscard]] kernels::DType kv_dtype() const { return kv_dtype_; }

  [[nodiscard]] Quantization quantization() const { return quantization_; }

  /// Positions that forward() accepts.
  [[nodiscard]] std::int64_t context_length() const { return context_length_; }

  [[nodiscard]] const PassLimits& limits() const { return limits_; }

  /// LoadOptions::pool: for the thread that calls forward(), between its calls.
  [[nodiscard]] kernels::ThreadPool& pool() const { return *pool_; }

  [[nodiscard]] KvLayout kv_layout(std::int64_t page_size) const {
    return make_kv_layout(config_, kv_dtype_, page_size);
  }

  [[nodiscard]] MemoryPlan memory_plan(std::int64_t page_size) const;

  /// Runs all layers over the batch: writes its K and V into the pages and leaves the logits of
  /// `logit_rows` in `output`. The bits of a row depend on its sequence's tokens alone: not on
  /// batch, chunking, page size or threads. Allocates nothing, once all weights are packed
  /// (LoadOptions::pack_late); until then it fails with kDataLoss when files cannot be read.
  ///
  /// A batch beyond the limits, or with a token, position, sequence, page or row out of range, is
  /// refused before anything is written.
  Status forward(const ForwardBatch& batch, ForwardOutput& output);

  /// For tests: more rows of the last forward(), slice by slice, without room for the logits of a
  /// whole chunk. At most limits().logit_row_count_max rows. Refused unless it succeeded with
  /// keep_rows.
  Status logits(std::span<const std::int32_t> rows, ForwardOutput& output);

  /// Packs some megabytes of what LoadOptions::pack_late left; true: there is more. kDataLoss names
  /// the file that cannot be read; passes will try again.
  Result<bool> pack_some();

  /// Packed size of the weights that LoadOptions::pack_late left and nothing has packed yet. Any
  /// thread.
  [[nodiscard]] std::size_t unpacked_bytes() const {
    return unpacked_bytes_.load(std::memory_order_relaxed);
  }

  /// Rises with every layer done: liveness. Any thread.
  [[nodiscard]] std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }

  /// Config and weights; two models with the same digest are the same model (see
  /// Checkpoint::digest for what is sampled). Touches a few pages of each tensor.
  [[nodiscard]] const weights::Digest& digest() const { return digest_; }

  /// Order of sums, weight dtype (and quantisation) and KV dtype, e.g. "simd16-f32fma-v1/bf16/bf16"
  /// or "simd16-f32fma-v1/bf16+int8wo/bf16". Processes with the same digest and the same string
  /// compute the same bits.
  [[nodiscard]] std::string numerics() const;

  /// Tensors of the checkpoint that this architecture has no use for.
  [[nodiscard]] const std::vector<std::string>& unused_tensors() const { return unused_tensors_; }

 private:
  /// What the backend said last of rows of one kind. Layer after layer asks the same, and what the
  /// backend looks at for an answer the weights have pushed out of the caches by then.
  struct PackedSize {
    bool whole_rows = false;
    std::size_t tokens = 0;
    std::size_t k = 0;
    kernels::WeightFormat weight = kernels::DType::kF32;
    std::size_t bytes = 0;
  };

  Model() = default;
  Status load_weights(const LoadOptions& options);
  Status release_checkpoint(weights::ReadMode mode);
  [[nodiscard]] bool may_pack_late(const LoadOptions& options) const;
  /// Runs a pass of products with weights that may be late.
  template <class Pass>
  Status with_late_weights(Pass pass);
  void update_late_weights();
  void linear(Linear& layer, kernels::LinearArgs args);
  void gated_linear(Linear& layer, kernels::GatedLinearArgs args);
  [[nodiscard]] Status check_batch(const ForwardBatch& batch) const;
  [[nodiscard]] Status check_rows(std::span<const std::int32_t> rows,
                                  std::size_t token_count) const;
  static void ask_for_near(const void* model);
  void run_layers(const ForwardBatch& batch, bool narrow);
  [[nodiscard]] std::size_t qkv_stride() const;
  kernels::RaggedTokens wanted_tokens(const ForwardBatch& batch);
  void prepare_attention(const ForwardBatch& batch, const kernels::KvLayer& kv, std::size_t layer);
  void attention(const kernels::RaggedTokens& batch, const kernels::KvLayer& kv, std::size_t layer);
  void mlp_block(std::size_t layer, std::size_t token_count);
  std::size_t bytes_of_packed_rows(PackedSize& last,
                                   std::size_t tokens,
                                   std::size_t k,
                                   kernels::WeightFormat weight) const;
  std::byte* packed_rows(const Linear& layer,
                         std::size_t tokens,
                         FloatBuffer& rows,
                         PackedSize& last) const;
  std::byte* norm_rows(const float* x, const float* weight, const Linear* next, std::size_t tokens);
  void dense_mlp(LayerWeights& weights, float* rows, std::size_t row_count);
  void experts(const ExpertWeights& weights, std::size_t token_count);
  [[nodiscard]] const float* together(std::span<const std::int32_t> rows) const;
  void run_head(const float* x, std::size_t rows, ForwardOutput& output);
  void capture(const ForwardBatch& batch, std::size_t index);

  ModelConfig config_;
  kernels::DType dtype_ = kernels::DType::kF32;
  kernels::DType kv_dtype_ = kernels::DType::kF32;
  Quantization quantization_ = Quantization::kNone;
  const kernels::Backend* backend_ = nullptr;
  kernels::ThreadPool* pool_ = nullptr;
  PassLimits limits_;
  std::int64_t context_length_ = 0;
  /// Holds the mapping that the embedding table lies in.
  std::optional<weights::Checkpoint> checkpoint_;
  DecoderWeights weights_;
  std::unique_ptr<LateWeights> late_;  ///< Null once all weights are packed.
  RopeTables rope_;
  Workspace workspace_;
  weights::Digest digest_;
  std::vector<std::string> unused_tensors_;
  PackedSize normed_size_{.whole_rows = true};
  PackedSize mixed_size_;
  PackedSize inner_size_;
  std::size_t layer_ = 0;                 ///< that forward() is at
  const std::byte* frame_ = nullptr;      ///< of the stack, forward()'s own
  std::optional<std::size_t> kept_rows_;  ///< for logits()
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<std::size_t> unpacked_bytes_{0};
};

}  // namespace tandem::model
