// A backend that hands everything on to another one: for those that look at some of its calls.
#pragma once

#include "kernels/api/backend.h"

#include <cstddef>
#include <span>
#include <string_view>

namespace tandem::kernels {

/// As thread-safe as the other one.
class ForwardingBackend : public Backend {
 public:
  /// Borrows `inner`.
  explicit ForwardingBackend(const Backend& inner) : inner_(inner) {}

  [[nodiscard]] Family family() const override { return inner_.family(); }

  [[nodiscard]] std::string_view numerics() const override { return inner_.numerics(); }

  [[nodiscard]] WeightLayout layout() const override { return inner_.layout(); }

  [[nodiscard]] WeightFormat kept_format(WeightFormat wanted, std::size_t k) const override {
    return inner_.kept_format(wanted, k);
  }

  void fill(std::span<PackJob> jobs, ThreadPool& pool) const override { inner_.fill(jobs, pool); }

  [[nodiscard]] std::size_t packed_bytes(std::size_t n,
                                         std::size_t k,
                                         WeightFormat store) const override {
    return inner_.packed_bytes(n, k, store);
  }

  [[nodiscard]] std::size_t packed_rows_bytes(std::size_t rows,
                                              std::size_t k,
                                              WeightFormat weight) const override {
    return inner_.packed_rows_bytes(rows, k, weight);
  }

  [[nodiscard]] std::size_t packed_whole_rows_bytes(std::size_t rows,
                                                    std::size_t k,
                                                    WeightFormat weight) const override {
    return inner_.packed_whole_rows_bytes(rows, k, weight);
  }

  void embedding(const EmbeddingArgs& args, ThreadPool& pool) const override {
    inner_.embedding(args, pool);
  }

  void linear(const LinearArgs& args, ThreadPool& pool) const override {
    inner_.linear(args, pool);
  }

  void gated_linear(const GatedLinearArgs& args, ThreadPool& pool) const override {
    inner_.gated_linear(args, pool);
  }

  void rms_norm(const RmsNormArgs& args, ThreadPool& pool) const override {
    inner_.rms_norm(args, pool);
  }

  void head_norm(const HeadNormArgs& args, ThreadPool& pool) const override {
    inner_.head_norm(args, pool);
  }

  void rope(const RopeArgs& args, ThreadPool& pool) const override { inner_.rope(args, pool); }

  void silu_mul(const SiluMulArgs& args, ThreadPool& pool) const override {
    inner_.silu_mul(args, pool);
  }

  void route(const RouteArgs& args, ThreadPool& pool) const override { inner_.route(args, pool); }

  void expert_mlp(const ExpertMlpArgs& args, ThreadPool& pool) const override {
    inner_.expert_mlp(args, pool);
  }

  void write_kv(const WriteKvArgs& args, ThreadPool& pool) const override {
    inner_.write_kv(args, pool);
  }

  void prepare_heads(const PrepareHeadsArgs& args, ThreadPool& pool) const override {
    inner_.prepare_heads(args, pool);
  }

  void attention(const AttentionArgs& args, ThreadPool& pool) const override {
    inner_.attention(args, pool);
  }

  [[nodiscard]] LogSoftmaxStats log_softmax_stats(std::span<const float> logits) const override {
    return inner_.log_softmax_stats(logits);
  }

 protected:
  [[nodiscard]] const Backend& inner() const { return inner_; }

 private:
  const Backend& inner_;
};

}  // namespace tandem::kernels
