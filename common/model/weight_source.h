// Where a decoder's weights come from: a checkpoint, or random numbers (--load-format dummy).
#pragma once

#include "common/base/status.h"
#include "common/weights/checkpoint.h"
#include "kernels/api/backend.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::model {

struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

/// A matrix and, where nobody else keeps its bytes, the bytes.
struct SourceMatrix {
  kernels::MatrixView view;
  std::vector<std::byte> storage;
};

/// Element `index` of packed values of that type, widened; `data` may be unaligned.
float widened(const std::byte* data, kernels::DType dtype, std::size_t index);

/// Answers by tensor name, with the shape that the caller needs. One thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Valid while the source and the returned storage live. Errors name the tensor, what was found
  /// and what was expected.
  virtual Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) = 0;
  /// Widened to f32.
  virtual Result<std::vector<float>> vector(std::string_view name, std::int64_t size) = 0;

  /// What the elements of matrices are to be read with, until whole matrices have been: null where
  /// they lie in memory. Lives as long as the source.
  virtual kernels::ElementReader* reader() { return nullptr; }

  /// Whether reader() could read all that it was asked for since the last call.
  [[nodiscard]] virtual Status take_read_status() { return {}; }
};

/// Borrows the checkpoint, and remembers which tensors were asked for.
class CheckpointSource final : public WeightSource, private kernels::ElementReader {
 public:
  /// Once `stop` (borrowed; null: never) is true, nothing more is read:
  /// take_read_status() says kCancelled.
  explicit CheckpointSource(const weights::Checkpoint& checkpoint,
                            const std::atomic<bool>* stop = nullptr)
      : checkpoint_(checkpoint), stop_(stop) {}

  /// For what is read after whoever owns `stop` is gone.
  void forget_stop() { stop_ = nullptr; }

  Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) override;
  Result<std::vector<float>> vector(std::string_view name, std::int64_t size) override;

  kernels::ElementReader* reader() override { return this; }

  [[nodiscard]] Status take_read_status() override;

  /// Tensors of the checkpoint that nobody asked for, in order of name.
  [[nodiscard]] std::vector<std::string> unused() const;

 private:
  Result<weights::StoredTensor> checked(std::string_view name,
                                        const std::vector<std::int64_t>& shape);

  void read(const std::byte* from, std::size_t bytes, std::byte* to) override;

  Status read_now(std::span<std::byte> to, const std::byte* from) const;

  const weights::Checkpoint& checkpoint_;
  const std::atomic<bool>* stop_;
  std::set<std::string, std::less<>> used_;
  // Guards `read_failure_`, the first of any thread of the pool; nobody waits for a channel there.
  mutable std::mutex mutex_;
  Status read_failure_;
};

/// Random weights: a function of (seed, name) alone. Matrices are uniform with variance 1 / cols,
/// norms are 1, biases small; so activations keep their scale and logits vary.
class DummySource final : public WeightSource {
 public:
  DummySource(std::uint64_t seed, kernels::DType dtype) : seed_(seed), dtype_(dtype) {}

  Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) override;
  Result<std::vector<float>> vector(std::string_view name, std::int64_t size) override;

 private:
  std::uint64_t seed_;
  kernels::DType dtype_;
};

}  // namespace tandem::model
