// Reads the recorded reference outputs of ../shared/golden (see its README, "How to compare").
#pragma once

#include "common/base/status.h"
#include "common/weights/file_bytes.h"
#include "common/weights/safetensors.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tandem::golden {

/// The folder of shared data: $TANDEM_SHARED_DIR, or ../shared beside the project; nothing when it
/// is not here.
std::optional<std::string> shared_folder();

/// Tensors of a ref.safetensors.
class Reference {
 public:
  static Result<Reference> open(const std::string& path);

  [[nodiscard]] bool has(const std::string& name) const { return entries_.contains(name); }

  /// Row-major values; empty when there is no such tensor.
  [[nodiscard]] std::vector<float> floats(const std::string& name) const;
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name) const;

 private:
  explicit Reference(weights::FileBytes file) : file_(std::move(file)) {}

  weights::FileBytes file_;
  std::map<std::string, weights::TensorEntry> entries_;
};

struct Tolerance {
  double float32_atol = 0;
  double bfloat16_p50 = 0;
  double bfloat16_p90 = 0;
  double bfloat16_rms = 0;
};

struct Case {
  std::string id;
  std::string label;
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> greedy_ids;
  std::vector<double> greedy_margin;
};

/// cases.json of a causal model.
struct Cases {
  Tolerance tolerance;
  std::vector<Case> cases;
};

Result<Cases> read_cases(const std::string& path);

}  // namespace tandem::golden
