// The command line parser is CLI11: one CLI::Option per argument, made from the same description
// as everything else. It splits words into options; what the words mean is parse.cc's.
//
// CLI11 throws. Nothing of it leaves this file.
#include "common/args/input.h"
#include "common/args/spec.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Error.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Option.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace tandem::args {
namespace {

/// Stands for "no word" in CLI11's results. A word of argv cannot hold a NUL.
const std::string kNoWord(1, '\0');

/// "--data-parallel-size,--dp-size,--dp": every spelling, with dashes.
std::string option_names(const Spec& spec) {
  std::string names = "--" + normalized(spec.name);
  for (const std::string_view alias : split_list(spec.aliases)) {
    const std::string spelled = (alias.size() == 1 ? "-" : "--") + normalized(alias);
    if (names.find(spelled + ",") == std::string::npos && !names.ends_with(spelled))
      names += "," + spelled;
  }
  return names;
}

/// No minimum: a flag without its word is told by us, with the rest of what is wrong, while CLI11
/// would take the next flag for the word, or stop at the first such error. A switch may take one
/// word, so that the sentence about it can name the switch.
void set_arity(CLI::Option& option, std::string_view arity) {
  if (arity == "1..2") {
    option.expected(0, 2);
  } else if (arity.ends_with('+')) {
    option.expected(0, kWordCountMax);
  } else {
    option.expected(0, 1);
  }
}

/// The visitor: one option that appends its words to `occurrences` each time it is given.
void add_option(CLI::App& app, const Entry& entry, std::vector<Occurrence>& occurrences) {
  CLI::Option* option = app.add_option(
      option_names(entry.spec), [&entry, &occurrences](const CLI::results_t& results) {
        Occurrence& each = occurrences.emplace_back(Occurrence{&entry, results});
        if (results.size() == 1 && results.front() == kNoWord) each.words.clear();
        return true;
      });
  set_arity(*option, entry.arity);
  // The value of --explain is a flag's name, usually with its dashes.
  if (entry.dest == "explain") option->expected(1);
  option->group(std::string(entry.spec.section));
  option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  option->default_str(kNoWord);
  option->trigger_on_parse();
}

}  // namespace

Result<SplitWords> split_words(const std::vector<const Entry*>& entries,
                               std::vector<std::string> words) {
  try {
    SplitWords split;
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    for (const Entry* entry : entries)
      add_option(app, *entry, split.occurrences);
    std::reverse(words.begin(), words.end());  // CLI11 takes words from the back
    app.parse(std::move(words));
    split.strays = app.remaining();
    return split;
  } catch (const CLI::Error& error) {
    return invalid_argument(error.what());
  } catch (const std::exception& error) {
    return invalid_argument(std::string("the command line cannot be read: ") + error.what());
  }
}

}  // namespace tandem::args
