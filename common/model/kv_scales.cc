#include "common/model/kv_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tandem::model {

namespace {

/// As vLLM, SGLang, compressed-tensors and ModelOpt call them.
constexpr std::string_view kEndings[] = {".k_scale",
                                         ".v_scale",
                                         ".kv_scale",
                                         ".k_proj.output_scale",
                                         ".v_proj.output_scale",
                                         ".kv_cache_scaling_factor"};

}  // namespace

Status check_kv_scales(const weights::Checkpoint& checkpoint, kernels::DType kv_dtype) {
  if (!kernels::is_fp8(kv_dtype)) return {};
  for (const weights::StoredTensor& tensor : checkpoint.tensors()) {
    const auto ends = [&](std::string_view ending) { return tensor.name.ends_with(ending); };
    if (std::ranges::none_of(kEndings, ends)) continue;
    return invalid_argument(
        fmt::format("argument --kv-cache-dtype: {}: the checkpoint scales keys and values (tensor "
                    "'{}'), which is not built yet; use --kv-cache-dtype auto",
                    kernels::dtype_name(kv_dtype),
                    tensor.name));
  }
  return {};
}

}  // namespace tandem::model
