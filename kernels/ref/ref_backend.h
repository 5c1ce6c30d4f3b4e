// The oracle: every op as its formula reads, one output at a time, sums in double, one rounding at
// the end.
#pragma once

#include "kernels/api/backend.h"

namespace tandem::kernels {

/// See Backend. Weights stay row-major. Any machine can run it.
class ReferenceBackend final : public Backend {
 public:
  [[nodiscard]] Family family() const override { return Family::kReference; }

  [[nodiscard]] std::string_view numerics() const override { return "reference-f64acc-v1"; }

  [[nodiscard]] WeightLayout layout() const override { return WeightLayout::kRowMajor; }

  void fill(std::span<PackJob> jobs, ThreadPool& pool) const override;
  [[nodiscard]] std::size_t packed_bytes(std::size_t n,
                                         std::size_t k,
                                         WeightFormat store) const override;
  void embedding(const EmbeddingArgs& args, ThreadPool& pool) const override;
  void linear(const LinearArgs& args, ThreadPool& pool) const override;
  void gated_linear(const GatedLinearArgs& args, ThreadPool& pool) const override;
  void rms_norm(const RmsNormArgs& args, ThreadPool& pool) const override;
  void head_norm(const HeadNormArgs& args, ThreadPool& pool) const override;
  void rope(const RopeArgs& args, ThreadPool& pool) const override;
  void silu_mul(const SiluMulArgs& args, ThreadPool& pool) const override;
  void route(const RouteArgs& args, ThreadPool& pool) const override;
  void expert_mlp(const ExpertMlpArgs& args, ThreadPool& pool) const override;
  void write_kv(const WriteKvArgs& args, ThreadPool& pool) const override;
  void attention(const AttentionArgs& args, ThreadPool& pool) const override;
  [[nodiscard]] LogSoftmaxStats log_softmax_stats(std::span<const float> logits) const override;
};

}  // namespace tandem::kernels
