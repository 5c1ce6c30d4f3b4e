// Same tokens everywhere, at the level of one model: whatever the batch, the chunks, the pages and
// the number of threads, the logits of a sequence have the same bits.
#include "common/base/random.h"
#include "common/model/testing/config_folder.h"
#include "kernels/api/backend.h"
#include "tests/golden/model_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <new>
#include <string>

namespace {

/// Counts what goes through operator new, for the test that forward() allocates nothing.
std::atomic<std::uint64_t> allocation_count{0};

void* counted(std::size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size);
}

void* operator new[](std::size_t size) {
  return counted(size);
}

void operator delete(void* memory) noexcept {
  std::free(memory);
}

void operator delete[](void* memory) noexcept {
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace tandem::golden {
namespace {

using model::testing::ConfigFolder;

constexpr std::int32_t kVocab = 96;

/// Odd sizes on purpose: no tile, lane or page divides them.
std::string config_of(const std::string& architecture, const std::string& more) {
  return R"({"architectures":[")" + architecture +
         R"("],"vocab_size":96,"hidden_size":72,"intermediate_size":100,"num_hidden_layers":2,
            "num_attention_heads":6,"num_key_value_heads":2,"head_dim":20,
            "max_position_embeddings":512)" +
         more + "}";
}

const std::string kConfigs[] = {
    config_of("LlamaForCausalLM", R"(,"attention_bias":true,"mlp_bias":true)"),
    config_of("MistralForCausalLM", R"(,"sliding_window":11)"),
    config_of("Qwen3ForCausalLM",
              R"(,"tie_word_embeddings":true,"use_sliding_window":true,"sliding_window":9,
                 "max_window_layers":1,"rope_scaling":{"type":"yarn","factor":4})"),
    config_of("Qwen3MoeForCausalLM",
              R"(,"num_experts":7,"num_experts_per_tok":3,"moe_intermediate_size":23,
                 "mlp_only_layers":[1],"tie_word_embeddings":true)"),
};

std::unique_ptr<model::Model> dummy(const ConfigFolder& folder,
                                    kernels::Family family,
                                    model::DTypeChoice dtype,
                                    kernels::ThreadPool& pool,
                                    model::Quantization quantization = {},
                                    const model::PassLimits& limits = {.token_count_max = 256,
                                                                       .logit_row_count_max = 16,
                                                                       .sequence_count_max = 32,
                                                                       .context_length = 0}) {
  auto loaded = model::Model::load({.folder = folder.path(),
                                    .dtype = dtype,
                                    .quantization = quantization,
                                    .override_json = "",
                                    .backend = kernels::select(family, nullptr),
                                    .pool = &pool,
                                    .limits = limits,
                                    .dummy_weights = true,
                                    .dummy_seed = 5});
  TANDEM_CHECK(loaded.ok(), loaded.status().message());
  return std::move(*loaded);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  return std::ranges::equal(a, b, {}, bits, bits);
}

std::vector<std::int32_t> random_tokens(Random& random, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(random.below(kVocab));
  return tokens;
}

/// Runs all sequences in random ragged batches until each is done.
void run_ragged(ModelRunner& runner, std::vector<Track>& tracks, Random& random) {
  while (true) {
    std::vector<Slice> slices;
    for (Track& track : tracks) {
      const std::size_t left = track.tokens.size() - track.done;
      if (left == 0 || random.chance(0.25)) continue;
      slices.push_back({&track, std::min<std::size_t>(left, 1 + random.below(30))});
    }
    // The order of sequences in a batch must not matter either.
    for (std::size_t i = slices.size(); i > 1; --i) {
      std::swap(slices[i - 1], slices[random.below(i)]);
    }
    if (!slices.empty()) {
      const Status status = runner.step(slices);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    if (std::all_of(tracks.begin(), tracks.end(), [](const Track& track) {
          return track.done == track.tokens.size();
        })) {
      return;
    }
  }
}

void check_same_bits(const std::string& config,
                     kernels::Family family,
                     model::DTypeChoice dtype,
                     std::uint64_t seed,
                     model::Quantization quantization = {}) {
  SCOPED_TRACE("family " + std::string(kernels::family_name(family)) + ", seed " +
               std::to_string(seed));
  Random random(seed);
  const ConfigFolder folder(config);
  kernels::ThreadPool one(1);
  kernels::ThreadPool three(3);
  const auto alone = dummy(folder, family, dtype, one, quantization);
  const auto shared = dummy(folder, family, dtype, three, quantization);
  ModelRunner alone_runner(*alone, {.page_size = 64, .page_count = 8});
  ModelRunner shared_runner(*shared, {.page_size = 1 + random.below(9), .page_count = 1024});
  std::vector<Track> tracks;
  std::vector<std::vector<float>> want;
  for (int i = 0; i < 5; ++i) {
    const auto tokens = random_tokens(random, 1 + random.below(70));
    Track whole = alone_runner.start(tokens, tokens.size());
    ASSERT_TRUE(alone_runner.run(whole, 0).ok());
    alone_runner.finish(whole);
    want.push_back(std::move(whole.logits));
    tracks.push_back(shared_runner.start(tokens, tokens.size()));
  }
  run_ragged(shared_runner, tracks, random);
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    ASSERT_EQ(tracks[i].logits.size(), want[i].size());
    ASSERT_TRUE(same_bits(tracks[i].logits, want[i]))
        << "sequence " << i << " of " << tracks[i].tokens.size() << " tokens";
    // Bits that are all equal would also be equal: the logits must say something.
    EXPECT_NE(want[i][0], want[i][1]);
  }
}

TEST(ModelProperty, BitsDoNotDependOnBatchChunksPagesOrThreads) {
  const char* named = std::getenv("TANDEM_TEST_SEED");
  const std::uint64_t seed = named != nullptr ? std::strtoull(named, nullptr, 10) : 20'240'607;
  RecordProperty("seed", std::to_string(seed));
  std::uint64_t run = 0;
  for (const std::string& config : kConfigs) {
    SCOPED_TRACE(config);
    for (const kernels::Family family : kernels::available_families()) {
      for (const auto dtype :
           {model::DTypeChoice::kF32, model::DTypeChoice::kF16, model::DTypeChoice::kBf16}) {
        check_same_bits(config, family, dtype, seed + run++);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(ModelProperty, QuantizedBitsDoNotDependOnThemEither) {
  std::uint64_t run = 1000;
  for (const auto quantization : {model::Quantization::kInt8WeightOnly,
                                  model::Quantization::kInt4WeightOnly128,
                                  model::Quantization::kW8A8Int8}) {
    SCOPED_TRACE(model::quantization_name(quantization));
    for (const std::string& config : kConfigs) {
      for (const kernels::Family family : kernels::available_families()) {
        check_same_bits(config, family, model::DTypeChoice::kBf16, run++, quantization);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Of so many rows an MLP takes some at a time, and what they leave may be whole or end anywhere.
TEST(ModelProperty, ManyRowsAtOnceHaveTheBitsOfFew) {
  const ConfigFolder folder(R"({"architectures":["LlamaForCausalLM"],"vocab_size":96,
    "hidden_size":64,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4,
    "num_key_value_heads":2,"head_dim":16,"max_position_embeddings":2048})");
  kernels::ThreadPool pool(2);
  Random random(31);
  for (const kernels::Family family : kernels::available_families()) {
    if (family == kernels::Family::kReference) continue;  // takes any rows alone, and is slow
    for (const auto quantization : {model::Quantization::kNone, model::Quantization::kW8A8Int8}) {
      SCOPED_TRACE(kernels::family_name(family));
      const auto model = dummy(folder,
                               family,
                               model::DTypeChoice::kBf16,
                               pool,
                               quantization,
                               {.token_count_max = 1600,
                                .logit_row_count_max = 1600,
                                .sequence_count_max = 2,
                                .context_length = 0});
      ModelRunner runner(*model, {.page_size = 16, .page_count = 256});
      for (const std::size_t count : {767U, 768U, 1023U, 1100U, 1536U}) {
        const auto tokens = random_tokens(random, count);
        Track whole = runner.start(tokens, count);
        Track parts = runner.start(tokens, count);
        ASSERT_TRUE(runner.run(whole, 0).ok());
        ASSERT_TRUE(runner.run(parts, 250).ok());
        EXPECT_TRUE(same_bits(whole.logits, parts.logits)) << count << " tokens";
        runner.finish(whole);
        runner.finish(parts);
      }
    }
  }
}

TEST(ModelProperty, MemoryPlanIsWhatIsHeld) {
  const ConfigFolder folder(kConfigs[0]);
  kernels::ThreadPool pool(1);
  const auto bytes = [&](model::Quantization quantization) {
    const auto model =
        dummy(folder, kernels::Family::kAuto, model::DTypeChoice::kBf16, pool, quantization);
    const auto plan = model->memory_plan(4);
    EXPECT_EQ(plan.page_bytes, model->kv_layout(4).page_bytes());
    return plan.weight_bytes;
  };
  const std::uint64_t whole = bytes(model::Quantization::kNone);
  const std::uint64_t int8 = bytes(model::Quantization::kInt8WeightOnly);
  EXPECT_LT(int8, whole * 6 / 10);
  EXPECT_EQ(bytes(model::Quantization::kW8A8Int8), int8);
  EXPECT_LT(bytes(model::Quantization::kInt4WeightOnly128), int8 * 8 / 10);
}

/// The first tokens of three sequences, in three pages and more.
struct MixedBatch {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> sequence;
  std::vector<std::vector<std::int32_t>> tables = {{3, 0, 7, 1}, {2, 5, 8, 9}, {4, 6}};
  std::vector<model::SequencePages> pages;

  explicit MixedBatch(Random& random) {
    for (const auto& table : tables)
      pages.push_back({table.data(), table.size()});
    const std::int32_t lengths[] = {37, 50, 1};
    for (std::size_t i = 0; i < std::size(lengths); ++i) {
      for (std::int32_t at = 0; at < lengths[i]; ++at) {
        positions.push_back(at);
        sequence.push_back(static_cast<std::int32_t>(i));
      }
    }
    ids = random_tokens(random, positions.size());
  }
};

// Rows that nobody asks for do not go through all of the last layer.
TEST(ModelProperty, LogitsOfSomeRowsAreThoseOfAllRows) {
  Random random(7);
  MixedBatch mixed(random);
  const std::vector<std::vector<std::int32_t>> wanted = {{},
                                                         {36},
                                                         {0},
                                                         {36, 86, 87},
                                                         {5, 6, 7, 40, 86},
                                                         {70, 71, 72, 73, 74, 75, 76, 77, 78, 79},
                                                         {3, 2, 86},
                                                         {0, 0, 1}};
  std::vector<std::string> configs(std::begin(kConfigs), std::end(kConfigs));
  // Experts in the last layer, and heads that attention has its own ways with.
  configs.push_back(config_of("Qwen3MoeForCausalLM",
                              R"(,"num_experts":7,"num_experts_per_tok":3,
                                 "moe_intermediate_size":23,"tie_word_embeddings":true)"));
  configs.emplace_back(R"({"architectures":["Qwen3ForCausalLM"],"vocab_size":96,"hidden_size":128,
      "intermediate_size":192,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"head_dim":64,"max_position_embeddings":512})");
  for (const std::string& config : configs) {
    SCOPED_TRACE(config);
    const ConfigFolder folder(config);
    for (const kernels::Family family : kernels::available_families()) {
      SCOPED_TRACE(kernels::family_name(family));
      kernels::ThreadPool pool(2);
      const auto model = dummy(folder, family, model::DTypeChoice::kBf16, pool);
      std::vector<std::byte> arena(10 * model->kv_layout(16).page_bytes());
      model::ForwardBatch batch{.token_ids = mixed.ids,
                                .positions = mixed.positions,
                                .sequence = mixed.sequence,
                                .sequences = mixed.pages,
                                .kv = {.base = arena.data(), .page_count = 10, .page_size = 16},
                                .logit_rows = {}};
      for (const std::vector<std::int32_t>& rows : wanted) {
        SCOPED_TRACE(rows.size());
        model::ForwardOutput output;
        batch.logit_rows = {};
        batch.keep_rows = true;
        ASSERT_TRUE(model->forward(batch, output).ok());
        ASSERT_TRUE(model->logits(rows, output).ok());
        const std::vector<float> want(output.logits, output.logits + rows.size() * kVocab);
        const std::vector<std::byte> pages = arena;
        std::ranges::fill(arena, std::byte{0});
        batch.logit_rows = rows;
        batch.keep_rows = false;
        ASSERT_TRUE(model->forward(batch, output).ok());
        ASSERT_EQ(output.rows, rows.size());
        const std::vector<float> got(output.logits, output.logits + rows.size() * kVocab);
        EXPECT_TRUE(same_bits(got, want));
        EXPECT_EQ(arena, pages) << "K and V";
      }
    }
  }
}

void check_no_allocation(const std::string& config) {
  SCOPED_TRACE(config);
  const ConfigFolder folder(config);
  for (const kernels::Family family : kernels::available_families()) {
    SCOPED_TRACE(kernels::family_name(family));
    kernels::ThreadPool pool(2);
    const auto model = dummy(folder, family, model::DTypeChoice::kBf16, pool);
    const auto layout = model->kv_layout(4);
    std::vector<std::byte> arena(8 * layout.page_bytes());
    const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const std::vector<std::int32_t> sequence(9, 0);
    const std::vector<std::int32_t> table = {5, 1, 3};
    const std::vector<model::SequencePages> pages = {{table.data(), table.size()}};
    const std::vector<std::int32_t> rows = {0, 8};
    model::ForwardBatch batch{.token_ids = ids,
                              .positions = positions,
                              .sequence = sequence,
                              .sequences = pages,
                              .kv = {.base = arena.data(), .page_count = 8, .page_size = 4},
                              .logit_rows = rows};
    model::ForwardOutput output;
    ASSERT_TRUE(model->forward(batch, output).ok());
    const std::uint64_t before = allocation_count.load();
    ASSERT_TRUE(model->forward(batch, output).ok());
    batch.keep_rows = true;
    ASSERT_TRUE(model->forward(batch, output).ok());
    ASSERT_TRUE(model->logits(rows, output).ok());
    EXPECT_EQ(allocation_count.load(), before);
  }
}

TEST(ModelProperty, ForwardAllocatesNothing) {
  check_no_allocation(kConfigs[2]);
  check_no_allocation(kConfigs[3]);
}

}  // namespace
}  // namespace tandem::golden
