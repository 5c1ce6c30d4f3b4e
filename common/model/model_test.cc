// Loading from good, bent and absent files, and batches that must be refused.
#include "common/model/model.h"

#include "common/base/failpoint.h"
#include "common/model/architecture.h"
#include "common/model/weight_source.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace tandem::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({
  "architectures": ["Qwen2ForCausalLM"], "vocab_size": 20, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "max_position_embeddings": 64, "torch_dtype": "float32"})";

struct FileTensor {
  std::string dtype = "F32";
  std::vector<int> shape;
  std::size_t element_bytes = 4;
};

/// The tensors that kConfig asks for.
std::map<std::string, FileTensor> good_tensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", {.shape = {20, 8}}},
          {"model.norm.weight", {.shape = {8}}},
          {"lm_head.weight", {.shape = {20, 8}}},
          {layer + "input_layernorm.weight", {.shape = {8}}},
          {layer + "post_attention_layernorm.weight", {.shape = {8}}},
          {layer + "self_attn.q_proj.weight", {.shape = {8, 8}}},
          {layer + "self_attn.q_proj.bias", {.shape = {8}}},
          {layer + "self_attn.k_proj.weight", {.shape = {4, 8}}},
          {layer + "self_attn.k_proj.bias", {.shape = {4}}},
          {layer + "self_attn.v_proj.weight", {.shape = {4, 8}}},
          {layer + "self_attn.v_proj.bias", {.shape = {4}}},
          {layer + "self_attn.o_proj.weight", {.shape = {8, 8}}},
          {layer + "mlp.gate_proj.weight", {.shape = {12, 8}}},
          {layer + "mlp.up_proj.weight", {.shape = {12, 8}}},
          {layer + "mlp.down_proj.weight", {.shape = {8, 12}}}};
}

class ModelFolder {
 public:
  ModelFolder() {
    std::string name = (fs::temp_directory_path() / "tandem_model_XXXXXX").string();
    TANDEM_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a folder for the test");
    path_ = name;
    write("config.json", kConfig);
    write_weights(good_tensors());
  }

  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  ~ModelFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }

  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] bool is_cached() const { return weights::Checkpoint::open(path_, {})->is_cached(); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }

  void write_weights(const std::map<std::string, FileTensor>& tensors) const {
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      std::size_t count = 1;
      std::string shape;
      for (const int extent : tensor.shape) {
        count *= static_cast<std::size_t>(extent);
        shape += (shape.empty() ? "" : ",") + std::to_string(extent);
      }
      const std::size_t begin = data.size();
      for (std::size_t i = 0; i < count; ++i) {
        const auto value = 0.3F * std::sin(static_cast<float>(begin + i));
        std::string bytes(tensor.element_bytes, '\0');
        if (tensor.element_bytes == 4) std::memcpy(bytes.data(), &value, 4);
        data += bytes;
      }
      header += (header.size() > 1 ? ",\"" : "\"") + name + R"(":{"dtype":")" + tensor.dtype +
                R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
                std::to_string(data.size()) + "]}";
    }
    header += "}";
    std::string length(8, '\0');
    const std::uint64_t size = header.size();
    std::memcpy(length.data(), &size, 8);
    write("model.safetensors", length + header + data);
  }

 private:
  std::string path_;
};

kernels::ThreadPool& pool() {
  static kernels::ThreadPool one(1);
  return one;
}

LoadOptions options_for(const std::string& folder) {
  LoadOptions options;
  options.folder = folder;
  options.backend = kernels::select(kernels::Family::kReference, nullptr);
  options.pool = &pool();
  options.limits = {.token_count_max = 16,
                    .logit_row_count_max = 4,
                    .sequence_count_max = 3,
                    .context_length = 0};
  return options;
}

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

  folder.write("config.json", kConfig);
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

/// A batch of two sequences in a small arena, all fields good.
struct SmallBatch {
  std::vector<std::int32_t> ids = {1, 2, 3, 4};
  std::vector<std::int32_t> positions = {0, 1, 2, 0};
  std::vector<std::int32_t> sequence = {0, 0, 0, 1};
  std::vector<std::int32_t> first_pages = {2, 0};
  std::vector<std::int32_t> second_pages = {3};
  std::vector<std::int32_t> rows = {2, 3};
  std::vector<SequencePages> pages;
  std::vector<std::byte> arena;
  std::size_t page_size = 2;

  explicit SmallBatch(const Model& model) {
    arena.resize(4 * model.kv_layout(2).page_bytes());
    pages = {{first_pages.data(), first_pages.size()}, {second_pages.data(), second_pages.size()}};
  }

  [[nodiscard]] ForwardBatch batch() {
    return {.token_ids = ids,
            .positions = positions,
            .sequence = sequence,
            .sequences = pages,
            .kv = {.base = arena.data(), .page_count = 4, .page_size = page_size},
            .logit_rows = rows};
  }
};

TEST(ModelForward, RefusesBatchesThatAreOutOfRange) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  options.dummy_weights = true;
  const auto loaded = Model::load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = **loaded;

  struct Row {
    const char* name;
    void (*bend)(SmallBatch&);
    const char* words;
  };

  const Row rows[] = {
      {"good", [](SmallBatch&) {}, nullptr},
      {"no tokens, no rows",
       [](SmallBatch& b) {
         b.ids.clear();
         b.positions.clear();
         b.sequence.clear();
         b.rows.clear();
       },
       nullptr},
      {"token id too large", [](SmallBatch& b) { b.ids[1] = 20; }, "token id of row 1 is 20"},
      {"token id negative", [](SmallBatch& b) { b.ids[0] = -1; }, "token id of row 0 is -1"},
      {"position", [](SmallBatch& b) { b.positions[2] = 64; }, "position of row 2 is 64"},
      {"position negative", [](SmallBatch& b) { b.positions[0] = -5; }, "position of row 0 is -5"},
      {"sequence", [](SmallBatch& b) { b.sequence[3] = 2; }, "sequence of row 3 is 2"},
      {"beyond the table", [](SmallBatch& b) { b.positions[3] = 2; }, "page index of row 3 is 1"},
      {"page id", [](SmallBatch& b) { b.second_pages[0] = 4; }, "page of row 3 is 4"},
      {"page id negative", [](SmallBatch& b) { b.first_pages[1] = -1; }, "page of row 2 is -1"},
      {"logit row", [](SmallBatch& b) { b.rows[0] = 4; }, "logit row of row 0 is 4"},
      {"too many rows", [](SmallBatch& b) { b.rows.assign(5, 0); }, "5 rows"},
      {"too many tokens", [](SmallBatch& b) { b.ids.assign(17, 0); }, "17 tokens"},
      {"too many sequences", [](SmallBatch& b) { b.pages.resize(4); }, "4 sequences"},
      {"lengths differ", [](SmallBatch& b) { b.positions.pop_back(); }, "3 positions"},
      {"no page size", [](SmallBatch& b) { b.page_size = 0; }, "pages of 0"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    SmallBatch small(model);
    row.bend(small);
    ForwardOutput output;
    const Status status = model.forward(small.batch(), output);
    if (row.words == nullptr) {
      EXPECT_TRUE(status.ok()) << status.message();
      continue;
    }
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find(row.words), std::string::npos) << status.message();
    // The refused batch left nothing behind that logits() could read.
    const std::int32_t first[] = {0};
    EXPECT_FALSE(model.logits(first, output).ok());
  }
}

TEST(ModelForward, RowsAskedForLaterAreTheSame) {
  const ModelFolder folder;
  const auto loaded = Model::load(options_for(folder.path()));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = **loaded;
  SmallBatch small(model);
  ForwardOutput output;
  ASSERT_TRUE(model.forward(small.batch(), output).ok());
  ASSERT_EQ(output.rows, 2U);
  const std::vector<float> last(output.row(1).begin(), output.row(1).end());
  const std::int32_t again[] = {3};
  ASSERT_TRUE(model.logits(again, output).ok());
  ASSERT_EQ(output.rows, 1U);
  EXPECT_EQ(std::memcmp(output.logits, last.data(), last.size() * sizeof(float)), 0);
  for (const float value : last)
    EXPECT_TRUE(std::isfinite(value));
}

Result<std::unique_ptr<Model>> load_where_memory_is_slow(const LoadOptions& options) {
  TANDEM_CHECK(failpoint::configure("model.fill=sleep(50)").ok(), "failure points");
  auto model = Model::load(options);
  TANDEM_CHECK(failpoint::configure("").ok(), "failure points");
  return model;
}

TEST(ModelForward, LateWeightsComputeTheSame) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  const auto eager = Model::load(options);
  options.pack_late = true;
  const auto late = load_where_memory_is_slow(options);
  ASSERT_TRUE(eager.ok() && late.ok());
  EXPECT_EQ((*eager)->unpacked_bytes(), 0U);
  if (!folder.is_cached()) GTEST_SKIP() << "no page cache here that can be asked";
  const auto expect_same = [&] {
    ASSERT_TRUE((*eager)->pack_some().ok() && (*late)->pack_some().ok());
    SmallBatch first(**eager);
    SmallBatch second(**late);
    ForwardOutput want;
    ForwardOutput got;
    ASSERT_TRUE((*eager)->forward(first.batch(), want).ok());
    ASSERT_TRUE((*late)->forward(second.batch(), got).ok());
    EXPECT_EQ(std::memcmp(want.logits, got.logits, 2 * 20 * sizeof(float)), 0);
    EXPECT_EQ(first.arena, second.arena) << "K and V";
  };
  expect_same();
  EXPECT_GT((*late)->unpacked_bytes(), 0U) << "one layer is packed, and the first pass packs none";
  while (*(*late)->pack_some())
    expect_same();
  EXPECT_EQ((*late)->unpacked_bytes(), 0U);
}

TEST(ModelForward, LateWeightsThatCannotBeReadFailThePassByName) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  options.pack_late = true;
  const auto loaded = load_where_memory_is_slow(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  Model& model = **loaded;
  if (!folder.is_cached()) GTEST_SKIP() << "no page cache here that can be asked";
  const std::string file = folder.path() + "/model.safetensors";
  fs::copy_file(file, file + ".whole");
  // Matrices of layers; the embedding table, which is read in the mapping, lies before them.
  fs::resize_file(file, fs::file_size(file) - 500);
  SmallBatch small(model);
  ForwardOutput output;
  const Status failed = model.forward(small.batch(), output);
  EXPECT_EQ(failed.code(), Code::kDataLoss);
  EXPECT_NE(failed.message().find("model.safetensors"), std::string::npos) << failed.message();
  const std::int32_t first[] = {0};
  EXPECT_FALSE(model.logits(first, output).ok()) << "of a pass that failed";
  fs::copy_file(file + ".whole", file, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(model.forward(small.batch(), output).ok());
}

class CountingObserver final : public LayerObserver {
 public:
  void on_layer_done(std::int64_t layer) override { layers.push_back(layer); }

  std::vector<std::int64_t> layers;
};

TEST(ModelForward, TellsOfEveryLayerAndRaisesProgress) {
  const ModelFolder folder;
  LoadOptions options = options_for(folder.path());
  options.dummy_weights = true;
  options.override_json = R"({"num_hidden_layers":3})";
  const auto loaded = Model::load(options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  SmallBatch small(**loaded);
  small.arena.resize(4 * (*loaded)->kv_layout(2).page_bytes());
  CountingObserver observer;
  ForwardBatch batch = small.batch();
  batch.observer = &observer;
  ForwardOutput output;
  ASSERT_TRUE((*loaded)->forward(batch, output).ok());
  EXPECT_EQ(observer.layers, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ((*loaded)->progress(), 3U);
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
