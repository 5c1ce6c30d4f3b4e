// What a person gave, before it has a type: the words of the command line, the file and the
// environment.
#pragma once

#include "common/args/args.h"
#include "common/args/spec.h"
#include "common/base/status.h"

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

/// One argument from one source.
struct Given {
  const Entry* entry = nullptr;
  Origin origin = Origin::kCli;
  std::string where;  ///< spelling on the command line, "file:line:column", or variable name
  std::vector<Words> occurrences;  ///< never empty; the words of a switch may be
  /// From a file: why its value can be none of this argument, whatever that takes. Then there is
  /// one occurrence without words.
  std::string misshapen = {};

  /// For messages: "" for the command line, " (config.yaml:3:7)", " (environment variable
  /// TP_SIZE)".
  [[nodiscard]] std::string suffix() const;
};

/// Everything that was wrong, to be reported together.
class Errors {
 public:
  void add(std::string text) { texts_.push_back(std::move(text)); }

  /// "argument --x: <text><suffix>"; remembers that the argument has no usable value.
  void add(const Entry& entry, std::string_view text, std::string_view suffix = "");

  /// Where the value in force of `dest` came from, for checks that are made after all sources are
  /// merged.
  void remember_place(std::string_view dest, std::string suffix) {
    places_[std::string(dest)] = std::move(suffix);
  }

  /// "" or where the value in force of `dest` stands: " (config.yaml:3:7)".
  [[nodiscard]] std::string place(std::string_view dest) const {
    const auto found = places_.find(std::string(dest));
    return found == places_.end() ? "" : found->second;
  }

  /// Something was given that was probably meant for `dest`.
  void remember_unknown(std::string_view dest) { failed_.emplace(dest); }

  /// A source could not be read to its end: whatever seems to be missing may stand in there.
  void remember_gap() { gap_ = true; }

  [[nodiscard]] bool has_gap() const { return gap_; }

  [[nodiscard]] bool empty() const { return texts_.empty(); }

  /// More errors are only counted, so nobody needs to look for words for them.
  [[nodiscard]] bool is_full() const { return texts_.size() >= kShownMax; }

  [[nodiscard]] bool failed(std::string_view dest) const {
    return failed_.count(std::string(dest)) > 0;
  }

  /// One "<program>: error: <text>" line each; after 20 only their number.
  [[nodiscard]] std::string report(Program program) const;

 private:
  static constexpr std::size_t kShownMax = 20;

  std::vector<std::string> texts_;
  std::set<std::string> failed_;
  std::map<std::string, std::string> places_;
  bool gap_ = false;
};

/// Most words of a command line.
inline constexpr int kWordCountMax = 16384;

/// One flag with the words that follow it.
struct Occurrence {
  const Entry* entry = nullptr;
  Words words;
};

struct SplitWords {
  std::vector<Occurrence> occurrences;  ///< in the order of the command line
  Words strays;                         ///< words that no flag takes
};

/// CLI11's part: `words` into options. Each flag among them is spelled with dashes, is a name or
/// alias of one of `entries`, and has a word behind it when it is --explain; no value is named
/// "--".
Result<SplitWords> split_words(const std::vector<const Entry*>& entries,
                               std::vector<std::string> words);

/// Splits argv into arguments. Knows arity and spelling, nothing of values.
std::vector<Given> scan_command_line(
    const Registry& registry, Program program, int argc, const char* const* argv, Errors& errors);

/// Reads the YAML file. Keys nobody knows are errors; the rest is returned, whoever takes it.
std::vector<Given> read_config_file(const Registry& registry,
                                    Program program,
                                    const std::string& path,
                                    Errors& errors);

/// Values of variables that entries name.
std::vector<Given> read_environment(const Registry& registry,
                                    const Environment& environment,
                                    Errors& errors);

/// The known name, with its dashes, that `name` was probably meant for; one that this program takes
/// first. "" when nothing is near.
std::string nearest_name(const Registry& registry, Program program, std::string_view name);

/// "unrecognized argument: --x (did you mean --y?)"; `near` may be "".
std::string unrecognized(std::string_view spelled, const std::string& near);

/// The same as an error, with the place before it; what was probably meant then counts as given.
void tell_unrecognized(const Registry& registry,
                       Program program,
                       const std::string& place,
                       std::string_view spelled,
                       Errors& errors);

/// Cross-checks and derived values, after every source has been applied.
void resolve(Arguments& args,
             const Registry& registry,
             const Environment& environment,
             Errors& errors);

// Parts of resolve(), in resolve_elsewhere.cc.
/// Says at start-up that an argument that was given has no effect.
void note_no_op(Arguments& args, const Entry& entry, std::string_view why);
/// Deprecated arguments set what they stand for, with one warning; an error that names both when
/// that was given another value.
void resolve_old_names(Arguments& args, const Registry& registry, Errors& errors);
/// Checks, then refuses or ignores with a warning, what only other models, devices and libraries
/// could use.
void resolve_elsewhere(Arguments& args, const Registry& registry, Errors& errors);
/// What paths name, where `environment` can look; opens nothing.
void resolve_paths(const Arguments& args,
                   const Registry& registry,
                   const Environment& environment,
                   Errors& errors);

/// The text of --explain.
Result<std::string> explain_text(const Arguments& args,
                                 const Registry& registry,
                                 std::string_view flag,
                                 std::string_view where);

}  // namespace tandem::args
