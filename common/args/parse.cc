#include "common/args/args.h"
#include "common/args/effect_hook.h"
#include "common/args/input.h"
#include "common/args/text.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::args {

constinit WithoutEffect without_effect = nullptr;

namespace {

/// The worker roles whose arguments a router accepts because it starts such workers.
Services spawned_services(const Arguments& args) {
  if (args.program != Program::kRouter || args.router.has_worker_addresses()) return 0;
  return args.router.pd_disaggregation ? static_cast<Services>(kPrefill | kDecode) : kUnified;
}

/// Turns what was given into field values, one source after the other, weakest first.
class Applier {
 public:
  Applier(Arguments& args, Errors& errors) : args_(args), errors_(errors) {}

  /// Whether the router starts workers decides which flags it takes, so its addresses are read
  /// first.
  void apply_addresses(const std::vector<Given>& given) {
    for (const Given& each : given) {
      if (is_address(each)) set(each);
    }
  }

  void apply(const std::vector<Given>& given) {
    for (const Given& each : given) {
      if (is_address(each) || !accepts(each)) continue;
      set(each);
    }
  }

 private:
  [[nodiscard]] bool is_address(const Given& given) const {
    static constexpr std::string_view kDests[] = {
        "worker_urls", "pd_disaggregation", "prefill", "decode"};
    return args_.program == Program::kRouter && given.entry->built() &&
           std::find(std::begin(kDests), std::end(kDests), given.entry->dest) != std::end(kDests);
  }

  /// What else a router takes. When it cannot be known which workers it is to start, all of it.
  [[nodiscard]] Services spawned() const {
    const bool unsure = errors_.has_gap() || errors_.failed("worker_urls") ||
                        errors_.failed("pd_disaggregation") || errors_.failed("prefill") ||
                        errors_.failed("decode");
    if (args_.program == Program::kRouter && !args_.router.has_worker_addresses() && unsure)
      return kEngine;
    return spawned_services(args_);
  }

  /// False: nothing to set; whoever should know was told.
  bool accepts(const Given& given) {
    const Entry& entry = *given.entry;
    // Roles and addresses of spawned workers are the router's own business.
    const Services spawned = entry.spec.keep ? Services{0} : this->spawned();
    const Services mine = services_of(args_.program) | spawned;
    if ((entry.spec.services & mine) == 0) {
      refuse_foreign(given);
      return false;
    }
    if (!entry.built()) {
      refuse_unbuilt(given);
      return false;
    }
    return spawn_ok(given);
  }

  void refuse_foreign(const Given& given) {
    const Entry& entry = *given.entry;
    const std::string takers = programs_text(entry.spec.services);
    if (given.origin != Origin::kCli) {
      note(NoteLevel::kDebug,
           entry.flag() + " is an argument of " + takers + "; ignored here" + given.suffix());
      return;
    }
    std::string text = entry.flag() + " is an argument of " + takers + ", not of " +
                       std::string(program_name(args_.program));
    if (args_.program == Program::kRouter && (entry.spec.services & kEngine) != 0) {
      if (args_.router.has_worker_addresses()) {
        text += " that drives running workers";
      } else {
        text += entry.spec.keep ? ", which sets it for the workers that it starts"
                                : " that starts workers of one kind (see --pd-disaggregation)";
      }
    }
    errors_.add(text);
  }

  void refuse_unbuilt(const Given& given) {
    const Entry& entry = *given.entry;
    if (given.origin == Origin::kEnv) {
      note(NoteLevel::kWarning,
           "environment variable " + given.where + " names " + entry.flag() +
               ", which is known, but not built yet; it has no effect");
      return;
    }
    // A switch set to false in a file stays at its default, which is off for all of them.
    const Words& words = given.occurrences.front();
    if (given.origin == Origin::kFile && entry.is_switch() && words.size() == 1 &&
        lower(words[0]) == "false")
      return;
    std::string text = entry.flag() + " is known, but not built yet";
    if (!entry.spec.deprecated_for.empty()) {
      text += " (deprecated; its replacement is " + std::string(entry.spec.deprecated_for) + ")";
    }
    errors_.add(text + given.suffix());
  }

  /// Arguments about workers that the router would start mean nothing to one that drives running
  /// workers.
  bool spawn_ok(const Given& given) {
    const Entry& entry = *given.entry;
    if (!entry.spec.spawn_only || args_.program != Program::kRouter ||
        !args_.router.has_worker_addresses()) {
      return true;
    }
    if (given.origin == Origin::kCli) {
      errors_.add(entry,
                  "applies to workers that the router starts, and this one drives running workers");
    } else {
      note(NoteLevel::kDebug,
           entry.flag() + " applies to workers that the router starts; ignored here" +
               given.suffix());
    }
    return false;
  }

  void set(const Given& given) {
    const Entry& entry = *given.entry;
    if (!given.misshapen.empty()) {
      errors_.add(entry, given.misshapen, given.suffix());
      return;
    }
    for (const Words& words : given.occurrences) {
      for (const std::string& word : words) {
        if (is_utf8(word)) continue;
        // Not shown: it may be a key.
        errors_.add(entry, "the value is not valid UTF-8", given.suffix());
        return;
      }
    }
    const Status status = entry.ops->set(entry.field, given.occurrences, entry.spec);
    if (!status.ok()) {
      errors_.add(entry, status.message(), given.suffix());
      return;
    }
    args_.origins[std::string(entry.dest)] = given.origin;
    errors_.remember_place(entry.dest, given.suffix());
    note_fallback(given);
  }

  void note_fallback(const Given& given) {
    const Spec& spec = given.entry->spec;
    if (spec.falls_back_to.empty() || given.occurrences.back().empty()) return;
    const std::string& word = given.occurrences.back().front();
    if (word == spec.falls_back_to) return;
    note(NoteLevel::kInfo,
         given.entry->flag() + " " + shown(word) + " not available here, using " +
             std::string(spec.falls_back_to) + given.suffix());
  }

  void note(NoteLevel level, std::string text) { args_.notes.push_back({level, std::move(text)}); }

  Arguments& args_;
  Errors& errors_;
};

const Given* find(const std::vector<Given>& given, std::string_view dest) {
  const auto found = std::find_if(
      given.begin(), given.end(), [dest](const Given& each) { return each.entry->dest == dest; });
  return found == given.end() ? nullptr : &*found;
}

/// Drops what a test wants to have no effect.
std::vector<Given> with_effect(std::vector<Given> given) {
  if (without_effect != nullptr) {
    std::erase_if(given, [](const Given& each) { return without_effect(each.entry->spec.name); });
  }
  return given;
}

ParseOutcome exit_with(int code, std::string out, std::string err) {
  ParseOutcome outcome;
  outcome.exit_code = code;
  outcome.out = std::move(out);
  outcome.err = std::move(err);
  return outcome;
}

std::string where_given(const std::vector<Given>& cli,
                        const std::vector<Given>& file,
                        const std::vector<Given>& env,
                        std::string_view dest) {
  for (const std::vector<Given>* source : {&cli, &file, &env}) {
    if (const Given* given = find(*source, dest)) return given->where;
  }
  return "";
}

ParseOutcome explain(const Arguments& args,
                     const Registry& registry,
                     const std::vector<Given>& cli,
                     const std::vector<Given>& file,
                     const std::vector<Given>& env) {
  std::string_view name = *args.command.explain;
  while (name.starts_with('-'))
    name.remove_prefix(1);
  if (name.empty()) {
    Errors errors;
    errors.add(*registry.find_dest("explain"), "expected the name of an argument");
    return exit_with(2, "", errors.report(args.program));
  }
  const Entry* entry = registry.find(name);
  const std::string where = entry == nullptr ? "" : where_given(cli, file, env, entry->dest);
  Result<std::string> text = explain_text(args, registry, *args.command.explain, where);
  if (text.ok()) return exit_with(0, std::move(text).value(), "");
  return exit_with(
      2,
      "",
      std::string(program_name(args.program)) + ": error: " + text.status().message() + "\n");
}

/// What is printed whatever else is on the command line: help, version, and the texts for a shell,
/// for man and for an editor. Nothing when none of them is asked for.
std::optional<std::string> text_asked_for(Program program,
                                          const std::vector<Given>& cli,
                                          const Environment& environment) {
  if (find(cli, "help_all") != nullptr) return help_text(program, true);
  if (find(cli, "help") != nullptr) return help_text(program, false);
  if (find(cli, "version") != nullptr)
    return std::string(program_name(program)) + " " + environment.version + "\n";
  if (const Given* shell = find(cli, "print_completion")) {
    const std::string& word = shell->occurrences.front().front();
    // Another shell's name is refused with the rest of what is wrong.
    if (word == "bash") return completion_script(program, Shell::kBash);
    if (word == "zsh") return completion_script(program, Shell::kZsh);
  }
  if (find(cli, "print_man") != nullptr) return man_page(program, environment.version);
  if (find(cli, "print_json_schema") != nullptr) return json_schema(program);
  return std::nullopt;
}

/// Warnings of a program that will not run, and so will not log them.
std::string warnings(const Arguments& args) {
  std::string text;
  for (const Note& note : args.notes) {
    if (note.level != NoteLevel::kWarning) continue;
    text += std::string(program_name(args.program)) + ": warning: " + note.text + "\n";
  }
  return text;
}

}  // namespace

ParseOutcome parse(Program program,
                   int argc,
                   const char* const* argv,
                   const Environment& environment) {
  ParseOutcome outcome;
  Arguments& args = outcome.args;
  args.program = program;
  const Registry registry(args);
  Errors errors;
  const std::vector<Given> cli =
      with_effect(scan_command_line(registry, program, argc, argv, errors));
  if (std::optional<std::string> text = text_asked_for(program, cli, environment))
    return exit_with(0, std::move(*text), "");
  std::vector<Given> file;
  if (errors.failed("config")) errors.remember_gap();
  if (const Given* config = find(cli, "config")) {
    file = with_effect(
        read_config_file(registry, program, config->occurrences.front().front(), errors));
  }
  const std::vector<Given> env = with_effect(read_environment(registry, environment, errors));

  Applier applier(args, errors);
  applier.apply_addresses(file);
  applier.apply_addresses(cli);
  applier.apply(env);
  applier.apply(file);
  applier.apply(cli);
  resolve(args, registry, environment, errors);
  resolve_paths(args, registry, environment, errors);

  if (!errors.empty() && !args.command.explain)
    return exit_with(2, "", warnings(args) + errors.report(program));
  if (args.command.explain) {
    ParseOutcome explained = explain(args, registry, cli, file, env);
    explained.err += errors.report(program);
    if (!errors.empty()) explained.exit_code = 2;
    return explained;
  }
  if (args.command.dump_config) outcome.out = dump_json(args) + "\n";
  const bool leave = args.command.dump_config && !args.command.dry_run;
  outcome.action = leave ? ParseOutcome::Action::kExit : ParseOutcome::Action::kRun;
  if (leave) outcome.err = warnings(args);
  return outcome;
}

}  // namespace tandem::args
