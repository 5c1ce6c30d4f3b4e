// Descriptions of what no model or device of this build can use: experts, old names of their
// arguments, and what is for other hardware or libraries.
#include "common/args/spec.h"

namespace tandem::args {
namespace {

constexpr std::string_view kMoe = "MoE";

/// An old switch that stands for a value of another argument.
constexpr Spec old_name(std::string_view name, std::string_view replacement) {
  return {.name = name,
          .services = kEngine,
          .section = "Deprecated arguments",
          .tier = 2,
          .scope = "moe",
          .deprecated_for = replacement,
          .help = "Old switch, read as its replacement, with a warning."};
}

}  // namespace

void describe(MoeOptions& o, Describe& visit) {
  visit(
      o.ep_size,
      {.name = "expert-parallel-size",
       .aliases = "ep-size,ep",
       .dest = "ep_size",
       .range = {.min = 1},
       .services = kEngine,
       .section = kMoe,
       .env = "EP_SIZE",
       .tier = 2,
       .scope = "moe",
       .trivial_only = true,
       .help = "Groups of ranks that share the experts out. This build runs 1 rank: 1 is a no-op, "
               "reported."});
  visit(o.a2a_backend,
        {.name = "moe-a2a-backend",
         .choices = "none,deepep,mooncake,ascend_fuseep",
         .needs_cuda = "deepep",
         .needs_rdma = "mooncake",
         .needs_vendor = "ascend_fuseep",
         .services = kEngine,
         .section = kMoe,
         .tier = 3,
         .scope = "moe",
         .help = "How tokens travel between ranks that hold experts. none: with the ordinary "
                 "collectives."});
  visit(o.runner_backend,
        {.name = "moe-runner-backend",
         .choices = "auto,deep_gemm,triton,triton_kernel,flashinfer_trtllm,flashinfer_cutlass,"
                    "flashinfer_mxfp4,flashinfer_cutedsl",
         .needs_cuda = "deep_gemm,triton,triton_kernel,flashinfer_trtllm,flashinfer_cutlass,"
                       "flashinfer_mxfp4,flashinfer_cutedsl",
         .services = kEngine,
         .section = kMoe,
         .tier = 2,
         .scope = "moe",
         .trivial_only = true,
         .help = "Kernels of the experts. The models of this build have none: auto is a no-op, "
                 "reported."});
  visit(o.enable_ep_moe, old_name("enable-ep-moe", "--ep-size set to the value of --tp-size"));
  visit(o.enable_deepep_moe, old_name("enable-deepep-moe", "--moe-a2a-backend deepep"));
  visit(o.enable_flashinfer_cutlass_moe,
        old_name("enable-flashinfer-cutlass-moe", "--moe-runner-backend flashinfer_cutlass"));
  visit(o.enable_flashinfer_cutedsl_moe,
        old_name("enable-flashinfer-cutedsl-moe", "--moe-runner-backend flashinfer_cutedsl"));
  visit(o.enable_flashinfer_trtllm_moe,
        old_name("enable-flashinfer-trtllm-moe", "--moe-runner-backend flashinfer_trtllm"));
  visit(o.enable_triton_kernel_moe,
        old_name("enable-triton-kernel-moe", "--moe-runner-backend triton_kernel"));
  visit(o.enable_flashinfer_mxfp4_moe,
        old_name("enable-flashinfer-mxfp4-moe", "--moe-runner-backend flashinfer_mxfp4"));
}

void describe(ElsewhereOptions& o, Describe& visit) {
  visit(o.elastic_ep_backend,
        {.name = "elastic-ep-backend",
         .choices = "none,mooncake",
         .needs_rdma = "mooncake",
         .services = kEngine,
         .section = "Runtime options",
         .tier = 4,
         .scope = "moe",
         .help = "Collectives that go on when a rank with experts is lost."});
  visit(o.mooncake_ib_device,
        {.name = "mooncake-ib-device",
         .services = kEngine,
         .section = "Runtime options",
         .form = Form::kNames,
         .tier = 4,
         .scope = "moe",
         .needs = "--elastic-ep-backend mooncake",
         .ignored_without = true,
         .help = "InfiniBand devices of the mooncake backend, with commas between them."});
  visit(o.enable_lmcache,
        {.name = "enable-lmcache",
         .services = kEngine,
         .section = "LMCache",
         .tier = 4,
         .scope = "hicache",
         .needs = "LMCache",
         .instead = "the built-in counterpart is --enable-hierarchical-cache",
         .help = "Keeps reusable KV in LMCache."});
  visit(o.enable_mscclpp,
        {.name = "enable-mscclpp",
         .services = kEngine,
         .section = "Optimization/debug options",
         .tier = 4,
         .scope = "distributed",
         .needs = "MSCCL++ on CUDA devices",
         .ignored_without = true,
         .help = "Small all-reduces go through MSCCL++."});
  visit(o.arm_gemm_use_kai,
        {.name = "arm-gemm-use-kai",
         .aliases = "arm_gemm_use_kai",
         .type = "bool",
         .services = kEngine,
         .section = "Hardware/Kernel Optimization",
         .env = "ARM_GEMM_USE_KAI",
         .tier = 4,
         .scope = "quantization",
         .needs = "ARM",
         .ignored_without = true,
         .help = "Matrix products by KleidiAI."});
  visit(o.rocm_hipblaslt_config,
        {.name = "rocm-hipblaslt-config",
         .aliases = "rocm_hipblaslt_config",
         .services = kEngine,
         .section = "Hardware/Kernel Optimization",
         .env = "ROCM_HIPBLASLT_CONFIG",
         .form = Form::kFilled,
         .tier = 4,
         .scope = "quantization",
         .path = true,
         .needs = "ROCm",
         .ignored_without = true,
         .help = "CSV file of tuned matrix products for hipBLASLt."});
  visit(o.enable_3fs,
        {.name = "enable-3fs",
         .aliases = "enable_3fs",
         .type = "bool",
         .services = kEngine,
         .section = "3FS Configuration",
         .env = "ENABLE_3FS",
         .tier = 4,
         .scope = "hicache",
         .explicit_only = true,
         .needs = "3FS",
         .instead = "the built-in counterpart is --hicache-storage-backend file",
         .help = "Keeps reusable KV in a 3FS file system."});
}

}  // namespace tandem::args
