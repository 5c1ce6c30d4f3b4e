// How far an argument is built: derived from its description, never typed into a document.
#include "common/args/args.h"
#include "common/args/field.h"
#include "common/args/spec.h"

#include <algorithm>
#include <set>

namespace tandem::args {
namespace {

bool holds(std::string_view list, std::string_view word) {
  const auto words = split_list(list);
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// The choices that this build cannot do when it can do one only, which is in force by itself; else
/// nothing.
std::vector<std::string_view> missing_choices(const Entry& entry) {
  const std::string usable = entry.ops->usable(entry.spec);
  std::set<std::string, std::less<>> here;
  for (std::string_view word : split_list(usable))
    here.emplace(word.substr(std::min(word.find_first_not_of(' '), word.size())));
  if (here.size() != 1) return {};
  const bool by_itself = entry.default_json == "\"" + *here.begin() + "\"" ||
                         *here.begin() == "none" || entry.spec.default_note.starts_with("computed");
  if (!by_itself) return {};
  std::vector<std::string_view> missing;
  for (std::string_view choice : split_list(entry.spec.choices)) {
    if (here.count(choice) == 0) missing.push_back(choice);
  }
  return missing;
}

}  // namespace

bool only_default(const Entry& entry, Program program) {
  // A switch that changes nothing may be on, which is told.
  if (entry.is_switch()) return false;
  return entry.spec.trivial_only || (entry.spec.router_only && program != Program::kRouter);
}

Readiness readiness(const Entry& entry) {
  if (!entry.built() || entry.spec.trivial_only) return Readiness::kNotBuilt;
  if (!entry.spec.deprecated_for.empty()) return Readiness::kDeprecated;
  if (!entry.spec.needs.empty()) return Readiness::kNeedsHardware;
  // One choice only is what happens anyway: nothing of the argument can be seen but its refusals.
  const auto missing = missing_choices(entry);
  if (missing.empty()) return Readiness::kWorks;
  const bool hardware = std::all_of(missing.begin(), missing.end(), [&](std::string_view choice) {
    return holds(entry.spec.needs_cuda, choice) || holds(entry.spec.needs_rdma, choice) ||
           holds(entry.spec.needs_vendor, choice);
  });
  return hardware ? Readiness::kNeedsHardware : Readiness::kNotBuilt;
}

std::string_view readiness_name(Readiness readiness) {
  switch (readiness) {
    case Readiness::kWorks:
      return "works";
    case Readiness::kNeedsHardware:
      return "needs hardware";
    case Readiness::kDeprecated:
      return "deprecated";
    case Readiness::kNotBuilt:
      break;
  }
  return "not built yet";
}

std::string effect_test(const Entry& entry) {
  std::string name = "test_" + std::string(entry.spec.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return entry.built() ? name : "";
}

std::string list_json() {
  Arguments args;
  const Registry registry(args);
  std::string text;
  for (const Entry& entry : registry.entries()) {
    text += text.empty() ? "[" : ",\n ";
    text += "{\"name\":" + json_string(entry.spec.name) +
            ",\"status\":" + json_string(readiness_name(readiness(entry))) +
            ",\"ours\":" + (entry.ours() ? "true" : "false") +
            ",\"test\":" + json_string(effect_test(entry)) + "}";
  }
  return text + "]";
}

}  // namespace tandem::args
