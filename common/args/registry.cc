#include "common/args/spec.h"
#include "common/args/text.h"

#include <algorithm>

namespace tandem::args {
namespace {

constexpr Program kPrograms[] = {
    Program::kRouter, Program::kPrefill, Program::kDecode, Program::kBootstrap};

std::string dest_of(const Spec& spec) {
  std::string text(spec.dest.empty() ? spec.name : spec.dest);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::string_view arity_of(const Spec& spec, std::string_view type) {
  if (!spec.arity.empty()) return spec.arity;
  if (type == "bool-flag") return "0";
  if (type == "bool") return "0..1";
  return type.starts_with("list") ? "1+" : "1";
}

}  // namespace

std::string_view program_name(Program program) {
  switch (program) {
    case Program::kRouter:
      return "router";
    case Program::kPrefill:
      return "prefill-server";
    case Program::kDecode:
      return "decode-server";
    case Program::kBootstrap:
      break;
  }
  return "bootstrap-server";
}

std::string_view origin_name(Origin origin) {
  switch (origin) {
    case Origin::kDefault:
      return "default";
    case Origin::kComputed:
      return "computed";
    case Origin::kEnv:
      return "env";
    case Origin::kFile:
      return "file";
    case Origin::kCli:
      break;
  }
  return "cli";
}

Origin Arguments::origin(std::string_view dest) const {
  const auto found = origins.find(dest);
  return found == origins.end() ? Origin::kDefault : found->second;
}

Services services_of(Program program) {
  switch (program) {
    case Program::kRouter:
      return kRouter;
    case Program::kPrefill:
      return kPrefill | kUnified;
    case Program::kDecode:
      return kDecode | kUnified;
    case Program::kBootstrap:
      break;
  }
  return kBootstrap;
}

std::string programs_text(Services services) {
  std::vector<std::string> names;
  for (const Program program : kPrograms) {
    if ((services & services_of(program)) != 0) names.emplace_back(program_name(program));
  }
  return sentence_list(names);
}

void Describe::add(void* field, const FieldOps& ops, const Spec& spec) {
  Entry entry;
  entry.spec = spec;
  entry.field = field;
  entry.ops = &ops;
  entry.dest = dest_of(spec);
  entry.type = spec.type.empty() ? ops.type : spec.type;
  entry.arity = arity_of(spec, entry.type);
  // Describing always starts from a default-constructed struct or from one whose defaults are
  // documented by the spec, so the field itself is the default's only source.
  entry.default_json = spec.default_json.empty() ? std::string() : std::string(spec.default_json);
  entries_.push_back(std::move(entry));
}

Registry::Registry(Arguments& args) {
  Describe visit(entries_);
  describe(args.command, visit);
  describe(args.model, visit);
  describe(args.server, visit);
  describe(args.scheduling, visit);
  describe(args.kv_cache, visit);
  describe(args.runtime, visit);
  describe(args.parallel, visit);
  describe(args.disaggregation, visit);
  describe(args.observability, visit);
  describe(args.router, visit);
  static const Arguments kDefaults;
  for (Entry& entry : entries_) {
    if (!entry.default_json.empty()) continue;
    // The same offset in a default Arguments holds this field's default, whatever `args` holds by
    // now.
    const auto offset =
        static_cast<const char*>(entry.field) - reinterpret_cast<const char*>(&args);
    entry.default_json = entry.ops->json(reinterpret_cast<const char*>(&kDefaults) + offset);
  }
  for (Entry& entry : unbuilt_entries())
    entries_.push_back(std::move(entry));
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    index_.emplace(normalized(entries_[i].spec.name), i);
    for (std::string_view alias : split_list(entries_[i].spec.aliases))
      index_.emplace(normalized(alias), i);
  }
}

const Entry* Registry::find(std::string_view name) const {
  const auto found = index_.find(normalized(name));
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const Entry* Registry::find_dest(std::string_view dest) const {
  const auto found = std::find_if(
      entries_.begin(), entries_.end(), [dest](const Entry& entry) { return entry.dest == dest; });
  return found == entries_.end() ? nullptr : &*found;
}

std::string Registry::nearest(std::string_view name, Services services) const {
  const std::string wanted = normalized(lower(name));
  const std::size_t limit = std::clamp<std::size_t>(wanted.size() / 3, 1, 6);
  std::size_t best = limit + 1;
  std::string nearest_name;
  for (const auto& [known, at] : index_) {
    if ((entries_[at].spec.services & services) == 0 || known.size() < 2) continue;
    // A cut-off name ("max-running") is nearer to what it begins than any number of edits says.
    const bool begins = wanted.size() >= 4 && known.starts_with(wanted);
    const std::size_t distance = begins ? 1 : edit_distance(wanted, known, limit);
    if (distance < best) {
      best = distance;
      nearest_name = known;
    }
  }
  return nearest_name.empty() ? "" : "--" + nearest_name;
}

}  // namespace tandem::args
