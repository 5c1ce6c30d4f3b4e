#include "common/model/config.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace tandem::model {
namespace {

constexpr std::string_view kBase = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512,
  "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048,
  "torch_dtype": "bfloat16", "eos_token_id": 2})";

Result<ModelConfig> with(std::string_view overrides) {
  return parse_config(kBase, "", overrides);
}

TEST(Config, ReadsSizesAndDefaults) {
  const auto config = with("");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->query_size(), 64);
  EXPECT_EQ(config->kv_size(), 32);
  EXPECT_EQ(config->context_length(), 2048);
  EXPECT_EQ(config->rope_theta, 10'000.0);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_EQ(config->dtype, kernels::DType::kBf16);
  EXPECT_EQ(config->eos_ids, std::vector<std::int32_t>{2});
  EXPECT_FALSE(config->tie_word_embeddings || config->qkv_bias || config->output_bias ||
               config->mlp_bias || config->qk_norm);
  EXPECT_EQ(config->window, (std::vector<std::int32_t>{0, 0, 0}));
}

struct BlockRow {
  const char* name;
  const char* overrides;
  bool qkv_bias;
  bool output_bias;
  bool mlp_bias;
  bool qk_norm;
  std::int64_t head_dim;
  std::vector<std::int32_t> window;
};

TEST(Config, ArchitecturesChooseBlocks) {
  const BlockRow rows[] = {
      {"llama biases",
       R"({"attention_bias":true,"mlp_bias":true})",
       true,
       true,
       true,
       false,
       16,
       {0, 0, 0}},
      {"llama ignores a window",
       R"({"sliding_window":5})",
       false,
       false,
       false,
       false,
       16,
       {0, 0, 0}},
      {"kv heads default to heads",
       R"({"num_key_value_heads":null})",
       false,
       false,
       false,
       false,
       16,
       {0, 0, 0}},
      {"mistral's default window",
       R"({"architectures":["MistralForCausalLM"]})",
       false,
       false,
       false,
       false,
       16,
       {4096, 4096, 4096}},
      {"mistral without window",
       R"({"architectures":["MistralForCausalLM"],"sliding_window":null})",
       false,
       false,
       false,
       false,
       16,
       {0, 0, 0}},
      {"mistral window",
       R"({"architectures":["MistralForCausalLM"],"sliding_window":32,"head_dim":8})",
       false,
       false,
       false,
       false,
       8,
       {32, 32, 32}},
      {"qwen2",
       R"({"architectures":["Qwen2ForCausalLM"],"sliding_window":7})",
       true,
       false,
       false,
       false,
       16,
       {0, 0, 0}},
      {"qwen2 windows from a layer on",
       R"({"architectures":["Qwen2ForCausalLM"],"sliding_window":7,"use_sliding_window":true,
           "max_window_layers":1})",
       true,
       false,
       false,
       false,
       16,
       {0, 7, 7}},
      {"qwen2 default first layer is 28",
       R"({"architectures":["Qwen2ForCausalLM"],"sliding_window":7,"use_sliding_window":true})",
       true,
       false,
       false,
       false,
       16,
       {0, 0, 0}},
      {"qwen3",
       R"({"architectures":["Qwen3ForCausalLM"]})",
       false,
       false,
       false,
       true,
       128,
       {0, 0, 0}},
      {"qwen3 layer types",
       R"({"architectures":["Qwen3ForCausalLM"],"sliding_window":9,"use_sliding_window":true,
           "head_dim":32,"attention_bias":true,
           "layer_types":["sliding_attention","full_attention","sliding_attention"]})",
       true,
       true,
       false,
       true,
       32,
       {9, 0, 9}},
  };
  for (const BlockRow& row : rows) {
    SCOPED_TRACE(row.name);
    const auto config = with(row.overrides);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->qkv_bias, row.qkv_bias);
    EXPECT_EQ(config->output_bias, row.output_bias);
    EXPECT_EQ(config->mlp_bias, row.mlp_bias);
    EXPECT_EQ(config->qk_norm, row.qk_norm);
    EXPECT_EQ(config->head_dim, row.head_dim);
    EXPECT_EQ(config->window, row.window);
  }
}

struct BadRow {
  const char* name;
  std::string overrides;
  std::vector<const char*> words;
};

TEST(Config, NamesFieldValueAndExpectation) {
  const BadRow rows[] = {
      {"unknown architecture",
       R"({"architectures":["GPT9ForCausalLM"]})",
       {"GPT9ForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"}},
      {"no architecture", R"({"architectures":null})", {"architectures"}},
      {"architectures is empty", R"({"architectures":[]})", {"architectures", "one architecture"}},
      {"architectures is text", R"({"architectures":"x"})", {"architectures", "string \"x\""}},
      {"vocab is text", R"({"vocab_size":"512"})", {"vocab_size", "integer", "string \"512\""}},
      {"vocab is 0", R"({"vocab_size":0})", {"vocab_size", "from 1", "0"}},
      {"vocab is negative", R"({"vocab_size":-1})", {"vocab_size", "-1"}},
      {"vocab is huge", R"({"vocab_size":99999999999})", {"vocab_size", "99999999999"}},
      {"hidden is a fraction", R"({"hidden_size":64.5})", {"hidden_size", "64.5"}},
      {"hidden over 64 bits", R"({"hidden_size":1e300})", {"hidden_size"}},
      {"hidden is null", R"({"hidden_size":null})", {"hidden_size"}},
      {"intermediate is a list", R"({"intermediate_size":[1]})", {"intermediate_size", "array"}},
      {"too many layers", R"({"num_hidden_layers":100000})", {"num_hidden_layers", "100000"}},
      {"no heads", R"({"num_attention_heads":0})", {"num_attention_heads"}},
      {"heads and kv heads", R"({"num_key_value_heads":3})", {"num_attention_heads", "4", "3"}},
      {"kv heads is true", R"({"num_key_value_heads":true})", {"num_key_value_heads", "true"}},
      {"hidden and heads",
       R"({"num_attention_heads":5,"num_key_value_heads":5})",
       {"hidden_size", "64", "5"}},
      {"odd head", R"({"head_dim":15})", {"head_dim", "15", "even"}},
      {"large head", R"({"head_dim":1024})", {"head_dim", "1024", "512"}},
      {"positions", R"({"max_position_embeddings":"many"})", {"max_position_embeddings", "many"}},
      {"eps is 0", R"({"rms_norm_eps":0})", {"rms_norm_eps", "0"}},
      {"eps is text", R"({"rms_norm_eps":"1e-6"})", {"rms_norm_eps", "string"}},
      {"activation", R"({"hidden_act":"gelu"})", {"hidden_act", "gelu", "silu"}},
      {"dtype", R"({"torch_dtype":"float8"})", {"torch_dtype", "float8", "bfloat16"}},
      {"tied is text", R"({"tie_word_embeddings":"no"})", {"tie_word_embeddings", "\"no\""}},
      {"quantised",
       R"({"quantization_config":{"quant_method":"gptq"}})",
       {"quantization_config", "gptq"}},
      {"partial rotation", R"({"partial_rotary_factor":0.5})", {"partial_rotary_factor", "0.5"}},
      {"eos beyond the vocabulary", R"({"eos_token_id":512})", {"eos_token_id", "512", "511"}},
      {"eos list", R"({"eos_token_id":[1,"x"]})", {"eos_token_id", "\"x\""}},
      {"bos is text", R"({"bos_token_id":"<s>"})", {"bos_token_id", "<s>"}},
      {"theta is 0", R"({"rope_theta":0})", {"rope_theta", "0"}},
      {"theta is huge", R"({"rope_theta":1e200})", {"rope_theta"}},
      {"scaling is a number", R"({"rope_scaling":2})", {"rope_scaling", "integer 2"}},
      {"scaling without kind", R"({"rope_scaling":{"factor":2}})", {"rope_scaling", "rope_type"}},
      {"unknown scaling",
       R"({"rope_scaling":{"rope_type":"longrope","factor":2}})",
       {"rope_scaling", "longrope", "llama3"}},
      {"dynamic scaling", R"({"rope_scaling":{"type":"dynamic","factor":2}})", {"dynamic", "yarn"}},
      {"linear without factor",
       R"({"rope_scaling":{"type":"linear"}})",
       {"rope_scaling", "factor"}},
      {"linear factor shrinks",
       R"({"rope_scaling":{"type":"linear","factor":1e-300}})",
       {"rope_scaling", "factor", "from 1 to"}},
      {"yarn weight is negative",
       R"({"rope_scaling":{"rope_type":"yarn","factor":4,"mscale":1,"mscale_all_dim":-7.2}})",
       {"rope_scaling", "mscale_all_dim", "-7.2", "from 0 to"}},
      {"linear factor is negative",
       R"({"rope_scaling":{"type":"linear","factor":-2}})",
       {"rope_scaling", "factor", "-2"}},
      {"llama3 without original",
       R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,
           "high_freq_factor":4}})",
       {"rope_scaling", "original_max_position_embeddings"}},
      {"llama3 factors reversed",
       R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,
           "high_freq_factor":1,"original_max_position_embeddings":64}})",
       {"high_freq_factor", "1", "4"}},
      {"yarn betas reversed",
       R"({"rope_scaling":{"rope_type":"yarn","factor":4,"beta_fast":1,"beta_slow":2}})",
       {"beta_fast", "beta_slow"}},
      {"parameters per layer type",
       R"({"rope_parameters":{"full_attention":{"rope_type":"default"}}})",
       {"rope_parameters", "layer type"}},
      {"window is 0",
       R"({"architectures":["MistralForCausalLM"],"sliding_window":0})",
       {"sliding_window", "0"}},
      {"too few layer types",
       R"({"architectures":["Qwen2ForCausalLM"],"layer_types":["full_attention"]})",
       {"layer_types", "1", "3"}},
      {"unknown layer type",
       R"({"architectures":["Qwen2ForCausalLM"],
           "layer_types":["full_attention","linear_attention","full_attention"]})",
       {"layer_types[1]", "linear_attention"}},
      {"sliding layer without window",
       R"({"architectures":["Qwen2ForCausalLM"],
           "layer_types":["full_attention","sliding_attention","full_attention"]})",
       {"layer_types[1]", "sliding_window"}},
  };
  for (const BadRow& row : rows) {
    SCOPED_TRACE(row.name);
    const auto config = with(row.overrides);
    ASSERT_FALSE(config.ok());
    const std::string message = config.status().message();
    EXPECT_EQ(message.rfind("config.json: ", 0), 0U) << message;
    for (const char* word : row.words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
    }
  }
}

TEST(Config, MissingFieldsAreNamed) {
  for (const char* name : {"architectures",
                           "vocab_size",
                           "hidden_size",
                           "intermediate_size",
                           "num_hidden_layers",
                           "num_attention_heads",
                           "max_position_embeddings"}) {
    std::string text(kBase);
    text.replace(text.find(name), 3, "zzz");
    const auto config = parse_config(text, "", "");
    ASSERT_FALSE(config.ok()) << name;
    EXPECT_NE(config.status().message().find(name), std::string::npos) << config.status().message();
  }
}

TEST(Config, TextThatIsNoObjectIsRefusedWhereverItComesFrom) {
  const std::string deep(100'000, '[');
  for (const std::string& bad : {std::string("{"), std::string("[]"), std::string("7"), deep}) {
    EXPECT_EQ(parse_config(bad, "", "").status().message().rfind("config.json", 0), 0U);
    EXPECT_EQ(parse_config(kBase, bad, "").status().message().rfind("generation_config.json", 0),
              0U);
    EXPECT_EQ(
        parse_config(kBase, "", bad).status().message().rfind("--json-model-override-args", 0), 0U);
  }
  EXPECT_FALSE(parse_config("", "", "").ok());
  EXPECT_FALSE(parse_config("{\"a\":\"\xff\"}", "", "").ok());
}

TEST(Config, OverridesReplaceMembers) {
  const auto config = with(R"({"num_hidden_layers":2,"max_position_embeddings":128,
                               "eos_token_id":[9,3,9,-1],"dtype":"float16"})");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->layer_count, 2);
  EXPECT_EQ(config->window.size(), 2U);
  EXPECT_EQ(config->context_length(), 128);
  EXPECT_EQ(config->eos_ids, (std::vector<std::int32_t>{3, 9}));
  EXPECT_EQ(config->dtype, kernels::DType::kF16) << "dtype is the newer spelling of torch_dtype";
}

TEST(Config, GenerationConfigGivesDefaultsAndBeatsEos) {
  const auto config =
      parse_config(kBase,
                   R"({"eos_token_id":[5,4],"temperature":0.7,"top_p":0.8,"top_k":20,
                                       "repetition_penalty":1.05,"do_sample":true})",
                   "");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->eos_ids, (std::vector<std::int32_t>{4, 5}));
  EXPECT_EQ(config->generation.temperature, 0.7);
  EXPECT_EQ(config->generation.top_p, 0.8);
  EXPECT_EQ(config->generation.top_k, 20);
  EXPECT_EQ(config->generation.repetition_penalty, 1.05);
  EXPECT_EQ(config->generation.do_sample, true);
  EXPECT_FALSE(config->generation.min_p.has_value());

  const BadRow rows[] = {
      {"temperature", R"({"temperature":"hot"})", {"temperature", "hot"}},
      {"negative", R"({"temperature":-1})", {"temperature", "-1"}},
      {"top_p", R"({"top_p":1.5})", {"top_p", "1.5"}},
      {"top_k", R"({"top_k":0.5})", {"top_k", "0.5"}},
      {"eos", R"({"eos_token_id":512})", {"eos_token_id", "512"}},
  };
  for (const BadRow& row : rows) {
    SCOPED_TRACE(row.name);
    const Status status = parse_config(kBase, row.overrides, "").status();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.message().rfind("generation_config.json: ", 0), 0U) << status.message();
    for (const char* word : row.words) {
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    }
  }
}

TEST(Config, ContextLengthFollowsScaling) {
  struct Row {
    const char* overrides;
    std::int64_t want;
  };

  const Row rows[] = {
      {R"({"rope_scaling":{"type":"linear","factor":4}})", 8192},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,
           "high_freq_factor":4,"original_max_position_embeddings":64}})",
       2048},
      {R"({"rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":2048}})",
       8192},
      {R"({"max_position_embeddings":8192,
           "rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":2048}})",
       8192},
      {R"({"rope_parameters":{"rope_type":"linear","factor":2,"rope_theta":5000}})", 4096},
      {R"({"rope_parameters":{"rope_type":"default","rope_theta":5000}})", 2048},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.overrides);
    const auto config = with(row.overrides);
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_EQ(config->context_length(), row.want);
  }
  EXPECT_EQ(with(R"({"rope_parameters":{"rope_type":"default","rope_theta":5000}})")->rope_theta,
            5000.0);
}

TEST(Config, CanonicalTextChangesWithWhatIsComputed) {
  const std::string base = with("")->canonical_text();
  EXPECT_EQ(base,
            with(R"({"transformers_version":"9","torch_dtype":"float32"})")->canonical_text());
  for (const char* overrides : {R"({"rope_theta":20000})",
                                R"({"rms_norm_eps":1e-5})",
                                R"({"attention_bias":true})",
                                R"({"num_hidden_layers":2})",
                                R"({"tie_word_embeddings":true})",
                                R"({"rope_scaling":{"type":"linear","factor":4}})"}) {
    EXPECT_NE(base, with(overrides)->canonical_text()) << overrides;
  }
}

}  // namespace
}  // namespace tandem::model
