#include "common/args/args.h"
#include "common/args/field.h"
#include "common/args/yaml_tree.h"
#include "tests/fuzz/feeds.h"
#include "tests/fuzz/own_folder.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tandem::fuzz {
namespace {

using args::Arguments;
using args::DisaggregationMode;
using args::Environment;
using args::ParseOutcome;
using args::Program;

constexpr std::size_t kErrBytesMax = 64U << 10U;

Program program_of(std::uint8_t byte) {
  constexpr Program kPrograms[] = {
      Program::kRouter, Program::kPrefill, Program::kDecode, Program::kBootstrap};
  return kPrograms[byte % 4];
}

ParseOutcome parse_words(Program program,
                         const std::vector<std::string>& words,
                         std::map<std::string, std::string> variables = {}) {
  Environment environment;
  environment.cpu_count = 2;
  environment.variable =
      [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  std::vector<const char*> argv = {"program"};
  for (const std::string& word : words)
    argv.push_back(word.c_str());
  return args::parse(program, static_cast<int>(argv.size()), argv.data(), environment);
}

/// Every line of stderr is one sentence of this program, and nothing in it steers a terminal. The
/// number of errors among them.
std::size_t check_sentences(Program program, const std::string& err) {
  const std::string name(args::program_name(program));
  std::size_t errors = 0;
  must(err.size() < kErrBytesMax, "errors are short");
  must(err.empty() || err.back() == '\n', "errors end with a line break");
  for (std::size_t at = 0; at < err.size();) {
    const std::size_t end = err.find('\n', at);
    const std::string line = err.substr(at, end - at);
    const bool is_error = line.starts_with(name + ": error: ");
    must(is_error || line.starts_with(name + ": warning: "), "each line names the program");
    must(line.size() > name.size() + 11, "each line says something");
    errors += is_error ? 1 : 0;
    at = end + 1;
  }
  for (const char c : err)
    must(c == '\n' || static_cast<unsigned char>(c) >= 0x20, "errors hold no control characters");
  must(args::is_utf8(err), "errors are UTF-8");
  return errors;
}

/// A worker accepts what a router that accepted a command line forwards to it.
void check_forwarding(const Arguments& arguments) {
  if (arguments.program != Program::kRouter || arguments.router.has_worker_addresses()) return;
  using Pair = std::pair<Program, DisaggregationMode>;
  std::vector<Pair> roles = {{Program::kPrefill, DisaggregationMode::kNull}};
  if (arguments.router.pd_disaggregation) {
    roles = {{Program::kPrefill, DisaggregationMode::kPrefill},
             {Program::kDecode, DisaggregationMode::kDecode}};
  }
  for (const auto& [program, mode] : roles) {
    std::vector<std::string> words = args::worker_argv(arguments, mode);
    words.push_back("--disaggregation-mode=" + std::string(args::to_string(mode)));
    const ParseOutcome worker = parse_words(program, words);
    if (worker.action != ParseOutcome::Action::kRun) std::fprintf(stderr, "%s", worker.err.c_str());
    must(worker.action == ParseOutcome::Action::kRun, "workers take what is forwarded to them");
  }
}

void check_outcome(Program program, const ParseOutcome& outcome) {
  const std::size_t errors = check_sentences(program, outcome.err);
  must(args::is_utf8(outcome.out), "output is UTF-8");
  if (outcome.action == ParseOutcome::Action::kExit) {
    must(outcome.exit_code == 0 || outcome.exit_code == 2, "the exit code is 0 or 2");
    must((outcome.exit_code == 0) == (errors == 0), "a refusal says why");
    return;
  }
  must(outcome.err.empty(), "what runs has no errors");
  must(nlohmann::json::accept(args::dump_json(outcome.args)), "the dump is JSON");
  for (const args::Note& note : outcome.args.notes)
    must(args::is_utf8(note.text) && note.text.find('\n') == std::string::npos, "a note is a line");
  check_forwarding(outcome.args);
}

}  // namespace

void feed_argv(Bytes bytes) {
  if (bytes.empty()) return;
  const Program program = program_of(bytes[0]);
  const std::string text = text_of(bytes.subspan(1));
  std::vector<std::string> words;
  std::map<std::string, std::string> variables;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    // A word of argv and a variable end at a NUL.
    std::string word = text.substr(at, end - at).c_str();
    const std::size_t equals = word.find('=');
    at = end + 1;
    if (!word.empty() && word[0] == '$' && equals != std::string::npos) {
      variables[word.substr(1, equals - 1)] = word.substr(equals + 1);
    } else {
      words.push_back(std::move(word));
    }
  }
  check_outcome(program, parse_words(program, words, std::move(variables)));
}

void feed_yaml(Bytes bytes) {
  if (bytes.empty()) return;
  static const OwnFolder kFolder("config");
  const Program program = program_of(bytes[0]);
  const std::string text = text_of(bytes.subspan(1));
  const args::YamlDocument document = args::parse_yaml(text);
  must(document.whole || !document.complaints.empty(), "reading stops for a reason");
  if (args::is_utf8(text) && text.find('\0') == std::string::npos)
    must(nlohmann::json::accept(args::yaml_to_json(document.root)), "a tree is JSON");
  std::vector<std::string> words = {"--config", kFolder.write("c.yaml", text)};
  if (program != Program::kBootstrap && (bytes[0] & 4U) != 0)
    words.insert(words.end(), {"--model-path", "/m"});
  check_outcome(program, parse_words(program, words));
}

}  // namespace tandem::fuzz
