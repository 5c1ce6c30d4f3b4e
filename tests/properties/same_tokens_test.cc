// Promise 1: for one model, prompt, parameters and seed, tokens and the bits of their logprobs are
// the same alone, batched, chunked, from a cold or warm prefix cache, for any page size and thread
// count, through retraction, after a failover, and through a prefill and a decode engine; in every
// kernel family that runs here, by itself.
#include "common/engine/engine.h"
#include "common/engine/model_executor.h"
#include "common/model/model.h"
#include "common/model/testing/config_folder.h"
#include "kernels/api/backend.h"
#include "tests/properties/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

namespace tandem::properties {
namespace {

constexpr std::size_t kRequests = 200;
constexpr std::uint64_t kSeed = 20240817;

/// How a run is served. Defaults are the reference: nothing shared, nothing split.
struct Serving {
  const char* name = "";
  /// The shipped model; else a folder with a config.json, for random weights.
  std::string config_folder{};
  std::size_t threads = 1;
  std::int32_t page_size = 16;
  std::int32_t chunk = -1;
  std::int64_t pool_tokens = 16384;
  bool cache = false;
  bool mixed = true;
  bool lpm = false;
  std::int32_t running = 64;
  std::int32_t stream_interval = 1;
  double conservativeness = 1.0;
  /// Of one forward call.
  std::int64_t batch_tokens = 8192;
  std::int64_t logit_rows = 256;
  kernels::Family family = kernels::Family::kAuto;
  model::DTypeChoice dtype = model::DTypeChoice::kAuto;
  std::optional<kernels::DType> kv_dtype = {};
  model::Quantization quantization = model::Quantization::kNone;
};

/// A model and an engine on it.
class Server {
 public:
  explicit Server(const Serving& setup) : pool_(setup.threads) {
    std::string reason;
    const kernels::Backend* backend = kernels::select(setup.family, &reason);
    TANDEM_CHECK(backend != nullptr, reason);
    model::LoadOptions load;
    load.dummy_weights = !setup.config_folder.empty();
    load.folder = load.dummy_weights ? setup.config_folder : TANDEM_SOURCE_DIR "/assets/demo-model";
    load.dtype = setup.dtype;
    load.kv_dtype = setup.kv_dtype;
    load.quantization = setup.quantization;
    load.backend = backend;
    load.pool = &pool_;
    load.limits.token_count_max = setup.batch_tokens;
    load.limits.logit_row_count_max = setup.logit_rows;
    auto model = model::Model::load(load);
    TANDEM_CHECK(model.ok(), model.status().message());
    model_ = std::move(*model);
    executor_ = std::make_unique<engine::ModelExecutor>(model_.get(), setup.page_size);
    engine::EngineOptions options;
    options.max_total_tokens = setup.pool_tokens;
    options.page_size = setup.page_size;
    options.disable_radix_cache = !setup.cache;
    options.max_running_requests = setup.running;
    options.chunked_prefill_size = setup.chunk;
    options.mixed_chunk = setup.mixed;
    options.schedule_policy =
        setup.lpm ? engine::SchedulePolicy::kLpm : engine::SchedulePolicy::kFcfs;
    options.schedule_conservativeness = setup.conservativeness;
    options.stream_interval = setup.stream_interval;
    auto created = engine::Engine::create(options, executor_.get());
    TANDEM_CHECK(created.ok(), created.status().message());
    engine_ = std::move(*created);
  }

  engine::Engine& engine() { return *engine_; }

  engine::Engine* operator->() { return engine_.get(); }

  void drain() {
    while (engine_->has_work()) {
      ASSERT_TRUE(engine_->step(steady_clock().now())) << "stuck";
    }
    const Status status = engine_->check_invariants();
    ASSERT_TRUE(status.ok()) << status.message();
  }

 private:
  kernels::ThreadPool pool_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::ModelExecutor> executor_;
  std::unique_ptr<engine::Engine> engine_;
};

const std::vector<core::Request>& requests() {
  static const auto* all = new std::vector(random_requests(kSeed, kRequests, 2048));
  return *all;
}

/// How many of the requests a family gets: the scalar ones are slow.
std::size_t requests_of(kernels::Family family) {
  const bool slow = family == kernels::Family::kReference || family == kernels::Family::kGeneric;
  return slow ? kRequests / 10 : kRequests;
}

/// Every request alone on a server without cache.
std::vector<Outcome> run_alone(Server& server, std::size_t count) {
  std::vector<Outcome> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Status status = server->submit(requests()[i], out[i].sink());
    TANDEM_CHECK(status.ok(), status.message());
    server.drain();
  }
  return out;
}

/// What all others of a family are compared with.
const std::vector<Outcome>& reference(kernels::Family family) {
  static auto* all = new std::map<kernels::Family, std::vector<Outcome>>;
  auto [at, is_new] = all->try_emplace(family);
  if (is_new) {
    Server server({.name = "alone", .family = family});
    at->second = run_alone(server, requests_of(family));
  }
  return at->second;
}

void expect_same(const std::vector<Outcome>& got, kernels::Family family) {
  const std::vector<Outcome>& want = reference(family);
  ASSERT_EQ(got.size(), want.size());
  int different = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::string difference = got[i].difference(want[i]);
    if (difference.empty()) continue;
    if (++different <= 5) ADD_FAILURE() << "request " << i << ": " << difference;
  }
  EXPECT_EQ(different, 0) << "of " << got.size() << ", seed " << kSeed;
}

/// All requests of a family at once, or a few steps apart when `gap_seed` is given.
std::vector<Outcome> run_all(Server& server, kernels::Family family, std::uint64_t gap_seed = 0) {
  std::vector<Outcome> out(requests_of(family));
  Random random(gap_seed);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Status status = server->submit(requests()[i], out[i].sink());
    EXPECT_TRUE(status.ok()) << status.message();
    for (std::uint64_t steps = gap_seed == 0 ? 0 : random.below(3); steps > 0; --steps) {
      server->step(steady_clock().now());
    }
  }
  server.drain();
  return out;
}

class SameTokens : public testing::TestWithParam<std::tuple<Serving, kernels::Family>> {};

TEST_P(SameTokens, AsAlone) {
  auto [setup, family] = GetParam();
  setup.family = family;
  Server server(setup);
  const auto got = run_all(server, family);
  expect_same(got, family);
  if (!setup.cache) return;
  // Again: everything that fits is in the prefix cache now.
  const auto warm = run_all(server, family, 7);
  expect_same(warm, family);
  std::int64_t cached = 0;
  for (const Outcome& outcome : warm)
    cached += outcome.cached_tokens();
  // Few requests share no page of 64.
  EXPECT_TRUE(cached > 0 || (setup.page_size == 64 && got.size() < kRequests));
}

INSTANTIATE_TEST_SUITE_P(
    Servings,
    SameTokens,
    testing::Combine(
        testing::Values(
            Serving{.name = "batched"},
            Serving{.name = "two_threads", .threads = 2, .cache = true},
            Serving{.name = "chunks_of_1", .page_size = 4, .chunk = 1, .running = 16},
            Serving{.name = "chunks_of_7", .page_size = 1, .chunk = 7, .cache = true},
            Serving{.name = "turns", .page_size = 64, .chunk = 64, .cache = true, .mixed = false},
            Serving{.name = "lpm", .page_size = 8, .chunk = 32, .cache = true, .lpm = true},
            Serving{.name = "small_calls",
                    .page_size = 2,
                    .cache = true,
                    .batch_tokens = 5,
                    .logit_rows = 3},
            Serving{.name = "stream_interval", .page_size = 32, .chunk = 33, .stream_interval = 5}),
        testing::ValuesIn(kernels::available_families())),
    [](const auto& row) {
      return std::string(std::get<0>(row.param).name) + "_" +
             std::string(kernels::family_name(std::get<1>(row.param)));
    });

/// More than a way of serving.
class SameTokensInFamily : public testing::TestWithParam<kernels::Family> {};

INSTANTIATE_TEST_SUITE_P(Families,
                         SameTokensInFamily,
                         testing::ValuesIn(kernels::available_families()),
                         [](const auto& row) {
                           return std::string(kernels::family_name(row.param));
                         });

/// The first `count` requests one by one, and together in chunks on two threads with a cache.
void expect_same_in_company(Serving setup, std::size_t count) {
  Server alone(setup);
  const auto want = run_alone(alone, count);
  setup.threads = 2;
  setup.chunk = 9;
  setup.page_size = 4;
  setup.cache = true;
  Server together(setup);
  std::vector<Outcome> got(count);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(together->submit(requests()[i], got[i].sink()).ok());
  }
  together.drain();
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_EQ(got[i].difference(want[i]), "") << i;
}

/// Fewer of them: for many models.
std::size_t few_of(kernels::Family family) {
  return std::max<std::size_t>(4, requests_of(family) / 8);
}

/// Families and dtypes round differently from each other, but each is the same alone and in
/// company.
TEST(SameTokensSpecial, InEveryKernelFamilyAndDtype) {
  for (const kernels::Family family : kernels::available_families()) {
    for (const auto dtype : {model::DTypeChoice::kBf16, model::DTypeChoice::kF32}) {
      SCOPED_TRACE(std::string(kernels::family_name(family)) +
                   (dtype == model::DTypeChoice::kF32 ? " f32" : " bf16"));
      expect_same_in_company({.name = "family", .family = family, .dtype = dtype}, few_of(family));
    }
  }
}

TEST(SameTokensSpecial, WithKeysAndValuesOf8BitInEveryKernelFamily) {
  for (const kernels::Family family : kernels::available_families()) {
    for (const auto kv_dtype : {kernels::DType::kFp8E5m2, kernels::DType::kFp8E4m3}) {
      SCOPED_TRACE(std::string(kernels::family_name(family)) + " " +
                   std::string(kernels::dtype_name(kv_dtype)));
      expect_same_in_company({.name = "bytes", .family = family, .kv_dtype = kv_dtype},
                             few_of(family));
    }
  }
}

TEST(SameTokensSpecial, TileUnitIsHere) {
  std::string reason;
  if (kernels::select(kernels::Family::kAmx, &reason) == nullptr)
    GTEST_SKIP() << "skipped: " << reason << "; the families above and below are without amx here";
}

TEST(SameTokensSpecial, WithEveryQuantizationInEveryKernelFamily) {
  for (const kernels::Family family : kernels::available_families()) {
    for (const auto quantization : {model::Quantization::kInt8WeightOnly,
                                    model::Quantization::kInt4WeightOnly128,
                                    model::Quantization::kW8A8Int8}) {
      SCOPED_TRACE(std::string(kernels::family_name(family)) + " " +
                   std::string(model::quantization_name(quantization)));
      expect_same_in_company({.name = "quantized", .family = family, .quantization = quantization},
                             few_of(family));
    }
  }
}

TEST(SameTokensSpecial, WithExpertsInEveryQuantizationAndKernelFamily) {
  const model::testing::ConfigFolder folder(model::testing::kSmallMixture);
  for (const auto quantization : {model::Quantization::kNone,
                                  model::Quantization::kInt8WeightOnly,
                                  model::Quantization::kInt4WeightOnly128,
                                  model::Quantization::kW8A8Int8}) {
    for (const kernels::Family family : kernels::available_families()) {
      SCOPED_TRACE(std::string(kernels::family_name(family)) + " " +
                   std::string(model::quantization_name(quantization)));
      const bool is_auto = family == kernels::available_families().back();
      expect_same_in_company({.name = "experts",
                              .config_folder = folder.path(),
                              .family = family,
                              .quantization = quantization},
                             is_auto ? kRequests / 2 : few_of(family));
    }
  }
}

TEST_P(SameTokensInFamily, ThroughRetraction) {
  Server server({.name = "tiny",
                 .page_size = 4,
                 .chunk = 24,
                 .pool_tokens = 200,
                 .cache = true,
                 .conservativeness = 0,
                 .family = GetParam()});
  expect_same(run_all(server, GetParam()), GetParam());
  EXPECT_GT(server->retraction_count(), 0);
}

TEST_P(SameTokensInFamily, AfterAFailoverAtAnyToken) {
  Random random(kSeed + 1);
  Server server(
      {.name = "second", .page_size = 8, .chunk = 16, .cache = true, .family = GetParam()});
  const std::vector<Outcome>& first = reference(GetParam());
  std::vector<Outcome> out(first.size());
  std::vector<std::size_t> cuts(first.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    core::Request request = requests()[i];
    const auto& tokens = first[i].tokens();
    cuts[i] = random.below(tokens.size() + 1);
    request.resumed_output_ids.assign(tokens.begin(),
                                      tokens.begin() + static_cast<std::ptrdiff_t>(cuts[i]));
    out[i].start_after(first[i], cuts[i]);
    const Status status = server->submit(std::move(request), out[i].sink());
    ASSERT_TRUE(status.ok()) << status.message();
  }
  server.drain();
  expect_same(out, GetParam());
}

/// Copies each chunk's pages as soon as it is ready, as a transfer would.
class Copier final : public engine::PrefillObserver {
 public:
  Copier(Server& from, Server& to) : from_(from), to_(to) {}

  void chunk_ready(core::RequestId,
                   std::int32_t first_page_index,
                   std::span<const kv::PageId> pages,
                   std::int32_t) override {
    if (!moves) return;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto index = static_cast<std::size_t>(first_page_index) + i;
      if (index < matched_pages) continue;
      std::memcpy(to_->page_address(landing.at(index - matched_pages)),
                  from_->page_address(pages[i]),
                  from_->page_bytes());
    }
  }

  void first_token(core::TokenEvent&& event) override { first = std::move(event); }

  void ended(core::RequestId, const Status& why) override { failure = why; }

  bool moves = false;  ///< the output goes on behind its first token
  std::size_t matched_pages = 0;
  std::vector<kv::PageId> landing;
  std::optional<core::TokenEvent> first;
  Status failure;

 private:
  Server& from_;
  Server& to_;
};

TEST_P(SameTokensInFamily, ThroughAPrefillAndADecodeEngine) {
  Server prefill(
      {.name = "prefill", .page_size = 8, .chunk = 12, .cache = true, .family = GetParam()});
  Server decode(
      {.name = "decode", .threads = 2, .page_size = 8, .cache = true, .family = GetParam()});
  const std::size_t count = requests_of(GetParam());
  std::vector<Outcome> out(count);
  std::vector<std::unique_ptr<Copier>> copiers(count);
  // Several at a time on both sides, adopted in the order in which they arrive.
  constexpr std::size_t kAtOnce = 8;
  for (std::size_t begin = 0; begin < count; begin += kAtOnce) {
    const std::size_t end = std::min(begin + kAtOnce, count);
    for (std::size_t i = begin; i < end; ++i) {
      const core::Request& request = requests()[i];
      const auto reservation = decode->reserve(request);
      ASSERT_TRUE(reservation.ok()) << reservation.status().message();
      copiers[i] = std::make_unique<Copier>(prefill, decode);
      copiers[i]->moves = !reservation->nothing_to_decode;
      if (copiers[i]->moves) {
        copiers[i]->matched_pages = static_cast<std::size_t>(reservation->matched_tokens) / 8;
        copiers[i]->landing = *decode->take_pages(request.id, reservation->page_count);
      }
      const Status status = prefill->submit_prefill(request, copiers[i].get());
      ASSERT_TRUE(status.ok()) << status.message();
    }
    prefill.drain();
    for (std::size_t i = begin; i < end; ++i) {
      const core::RequestId id = requests()[i].id;
      ASSERT_TRUE(copiers[i]->first.has_value()) << copiers[i]->failure.message();
      const core::TokenId first = copiers[i]->first->tokens.front();
      out[i].take(std::move(*copiers[i]->first));
      prefill->release_prefill(id);
      if (copiers[i]->moves) {
        engine::AdoptState state;
        state.first_token = first;
        ASSERT_TRUE(decode->adopt(id, state, out[i].sink()).ok());
      }
      decode->step(steady_clock().now());
    }
  }
  decode.drain();
  expect_same(out, GetParam());
  for (Server* server : {&prefill, &decode}) {
    ASSERT_TRUE((*server)->flush_cache().ok());
    EXPECT_EQ((*server)->load().free_pages, (*server)->load().total_pages);
  }
}

}  // namespace
}  // namespace tandem::properties
