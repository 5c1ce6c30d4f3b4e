#include "bench/serve/save.h"

#include "bench/serve/report.h"
#include "common/json/write.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>
#include <system_error>

namespace tandem::bench {

namespace {

// As Python writes a float: "inf", "8.0", "0.5".
std::string rate_word(double rate) {
  if (std::isinf(rate)) return "inf";
  std::string word = fmt::format("{}", rate);
  if (word.find_first_of(".e") == std::string::npos) word += ".0";
  return word;
}

const json::Value* first_of(const json::Value& holder, const char* member) {
  const json::Value* list = holder.find(member);
  const json::Array* items = list == nullptr ? nullptr : list->if_array();
  return items == nullptr || items->empty() ? nullptr : &items->front();
}

}  // namespace

Status check_metadata(const Options& options) {
  Options plain = options;
  plain.metadata.clear();
  json::Object names = make_report(plain, {});
  add_details(&names, {});
  names.set("total_output_tokens_retokenized", 0);
  for (const auto& [key, value] : options.metadata) {
    if (names.contains(key))
      return invalid_argument("--metadata: '" + key + "' is the name of a figure");
  }
  return {};
}

std::filesystem::path result_path(const Options& options, const json::Object& report) {
  std::string name = options.result_filename;
  if (name.empty()) {
    name = options.label.empty() ? options.backend : options.label;
    name += "-" + rate_word(options.request_rate) + "qps";
    if (options.max_concurrency) name += "-concurrency" + std::to_string(*options.max_concurrency);
    const std::string model = options.model.substr(options.model.rfind('/') + 1);
    if (!model.empty()) name += "-" + model;
    const json::Value* date = report.find("date");
    if (date != nullptr && date->is_string()) name += "-" + *date->if_string();
    name += ".json";
  }
  return std::filesystem::path(options.result_dir) / name;
}

Status save_result(const Options& options, const json::Object& report) {
  const std::filesystem::path path = result_path(options, report);
  std::error_code error;
  if (!options.result_dir.empty()) std::filesystem::create_directories(options.result_dir, error);
  if (error) return unavailable("cannot make " + options.result_dir + ": " + error.message());
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  const bool follows = options.append_result && !error && size > 0;
  std::ofstream file(path, options.append_result ? std::ios::app : std::ios::trunc);
  file << (follows ? "\n" : "") << json::to_string(json::Value(report));
  if (!file.flush()) return unavailable("cannot write " + path.string());
  return {};
}

std::int64_t count_again(const token::Tokenizer& tokenizer, const LoadResult& result) {
  std::size_t count = 0;
  for (const Outcome& outcome : result.outcomes) {
    if (outcome.ok) count += tokenizer.encode(outcome.text, false).size();
  }
  return static_cast<std::int64_t>(count);
}

std::optional<double> accept_length_of(const json::Value& server_info) {
  const json::Value* server = first_of(server_info, "decode");
  const json::Value* state = first_of(server == nullptr ? server_info : *server, "internal_states");
  const json::Value* length = state == nullptr ? nullptr : state->find("avg_spec_accept_length");
  if (length == nullptr || !length->is_number()) return std::nullopt;
  return length->number_or_zero();
}

}  // namespace tandem::bench
