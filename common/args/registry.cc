#include "common/args/spec.h"
#include "common/args/text.h"

#include <algorithm>

namespace tandem::args {
namespace {

constexpr Program kPrograms[] = {
    Program::kRouter, Program::kPrefill, Program::kDecode, Program::kBootstrap};

std::string_view dest_of(const Spec& spec, Texts& texts) {
  const std::string_view text = spec.dest.empty() ? spec.name : spec.dest;
  if (text.find('-') == std::string_view::npos) return text;
  std::string& made = texts.emplace_back(text);
  std::replace(made.begin(), made.end(), '-', '_');
  return made;
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
  entry.dest = dest_of(spec, texts_);
  entry.type = spec.type.empty() ? ops.type : spec.type;
  entry.arity = arity_of(spec, entry.type);
  // What is described is default-constructed, so the field itself is the default's only source.
  entry.default_json =
      spec.default_json.empty() ? texts_.emplace_back(ops.json(field)) : spec.default_json;
  entries_.push_back(entry);
}

namespace {

/// The walk over all descriptions, bound to an Arguments of defaults.
struct Catalogue {
  Catalogue() {
    Describe visit(entries, texts);
    describe(defaults.command, visit);
    describe(defaults.model, visit);
    describe(defaults.server, visit);
    describe(defaults.scheduling, visit);
    describe(defaults.kv_cache, visit);
    describe(defaults.runtime, visit);
    describe(defaults.parallel, visit);
    describe(defaults.disaggregation, visit);
    describe(defaults.observability, visit);
    describe(defaults.moe, visit);
    describe(defaults.elsewhere, visit);
    describe(defaults.router, visit);
    add_spellings(0);
    const std::size_t built = entries.size();
    for (const Entry& entry : unbuilt_entries(texts)) {
      // Built by now: its row in the table of refused ones goes at the next ./dev args.
      if (index.find(normalized(entry.spec.name)) == index.end()) entries.push_back(entry);
    }
    add_spellings(built);
  }

  void add_spellings(std::size_t from) {
    for (std::size_t i = from; i < entries.size(); ++i) {
      index.emplace(normalized(entries[i].spec.name), i);
      for (std::string_view alias : split_list(entries[i].spec.aliases))
        index.emplace(normalized(alias), i);
    }
  }

  Arguments defaults;
  Texts texts;
  std::vector<Entry> entries;
  SpellingIndex index;
};

const Catalogue& catalogue() {
  static const Catalogue kCatalogue;
  return kCatalogue;
}

}  // namespace

Registry::Registry(Arguments& args) : entries_(catalogue().entries), index_(catalogue().index) {
  const auto* defaults = reinterpret_cast<const char*>(&catalogue().defaults);
  for (Entry& entry : entries_) {
    if (!entry.built()) continue;
    // The same offset in `args` is this field.
    entry.field = reinterpret_cast<char*>(&args) + (static_cast<char*>(entry.field) - defaults);
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
  // A launcher that starts router and workers together prefixes what is the router's.
  if ((services & kRouter) != 0 && wanted.starts_with("router-")) {
    const auto found = index_.find(wanted.substr(7));
    if (found != index_.end()) return "--" + found->first;
  }
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
