// Loading from good, bent and absent files.
#include "common/model/architecture.h"
#include "common/model/testing/small_model.h"
#include "common/model/weight_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

using testing::good_tensors;
using testing::kSmallConfig;
using testing::ModelFolder;
using testing::options_for;
using testing::pool;
using testing::SmallBatch;

TEST(ModelLoad, LoadsWhatTheConfigAsksFor) {
  const ModelFolder folder;
  const auto model = Model::load(options_for(folder.path()));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->dtype(), kernels::DType::kF32);
  EXPECT_EQ((*model)->context_length(), 64);
  EXPECT_TRUE((*model)->unused_tensors().empty());
  EXPECT_NE((*model)->numerics().find("/f32/f32"), std::string::npos);
}

TEST(ModelLoad, ReportsTensorsWithoutUse) {
  const ModelFolder folder;
  auto tensors = good_tensors();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {.shape = {2}};
  folder.write_weights(tensors);
  const auto model = Model::load(options_for(folder.path()));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->unused_tensors(),
            std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq"});
}

TEST(ModelLoad, EveryMissingTensorIsNamed) {
  for (const auto& [name, tensor] : good_tensors()) {
    const ModelFolder folder;
    auto tensors = good_tensors();
    tensors.erase(name);
    folder.write_weights(tensors);
    const Status status = Model::load(options_for(folder.path())).status();
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_NE(status.message().find("'" + name + "'"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(folder.path()), std::string::npos) << status.message();
  }
}

TEST(ModelLoad, EveryWrongShapeAndTypeIsNamed) {
  for (const auto& [name, tensor] : good_tensors()) {
    const ModelFolder folder;
    auto tensors = good_tensors();
    tensors[name].shape.back() += 1;
    folder.write_weights(tensors);
    Status status = Model::load(options_for(folder.path())).status();
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_NE(status.message().find("'" + name + "': has shape ["), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("asks for ["), std::string::npos) << status.message();

    tensors = good_tensors();
    tensors[name].dtype = "F8_E4M3";
    tensors[name].element_bytes = 1;
    folder.write_weights(tensors);
    status = Model::load(options_for(folder.path())).status();
    ASSERT_FALSE(status.ok()) << name;
    EXPECT_NE(status.message().find("'" + name + "': has type F8_E4M3, expected F32, F16 or BF16"),
              std::string::npos)
        << status.message();
  }
}

TEST(ModelLoad, NamesBadFoldersAndFiles) {
  Status status = Model::load(options_for("/nonexistent/model")).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("/nonexistent/model"), std::string::npos);

  const ModelFolder folder;
  fs::remove(folder.path() + "/config.json");
  status = Model::load(options_for(folder.path())).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("config.json"), std::string::npos) << status.message();

  folder.write("config.json", "{\"architectures\": [");
  status = Model::load(options_for(folder.path())).status();
  EXPECT_NE(status.message().find(folder.path() + ": config.json"), std::string::npos)
      << status.message();

  folder.write("config.json", kSmallConfig);
  folder.write("generation_config.json", "");
  status = Model::load(options_for(folder.path())).status();
  EXPECT_NE(status.message().find("generation_config.json"), std::string::npos) << status.message();
  fs::remove(folder.path() + "/generation_config.json");

  folder.write("model.safetensors", "short");
  status = Model::load(options_for(folder.path())).status();
  EXPECT_NE(status.message().find("model.safetensors"), std::string::npos) << status.message();
  fs::remove(folder.path() + "/model.safetensors");
  status = Model::load(options_for(folder.path())).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("model.safetensors"), std::string::npos) << status.message();
}

TEST(ModelLoad, DigestSeesConfigAndWeights) {
  const ModelFolder folder;
  const auto digest = [&](LoadOptions options) {
    const auto model = Model::load(options);
    TANDEM_CHECK(model.ok(), model.status().message());
    return (*model)->digest();
  };
  LoadOptions options = options_for(folder.path());
  const weights::Digest base = digest(options);
  EXPECT_EQ(base, digest(options));
  options.dtype = DTypeChoice::kBf16;
  EXPECT_EQ(base, digest(options)) << "the dtype is part of numerics(), not of the model";
  options.override_json = R"({"rope_theta":20000})";
  EXPECT_NE(base, digest(options));

  LoadOptions dummy = options_for(folder.path());
  dummy.dummy_weights = true;
  const weights::Digest first = digest(dummy);
  EXPECT_EQ(first, digest(dummy));
  dummy.dummy_seed = 1;
  EXPECT_NE(first, digest(dummy));
}

TEST(ModelLoad, PlanMatchesWhatIsHeld) {
  const ModelFolder folder;
  for (const DTypeChoice dtype : {DTypeChoice::kF32, DTypeChoice::kBf16, DTypeChoice::kF16}) {
    LoadOptions options = options_for(folder.path());
    options.dtype = dtype;
    const auto loaded = Model::load(options);
    ASSERT_TRUE(loaded.ok());
    const MemoryPlan plan = (*loaded)->memory_plan(16);
    // K and V of 1 layer, 1 head of 4, 16 slots.
    EXPECT_EQ(plan.page_bytes, 2U * 1 * 4 * 16 * kernels::dtype_bytes((*loaded)->dtype()));
    EXPECT_EQ(plan.page_bytes, (*loaded)->kv_layout(16).page_bytes());
    EXPECT_EQ(plan.rope_bytes, 64U * 4 * sizeof(float));
    EXPECT_EQ(plan.logit_bytes, 4U * (20 + 2 * 8) * sizeof(float));
    EXPECT_EQ(plan.activation_bytes, 16U * (8 + 8 + 16 + 8 + 12) * sizeof(float));
    EXPECT_GE(plan.weight_bytes, 20U * 8 * kernels::dtype_bytes((*loaded)->dtype()));
    EXPECT_GT(plan.fixed_bytes(), plan.weight_bytes);
  }
}

TEST(ModelLoad, NarrowsTheFilesWeightsToTheChosenType) {
  const ModelFolder folder;

  struct Row {
    DTypeChoice dtype;
    float (*rounded)(float);
  };

  const Row rows[] = {
      {DTypeChoice::kF32, [](float x) { return x; }},
      {DTypeChoice::kF16, [](float x) { return kernels::f16_to_f32(kernels::f32_to_f16(x)); }},
      {DTypeChoice::kBf16, [](float x) { return kernels::bf16_to_f32(kernels::f32_to_bf16(x)); }}};
  const auto checkpoint = weights::Checkpoint::open(folder.path(), {});
  ASSERT_TRUE(checkpoint.ok());
  const auto table = checkpoint->find("model.embed_tokens.weight");
  ASSERT_TRUE(table.ok());
  for (const Row& row : rows) {
    LoadOptions options = options_for(folder.path());
    options.dtype = row.dtype;
    std::vector<std::vector<float>> logits;
    for (const weights::ReadMode mode : {weights::ReadMode::kMmap, weights::ReadMode::kRead}) {
      options.read_mode = mode;
      const auto loaded = Model::load(options);
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      SmallBatch small(**loaded);
      std::vector<float> states(2 * small.ids.size() * 8);
      ForwardBatch batch = small.batch();
      batch.hidden_states = states.data();
      ForwardOutput output;
      ASSERT_TRUE((*loaded)->forward(batch, output).ok());
      logits.emplace_back(output.logits, output.logits + output.rows * output.vocab_size);
      for (std::size_t i = 0; i < small.ids.size() * 8; ++i) {
        const auto id = static_cast<std::size_t>(small.ids[i / 8]);
        float stored = 0;
        std::memcpy(&stored, table->bytes.data() + (id * 8 + i % 8) * 4, 4);
        ASSERT_EQ(states[i], row.rounded(stored)) << i;
      }
    }
    EXPECT_EQ(logits[0], logits[1]) << "mapped and copied weights are the same weights";
  }
}

// Not SIGBUS and not zeros, whichever of the threads met the end of the file.
TEST(ModelLoad, AFileThatIsShortenedWhileItIsReadIsNamed) {
  const ModelFolder folder;
  const auto config = read_config(folder.path(), "");
  ASSERT_TRUE(config.ok()) << config.status().message();
  const auto checkpoint = weights::Checkpoint::open(folder.path(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const std::string file = folder.path() + "/model.safetensors";
  fs::resize_file(file, fs::file_size(file) / 2);
  kernels::ThreadPool threads(3);
  // f16 rounds the embedding table, which f32 leaves where it is.
  for (const auto& [family, dtype] : {std::pair{kernels::Family::kReference, kernels::DType::kF32},
                                      {kernels::Family::kAuto, kernels::DType::kF32},
                                      {kernels::Family::kAuto, kernels::DType::kF16}}) {
    CheckpointSource source(*checkpoint);
    const auto decoder = load_decoder(
        *config,
        find_architecture(config->architecture)->weights,
        source,
        {.backend = kernels::select(family, nullptr), .pool = &threads, .dtype = dtype});
    ASSERT_FALSE(decoder.ok());
    EXPECT_EQ(decoder.status().code(), Code::kDataLoss);
    EXPECT_NE(decoder.status().message().find("model.safetensors: ended after"), std::string::npos)
        << decoder.status().message();
  }
}

// The matrices alone: vectors are read where they are asked for.
TEST(ModelLoad, ReaderTellsWhatItCouldNotRead) {
  const ModelFolder folder;
  const auto checkpoint = weights::Checkpoint::open(folder.path(), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  std::atomic<bool> stop{false};
  CheckpointSource source(*checkpoint, &stop);
  const auto matrix = source.matrix("lm_head.weight", {.rows = 20, .cols = 8});
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  const auto* from = static_cast<const std::byte*>(matrix->view.data);
  std::vector<std::byte> out(32, std::byte{1});
  source.reader()->read(from, out.size(), out.data());
  EXPECT_TRUE(source.take_read_status().ok());
  EXPECT_EQ(std::memcmp(out.data(), from, out.size()), 0);
  fs::resize_file(folder.path() + "/model.safetensors", 100);
  source.reader()->read(from, out.size(), out.data());
  EXPECT_EQ(source.take_read_status().code(), Code::kDataLoss);
  EXPECT_EQ(out, std::vector<std::byte>(32)) << "zeros, whatever was there";
  stop = true;
  source.reader()->read(from, out.size(), out.data());
  EXPECT_EQ(source.take_read_status().code(), Code::kCancelled) << "nothing more is read";
}

/// Has all matrices, but not all of their elements.
class LosingSource final : public WeightSource {
 public:
  Result<SourceMatrix> matrix(std::string_view name, MatrixShape shape) override {
    return inner_.matrix(name, shape);
  }

  Result<std::vector<float>> vector(std::string_view name, std::int64_t size) override {
    return inner_.vector(name, size);
  }

  [[nodiscard]] Status take_read_status() override { return data_loss("lost"); }

 private:
  DummySource inner_{1, kernels::DType::kF32};
};

TEST(ModelLoad, FailsWhenElementsCouldNotBeRead) {
  const ModelFolder folder;
  const auto config = read_config(folder.path(), "");
  ASSERT_TRUE(config.ok()) << config.status().message();
  LosingSource source;
  const auto decoder = load_decoder(*config,
                                    find_architecture(config->architecture)->weights,
                                    source,
                                    {.backend = kernels::select(kernels::Family::kAuto, nullptr),
                                     .pool = &pool(),
                                     .dtype = kernels::DType::kF32});
  ASSERT_FALSE(decoder.ok());
  EXPECT_EQ(decoder.status().message(), "lost");
}

TEST(ModelLoad, EndsWhenItIsNoLongerWanted) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  std::atomic<bool> stop{false};
  options.stop = &stop;
  EXPECT_TRUE(Model::load(options).ok());
  stop = true;
  for (const bool dummy : {false, true}) {
    options.dummy_weights = dummy;
    const auto model = Model::load(options);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), Code::kCancelled) << model.status().message();
  }
}

TEST(ModelLoad, LimitsAreChecked) {
  const ModelFolder folder;
  for (const PassLimits& bad : {PassLimits{.token_count_max = 0},
                                PassLimits{.logit_row_count_max = -1},
                                PassLimits{.sequence_count_max = 1LL << 40U},
                                PassLimits{.context_length = -1}}) {
    LoadOptions options = options_for(folder.path());
    options.limits = bad;
    EXPECT_EQ(Model::load(options).status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tandem::model
