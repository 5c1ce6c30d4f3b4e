#include "common/model/weight_source.h"

#include "common/base/failpoint.h"
#include "common/base/random.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace tandem::model {
namespace {

using kernels::DType;

std::optional<DType> compute_type(weights::ElementType type) {
  switch (type) {
    case weights::ElementType::kF32:
      return DType::kF32;
    case weights::ElementType::kF16:
      return DType::kF16;
    case weights::ElementType::kBF16:
      return DType::kBf16;
    default:
      return std::nullopt;
  }
}

void store(std::byte* data, DType dtype, std::size_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(data + index * sizeof value, &value, sizeof value);
    return;
  }
  const std::uint16_t bits =
      dtype == DType::kF16 ? kernels::f32_to_f16(value) : kernels::f32_to_bf16(value);
  std::memcpy(data + index * sizeof bits, &bits, sizeof bits);
}

bool ends_with_norm(std::string_view name) {
  return name.ends_with("norm.weight");
}

}  // namespace

float widened(const std::byte* data, DType dtype, std::size_t index) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + index * sizeof bits, sizeof bits);
  return dtype == DType::kF16 ? kernels::f16_to_f32(bits) : kernels::bf16_to_f32(bits);
}

Result<weights::StoredTensor> CheckpointSource::checked(std::string_view name,
                                                        const std::vector<std::int64_t>& shape) {
  TANDEM_TRY(const weights::StoredTensor tensor, checkpoint_.find(name));
  used_.emplace(name);
  if (!std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end())) {
    return invalid_argument(fmt::format("tensor '{}': has shape {}, but config.json asks for {}",
                                        name,
                                        weights::shape_text(tensor.shape),
                                        weights::shape_text(shape)));
  }
  if (!compute_type(tensor.type)) {
    return unimplemented(fmt::format(
        "tensor '{}': has type {}, expected F32, F16 or BF16: quantised checkpoints are "
        "not supported by this build",
        name,
        weights::name(tensor.type)));
  }
  return tensor;
}

Result<SourceMatrix> CheckpointSource::matrix(std::string_view name, MatrixShape shape) {
  TANDEM_TRY(const weights::StoredTensor tensor, checked(name, {shape.rows, shape.cols}));
  SourceMatrix matrix;
  matrix.view = {.data = tensor.bytes.data(),
                 .dtype = *compute_type(tensor.type),
                 .rows = static_cast<std::size_t>(shape.rows),
                 .cols = static_cast<std::size_t>(shape.cols),
                 .row_stride = 0};
  return matrix;
}

Result<std::vector<float>> CheckpointSource::vector(std::string_view name, std::int64_t size) {
  TANDEM_TRY(const weights::StoredTensor tensor, checked(name, {size}));
  const DType dtype = *compute_type(tensor.type);
  std::vector<std::byte> bytes(tensor.bytes.size());
  TANDEM_TRY(checkpoint_.read(tensor.bytes.data(), bytes));
  std::vector<float> values(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = widened(bytes.data(), dtype, i);
  }
  return values;
}

Status CheckpointSource::read_now(std::span<std::byte> to, const std::byte* from) const {
  if (stop_ != nullptr && stop_->load(std::memory_order_relaxed))
    return cancelled("the weights are no longer wanted");
  TANDEM_TRY(failpoint::hit("model.read"));
  return checkpoint_.read(from, to);
}

void CheckpointSource::read(const std::byte* from, std::size_t bytes, std::byte* to) {
  Status status = read_now({to, bytes}, from);
  if (status.ok()) return;
  std::memset(to, 0, bytes);
  const std::lock_guard lock(mutex_);
  if (read_failure_.ok()) read_failure_ = std::move(status);
}

Status CheckpointSource::take_read_status() {
  const std::lock_guard lock(mutex_);
  return std::exchange(read_failure_, Status());
}

std::vector<std::string> CheckpointSource::unused() const {
  std::vector<std::string> names;
  for (const weights::StoredTensor& tensor : checkpoint_.tensors()) {
    if (!used_.contains(tensor.name)) names.emplace_back(tensor.name);
  }
  return names;
}

Result<SourceMatrix> DummySource::matrix(std::string_view name, MatrixShape shape) {
  const auto rows = static_cast<std::size_t>(shape.rows);
  const auto cols = static_cast<std::size_t>(shape.cols);
  SourceMatrix matrix;
  try {
    matrix.storage.resize(rows * cols * kernels::dtype_bytes(dtype_));
  } catch (const std::bad_alloc&) {
    return resource_exhausted(
        fmt::format("tensor '{}': no memory for [{}, {}] of random weights", name, rows, cols));
  }
  Random random(seed_ ^ weights::digest_of(name).low);
  const double scale = std::sqrt(3.0 / static_cast<double>(cols));
  for (std::size_t i = 0; i < rows * cols; ++i) {
    const double uniform = 2.0 * random.uniform() - 1.0;
    store(matrix.storage.data(), dtype_, i, static_cast<float>(uniform * scale));
  }
  matrix.view = {
      .data = matrix.storage.data(), .dtype = dtype_, .rows = rows, .cols = cols, .row_stride = 0};
  return matrix;
}

Result<std::vector<float>> DummySource::vector(std::string_view name, std::int64_t size) {
  if (ends_with_norm(name)) return std::vector<float>(static_cast<std::size_t>(size), 1.0F);
  Random random(seed_ ^ weights::digest_of(name).low);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values)
    value = static_cast<float>(0.2 * random.uniform() - 0.1);
  return values;
}

}  // namespace tandem::model
