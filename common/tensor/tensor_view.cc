#include "common/tensor/tensor_view.h"

#include <cstring>

namespace tandem::tensor {

Result<Shape> Shape::make(std::span<const std::uint64_t> dims) {
  if (dims.size() > kMaxRank) {
    return invalid_argument("shape has " + std::to_string(dims.size()) + " dimensions, at most " +
                            std::to_string(kMaxRank) + " are supported");
  }
  constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 62;
  Shape shape;
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : dims) {
    shape.dims_[shape.rank_++] = dim;
    if (dim != 0 && elements > kMaxElements / dim) {
      return invalid_argument("shape with dimension " + std::to_string(dim) +
                              " has more than 2^62 elements");
    }
    // A zero must not hide an overflow of the others: strides are products of them too.
    elements *= dim == 0 ? 1 : dim;
  }
  return shape;
}

std::uint64_t Shape::dim(std::size_t axis) const {
  TANDEM_CHECK(axis < rank_, "axis " + std::to_string(axis) + " of shape " + str());
  return dims_[axis];
}

std::uint64_t Shape::element_count() const {
  std::uint64_t elements = 1;
  for (const std::uint64_t dim : dims())
    elements *= dim;
  return elements;
}

std::string Shape::str() const {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank_; ++axis) {
    if (axis != 0) text += ", ";
    text += std::to_string(dims_[axis]);
  }
  return text + "]";
}

Result<TensorView> TensorView::rows(std::uint64_t begin, std::uint64_t count) const {
  if (shape.rank() == 0 || begin > shape.dim(0) || count > shape.dim(0) - begin) {
    return Status(Code::kOutOfRange,
                  "rows [" + std::to_string(begin) + ", +" + std::to_string(count) +
                      ") of a tensor of shape " + shape.str());
  }
  std::array<std::uint64_t, Shape::kMaxRank> dims{};
  std::uint64_t row_elements = 1;
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    dims[axis] = axis == 0 ? count : shape.dim(axis);
    if (axis != 0) row_elements *= dims[axis];
  }
  TANDEM_TRY(Shape part, Shape::make({dims.data(), shape.rank()}));
  return TensorView{
      .data = data + begin * row_elements * dtype_bytes(dtype), .dtype = dtype, .shape = part};
}

std::vector<float> to_f32(const TensorView& view) {
  std::vector<float> values(view.shape.element_count());
  if (view.dtype == DType::kF32) {
    if (!values.empty()) std::memcpy(values.data(), view.data, values.size() * sizeof(float));
    return values;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, view.data + 2 * i, sizeof(bits));
    values[i] = view.dtype == DType::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  return values;
}

}  // namespace tandem::tensor
