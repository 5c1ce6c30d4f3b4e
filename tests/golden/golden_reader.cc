#include "tests/golden/golden_reader.h"

#include "common/json/field.h"
#include "common/json/parse.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace tandem::golden {
namespace {

Result<std::vector<std::int32_t>> ids(const json::Field& field) {
  TANDEM_TRY(const std::vector<std::int64_t> wide, field.as_ints(0, INT32_MAX));
  return std::vector<std::int32_t>(wide.begin(), wide.end());
}

Result<Case> read_case(const json::Field& field) {
  Case one;
  TANDEM_TRY(const json::Field id, field.at("id"));
  TANDEM_TRY(one.id, id.as_string());
  TANDEM_TRY(const json::Field label, field.at("label"));
  TANDEM_TRY(one.label, label.as_string());
  TANDEM_TRY(const json::Field prompt, field.at("prompt_ids"));
  TANDEM_TRY(one.prompt_ids, ids(prompt));
  TANDEM_TRY(const json::Field greedy, field.at("greedy_ids"));
  TANDEM_TRY(one.greedy_ids, ids(greedy));
  TANDEM_TRY(const json::Field margins, field.at("greedy_margin"));
  TANDEM_TRY(const auto items, margins.items());
  for (const json::Field& item : items) {
    TANDEM_TRY(const double margin, item.as_double());
    one.greedy_margin.push_back(margin);
  }
  return one;
}

Result<double> number(const json::Field& field, const char* key) {
  TANDEM_TRY(const json::Field member, field.at(key));
  return member.as_double();
}

}  // namespace

std::optional<std::string> shared_folder() {
  const char* named = std::getenv("TANDEM_SHARED_DIR");
  const std::string folder = named != nullptr ? named : TANDEM_SOURCE_DIR "/../shared";
  if (!std::filesystem::is_directory(folder + "/golden")) return std::nullopt;
  return folder;
}

Result<Reference> Reference::open(const std::string& path) {
  TANDEM_TRY(weights::FileBytes file,
             weights::FileBytes::open(path, weights::ReadMode::kMmap, std::uint64_t{1} << 32U));
  Reference reference(std::move(file));
  TANDEM_TRY(auto entries, weights::parse_safetensors(reference.file_.bytes(), path));
  for (weights::TensorEntry& entry : entries) {
    std::string name = entry.name;
    reference.entries_.emplace(std::move(name), std::move(entry));
  }
  return reference;
}

std::vector<float> Reference::floats(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.type != weights::ElementType::kF32) return {};
  std::vector<float> values(found->second.byte_count / sizeof(float));
  std::memcpy(values.data(), file_.bytes().data() + found->second.offset, found->second.byte_count);
  return values;
}

std::vector<std::int64_t> Reference::integers(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return {};
  const std::byte* data = file_.bytes().data() + found->second.offset;
  std::vector<std::int64_t> values;
  const std::size_t size = weights::byte_size(found->second.type);
  for (std::size_t at = 0; at < found->second.byte_count; at += size) {
    std::int64_t value = 0;
    if (found->second.type == weights::ElementType::kI32) {
      std::int32_t narrow = 0;
      std::memcpy(&narrow, data + at, sizeof narrow);
      value = narrow;
    } else {
      std::memcpy(&value, data + at, size);
    }
    values.push_back(value);
  }
  return values;
}

Result<Cases> read_cases(const std::string& path) {
  TANDEM_TRY(const json::Value value, json::parse_file(path));
  const json::Field root(value, path);
  Cases result;
  TANDEM_TRY(const json::Field tolerance, root.at("tolerance"));
  TANDEM_TRY(result.tolerance.float32_atol, number(tolerance, "float32_atol"));
  TANDEM_TRY(result.tolerance.bfloat16_p50, number(tolerance, "bfloat16_p50"));
  TANDEM_TRY(result.tolerance.bfloat16_p90, number(tolerance, "bfloat16_p90"));
  TANDEM_TRY(result.tolerance.bfloat16_rms, number(tolerance, "bfloat16_rms"));
  TANDEM_TRY(const json::Field cases, root.at("cases"));
  TANDEM_TRY(const auto items, cases.items());
  for (const json::Field& item : items) {
    TANDEM_TRY(Case one, read_case(item));
    result.cases.push_back(std::move(one));
  }
  return result;
}

}  // namespace tandem::golden
