// Descriptions of what a worker's engine takes: model, runtime, scheduling, KV cache.
#include "common/args/spec.h"

namespace tandem::args {
namespace {

constexpr std::string_view kModel = "Model and tokenizer";
constexpr std::string_view kNumbers = "Quantization and data type";
constexpr std::string_view kMemory = "Memory and scheduling";
constexpr std::string_view kRuntime = "Runtime options";
constexpr std::string_view kKernels = "Kernel Backends (Attention, Sampling, Grammar, GEMM)";
constexpr std::string_view kDebug = "Optimization/debug options";
constexpr Range kAtLeastOne = {.min = 1};

}  // namespace

void describe(ModelOptions& o, Describe& visit) {
  visit(o.model_path,
        {.name = "model-path",
         .aliases = "model",
         .default_json = "null",
         .default_note = "none: required, except on a router that drives running workers",
         .services = kServing,
         .section = kModel,
         .form = Form::kFilled,
         .tier = 1,
         .scope = "model-loading",
         .common = true,
         .path = true,
         .help = "Folder in the Hugging Face layout: config.json, safetensors, tokenizer files."});
  visit(o.tokenizer_path,
        {.name = "tokenizer-path",
         .default_json = "null",
         .default_note = "computed: the value of --model-path",
         .services = kServing,
         .section = kModel,
         .form = Form::kFilled,
         .tier = 1,
         .scope = "tokenizer",
         .path = true,
         .help = "Folder of the tokenizer files when they are not beside the weights."});
  visit(o.load_format,
        {.name = "load-format",
         .choices =
             "auto,pt,safetensors,npcache,dummy,sharded_state,gguf,bitsandbytes,layered,remote,"
             "remote_instance",
         .services = kEngine,
         .section = kModel,
         .tier = 1,
         .scope = "model-loading",
         .help = "How weights are stored. auto and safetensors take safetensors files; dummy needs "
                 "none and draws weights from --random-seed."});
  visit(o.context_length,
        {.name = "context-length",
         .range = kAtLeastOne,
         .default_note = "computed from the model's config.json",
         .services = kServing,
         .section = kModel,
         .tier = 1,
         .scope = "args",
         .common = true,
         .spawn_only = true,
         .help = "Most tokens of a request, prompt and answer together. More than the model "
                 "allows is refused unless SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1."});
  visit(o.dtype,
        {.name = "dtype",
         .choices = "auto,half,float16,bfloat16,float,float32",
         .default_note = "auto: f32 and f16 checkpoints run in float16, bf16 ones in bfloat16",
         .services = kEngine,
         .section = kNumbers,
         .tier = 1,
         .scope = "model-loading",
         .common = true,
         .help = "Precision of weights and activations. half is float16, float is float32."});
  visit(o.quantization,
        {.name = "quantization",
         .choices = "awq,fp8,gptq,marlin,gptq_marlin,awq_marlin,bitsandbytes,gguf,modelopt,"
                    "modelopt_fp4,petit_nvfp4,w8a8_int8,w8a8_fp8,moe_wna16,qoq,w4afp8,mxfp4",
         .needs_cuda = "marlin,gptq_marlin,awq_marlin,modelopt_fp4,w4afp8",
         .needs_vendor = "petit_nvfp4",
         .default_json = "null",
         .default_note = "weights as the checkpoint has them, in --dtype",
         .services = kEngine,
         .section = kNumbers,
         .tier = 2,
         .scope = "quantization",
         .help = "Quantizes a float checkpoint while loading. w8a8_int8: linear layers and head in "
                 "8 bit per output, their inputs in 8 bit per token. Embeddings stay float. "
                 "Prefill and decode must agree."});
  visit(o.torchao_config,
        {.name = "torchao-config",
         .type = "string",
         .choices = "int8dq,int8wo,int4wo-32,int4wo-64,int4wo-128,int4wo-256,fp8wo,"
                    "fp8dq-per_tensor,fp8dq-per_row",
         .default_json = "\"\"",
         .services = kEngine,
         .section = kDebug,
         .tier = 2,
         .scope = "quantization",
         .help = "Quantizes weights while loading. int8wo: 8 bit per output, inputs keep 16 bit or "
                 "more. int4wo-128: 4 bit in groups of 128; products make 8 bit of their inputs "
                 "per token, which changes answers less than 4 bit do. Both: the head, too; "
                 "embeddings stay float. Excludes --quantization; prefill and decode must agree."});
  visit(o.json_model_override_args,
        {.name = "json-model-override-args",
         .type = "json",
         .services = kServing,
         .section = "Model override args",
         .tier = 1,
         .scope = "model-loading",
         .spawn_only = true,
         .help = "JSON object laid over config.json before the model is built."});
  visit(o.chat_template,
        {.name = "chat-template",
         .default_note = "the template of the tokenizer files",
         .services = kServing,
         .section = "API related",
         .form = Form::kFilled,
         .tier = 1,
         .scope = "tokenizer",
         .path = true,
         .help = "Path of a .jinja or .json template file. This build has no templates of its own, "
                 "so any "
                 "other name is refused."});
}

void describe(RuntimeOptions& o, Describe& visit) {
  visit(o.device,
        {.name = "device",
         .choices = "cuda,xpu,hpu,npu,cpu",
         .needs_cuda = "cuda",
         .needs_vendor = "xpu,hpu,npu",
         .default_json = "null",
         .default_note = "computed by detection",
         .services = kEngine,
         .section = kRuntime,
         .tier = 1,
         .scope = "args",
         .help = "Hardware that runs the model. This build has kernels for the CPU."});
  visit(o.attention_backend,
        {.name = "attention-backend",
         .choices = "triton,torch_native,flex_attention,nsa,cutlass_mla,fa3,fa4,flashinfer,"
                    "flashmla,trtllm_mla,"
                    "trtllm_mha,dual_chunk_flash_attn,aiter,wave,intel_amx,ascend",
         .needs_cuda = "triton,flex_attention,nsa,cutlass_mla,fa3,fa4,flashinfer,flashmla,trtllm_"
                       "mla,trtllm_mha,"
                       "dual_chunk_flash_attn",
         .needs_vendor = "aiter,wave,ascend",
         .default_json = "null",
         .default_note = "computed: intel_amx where the CPU has AMX, else torch_native",
         .services = kEngine,
         .section = kKernels,
         .tier = 1,
         .scope = "attention-kernels",
         .help = "CPU attention kernels: intel_amx (without AMX it falls back to torch_native with "
                 "a warning) or "
                 "torch_native (runs everywhere)."});
  visit(o.sampling_backend,
        {.name = "sampling-backend",
         .choices = "flashinfer,pytorch,ascend",
         .needs_cuda = "flashinfer",
         .needs_vendor = "ascend",
         .falls_back_to = "pytorch",
         .default_json = "null",
         .default_note = "computed: pytorch on the CPU",
         .services = kEngine,
         .section = kKernels,
         .tier = 1,
         .scope = "sampling",
         .help = "Sampler. The exact one is pytorch; the others are missing here and fall back to "
                 "it with a note."});
  visit(o.grammar_backend,
        {.name = "grammar-backend",
         .choices = "xgrammar,outlines,llguidance,none",
         .default_json = "null",
         .default_note = "computed: none in this build",
         .services = kEngine,
         .section = kKernels,
         .tier = 1,
         .scope = "grammar",
         .help = "Engine for constrained output. none refuses constrained requests."});
  visit(
      o.random_seed,
      {.name = "random-seed",
       .range = {.min = 0},
       .default_json = "null",
       .default_note = "computed: random in [0, 2^30]",
       .services = kEngine,
       .section = kRuntime,
       .tier = 1,
       .scope = "sampling",
       .help = "Seed for requests that bring none. The value in force is logged, so that a run can "
               "be repeated."});
  visit(o.disable_overlap_schedule,
        {.name = "disable-overlap-schedule",
         .services = kEngine,
         .section = kDebug,
         .tier = 1,
         .scope = "scheduler",
         .help = "Schedule, compute and post-process strictly one after another. This "
                 "engine always does; the flag is reported as a no-op."});
  visit(o.compute_threads,
        {.name = "compute-threads",
         .range = {.min = 1, .max = 1024},
         .default_json = "null",
         .default_note = "computed: cores that affinity and cgroup allow",
         .services = kEngine,
         .section = kRuntime,
         .common = true,
         .help = "Threads that compute a forward pass."});
  visit(o.kernel_family,
        {.name = "kernel-family",
         .choices = "auto,reference,avx2,avx512,avx512_bf16,amx",
         .services = kEngine,
         .section = kKernels,
         .help = "Pins the CPU kernels; auto takes the fastest the CPU has. For tests."});
}

void describe(SchedulingOptions& o, Describe& visit) {
  visit(o.max_running_requests,
        {.name = "max-running-requests",
         .range = kAtLeastOne,
         .default_note = "computed from the KV pool",
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "scheduler",
         .common = true,
         .help = "Most requests that run together in one worker; others wait."});
  visit(o.chunked_prefill_size,
        {.name = "chunked-prefill-size",
         .range = {.min = 1, .also_allowed = -1},
         .default_json = "null",
         .default_note =
             "computed from memory: 2048 below 35 GB, 4096 below 60 GB or when unknown, 8192 below "
             "160 GB, else 16384",
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "scheduler",
         .common = true,
         .help = "Prompt tokens computed in one step; longer prompts are split. -1 never splits. A "
                 "multiple of "
                 "--page-size. Unless given, it is 128 (with AMX 256) while other requests decode, "
                 "for theirs wait for the step."});
  visit(o.max_prefill_tokens,
        {.name = "max-prefill-tokens",
         .range = kAtLeastOne,
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "scheduler",
         .help = "Prompt tokens of all requests in one step. The larger of this and the "
                 "context length is in force."});
  visit(o.schedule_policy,
        {.name = "schedule-policy",
         .choices = "lpm,random,fcfs,dfs-weight,lof,priority",
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "scheduler",
         .help = "Order of waiting requests: fcfs by arrival, lpm by longest cached prefix."});
  visit(o.schedule_conservativeness,
        {.name = "schedule-conservativeness",
         .range = {.min = 0},
         .services = kEngine,
         .section = kMemory,
         .tier = 2,
         .scope = "scheduler",
         .help = "Share of each running request's remaining tokens that admission sets aside, "
                 "times 0.7 and at "
                 "most 1. Larger admits later and retracts less."});
}

void describe(KvCacheOptions& o, Describe& visit) {
  visit(o.mem_fraction_static,
        {.name = "mem-fraction-static",
         .range = {.min = 0, .max = 1, .exclusive_min = true, .exclusive_max = true},
         .default_json = "null",
         .default_note = "computed: 0.9",
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "kv-cache",
         .common = true,
         .help = "Part of the memory this process may use that holds weights and KV pool."});
  visit(o.max_total_tokens,
        {.name = "max-total-tokens",
         .range = kAtLeastOne,
         .default_note = "computed from --mem-fraction-static",
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "kv-cache",
         .common = true,
         .help = "Tokens in the KV pool; never more than memory allows."});
  visit(o.page_size,
        {.name = "page-size",
         .range = {.min = 1, .max = 65536},
         .services = kEngine,
         .section = kMemory,
         .tier = 1,
         .scope = "kv-cache",
         .help = "Tokens in one page of the KV pool."});
  visit(o.kv_cache_dtype,
        {.name = "kv-cache-dtype",
         .choices = "auto,fp8_e5m2,fp8_e4m3",
         .services = kEngine,
         .section = kNumbers,
         .tier = 1,
         .scope = "kv-cache",
         .help = "Storage type of keys and values. auto is the model's own; fp8_e5m2 and fp8_e4m3 "
                 "take a byte for each, so that twice as many tokens fit. Prefill and decode "
                 "servers need the same."});
  visit(o.disable_radix_cache,
        {.name = "disable-radix-cache",
         .services = kEngine,
         .section = kDebug,
         .tier = 1,
         .scope = "kv-cache",
         .help = "No reuse of shared prompt prefixes; pages are freed with the request."});
}

}  // namespace tandem::args
