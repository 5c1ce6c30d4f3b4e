// A step in which every sequence decodes one token, with a real model: what it takes from the
// system. Nothing: no memory, no lock, no line of log, whichever thread of the pool works.
#include "common/engine/engine.h"
#include "common/engine/model_executor.h"
#include "common/model/model.h"
#include "common/model/testing/config_folder.h"
#include "common/obs/log.h"
#include "kernels/api/backend.h"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

namespace {

std::atomic<int> allocations{0};
std::atomic<int> locks{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

// For the whole test program; arrays come here too. Not inline: GCC 12 then takes malloc and
// delete, or new and free, for a pair.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t));
}

[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}

// What sorts for their buffers call.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return operator new(bytes);
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory,
                                       std::size_t /*bytes*/,
                                       std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

// Sanitizers have their own in this place.
#ifndef TANDEM_SANITIZED
namespace {

using LockFn = int (*)(pthread_mutex_t*);

int counted_lock(std::atomic<LockFn>& system, const char* name, pthread_mutex_t* mutex) {
  ++locks;
  LockFn real = system.load();
  if (real == nullptr) {
    real = reinterpret_cast<LockFn>(::dlsym(RTLD_NEXT, name));
    system = real;
  }
  return real(mutex);
}

std::atomic<LockFn> system_lock{nullptr};
std::atomic<LockFn> system_trylock{nullptr};

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  return counted_lock(system_lock, "pthread_mutex_lock", mutex);
}

extern "C" int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  return counted_lock(system_trylock, "pthread_mutex_trylock", mutex);
}
#endif

namespace tandem::engine {
namespace {

constexpr std::int32_t kStreams = 32;
/// At least a page fills for every stream, several where they are small.
constexpr int kSteps = 80;

/// Sinks of workers take what comes.
struct Receiver {
  void take(core::TokenEvent&& event) {
    last = std::move(event);
    token_count += static_cast<std::int64_t>(last.tokens.size());
  }

  core::TokenEvent last;
  std::int64_t token_count = 0;
};

/// The stream's own way of sampling: each kind comes several times.
core::SamplingParams sampling(std::int32_t stream) {
  core::SamplingParams params;
  params.max_new_tokens = 3 * kSteps;
  params.ignore_eos = true;
  params.seed = static_cast<std::uint64_t>(stream);
  params.temperature = stream % 4 == 0 ? 0.0F : 1.0F;
  if (stream % 4 == 1) params.top_p = 0.9F;
  if (stream % 4 == 2) params.top_k = 40;
  if (stream % 8 == 3) params.min_p = 0.05F;
  if (stream % 3 == 0) params.frequency_penalty = 0.5F;
  if (stream % 5 == 0) params.logit_bias = {{7, 1.5F}};
  if (stream % 7 == 0) {
    params.stop_token_ids = {11};
    params.min_new_tokens = 3 * kSteps;
  }
  return params;
}

struct Setup {
  const char* name = "";
  std::int32_t page_size = 16;
  model::Quantization quantization = model::Quantization::kNone;
  /// A mixture, with random weights, instead of the shipped model.
  bool experts = false;
  kernels::Family family = kernels::Family::kAuto;
};

class SteadyStep : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    const kernels::Backend* backend = kernels::select(GetParam().family, nullptr);
    if (backend == nullptr) GTEST_SKIP() << "skipped: this machine cannot run these kernels";
    std::optional<model::testing::ConfigFolder> experts;
    if (GetParam().experts) experts.emplace(model::testing::kSmallMixture);
    model::LoadOptions load;
    load.folder = experts ? experts->path() : TANDEM_SOURCE_DIR "/assets/demo-model";
    load.dummy_weights = experts.has_value();
    load.quantization = GetParam().quantization;
    load.backend = backend;
    load.pool = &pool_;
    load.limits = {.token_count_max = 1024,
                   .logit_row_count_max = 64,
                   .sequence_count_max = 64,
                   .context_length = 2048};
    auto model = model::Model::load(load);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = std::move(*model);
    executor_ = std::make_unique<ModelExecutor>(model_.get(), GetParam().page_size);
    EngineOptions options;
    options.page_size = GetParam().page_size;
    options.max_total_tokens = kStreams * (4 * kSteps);
    auto engine = Engine::create(options, executor_.get());
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }

  void submit(std::size_t prompt_count, const core::SamplingParams& params) {
    core::Request request;
    request.id = {++last_id_};
    for (std::size_t i = 0; i < prompt_count; ++i) {
      request.input_ids.push_back(static_cast<core::TokenId>((last_id_ * 131 + i * 7) % 2000 + 10));
    }
    request.sampling = params;
    // As a deployment has it that limits how long an answer may take.
    request.deadline = steady_clock().now() + seconds(3600);
    const Status status = engine_->submit(
        std::move(request), [this](core::TokenEvent&& event) { receiver_.take(std::move(event)); });
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void step() { ASSERT_TRUE(engine_->step(steady_clock().now())); }

  /// Leaves a pool in which each page is in use or holds what may be asked for again.
  void fill_cache() {
    core::SamplingParams params;
    params.max_new_tokens = 1;
    params.ignore_eos = true;
    while (engine_->load().free_pages * GetParam().page_size > 512) {
      submit(600, params);
      while (engine_->has_work())
        step();
    }
  }

  kernels::ThreadPool pool_{2};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<ModelExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  Receiver receiver_;
  std::uint64_t last_id_ = 0;
};

TEST_P(SteadyStep, TakesNoMemoryAndNoLockAndLogsNothing) {
  fill_cache();
  for (std::int32_t stream = 0; stream < kStreams; ++stream)
    submit(20 + static_cast<std::size_t>(stream), sampling(stream));
  // Prompts, and vectors that are as long as a step needs them.
  for (int i = 0; i < 4; ++i)
    step();
  ASSERT_EQ(engine_->load().running_requests, kStreams);

  std::atomic<int> lines{0};
  obs::set_sink([&](std::string_view) { ++lines; });
  const core::Load before = engine_->load();
  receiver_.token_count = 0;
  const int allocations_before = allocations;
  const int locks_before = locks;
  for (int i = 0; i < kSteps; ++i)
    step();
  const int allocated = allocations - allocations_before;
  const int locked = locks - locks_before;
  obs::set_sink({});
  EXPECT_EQ(receiver_.token_count, std::int64_t{kSteps} * kStreams);
  // Pages came out of the prefix cache.
  EXPECT_LT(engine_->load().cached_pages, before.cached_pages);
  EXPECT_EQ(allocated, 0);
  EXPECT_EQ(locked, 0);
  EXPECT_EQ(lines, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Setups,
    SteadyStep,
    testing::Values(Setup{.name = "page_of_1", .page_size = 1},
                    Setup{.name = "page_of_16"},
                    Setup{.name = "avx512", .family = kernels::Family::kAvx512},
                    Setup{.name = "avx2", .family = kernels::Family::kAvx2},
                    Setup{.name = "w8a8_int8", .quantization = model::Quantization::kW8A8Int8},
                    Setup{.name = "int8wo", .quantization = model::Quantization::kInt8WeightOnly},
                    Setup{.name = "int4wo_128",
                          .quantization = model::Quantization::kInt4WeightOnly128},
                    Setup{.name = "experts", .experts = true},
                    Setup{.name = "experts_w8a8_int8",
                          .quantization = model::Quantization::kW8A8Int8,
                          .experts = true}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(SteadyStepCounters, SeeWhatTheyCount) {
  const int allocations_before = allocations;
  auto memory = std::make_unique<std::vector<int>>(100);
  EXPECT_EQ(allocations - allocations_before, 2);
#ifndef TANDEM_SANITIZED
  const int locks_before = locks;
  std::mutex mutex;
  {
    const std::lock_guard lock(mutex);
    memory->clear();
  }
  EXPECT_EQ(locks - locks_before, 1);
#endif
}

}  // namespace
}  // namespace tandem::engine
