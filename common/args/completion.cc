// Shell completion for bash and zsh, from the same entries as everything else. Names, choices and
// programs are [a-zA-Z0-9_.-] (a test says so), so only help texts need quoting.
#include "common/args/args.h"
#include "common/args/render.h"
#include "common/args/text.h"

#include <algorithm>
#include <map>

namespace tandem::args {
namespace {

std::vector<std::string> spellings(const Entry& entry) {
  std::vector<std::string> names = {entry.flag()};
  for (std::string_view alias : split_list(entry.spec.aliases)) {
    std::string spelled = (alias.size() == 1 ? "-" : "--") + std::string(alias);
    if (normalized(alias) != normalized(entry.spec.name)) names.push_back(std::move(spelled));
  }
  return names;
}

std::string usable_words(const Entry& entry) {
  std::string words = entry.ops->usable(entry.spec);
  words.erase(std::remove(words.begin(), words.end(), ','), words.end());
  return words;
}

std::string function_name(Program program) {
  std::string name = "_tandem_" + std::string(program_name(program));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string bash_script(Program program, const std::vector<const Entry*>& entries) {
  const std::string name(program_name(program));
  std::string flags;
  std::string files;
  std::string free;  // flags with a value that nobody can guess
  // Flags with the same choices share a branch.
  std::map<std::string, std::string> branches;
  const auto join = [](std::string& list, const std::string& flag) {
    list += (list.empty() ? "" : "|") + flag;
  };
  for (const Entry* entry : entries) {
    for (const std::string& flag : spellings(*entry)) {
      flags += (flags.empty() ? "" : " ") + flag;
      if (entry->is_switch()) continue;
      const std::string words = usable_words(*entry);
      if (entry->spec.path) {
        join(files, flag);
      } else if (entry->dest == "explain") {
        join(branches["$flags"], flag);
      } else if (!words.empty()) {
        join(branches[words], flag);
      } else {
        join(free, flag);
      }
    }
  }
  std::string text = "# bash completion for " + name + ", generated from its own arguments.\n# " +
                     name +
                     " --print-completion bash > ~/.local/share/bash-completion/completions/" +
                     name + "\n" + function_name(program) + "() {\n";
  text += "  local flags=\"" + flags + "\"\n";
  text +=
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  # --flag=value comes as three words.\n"
      "  if [[ $word == \"=\" ]]; then word=\"\"; fi\n"
      "  if [[ $before == \"=\" && $COMP_CWORD -gt 1 ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; "
      "fi\n"
      "  COMPREPLY=()\n"
      "  case ${before//_/-} in\n";
  for (const auto& [words, of] : branches) {
    text.append("    ").append(of).append(") mapfile -t COMPREPLY < <(compgen -W \"").append(words);
    text += "\" -- \"$word\"); return ;;\n";
  }
  if (!files.empty())
    text += "    " + files + ") mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return ;;\n";
  if (!free.empty()) text += "    " + free + ") return ;;\n";
  return text + "  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$word\")\n}\n" +
         "complete -F " + function_name(program) + " " + name + "\n";
}

/// Inside single quotes of an _arguments spec.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const Entry& entry) {
  if (entry.spec.path) return "_files";
  const std::string words = usable_words(entry);
  return words.empty() ? " " : "(" + words + ")";
}

std::string zsh_line(const Entry& entry) {
  const std::vector<std::string> names = spellings(entry);
  std::string all;
  std::string braced;
  for (const std::string& each : names) {
    const bool valued = !entry.is_switch() && each.starts_with("--");
    all += (all.empty() ? "" : " ") + each;
    braced += (braced.empty() ? "" : ",") + each + (valued ? "=" : "");
  }
  const bool repeats = entry.spec.repeatable;
  std::string text = "    '" + (repeats ? "*" : "(" + all + ")") + "'";
  text += names.size() > 1 ? "{" + braced + "}" : braced;
  text += "'[" + zsh_text(entry.spec.help) + "]";
  if (!entry.is_switch()) {
    text += ":" + placeholder(entry) + ":" + zsh_action(entry);
    if (entry.arity == "1..2") text += "::BOOTSTRAP_PORT: ";
  }
  return text + "' \\\n";
}

std::string zsh_script(Program program, const std::vector<const Entry*>& entries) {
  const std::string name(program_name(program));
  std::string text = "#compdef " + name + "\n# zsh completion for " + name +
                     ", generated from its own arguments.\n# " + name +
                     " --print-completion zsh > a folder of $fpath/_" + name + "\n" +
                     function_name(program) + "() {\n  _arguments -S \\\n";
  for (const Entry* entry : entries)
    text += zsh_line(*entry);
  text += "    '*: : '\n}\n";
  // Loaded from $fpath the file is the function's body; sourced, it registers the function.
  return text + "if [[ $funcstack[1] == _" + name + " ]]; then\n  " + function_name(program) +
         " \"$@\"\nelse\n  compdef " + function_name(program) + " " + name + "\nfi\n";
}

}  // namespace

std::vector<const Entry*> offered(const Registry& registry, Program program) {
  std::vector<const Entry*> entries;
  for (const Entry& entry : registry.entries()) {
    const bool mine = (entry.spec.services & services_of(program)) != 0;
    const bool forwarded =
        program == Program::kRouter && !entry.spec.keep && (entry.spec.services & kEngine) != 0;
    // Nobody is led to an old name, or to what is refused here whatever its value.
    const bool refused = !entry.spec.needs.empty() && !entry.spec.ignored_without;
    const bool leads_on = entry.built() && entry.spec.deprecated_for.empty() && !refused;
    if (leads_on && (mine || forwarded)) entries.push_back(&entry);
  }
  return entries;
}

std::string completion_script(Program program, Shell shell) {
  Arguments args;
  const Registry registry(args);
  const std::vector<const Entry*> entries = offered(registry, program);
  return shell == Shell::kZsh ? zsh_script(program, entries) : bash_script(program, entries);
}

}  // namespace tandem::args
