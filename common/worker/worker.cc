#include "common/worker/worker.h"

#include "common/args/args.h"
#include "common/base/random.h"
#include "common/obs/log.h"
#include "common/rpc/pair.h"
#include "common/rpc/session.h"
#include "common/transfer/transport.h"
#include "common/weights/checkpoint.h"
#include "common/worker/ready_memory.h"
#include "common/worker/status_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <set>
#include <utility>

namespace tandem::worker {
namespace {

rpc::Role wire_role(args::DisaggregationMode mode) {
  switch (mode) {
    case args::DisaggregationMode::kPrefill:
      return rpc::Role::kPrefill;
    case args::DisaggregationMode::kDecode:
      return rpc::Role::kDecode;
    case args::DisaggregationMode::kNull:
      break;
  }
  return rpc::Role::kUnified;
}

core::SamplingParams default_sampling(const model::ModelConfig& config) {
  core::SamplingParams params;
  const model::GenerationDefaults& defaults = config.generation;
  if (defaults.temperature) params.temperature = static_cast<float>(*defaults.temperature);
  if (defaults.top_p) params.top_p = static_cast<float>(*defaults.top_p);
  if (defaults.min_p) params.min_p = static_cast<float>(*defaults.min_p);
  if (defaults.top_k && *defaults.top_k > 0)
    params.top_k = static_cast<std::int32_t>(*defaults.top_k);
  if (defaults.repetition_penalty)
    params.repetition_penalty = static_cast<float>(*defaults.repetition_penalty);
  return params;
}

std::string memory_plan_json(const WorkerPlan& plan) {
  const model::MemoryPlan& memory = plan.memory;
  return fmt::format(
      R"({{"weight_bytes": {}, "embedding_bytes": {}, "rope_bytes": {}, "activation_bytes": {}, )"
      R"("logit_bytes": {}, "pool_bytes": {}, "transfer_bytes": {}, "thread_bytes": {}, "total_bytes": {}}})",
      memory.weight_bytes,
      memory.embedding_bytes,
      memory.rope_bytes,
      memory.activation_bytes,
      memory.logit_bytes,
      plan.pool_bytes(),
      plan.transfer_bytes,
      plan.threads_bytes(),
      plan.total_bytes());
}

/// Where files cannot be read passes tell those who wait for them, and it goes on after the next
/// pass.
bool pack_some(model::Model& model) {
  const Result<bool> more = model.pack_some();
  if (!more.ok()) obs::warn("weights_not_packed", {{"reason", more.status().message()}});
  return more.ok() && *more;
}

}  // namespace

Result<std::unique_ptr<Worker>> Worker::create(const args::Arguments& args,
                                               const WorkerPlan& plan,
                                               const WorkerAddresses& addresses,
                                               const TokenizerToCome& tokenizer) {
  std::unique_ptr<Worker> worker(new Worker());
  worker->plan_ = plan;
  TANDEM_TRY(worker->load(args, plan, tokenizer.unwanted));
  worker->loop_ = std::make_unique<EngineLoop>(
      worker->engine_.get(),
      [model = worker->model_.get()] { return model->progress(); },
      [model = worker->model_.get()] { return pack_some(*model); });
  TANDEM_TRY(worker->info_.model.vocabulary_digest, tokenizer.vocabulary_digest());
  worker->describe(args, plan, addresses);
  TANDEM_TRY(worker->make_role(args, plan, addresses));
  worker->endpoint_ = std::make_shared<SessionEndpoint>(worker->info_,
                                                        worker->role_.get(),
                                                        worker->engine_.get(),
                                                        worker->loop_.get(),
                                                        args.observability.log_requests);
  worker->generator_ = std::make_shared<LocalGenerator>(
      worker->role_.get(), worker->engine_.get(), worker->loop_.get(), [raw = worker.get()] {
        return raw->extra_info();
      });
  worker->status_log_ =
      make_status_log(worker->engine_.get(), args.observability.decode_log_interval);
  worker->loop_->add_client(worker->role_.get());
  worker->loop_->add_client(worker->endpoint_.get());
  worker->loop_->add_client(worker->generator_.get());
  worker->loop_->add_client(worker->status_log_.get());
  worker->ready_memory_ =
      std::make_unique<ReadyMemory>(worker->engine_.get(), worker->loop_.get(), "/proc/stat");
  worker->loop_->add_client(worker->ready_memory_.get());
  worker->loop_->start();
  return worker;
}

namespace {

constexpr std::size_t kFilesNamed = 12;
/// A prompt of 2,048 tokens of a 0.6B model. Larger models' prompts wait for it less: they compute
/// longer for each byte of KV.
constexpr std::size_t kReadyBytesMax = std::size_t{256} << 20;

/// Without weight files the reader would complain about one of them; the person asked for a format.
Status check_weight_files(const args::ModelOptions& model) {
  if (weights::has_checkpoint(model.model_path)) return {};
  namespace fs = std::filesystem;
  std::error_code error;
  std::set<std::string> found;
  fs::directory_iterator entry(model.model_path, error);
  for (; !error && entry != fs::directory_iterator() && found.size() < kFilesNamed;
       entry.increment(error))
    found.insert(entry->path().filename().string());
  return not_found(
      fmt::format("argument --load-format: {}: no matching weight files in {}; found: {}; expected "
                  "model.safetensors or model.safetensors.index.json",
                  args::to_string(model.load_format),
                  model.model_path,
                  found.empty() ? "nothing" : fmt::format("{}", fmt::join(found, ", "))));
}

}  // namespace

Status Worker::load(const args::Arguments& args,
                    const WorkerPlan& plan,
                    const std::atomic<bool>* stop) {
  const std::size_t threads = args.runtime.compute_threads;
  pool_ = std::make_unique<kernels::ThreadPool>(
      threads, kernels::thread_places(threads, kernels::allowed_cpus()));
  model::LoadOptions options;
  options.folder = args.model.model_path;
  options.dtype = plan.dtype == kernels::DType::kF32   ? model::DTypeChoice::kF32
                  : plan.dtype == kernels::DType::kF16 ? model::DTypeChoice::kF16
                                                       : model::DTypeChoice::kBf16;
  options.kv_dtype = plan.kv_dtype;
  options.override_json = args.model.json_model_override_args;
  options.dummy_weights = args.model.load_format == args::LoadFormat::kDummy;
  options.dummy_seed = args.runtime.random_seed;
  if (!options.dummy_weights) TANDEM_TRY(check_weight_files(args.model));
  options.quantization = plan.quantization;
  options.backend = plan.backend;
  options.pool = pool_.get();
  options.limits = plan.limits;
  options.stop = stop;
  options.pack_late = true;
  TANDEM_TRY(model_, model::Model::load(options));
  executor_ = std::make_unique<engine::ModelExecutor>(model_.get(),
                                                      static_cast<std::int32_t>(plan.page_size));
  engine::EngineOptions engine;
  // Who only receives, or sends nothing, keeps to memory that gets huge pages everywhere.
  engine.share_pages = args.disaggregation.mode == args::DisaggregationMode::kPrefill &&
                       transfer::may_share_memory();
  engine.ready_bytes_max = kReadyBytesMax;
  engine.max_total_tokens = plan.max_total_tokens;
  engine.page_size = static_cast<std::int32_t>(plan.page_size);
  engine.disable_radix_cache = args.kv_cache.disable_radix_cache;
  engine.max_running_requests = plan.max_running_requests;
  engine.max_prefill_tokens = static_cast<std::int32_t>(args.scheduling.max_prefill_tokens);
  engine.chunked_prefill_size = plan.chunked_prefill_size;
  engine.chunk_beside_decodes = plan.chunk_beside_decodes;
  engine.schedule_policy = args.scheduling.schedule_policy == args::SchedulePolicy::kLpm
                               ? engine::SchedulePolicy::kLpm
                               : engine::SchedulePolicy::kFcfs;
  engine.schedule_conservativeness = args.scheduling.schedule_conservativeness;
  engine.reserved_decode_tokens =
      static_cast<std::int32_t>(args.disaggregation.num_reserved_decode_tokens);
  engine.stream_interval = static_cast<std::int32_t>(args.server.stream_interval);
  engine.context_length = static_cast<std::int32_t>(plan.context_length);
  TANDEM_TRY(engine_, engine::Engine::create(engine, executor_.get()));
  return {};
}

void Worker::describe(const args::Arguments& args,
                      const WorkerPlan& plan,
                      const WorkerAddresses& addresses) {
  info_.incarnation = system_random() | 1U;
  info_.role = wire_role(args.disaggregation.mode);
  info_.model_digest = model_->digest().hex();
  info_.page_size = static_cast<std::int32_t>(plan.page_size);
  info_.dtype = std::string(kernels::dtype_name(plan.dtype));
  info_.kv_cache_dtype = std::string(kernels::dtype_name(plan.kv_dtype));
  info_.numerics_family = model_->numerics();
  info_.version = args::Environment::system().version;
  info_.http_address = addresses.host + ":" + std::to_string(addresses.http_port);
  info_.grpc_address = addresses.host + ":" + std::to_string(addresses.grpc_port);
  if (info_.role == rpc::Role::kPrefill) {
    info_.bootstrap_address = args.disaggregation.bootstrap_address
                                  ? *args.disaggregation.bootstrap_address
                                  : addresses.host + ":" + std::to_string(addresses.bootstrap_port);
  }
  core::ServedModel& model = info_.model;
  model.model_path = args.model.model_path;
  model.served_model_name = args.server.served_model_name;
  model.tokenizer_path = args.model.tokenizer_path;
  model.architectures = {plan.config.architecture};
  model.model_type = plan.config.model_type;
  model.vocab_size = static_cast<std::int32_t>(plan.config.vocab_size);
  model.context_length = static_cast<std::int32_t>(plan.context_length);
  model.max_request_tokens = engine_->max_request_tokens();
  model.eos_token_ids = plan.config.eos_ids;
  model.default_sampling = default_sampling(plan.config);
  model.disaggregation_mode = std::string(args::to_string(args.disaggregation.mode));
  info_.arguments_json = args::dump_json(args, computed_arguments());
}

Status Worker::make_role(const args::Arguments& args,
                         const WorkerPlan& plan,
                         const WorkerAddresses& addresses) {
  if (info_.role == rpc::Role::kUnified) {
    role_ = make_unified_role(engine_.get());
    return {};
  }
  const model::KvLayout layout = model_->kv_layout(plan.page_size);
  PdOptions options;
  options.role =
      info_.role == rpc::Role::kPrefill ? handoff::Role::kPrefill : handoff::Role::kDecode;
  options.instance = addresses.host + ":" + std::to_string(addresses.http_port);
  options.incarnation = info_.incarnation;
  if (args.server.api_key) options.authorization = "Bearer " + *args.server.api_key;
  options.transfer_backend = args::to_string(args.disaggregation.transfer_backend);
  options.layout.page_size = static_cast<std::uint32_t>(plan.page_size);
  options.layout.layer_count = static_cast<std::uint32_t>(layout.layer_count);
  options.layout.kv_head_count = static_cast<std::uint32_t>(layout.kv_head_count);
  options.layout.head_dim = static_cast<std::uint32_t>(layout.head_dim);
  options.layout.dtype = info_.kv_cache_dtype;
  options.layout.page_bytes = layout.page_bytes();
  options.layout.page_stride_bytes = layout.page_bytes();
  options.layout.part_count = handoff::part_count_for(options.layout, handoff::kRunBytes);
  options.layout.model_digest = info_.model_digest;
  options.layout.weight_dtype = info_.dtype;
  options.layout.quantization = std::string(model::quantization_name(plan.quantization));
  options.layout.weight_version = info_.model.weight_version;
  options.layout.numerics_family = info_.numerics_family;
  // The window is told in chunks and kept in pages; 0 grants the whole prompt at once.
  const std::int64_t chunk =
      plan.chunked_prefill_size > 0 ? plan.chunked_prefill_size : plan.context_length;
  const std::int64_t window =
      args.disaggregation.grant_window * ((chunk + plan.page_size - 1) / plan.page_size);
  options.grant_window_pages = static_cast<std::uint32_t>(std::min<std::int64_t>(window, 1 << 20));
  const MakeTransport make = [](transfer::PageMemory memory, transfer::EventSink sink) {
    return transfer::make_ucx_transport(
        std::move(memory), std::move(sink), {.ends_with_process = true, .idle_from = "/proc/stat"});
  };
  auto role = info_.role == rpc::Role::kPrefill
                  ? make_prefill_role(options, engine_.get(), loop_.get(), make)
                  : make_decode_role(options, engine_.get(), loop_.get(), make);
  if (!role.ok()) return role.status();
  pd_role_ = role->get();
  role_ = std::move(*role);
  return {};
}

std::vector<std::shared_ptr<rpc::Service>> Worker::services(
    const std::function<bool(std::string_view)>& authorize) const {
  rpc::SessionServiceOptions session;
  session.authorize = authorize;
  std::vector<std::shared_ptr<rpc::Service>> services{
      rpc::make_session_service(endpoint_, session)};
  if (info_.role == rpc::Role::kPrefill) {
    rpc::PairServiceOptions pair;
    pair.authorize = authorize;
    services.push_back(rpc::make_pair_service(pd_role_->hub(), pair));
  }
  return services;
}

std::map<std::string, std::string> Worker::computed_arguments() const {
  return {{"max_total_tokens", std::to_string(engine_->page_count() * engine_->page_size())},
          {"max_running_requests", std::to_string(plan_.max_running_requests)},
          {"context_length", std::to_string(plan_.context_length)},
          {"kernel_family", fmt::format("\"{}\"", kernels::family_name(plan_.backend->family()))},
          {"dtype",
           fmt::format("\"{}\"",
                       plan_.dtype == kernels::DType::kF32   ? "float32"
                       : plan_.dtype == kernels::DType::kF16 ? "float16"
                                                             : "bfloat16")}};
}

std::vector<std::pair<std::string, std::string>> Worker::extra_info() const {
  std::vector<std::pair<std::string, std::string>> members{
      {"max_total_num_tokens", std::to_string(engine_->page_count() * engine_->page_size())},
      {"max_req_input_len",
       std::to_string(std::min(plan_.context_length - 1, plan_.max_total_tokens - 1))},
      {"page_bytes", std::to_string(plan_.memory.page_bytes)},
      {"unpacked_weight_bytes", std::to_string(model_->unpacked_bytes())},
      {"memory_plan", memory_plan_json(plan_)},
      {"incarnation", fmt::format("\"{:016x}\"", info_.incarnation)},
      {"model_digest", "\"" + info_.model_digest + "\""},
      {"numerics_family", "\"" + info_.numerics_family + "\""},
      {"grpc_address", "\"" + info_.grpc_address + "\""}};
  if (!info_.bootstrap_address.empty()) {
    members.emplace_back("bootstrap_address", "\"" + info_.bootstrap_address + "\"");
  }
  if (pd_role_ != nullptr) {
    // Only its thread may look, and a step of decode may take long: routers ask here where gRPC is,
    // and wait two seconds.
    const auto answer = std::make_shared<std::promise<std::string>>();
    auto stats = answer->get_future();
    const bool asked =
        pd_role_->ask_stats([answer](std::string json) { answer->set_value(std::move(json)); });
    const bool there =
        asked && stats.wait_for(std::chrono::seconds(1)) == std::future_status::ready;
    members.emplace_back("disaggregation", there ? stats.get() : "null");
  }
  return members;
}

void Worker::register_at(const std::string& bootstrap_address) {
  v1::MemberRow row;
  row.set_instance(info_.http_address);
  row.set_incarnation(info_.incarnation);
  row.set_rank(0);
  row.set_rank_count(1);
  row.set_role(info_.role == rpc::Role::kPrefill ? v1::ROLE_PREFILL : v1::ROLE_DECODE);
  row.set_http_address(info_.http_address);
  row.set_grpc_address(info_.grpc_address);
  row.set_model_digest(info_.model_digest);
  row.set_weight_version(info_.model.weight_version);
  row.set_served_model_name(info_.model.served_model_name);
  row.set_attn_tp_size(1);
  row.set_attn_cp_size(1);
  row.set_attn_dp_size(1);
  row.set_pp_size(1);
  row.set_system_dp_size(1);
  row.set_page_size(static_cast<std::uint32_t>(info_.page_size));
  row.set_kv_cache_dtype(info_.kv_cache_dtype);
  rpc::ClientOptions options;
  options.address = bootstrap_address;
  registration_ = rpc::keep_registered(options, {row});
}

bool Worker::idle() const {
  const core::Load load = loop_->load();
  return load.running_requests == 0 && load.waiting_requests == 0 && load.transferring_pages == 0;
}

void Worker::stop() {
  registration_.reset();
  if (!loop_) return;
  loop_->post([this] {
    role_->abort_all(unavailable("the worker is stopping"));
    if (pd_role_ != nullptr) pd_role_->close_links();
  });
  loop_->stop();
  if (endpoint_) endpoint_->release();
  if (pd_role_ != nullptr) {
    pd_role_->shut_down();
    pd_role_->hub()->release();
  }
}

Worker::~Worker() {
  stop();
}

}  // namespace tandem::worker
