// The transforms against golden/sampling: numpy in float64.
#include "common/sample/sampler.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace tandem::sample {
namespace {

using Json = nlohmann::json;

std::filesystem::path shared_dir() {
  const char* override_dir = std::getenv("TANDEM_SHARED_DIR");
  return override_dir != nullptr ? override_dir : TANDEM_SOURCE_DIR "/../shared";
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// Enough of safetensors for a file that we trust.
class Tensors {
 public:
  explicit Tensors(std::string bytes) : bytes_(std::move(bytes)) {
    std::uint64_t header_size = 0;
    std::memcpy(&header_size, bytes_.data(), sizeof header_size);
    header_ = Json::parse(bytes_.substr(sizeof header_size, header_size));
    data_ = sizeof header_size + header_size;
  }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    const auto offsets = header_.at(name).at("data_offsets").get<std::vector<std::size_t>>();
    std::vector<T> out((offsets[1] - offsets[0]) / sizeof(T));
    std::memcpy(out.data(), bytes_.data() + data_ + offsets[0], offsets[1] - offsets[0]);
    return out;
  }

 private:
  std::string bytes_;
  Json header_;
  std::size_t data_ = 0;
};

struct Case {
  core::SamplingParams params;
  TokenCounts counts;
  std::vector<core::TokenId> end_ids;
  std::int32_t output_index = 0;
};

Case read_case(const Json& params) {
  Case out;
  core::SamplingParams& p = out.params;
  p.temperature = params.value("temperature", 1.0F);
  p.top_k = params.value("top_k", -1) <= 0 ? core::kTopKAll : params.value("top_k", -1);
  p.top_p = params.value("top_p", 1.0F);
  p.min_p = params.value("min_p", 0.0F);
  p.frequency_penalty = params.value("frequency_penalty", 0.0F);
  p.presence_penalty = params.value("presence_penalty", 0.0F);
  p.repetition_penalty = params.value("repetition_penalty", 1.0F);
  p.min_new_tokens = params.value("min_new_tokens", 0);
  const auto output = params.value("output_ids", std::vector<core::TokenId>{});
  for (const core::TokenId id : output)
    ++out.counts[id];
  out.output_index = static_cast<std::int32_t>(output.size());
  out.end_ids = params.value("stop_token_ids", std::vector<core::TokenId>{});
  if (const auto bias = params.find("logit_bias"); bias != params.end()) {
    for (const auto& [id, value] : bias->items()) {
      p.logit_bias.emplace_back(std::stoi(id), value.get<float>());
    }
  }
  return out;
}

/// What the sampler would draw from, as one probability per id.
std::vector<double> probabilities(const Case& c, const std::vector<float>& logits) {
  Sampler sampler(static_cast<std::int32_t>(logits.size()));
  const auto got = sampler.candidates({.logits = logits,
                                       .params = &c.params,
                                       .counts = &c.counts,
                                       .end_ids = c.end_ids,
                                       .output_index = c.output_index});
  EXPECT_TRUE(got.ok()) << got.status().message();
  std::vector<double> out(logits.size());
  if (!got.ok()) return out;
  double sum = 0;
  for (const double weight : got->weights)
    sum += weight;
  for (std::size_t i = 0; i < got->weights.size(); ++i) {
    out[static_cast<std::size_t>(got->ids[i])] = got->weights[i] / sum;
  }
  return out;
}

TEST(GoldenSampling, ProbabilitiesAgreeWithTheReference) {
  const auto folder = shared_dir() / "golden" / "sampling";
  if (!std::filesystem::exists(folder / "cases.json")) {
    GTEST_SKIP() << "skipped: ../shared is not here";
  }
  const Json file = Json::parse(read_file(folder / "cases.json"));
  const Tensors tensors(read_file(folder / "ref.safetensors"));
  const double tolerance = file.at("tolerance").at("float32_abs").get<double>();
  int checked = 0;
  for (const Json& row : file.at("cases")) {
    const auto id = row.at("id").get<std::string>();
    SCOPED_TRACE(id + " " + row.at("params").dump());
    auto logits = tensors.read<float>(id + ".logits");
    const auto want = tensors.read<double>(id + ".probs");
    if (const auto allowed = row.at("params").find("allowed_ids");
        allowed != row.at("params").end()) {
      std::vector<float> masked(logits.size(), -std::numeric_limits<float>::infinity());
      for (const auto& token : *allowed) {
        masked[token.get<std::size_t>()] = logits[token.get<std::size_t>()];
      }
      logits = masked;
    }
    const auto got = probabilities(read_case(row.at("params")), logits);
    const bool ambiguous = row.value("boundary_ambiguous", false);
    int kept = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      kept += got[i] > 0 ? 1 : 0;
      if (!ambiguous) {
        ASSERT_NEAR(got[i], want[i], tolerance) << "token " << i;
      }
    }
    // Without a cut the reference loses tokens whose mass rounds away (top_p = 1 against a sum just
    // above 1) and keeps others at 5e-324; both are far below the tolerance.
    const Json& params = row.at("params");
    if (params.contains("top_k") || params.contains("top_p") || params.contains("min_p")) {
      EXPECT_EQ(kept, row.at("kept").get<int>());
    }
    ++checked;
  }
  EXPECT_GE(checked, 100);
}

}  // namespace
}  // namespace tandem::sample
