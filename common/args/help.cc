// --help, --help-all and --explain: at most 100 columns, common arguments first, then by section.
#include "common/args/args.h"
#include "common/args/input.h"
#include "common/args/render.h"
#include "common/args/spec.h"
#include "common/args/text.h"

#include <algorithm>
#include <cmath>

namespace tandem::args {
namespace {

constexpr std::size_t kColumns = 100;

}  // namespace

std::string_view about(Program program) {
  switch (program) {
    case Program::kRouter:
      return "The front door: OpenAI and native HTTP APIs and gRPC, over workers that run already "
             "or that it starts.";
    case Program::kPrefill:
      return "A worker that computes prompts, or with --disaggregation-mode null (the default) a "
             "complete server.";
    case Program::kDecode:
      return "A worker that generates, or with --disaggregation-mode null (the default) a complete "
             "server.";
    case Program::kBootstrap:
      break;
  }
  return "The bootstrap service by itself: where prefill workers register and decode workers find "
         "them.";
}

std::string placeholder(const Entry& entry) {
  constexpr std::size_t kLongest = 28;
  if (entry.dest.size() > kLongest) return entry.type == "int" ? "N" : "VALUE";
  std::string text(entry.dest);
  for (char& c : text)
    c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return text;
}

namespace {

/// "--data-parallel-size, --dp-size, --dp".
std::string spellings_text(const Entry& entry) {
  std::string text = entry.flag();
  for (std::string_view alias : split_list(entry.spec.aliases)) {
    // '_' for '-' goes everywhere and is not worth a word each time.
    if (normalized(alias) == normalized(entry.spec.name)) continue;
    text += (alias.size() == 1 ? ", -" : ", --") + std::string(alias);
  }
  return text;
}

std::string usage_line(const Entry& entry) {
  std::string text = "  " + entry.flag();
  if (!entry.is_switch()) text += " " + placeholder(entry);
  if (entry.arity == "1+" || entry.arity == "0+") text += " ...";
  return text + spellings_text(entry).substr(entry.flag().size()) + "\n";
}

}  // namespace

std::string range_text(const Range& range) {
  std::string text;
  if (std::isfinite(range.min))
    text += std::string(range.exclusive_min ? "> " : ">= ") + number_text(range.min);
  if (std::isfinite(range.max)) {
    text += std::string(text.empty() ? "" : " and ") + (range.exclusive_max ? "< " : "<= ") +
            number_text(range.max);
  }
  if (!std::isnan(range.also_allowed)) text += " or " + number_text(range.also_allowed);
  return text;
}

std::string number_words(const Spec& spec, bool is_float) {
  std::string text = is_float ? "a number" : "an integer";
  const std::string range = range_text(spec.range);
  if (!range.empty()) text += " " + range;
  switch (spec.unit) {
    case Unit::kBytes:
      return text + ", plain bytes or with a unit (512MiB, 4GB)";
    case Unit::kSeconds:
      return text + ", plain seconds or with a unit (30s, 5m, 2h)";
    case Unit::kMilliseconds:
      return text + ", plain milliseconds or with a unit (300ms, 2s)";
    case Unit::kNone:
      break;
  }
  return text;
}

std::string allowed_words(const Entry& entry) {
  if (entry.is_switch()) return "the flag alone; true or false in a config file";
  std::string usable =
      entry.built() ? entry.ops->usable(entry.spec) : joined(entry.spec.choices, ", ");
  if (!usable.empty()) return usable;
  if (entry.type == "bool") return "true or false";
  if (entry.type == "int" || entry.type == "float")
    return number_words(entry.spec, entry.type == "float");
  if (entry.type.starts_with("json")) return "JSON, in a config file also a mapping";
  if (entry.type.starts_with("list")) return "one or more words";
  return entry.spec.path ? "a path" : "text";
}

namespace {

/// "unset", "16384", "4096 (computed from memory)", "computed: ...".
std::string default_words(const Entry& entry) {
  const std::string note(entry.spec.default_note);
  if (entry.default_json == "null") return note.empty() ? "unset" : note;
  return std::string(entry.default_json) + (note.empty() ? "" : " (" + note + ")");
}

}  // namespace

/// "int; default 16384; >= 1".
std::string facts(const Entry& entry) {
  std::string text = std::string(entry.type) + "; default " + default_words(entry);
  const std::string range = range_text(entry.spec.range);
  if (!range.empty()) text += "; " + range;
  const std::string choices = joined(entry.spec.choices, ", ");
  if (!choices.empty()) text += "; choices " + choices;
  const std::string usable = entry.built() ? entry.ops->usable(entry.spec) : choices;
  if (usable != choices) text += "; of these work in this build: " + usable;
  if (!entry.spec.env.empty()) text += "; variable " + std::string(entry.spec.env);
  if (!entry.spec.deprecated_for.empty())
    text += "; deprecated: use " + std::string(entry.spec.deprecated_for);
  if (!entry.built()) text += "; not built yet";
  if (entry.built() && entry.spec.trivial_only && !entry.is_switch())
    text += "; built: the default";
  return text;
}

namespace {

std::string paragraph(const Entry& entry) {
  return usage_line(entry) + wrapped(entry.spec.help, 6, kColumns) +
         wrapped("[" + facts(entry) + "]", 6, kColumns);
}

}  // namespace

std::vector<std::string_view> sections_of(const std::vector<const Entry*>& entries) {
  std::vector<std::string_view> sections;
  for (const Entry* entry : entries) {
    if (std::find(sections.begin(), sections.end(), entry->spec.section) == sections.end()) {
      sections.push_back(entry->spec.section);
    }
  }
  return sections;
}

std::string help_text(Program program, bool all) {
  Arguments args;
  const Registry registry(args);
  std::vector<const Entry*> mine;
  for (const Entry& entry : registry.entries()) {
    if ((entry.spec.services & services_of(program)) != 0) mine.push_back(&entry);
  }
  std::string text = "usage: " + std::string(program_name(program)) +
                     " [--config FILE.yaml] [--flag value ...]\n\n";
  text += wrapped(about(program), 0, kColumns);
  text +=
      "The command line beats the config file, which beats environment variables, which beat "
      "defaults.\n";
  if (program == Program::kRouter) {
    text += wrapped(
        "A router that starts its own workers also takes every flag of theirs (see prefill-server "
        "--help) "
        "and forwards it.",
        0,
        kColumns);
  }
  text += "\nCommon\n";
  for (const Entry* entry : mine) {
    if (entry->spec.common && entry->built()) text += paragraph(*entry);
  }
  for (std::string_view section : sections_of(mine)) {
    std::string body;
    for (const Entry* entry : mine) {
      if (entry->spec.section != section || entry->spec.common || (!entry->built() && !all))
        continue;
      body += paragraph(*entry);
    }
    if (!body.empty()) text += "\n" + std::string(section) + "\n" + body;
  }
  if (all) return text;
  std::string rest;
  for (const Entry* entry : mine) {
    if (!entry->built()) rest += entry->flag() + " ";
  }
  if (rest.empty()) return text;
  return text +
         "\nKnown, but not built yet: given, the program stops (--help-all describes them)\n" +
         wrapped(rest, 2, kColumns);
}

Result<std::string> explain_text(const Arguments& args,
                                 const Registry& registry,
                                 std::string_view flag,
                                 std::string_view where) {
  std::string_view name = flag;
  while (name.starts_with('-'))
    name.remove_prefix(1);
  const Entry* entry = registry.find(name);
  if (entry == nullptr)
    return invalid_argument(unrecognized(flag, nearest_name(registry, args.program, name)));
  std::string text = entry->flag();
  if (!entry->built()) {
    text += ": known, but not built yet\n";
  } else {
    std::string value = entry->ops->json(entry->field);
    if (args.origin(entry->dest) == Origin::kDefault && entry->default_json == "null")
      value = "unset";
    if (entry->spec.secret && value != "null" && value != "unset") value = "[secret]";
    text += " = " + value + " (" + std::string(origin_name(args.origin(entry->dest)));
    // A value that was refused has a place, but is not in force.
    const bool named = !where.empty() && args.is_explicit(entry->dest);
    text += named ? ": " + std::string(where) + ")\n" : ")\n";
  }
  const auto row = [&text](std::string_view title, const std::string& what) {
    std::string lines = wrapped(what, 12, kColumns);
    lines.replace(2, title.size(), title);
    text += lines;
  };
  row("effect", std::string(entry->spec.help));
  row("allowed",
      allowed_words(*entry) + (only_default(*entry, args.program) ? "; built: the default" : ""));
  row("default", default_words(*entry));
  if (!entry->spec.env.empty()) row("variable", std::string(entry->spec.env));
  if (!entry->spec.deprecated_for.empty())
    row("use", std::string(entry->spec.deprecated_for) + " (this name is deprecated)");
  row("names", spellings_text(*entry));
  row("status", std::string(readiness_name(readiness(*entry))));
  row("taken by", programs_text(entry->spec.services));
  return text;
}

}  // namespace tandem::args
