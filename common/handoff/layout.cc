#include "common/handoff/layout.h"

#include "common/handoff/fingerprint.h"

#include <algorithm>
#include <string_view>

namespace tandem::handoff {

namespace {

Status range_error(const char* field, std::uint64_t value, std::string_view want) {
  return invalid_argument(std::string(field) + ": " + std::to_string(value) + " is not " +
                          std::string(want));
}

std::string shown(std::uint64_t value) {
  return std::to_string(value);
}

std::string shown(const std::string& value) {
  return "\"" + value + "\"";
}

/// Collects the first difference as one sentence.
class Difference {
 public:
  template <class T>
  Difference& field(const char* name, const T& prefill, const T& decode) {
    if (sentence_.empty() && prefill != decode) {
      sentence_ =
          std::string(name) + ": prefill has " + shown(prefill) + ", decode has " + shown(decode);
    }
    return *this;
  }

  [[nodiscard]] Status status() const {
    return sentence_.empty() ? Status() : failed_precondition(sentence_);
  }

 private:
  std::string sentence_;
};

void mix(Fingerprint& f, const LayoutDescriptor& l) {
  f.add(l.layout_version).add(l.page_size).add(l.layer_count).add(l.kv_head_count).add(l.head_dim);
  f.add(l.dtype).add(l.page_bytes).add(l.part_count);
  f.add(l.tp_rank).add(l.tp_size).add(l.pp_rank).add(l.pp_size);
  f.add(l.model_digest).add(l.weight_dtype).add(l.quantization).add(l.weight_version);
}

}  // namespace

ByteRange part_bytes(const LayoutDescriptor& layout,
                     std::uint32_t first_part,
                     std::uint32_t part_count) {
  const std::uint64_t layer_bytes = layout.page_bytes / layout.layer_count;
  const auto boundary = [&](std::uint64_t part) {
    return layer_bytes * (part * layout.layer_count / layout.part_count);
  };
  const std::uint64_t begin = boundary(first_part);
  return {.offset = begin, .length = boundary(first_part + part_count) - begin};
}

std::uint32_t part_count_for(const LayoutDescriptor& layout, std::uint64_t bytes_max) {
  const std::uint64_t layer_bytes = layout.page_bytes / layout.layer_count;
  const std::uint64_t layers = std::max<std::uint64_t>(1, bytes_max / layer_bytes);
  const std::uint64_t parts = (layout.layer_count + layers - 1) / layers;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(parts, kPartCountMax));
}

Status validate(const LayoutDescriptor& l) {
  constexpr std::uint64_t kPageBytesMax = std::uint64_t{1} << 30U;
  if (l.layout_version != 1) return range_error("layout_version", l.layout_version, "1");
  if (l.page_size == 0 || l.page_size > 65536) {
    return range_error("page_size", l.page_size, "in 1..65536");
  }
  if (l.layer_count == 0 || l.layer_count > 4096) {
    return range_error("layer_count", l.layer_count, "in 1..4096");
  }
  if (l.kv_head_count == 0 || l.kv_head_count > 65536) {
    return range_error("kv_head_count", l.kv_head_count, "in 1..65536");
  }
  if (l.head_dim == 0 || l.head_dim > 65536) {
    return range_error("head_dim", l.head_dim, "in 1..65536");
  }
  if (l.page_bytes == 0 || l.page_bytes > kPageBytesMax) {
    return range_error("page_bytes", l.page_bytes, "in 1..2^30");
  }
  if (l.page_bytes % l.layer_count != 0) {
    return range_error("page_bytes", l.page_bytes, "a multiple of layer_count");
  }
  if (l.page_stride_bytes < l.page_bytes) {
    return range_error("page_stride_bytes", l.page_stride_bytes, "at least page_bytes");
  }
  if (l.part_count == 0 || l.part_count > kPartCountMax || l.part_count > l.layer_count) {
    return range_error("part_count", l.part_count, "in 1..min(16, layer_count)");
  }
  if (l.tp_size == 0 || l.tp_rank >= l.tp_size) {
    return range_error("tp_rank", l.tp_rank, "below tp_size");
  }
  if (l.dp_size == 0 || l.dp_rank >= l.dp_size) {
    return range_error("dp_rank", l.dp_rank, "below dp_size");
  }
  if (l.pp_size == 0 || l.pp_rank >= l.pp_size) {
    return range_error("pp_rank", l.pp_rank, "below pp_size");
  }
  return {};
}

Status check_compatible(const LayoutDescriptor& prefill, const LayoutDescriptor& decode) {
  return Difference()
      .field("layout_version", prefill.layout_version, decode.layout_version)
      .field("model_digest", prefill.model_digest, decode.model_digest)
      .field("dtype", prefill.weight_dtype, decode.weight_dtype)
      .field("quantization", prefill.quantization, decode.quantization)
      .field("weight_version", prefill.weight_version, decode.weight_version)
      .field("kv_cache_dtype", prefill.dtype, decode.dtype)
      .field("page_size", prefill.page_size, decode.page_size)
      .field("tp_size", prefill.tp_size, decode.tp_size)
      .field("tp_rank", prefill.tp_rank, decode.tp_rank)
      .field("pp_size", prefill.pp_size, decode.pp_size)
      .field("pp_rank", prefill.pp_rank, decode.pp_rank)
      .field("layer_count", prefill.layer_count, decode.layer_count)
      .field("kv_head_count", prefill.kv_head_count, decode.kv_head_count)
      .field("head_dim", prefill.head_dim, decode.head_dim)
      .field("page_bytes", prefill.page_bytes, decode.page_bytes)
      .field("part_count", prefill.part_count, decode.part_count)
      .status();
}

Result<TransferPlan> make_plan(const LayoutDescriptor& prefill, const LayoutDescriptor& decode) {
  TANDEM_TRY(validate(prefill).with_context("prefill"));
  TANDEM_TRY(validate(decode).with_context("decode"));
  TANDEM_TRY(check_compatible(prefill, decode));
  TransferPlan plan{.layer_begin = 0,
                    .layer_end = prefill.layer_count,
                    .kv_head_begin = 0,
                    .kv_head_end = prefill.kv_head_count,
                    .page_bytes = prefill.page_bytes,
                    .part_count = prefill.part_count,
                    .same_numerics = prefill.numerics_family == decode.numerics_family,
                    .hash = 0};
  Fingerprint f;
  mix(f, prefill);
  mix(f, decode);
  f.add(plan.layer_begin).add(plan.layer_end).add(plan.kv_head_begin).add(plan.kv_head_end);
  plan.hash = f.value();
  return plan;
}

}  // namespace tandem::handoff
