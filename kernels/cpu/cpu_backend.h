// Cuts ops into tasks for the pool and hands each task to the kernels of one instruction set.
#pragma once

#include "kernels/api/backend.h"
#include "kernels/cpu/simd/table.h"

namespace tandem::kernels {

/// See Backend. generic, avx2 and avx512 differ in speed only; weights are in
/// WeightLayout::kPanel16.
class CpuBackend : public Backend {
 public:
  /// generic, avx2 and avx512.
  static constexpr std::string_view kNumerics = "simd16-f32fma-v1";

  /// `numerics` must live as long as the program.
  CpuBackend(Family family, std::string_view numerics, const cpu::Kernels& kernels)
      : family_(family), numerics_(numerics), kernels_(kernels) {}

  [[nodiscard]] Family family() const override { return family_; }

  [[nodiscard]] std::string_view numerics() const override { return numerics_; }

  [[nodiscard]] WeightLayout layout() const override { return WeightLayout::kPanel16; }

  [[nodiscard]] WeightFormat kept_format(WeightFormat wanted, std::size_t k) const override;
  void fill(std::span<PackJob> jobs, ThreadPool& pool) const override;
  [[nodiscard]] std::size_t packed_bytes(std::size_t n,
                                         std::size_t k,
                                         WeightFormat store) const override;
  [[nodiscard]] std::size_t packed_rows_bytes(std::size_t rows,
                                              std::size_t k,
                                              WeightFormat weight) const override;
  [[nodiscard]] std::size_t packed_whole_rows_bytes(std::size_t rows,
                                                    std::size_t k,
                                                    WeightFormat weight) const override;
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
  void prepare_heads(const PrepareHeadsArgs& args, ThreadPool& pool) const override;
  void attention(const AttentionArgs& args, ThreadPool& pool) const override;
  [[nodiscard]] LogSoftmaxStats log_softmax_stats(std::span<const float> logits) const override;

 private:
  void gated_columns(const GatedLinearArgs& args,
                     cpu::LinearBlock block,
                     std::size_t row,
                     std::size_t column,
                     std::size_t count) const;

  Family family_;
  std::string_view numerics_;
  cpu::Kernels kernels_;
};

}  // namespace tandem::kernels
