#include "common/engine/engine.h"

#include "common/engine/engine_impl.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tandem::engine {
namespace {

Status at_least(const char* flag, std::int64_t value, std::int64_t least) {
  if (value >= least) return {};
  return invalid_argument(std::string(flag) + ": " + std::to_string(value) +
                          " is out of range, expected " + std::to_string(least) + " or more");
}

Status check_options(const EngineOptions& options) {
  TANDEM_TRY(at_least("--page-size", options.page_size, 1));
  TANDEM_TRY(at_least("--max-total-tokens", options.max_total_tokens, options.page_size));
  TANDEM_TRY(at_least("--max-running-requests", options.max_running_requests, 1));
  TANDEM_TRY(at_least("--max-queued-requests", options.max_queued_requests, 0));
  TANDEM_TRY(at_least("--max-prefill-tokens", options.max_prefill_tokens, 1));
  if (options.chunked_prefill_size != -1) {
    TANDEM_TRY(at_least("--chunked-prefill-size", options.chunked_prefill_size, 1));
  }
  TANDEM_TRY(at_least("--num-reserved-decode-tokens", options.reserved_decode_tokens, 0));
  TANDEM_TRY(at_least("--stream-interval", options.stream_interval, 1));
  TANDEM_TRY(at_least("--context-length", options.context_length, 0));
  if (!(options.schedule_conservativeness >= 0)) {
    return invalid_argument(
        "--schedule-conservativeness: " + std::to_string(options.schedule_conservativeness) +
        " is out of range, expected 0 or more");
  }
  if (options.max_total_tokens / options.page_size > kv::kMaxPages) {
    return invalid_argument("--max-total-tokens: " + std::to_string(options.max_total_tokens) +
                            " tokens are more than " + std::to_string(kv::kMaxPages) + " pages");
  }
  return {};
}

Status check_executor(const ExecutorInfo& info) {
  TANDEM_TRY(at_least("model: vocab_size", info.vocab_size, 1));
  TANDEM_TRY(at_least("model: context_length", info.context_length, 1));
  TANDEM_TRY(at_least("model: max_batch_tokens", info.max_batch_tokens, 1));
  TANDEM_TRY(at_least("model: max_logit_rows", info.max_logit_rows, 1));
  return at_least("model: max_slices", info.max_slices, 1);
}

sched::SchedulerOptions scheduler_options(const EngineOptions& options, const ExecutorInfo& info) {
  const std::int32_t context = options.context_length > 0
                                   ? std::min(options.context_length, info.context_length)
                                   : info.context_length;
  return {.page_count = options.max_total_tokens / options.page_size,
          .page_size = options.page_size,
          .prefix_reuse = !options.disable_radix_cache,
          .context_length = context,
          .max_running_requests = options.max_running_requests,
          .max_queued_requests = options.max_queued_requests,
          .max_prefill_tokens = options.max_prefill_tokens,
          .chunked_prefill_size = options.chunked_prefill_size,
          .chunk_beside_decodes = options.chunk_beside_decodes,
          .mixed_chunk = options.mixed_chunk,
          .policy = options.schedule_policy == SchedulePolicy::kLpm ? sched::Policy::kLpm
                                                                    : sched::Policy::kFcfs,
          .conservativeness = options.schedule_conservativeness,
          .reserved_decode_tokens = options.reserved_decode_tokens};
}

}  // namespace

Engine::Impl::Impl(const EngineOptions& options_in,
                   const sched::SchedulerOptions& scheduler_options,
                   Executor* executor_in,
                   KvArena arena_in)
    : options(options_in),
      executor(executor_in),
      arena(std::move(arena_in)),
      scheduler(scheduler_options),
      memory_ahead(arena.base(),
                   executor_in->info().page_bytes,
                   scheduler_options.page_count,
                   options_in.ready_bytes_max),
      reader_(executor_in) {
  options.context_length = scheduler_options.context_length;
  window_start_ = options.clock->now();
}

core::Load Engine::Impl::load() const {
  const kv::PageCache& cache = scheduler.cache();
  const kv::BlockPool& pool = cache.pool();
  core::Load load;
  load.running_requests = scheduler.running_count();
  load.waiting_requests = scheduler.waiting_count();
  load.free_pages = pool.free_count();
  load.transferring_pages = pool.count(kv::OwnerKind::kTransfer);
  load.used_pages = pool.count(kv::OwnerKind::kSequence) + cache.shared_pages();
  load.cached_pages = cache.unused_cached_pages();
  load.total_pages = pool.total();
  load.used_tokens = (load.used_pages + load.transferring_pages) * options.page_size;
  load.cached_tokens = load.cached_pages * options.page_size;
  load.total_tokens = load.total_pages * options.page_size;
  load.progress = progress_;
  load.generation_throughput = throughput_;
  return load;
}

Status Engine::Impl::check_invariants() const {
  TANDEM_TRY(scheduler.check());
  std::size_t with_sequence = 0;
  for (const auto& [id, generation] : generations_) {
    with_sequence += generation->sequence != nullptr ? 1U : 0U;
  }
  if (with_sequence != scheduler.sequence_count()) {
    return internal_error("the engine knows " + std::to_string(with_sequence) +
                          " sequences, the scheduler " +
                          std::to_string(scheduler.sequence_count()));
  }
  const core::Load now = load();
  if (now.free_pages + now.used_pages + now.cached_pages + now.transferring_pages !=
      now.total_pages) {
    return internal_error("free, used, cached and transferring pages are not all pages");
  }
  return {};
}

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options, Executor* executor) {
  TANDEM_TRY(check_options(options));
  const ExecutorInfo& info = executor->info();
  TANDEM_TRY(check_executor(info));
  const auto inner = scheduler_options(options, info);
  TANDEM_TRY(KvArena arena,
             KvArena::allocate(info.page_bytes, inner.page_count, options.share_pages));
  TANDEM_TRY(executor->bind_kv(arena.base(), inner.page_count));
  auto impl = std::make_unique<Impl>(options, inner, executor, std::move(arena));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Engine::~Engine() = default;

Status Engine::submit(core::Request request, core::EventSink sink) {
  return impl_->submit(std::move(request), std::move(sink), nullptr);
}

void Engine::abort(core::RequestId id, Status why) {
  impl_->abort(id, why);
}

bool Engine::step(Time now) {
  return impl_->step(now);
}

bool Engine::has_work() const {
  return impl_->has_work();
}

Status Engine::submit_prefill(core::Request request, PrefillObserver* observer) {
  return impl_->submit(std::move(request), {}, observer);
}

void Engine::release_prefill(core::RequestId id) {
  impl_->release_prefill(id);
}

Result<Reservation> Engine::reserve(const core::Request& request) {
  return impl_->reserve(request);
}

Result<std::vector<kv::PageId>> Engine::take_pages(core::RequestId id, std::int32_t count) {
  TANDEM_TRY(sched::Sequence * sequence, impl_->reserved_sequence(id));
  TANDEM_TRY(const auto pages, impl_->scheduler.take_pages(*sequence, count));
  return std::vector<kv::PageId>(pages.begin(), pages.end());
}

Status Engine::adopt(core::RequestId id, const AdoptState& state, core::EventSink sink) {
  return impl_->adopt(id, state, std::move(sink));
}

void Engine::cancel_reservation(core::RequestId id, std::int32_t verified_tokens) {
  impl_->cancel_reservation(id, verified_tokens);
}

bool Engine::wants_memory() const {
  return impl_->memory_ahead.waiting(impl_->scheduler.cache().pool());
}

void Engine::take_memory() {
  impl_->memory_ahead.take_block(impl_->scheduler.cache().pool());
}

std::byte* Engine::page_address(kv::PageId page) const {
  return impl_->arena.base() + page_bytes() * page.value;
}

const SharedMemory* Engine::shared_pages() const {
  return impl_->arena.shared();
}

std::size_t Engine::page_bytes() const {
  return impl_->executor->info().page_bytes;
}

std::int64_t Engine::page_count() const {
  return impl_->scheduler.cache().pool().total();
}

std::int32_t Engine::page_size() const {
  return impl_->options.page_size;
}

std::uint32_t Engine::page_generation(kv::PageId page) const {
  return impl_->scheduler.cache().pool().generation(page);
}

std::int32_t Engine::max_request_tokens() const {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(impl_->options.context_length, impl_->scheduler.capacity_tokens()));
}

double Engine::new_token_ratio() const {
  return impl_->scheduler.new_token_ratio();
}

std::int64_t Engine::retraction_count() const {
  return impl_->scheduler.retraction_count();
}

core::Load Engine::load() const {
  return impl_->load();
}

Status Engine::flush_cache() {
  if (!impl_->generations_.empty()) {
    return failed_precondition("the cache is in use by " +
                               std::to_string(impl_->generations_.size()) + " requests");
  }
  impl_->scheduler.flush_cache();
  return {};
}

Status Engine::check_invariants() const {
  return impl_->check_invariants();
}

}  // namespace tandem::engine
