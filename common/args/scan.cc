// argv -> words per argument: our sentences before and after CLI11 (cli_app.cc).
#include "common/args/input.h"
#include "common/args/text.h"
#include "common/base/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tandem::args {
namespace {

constexpr std::size_t kWordBytesMax = 1U << 20U;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// A word that begins an argument, as CLI11 sees it. "-1", "-.5" and "-" are values.
bool is_flag(std::string_view word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return !is_digit(word[1]) && !(word.size() > 2 && word[1] == '.' && is_digit(word[2]));
}

/// Makes the words ready for CLI11: dashes for underscores, and flags that nobody knows told and
/// taken out. Afterwards checks arity and repetition of what CLI11 split.
class Scanner {
 public:
  Scanner(const Registry& registry, Program program, Errors& errors)
      : registry_(registry), program_(program), errors_(errors) {}

  std::vector<Given> scan(const std::vector<std::string_view>& words) {
    for (std::size_t at = 0; at < words.size();) {
      const std::string_view word = words[at++];
      if (is_flag(word) && entries_.size() >= kBlockOptions) split();
      if (!is_flag(word)) {
        ready_.push_back(value(word));
      } else if (!take_flag(word, at < words.size())) {
        while (at < words.size() && !is_flag(words[at]))
          ++at;
      } else if (ready_.back() == "--explain") {
        ready_.emplace_back(words[at++]);
      }
    }
    split();
    tell_strays();
    return std::move(given_);
  }

 private:
  /// CLI11 compares a name with one option after the other, twice. A line with more flags than
  /// people write goes to it in blocks, which keeps the time linear.
  static constexpr std::size_t kBlockOptions = 32;

  /// Hands what is ready to CLI11.
  void split() {
    Result<SplitWords> split = split_words(entries_, std::exchange(ready_, {}));
    const std::vector<std::string> spelled = std::exchange(spelled_, {});
    entries_.clear();
    seen_.clear();
    if (!split.ok()) {
      errors_.add(split.status().message());
      return;
    }
    TANDEM_CHECK(split.value().occurrences.size() == spelled.size(),
                 "every flag that was handed over comes back");
    for (std::size_t i = 0; i < spelled.size(); ++i)
      add(split.value().occurrences[i], spelled[i]);
    for (std::string& stray : split.value().strays)
      strays_.push_back(std::move(stray));
  }

  /// False: not a flag that CLI11 should see.
  bool take_flag(std::string_view word, bool has_next) {
    const std::size_t equals = word.find('=');
    const bool attached = equals != std::string_view::npos;
    const std::string_view spelled = word.substr(0, equals);
    const bool is_long = spelled.starts_with("--");
    const std::string_view name = spelled.substr(is_long ? 2 : 1);
    // One letter takes one dash, a word takes two: "--h" and "-port" are nobody's.
    const Entry* entry = (name.size() > 1) == is_long ? registry_.find(name) : nullptr;
    if (entry == nullptr) {
      tell_unrecognized(registry_, program_, "", spelled, errors_);
      return false;
    }
    if (entry->dest == "explain" && !attached && !has_next) {
      errors_.add(*entry, "expected one argument");
      return false;
    }
    if (seen_.insert(entry).second) entries_.push_back(entry);
    spelled_.emplace_back(spelled);
    ready_.push_back((is_long ? "--" : "-") + normalized(name));
    if (!attached) return true;
    // CLI11 reads "--x=" as "--x", and "-x=v" as the value "=v".
    const std::string_view attachment = word.substr(equals + 1);
    if (is_long && !attachment.empty()) {
      ready_.back() += "=" + std::string(attachment);
    } else {
      ready_.push_back(value(attachment));
    }
    return true;
  }

  /// A value as CLI11 takes it for one: "-1" is, "-.5" is not.
  static std::string value(std::string_view word) {
    return word.starts_with("-.") ? "-0" + std::string(word.substr(1)) : std::string(word);
  }

  /// Whether the flag has the words that it must have.
  bool arity_ok(const Occurrence& each) {
    const Entry& entry = *each.entry;
    if (entry.is_switch()) {
      if (each.words.empty()) return true;
      errors_.add(entry, "takes no value, got '" + shown(each.words.front()) + "'");
      return false;
    }
    if (!each.words.empty() || entry.arity.starts_with('0')) return true;
    errors_.add(entry,
                entry.arity == "1" ? "expected one argument" : "expected at least one argument");
    return false;
  }

  void add(Occurrence& each, const std::string& spelled) {
    if (!arity_ok(each)) return;
    const Entry& entry = *each.entry;
    const auto [seen, is_new] = index_.emplace(&entry, given_.size());
    if (is_new) {
      given_.push_back({&entry, Origin::kCli, spelled, {std::move(each.words)}});
      return;
    }
    Given& earlier = given_[seen->second];
    if (entry.spec.repeatable) {
      earlier.occurrences.push_back(std::move(each.words));
    } else if (earlier.where != spelled) {
      errors_.add(entry, "given twice, as " + earlier.where + " and as " + spelled);
    } else {
      errors_.add(entry, "given more than once");
    }
  }

  void tell_strays() {
    if (strays_.empty()) return;
    const std::size_t more = strays_.size() - 1;
    errors_.add("unexpected argument '" + shown(strays_.front()) + "'" +
                (more > 0 ? " and " + std::to_string(more) + " more" : "") +
                ": values follow a flag that starts with --");
  }

  const Registry& registry_;
  Program program_;
  Errors& errors_;
  std::vector<const Entry*> entries_;  ///< of the flags that are there
  std::set<const Entry*> seen_;
  std::vector<std::string> ready_;    ///< words for CLI11
  std::vector<std::string> spelled_;  ///< the flags among them, as the person wrote them
  Words strays_;                      ///< words that no flag takes
  std::vector<Given> given_;
  std::map<const Entry*, std::size_t> index_;
};

}  // namespace

std::string Given::suffix() const {
  if (origin == Origin::kFile) return " (" + where + ")";
  if (origin == Origin::kEnv) return " (environment variable " + where + ")";
  return "";
}

void Errors::add(const Entry& entry, std::string_view text, std::string_view suffix) {
  failed_.emplace(entry.dest);
  if (suffix.empty()) {
    const auto place = places_.find(std::string(entry.dest));
    if (place != places_.end()) suffix = place->second;
  }
  texts_.push_back("argument " + entry.flag() + ": " + std::string(text) + std::string(suffix));
}

std::string Errors::report(Program program) const {
  const std::string prefix = std::string(program_name(program)) + ": error: ";
  std::string text;
  for (std::size_t i = 0; i < std::min(texts_.size(), kShownMax); ++i)
    text += prefix + texts_[i] + "\n";
  if (texts_.size() > kShownMax) {
    text += prefix + "and " + std::to_string(texts_.size() - kShownMax) + " more errors\n";
  }
  return text;
}

std::string nearest_name(const Registry& registry, Program program, std::string_view name) {
  while (name.starts_with('-'))
    name.remove_prefix(1);
  std::string near = registry.nearest(name, services_of(program));
  return near.empty() ? registry.nearest(name, kEverywhere) : near;
}

std::string unrecognized(std::string_view spelled, const std::string& near) {
  std::string text = "unrecognized argument: " + shown(spelled);
  if (!near.empty()) text += " (did you mean " + near + "?)";
  return text;
}

void tell_unrecognized(const Registry& registry,
                       Program program,
                       const std::string& place,
                       std::string_view spelled,
                       Errors& errors) {
  if (errors.is_full()) {
    // Only counted: looking for the nearest name costs more than all else of a line of nonsense.
    errors.remember_gap();
    errors.add("unrecognized argument");
    return;
  }
  const std::string near = nearest_name(registry, program, spelled);
  if (!near.empty()) errors.remember_unknown(registry.find(near.substr(2))->dest);
  errors.add(place + unrecognized(spelled, near));
}

std::vector<Given> scan_command_line(
    const Registry& registry, Program program, int argc, const char* const* argv, Errors& errors) {
  if (argc > kWordCountMax) {
    errors.add("the command line has " + std::to_string(argc) + " words; at most " +
               std::to_string(kWordCountMax) + " are read");
    errors.remember_gap();
    return {};
  }
  std::vector<std::string_view> words;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.size() > kWordBytesMax) {
      errors.add("word " + std::to_string(i) + " of the command line is longer than 1 MiB");
      errors.remember_gap();
      return {};
    }
    words.push_back(word);
  }
  return Scanner(registry, program, errors).scan(words);
}

std::vector<Given> read_environment(const Registry& registry,
                                    const Environment& environment,
                                    Errors& errors) {
  std::vector<Given> given;
  if (!environment.variable) return given;
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.env.empty()) continue;
    std::optional<std::string> value = environment.variable(entry.spec.env);
    if (!value || value->empty()) continue;
    if (value->size() > kWordBytesMax) {
      errors.add(entry,
                 "environment variable " + std::string(entry.spec.env) + " is longer than 1 MiB");
      continue;
    }
    given.push_back({&entry, Origin::kEnv, std::string(entry.spec.env), {{std::move(*value)}}});
  }
  return given;
}

}  // namespace tandem::args
