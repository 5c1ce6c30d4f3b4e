// Loading; the forward pass is in forward.cc.
#include "common/model/model.h"

#include "common/base/failpoint.h"
#include "common/model/architecture.h"
#include "common/model/kv_scales.h"

#include <fmt/format.h>

#include <utility>

namespace tandem::model {
namespace {

constexpr std::int64_t kPassTokensMax = 1 << 20;

/// Read from the system's cache in half a second or so.
constexpr std::uint64_t kLateBytesMax = std::uint64_t{4} << 30;

Status check_limit(const char* name, std::int64_t value, std::int64_t max) {
  if (value >= 1 && value <= max) return {};
  return invalid_argument(fmt::format("{}: is {}, expected 1 to {}", name, value, max));
}

Status check_limits(const PassLimits& limits) {
  TANDEM_TRY(check_limit("token_count_max", limits.token_count_max, kPassTokensMax));
  TANDEM_TRY(check_limit("logit_row_count_max", limits.logit_row_count_max, kPassTokensMax));
  TANDEM_TRY(check_limit("sequence_count_max", limits.sequence_count_max, kPassTokensMax));
  if (limits.context_length == 0) return {};
  return check_limit("context_length", limits.context_length, kPositionCountMax);
}

}  // namespace

kernels::DType resolve_dtype(DTypeChoice choice, const ModelConfig& config) {
  switch (choice) {
    case DTypeChoice::kF32:
      return kernels::DType::kF32;
    case DTypeChoice::kF16:
      return kernels::DType::kF16;
    case DTypeChoice::kBf16:
      return kernels::DType::kBf16;
    case DTypeChoice::kAuto:
      break;
  }
  return config.dtype.value_or(kernels::DType::kF32);
}

Model::~Model() = default;

Result<std::unique_ptr<Model>> Model::load(const LoadOptions& options) {
  TANDEM_CHECK(options.backend != nullptr && options.pool != nullptr, "LoadOptions");
  TANDEM_TRY(check_limits(options.limits));
  std::unique_ptr<Model> model(new Model());
  TANDEM_TRY(model->config_, read_config(options.folder, options.override_json));
  model->dtype_ = resolve_dtype(options.dtype, model->config_);
  model->kv_dtype_ = options.kv_dtype.value_or(model->dtype_);
  model->quantization_ = options.quantization;
  TANDEM_TRY(check_quantization(options.quantization, model->config_));
  model->backend_ = options.backend;
  model->pool_ = options.pool;
  model->limits_ = options.limits;
  model->context_length_ = options.limits.context_length != 0 ? options.limits.context_length
                                                              : model->config_.context_length();
  model->limits_.context_length = model->context_length_;
  TANDEM_TRY(model->workspace_, Workspace::allocate(model->config_, model->limits_));
  TANDEM_TRY(model->rope_, RopeTables::make(model->config_, model->context_length_));
  TANDEM_TRY(model->load_weights(options));
  return model;
}

Status Model::load_weights(const LoadOptions& options) {
  const Architecture* architecture = find_architecture(config_.architecture);
  TANDEM_CHECK(architecture != nullptr, "the config names a known architecture");
  PackOptions pack{.backend = backend_,
                   .pool = pool_,
                   .dtype = dtype_,
                   .quantization = quantization_,
                   .stop = options.stop};
  const std::string config_text = config_.canonical_text();
  if (options.dummy_weights) {
    DummySource source(options.dummy_seed, dtype_);
    TANDEM_TRY(weights_, load_decoder(config_, architecture->weights, source, pack));
    digest_ = weights::digest_of(fmt::format("{};dummy={}", config_text, options.dummy_seed));
    return {};
  }
  TANDEM_TRY(checkpoint_, weights::Checkpoint::open(options.folder, {.mode = options.read_mode}));
  TANDEM_TRY(check_kv_scales(*checkpoint_, kv_dtype_));
  pack.late = may_pack_late(options);
  auto source = std::make_unique<CheckpointSource>(*checkpoint_, options.stop);
  auto loaded = load_decoder(config_, architecture->weights, *source, pack);
  if (!loaded.ok()) return loaded.status().with_context(options.folder);
  weights_ = std::move(*loaded);
  unused_tensors_ = source->unused();
  TANDEM_TRY(const weights::Digest content, checkpoint_->digest());
  digest_ = weights::digest_of(fmt::format("{};{}", config_text, content.hex()));
  if (!pack.late) return release_checkpoint(options.read_mode);
  CheckpointSource& files = *source;
  TANDEM_TRY(late_, LateWeights::make(weights_, std::move(source), *backend_, *pool_));
  TANDEM_TRY(late_->fill_while_fast());
  files.forget_stop();
  checkpoint_->release_pages();
  update_late_weights();
  return {};
}

/// Somebody may ask as soon as the model is loaded, so the first pass must not take much longer
/// than a later one would: not when weights come from a disk or a network, nor when there are many.
bool Model::may_pack_late(const LoadOptions& options) const {
  return options.pack_late && options.read_mode == weights::ReadMode::kMmap &&
         checkpoint_->byte_count() <= kLateBytesMax && checkpoint_->is_cached();
}

void Model::update_late_weights() {
  unpacked_bytes_.store(late_->waiting_bytes(), std::memory_order_relaxed);
  if (!late_->done()) return;
  late_.reset();
  checkpoint_->release_files();
}

Result<bool> Model::pack_some() {
  if (late_ == nullptr) return false;
  TANDEM_TRY(failpoint::hit("model.pack_some"));
  TANDEM_TRY(late_->fill_some());
  update_late_weights();
  return late_ != nullptr;
}

/// The matrices are packed; only the embedding table may still lie in the files.
Status Model::release_checkpoint(weights::ReadMode mode) {
  if (mode == weights::ReadMode::kMmap) {
    checkpoint_->release_files();
    return {};
  }
  TANDEM_TRY(own_embedding(weights_));
  checkpoint_.reset();
  return {};
}

MemoryPlan Model::memory_plan(std::int64_t page_size) const {
  return plan_memory(config_,
                     {.backend = backend_,
                      .weight_dtype = dtype_,
                      .quantization = quantization_,
                      .kv_dtype = kv_dtype_,
                      .limits = limits_,
                      .page_size = page_size});
}

std::string Model::numerics() const {
  const std::string_view dtype = kernels::dtype_name(dtype_);
  std::string quantized;
  if (quantization_ != Quantization::kNone) {
    // Since v2 w8a8_int8 rounds inputs to bf16 first, and int4wo-128 makes bytes of them; since v3
    // the head of int4wo-128 has 4 bit.
    const kernels::WeightScheme scheme = weight_format(quantization_, dtype_).scheme;
    const char* version = scheme == kernels::WeightScheme::kInt4Group128  ? "-v3"
                          : scheme == kernels::WeightScheme::kInt8Dynamic ? "-v2"
                                                                          : "";
    quantized = fmt::format("+{}{}", quantization_name(quantization_), version);
  }
  return fmt::format(
      "{}/{}{}/{}", backend_->numerics(), dtype, quantized, kernels::dtype_name(kv_dtype_));
}

}  // namespace tandem::model
