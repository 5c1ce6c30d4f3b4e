// The spellings of every enum in options.h. Internal to the room.
#pragma once

#include "common/args/options.h"

#include <array>
#include <string_view>
#include <utility>

namespace tandem::args {

template <class E>
struct Names;  // kList: every spelling; the first of a value is the one that is printed

#define TANDEM_ARGS_NAMES(Type, ...)                                                               \
  template <>                                                                                      \
  struct Names<Type> {                                                                             \
    static constexpr auto kList = std::to_array<std::pair<std::string_view, Type>>({__VA_ARGS__}); \
  }

TANDEM_ARGS_NAMES(DisaggregationMode,
                  {"null", DisaggregationMode::kNull},
                  {"prefill", DisaggregationMode::kPrefill},
                  {"decode", DisaggregationMode::kDecode});
TANDEM_ARGS_NAMES(TransferBackend,
                  {"mooncake", TransferBackend::kMooncake},
                  {"nixl", TransferBackend::kNixl},
                  {"ucx", TransferBackend::kUcx});
TANDEM_ARGS_NAMES(LoadFormat,
                  {"auto", LoadFormat::kAuto},
                  {"safetensors", LoadFormat::kSafetensors},
                  {"dummy", LoadFormat::kDummy});
TANDEM_ARGS_NAMES(DType,
                  {"auto", DType::kAuto},
                  {"float16", DType::kFloat16},
                  {"half", DType::kFloat16},
                  {"bfloat16", DType::kBfloat16},
                  {"float32", DType::kFloat32},
                  {"float", DType::kFloat32});
TANDEM_ARGS_NAMES(Quantization, {"w8a8_int8", Quantization::kW8A8Int8});
TANDEM_ARGS_NAMES(TorchaoConfig,
                  {"", TorchaoConfig::kNone},
                  {"int8wo", TorchaoConfig::kInt8wo},
                  {"int4wo-128", TorchaoConfig::kInt4wo128});
TANDEM_ARGS_NAMES(KvCacheDType,
                  {"auto", KvCacheDType::kAuto},
                  {"fp8_e5m2", KvCacheDType::kFp8E5m2},
                  {"fp8_e4m3", KvCacheDType::kFp8E4m3});
TANDEM_ARGS_NAMES(Device, {"cpu", Device::kCpu});
TANDEM_ARGS_NAMES(AttentionBackend,
                  {"torch_native", AttentionBackend::kTorchNative},
                  {"intel_amx", AttentionBackend::kIntelAmx});
TANDEM_ARGS_NAMES(SamplingBackend, {"pytorch", SamplingBackend::kPytorch});
TANDEM_ARGS_NAMES(GrammarBackend, {"none", GrammarBackend::kNone});
TANDEM_ARGS_NAMES(MoeA2aBackend, {"none", MoeA2aBackend::kNone});
TANDEM_ARGS_NAMES(MoeRunnerBackend, {"auto", MoeRunnerBackend::kAuto});
TANDEM_ARGS_NAMES(ElasticEpBackend, {"none", ElasticEpBackend::kNone});
TANDEM_ARGS_NAMES(KernelFamily,
                  {"auto", KernelFamily::kAuto},
                  {"reference", KernelFamily::kReference},
                  {"avx2", KernelFamily::kAvx2},
                  {"avx512", KernelFamily::kAvx512},
                  {"avx512_bf16", KernelFamily::kAvx512Bf16},
                  {"amx", KernelFamily::kAmx});
TANDEM_ARGS_NAMES(SchedulePolicy, {"fcfs", SchedulePolicy::kFcfs}, {"lpm", SchedulePolicy::kLpm});
TANDEM_ARGS_NAMES(LoadBalanceMethod,
                  {"round_robin", LoadBalanceMethod::kRoundRobin},
                  {"shortest_queue", LoadBalanceMethod::kShortestQueue});
TANDEM_ARGS_NAMES(LogLevel,
                  {"debug", LogLevel::kDebug},
                  {"info", LogLevel::kInfo},
                  {"warning", LogLevel::kWarning},
                  {"warn", LogLevel::kWarning},
                  {"error", LogLevel::kError},
                  {"critical", LogLevel::kCritical});
TANDEM_ARGS_NAMES(RoutingPolicy,
                  {"random", RoutingPolicy::kRandom},
                  {"round_robin", RoutingPolicy::kRoundRobin},
                  {"least_load", RoutingPolicy::kLeastLoad},
                  {"cache_aware", RoutingPolicy::kCacheAware},
                  {"power_of_two", RoutingPolicy::kPowerOfTwo});

TANDEM_ARGS_NAMES(Shell, {"bash", Shell::kBash}, {"zsh", Shell::kZsh});

/// Every enum above that is a field by itself, for field_ops<>().
#define TANDEM_ARGS_ENUMS(each)                                                                   \
  each(DisaggregationMode) each(TransferBackend) each(LoadFormat) each(DType) each(TorchaoConfig) \
      each(KvCacheDType) each(Device) each(AttentionBackend) each(SamplingBackend)                \
          each(GrammarBackend) each(KernelFamily) each(SchedulePolicy) each(LoadBalanceMethod)    \
              each(LogLevel) each(RoutingPolicy) each(Shell) each(MoeA2aBackend)                  \
                  each(MoeRunnerBackend)

template <class E>
std::string_view enum_text(E value) {
  for (const auto& [name, each] : Names<E>::kList) {
    if (each == value) return name;
  }
  return "?";
}

}  // namespace tandem::args
