// What engine_bench is asked to measure.
#pragma once

#include "common/model/model.h"
#include "kernels/api/backend.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tandem::bench {

inline constexpr model::Quantization kQuantizations[] = {model::Quantization::kNone,
                                                         model::Quantization::kInt8WeightOnly,
                                                         model::Quantization::kInt4WeightOnly128,
                                                         model::Quantization::kW8A8Int8};

inline constexpr std::int32_t kPageSize = 16;

/// One load: prefill of a prompt when `streams` is 0, else decode of that many streams.
struct Load {
  std::int32_t context = 0;
  std::int32_t streams = 0;
};

struct Flags {
  std::string folder = TANDEM_DEMO_MODEL;
  bool dummy = false;
  bool share_pages = false;
  std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  kernels::Family family = kernels::Family::kAuto;
  std::optional<kernels::DType> kv_dtype;  ///< unset: that of the weights
  std::int32_t page_size = kPageSize;
  std::vector<model::Quantization> quantizations;
  std::vector<std::int32_t> contexts;
  std::vector<std::int32_t> streams;
  std::vector<Load> rows;
  double budget_s = 1.0;
};

inline bool parse_quantization(std::string_view name, Flags& flags) {
  for (const model::Quantization each : kQuantizations) {
    if (model::quantization_name(each) != name) continue;
    flags.quantizations.push_back(each);
    return true;
  }
  return false;
}

inline bool parse_kv_dtype(std::string_view name, Flags& flags) {
  flags.kv_dtype.reset();
  if (name == "auto") return true;
  for (const kernels::DType each : {kernels::DType::kFp8E5m2, kernels::DType::kFp8E4m3}) {
    if (kernels::dtype_name(each) != name) continue;
    flags.kv_dtype = each;
    return true;
  }
  return false;
}

inline bool parse_row(const char* text, Flags& flags) {
  Load load;
  if (std::sscanf(text, "decode:%d:%d", &load.context, &load.streams) == 2) {
    if (load.streams <= 0) return false;
  } else if (std::sscanf(text, "prefill:%d", &load.context) != 1) {
    return false;
  }
  if (load.context <= 0) return false;
  flags.rows.push_back(load);
  return true;
}

inline bool parse_flag(std::string_view name, const char* value, Flags& flags) {
  if (name == "--model") {
    flags.folder = value;
    return true;
  }
  if (name == "--family") return kernels::parse_family(value, &flags.family);
  if (name == "--quantization") return parse_quantization(value, flags);
  if (name == "--kv-cache-dtype") return parse_kv_dtype(value, flags);
  if (name == "--row") return parse_row(value, flags);
  const double number = std::strtod(value, nullptr);
  if (number <= 0 || (number < 1 && name != "--budget")) return false;
  if (name == "--threads") {
    flags.threads = static_cast<std::size_t>(number);
  } else if (name == "--page-size") {
    flags.page_size = static_cast<std::int32_t>(number);
  } else if (name == "--context") {
    flags.contexts.push_back(static_cast<std::int32_t>(number));
  } else if (name == "--streams") {
    flags.streams.push_back(static_cast<std::int32_t>(number));
  } else if (name == "--budget") {
    flags.budget_s = number;
  } else {
    return false;
  }
  return true;
}

inline bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--dummy") {
      flags.dummy = true;
    } else if (name == "--share-pages") {
      flags.share_pages = true;
    } else if (i + 1 >= argc || !parse_flag(name, argv[++i], flags)) {
      return false;
    }
  }
  if (flags.quantizations.empty()) flags.quantizations = {model::Quantization::kNone};
  if (flags.contexts.empty()) flags.contexts = {128, 2048};
  if (flags.streams.empty()) flags.streams = {1, 8, 32};
  if (!flags.rows.empty()) return true;
  for (const std::int32_t context : flags.contexts)
    flags.rows.push_back({.context = context, .streams = 0});
  for (const std::int32_t context : flags.contexts) {
    for (const std::int32_t streams : flags.streams)
      flags.rows.push_back({.context = context, .streams = streams});
  }
  return true;
}

}  // namespace tandem::bench
