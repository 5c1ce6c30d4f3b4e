// Shared by this room's tests: run the parser on words, write YAML files that vanish, read the dump
// back.
#pragma once

#include "common/args/args.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tandem::args::testing {

inline constexpr Program kAllPrograms[] = {
    Program::kRouter, Program::kPrefill, Program::kDecode, Program::kBootstrap};

/// A machine with 4 cores, unknown memory, no AMX, and the given variables.
inline Environment machine(std::map<std::string, std::string> variables = {}) {
  Environment environment;
  environment.cpu_count = 4;
  environment.entropy = 12345;
  environment.version = "9.9.9";
  environment.variable =
      [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  return environment;
}

inline ParseOutcome run(Program program,
                        const std::vector<std::string>& words,
                        const Environment& environment) {
  std::vector<const char*> argv = {"program"};
  for (const std::string& word : words)
    argv.push_back(word.c_str());
  return parse(program, static_cast<int>(argv.size()), argv.data(), environment);
}

inline ParseOutcome run(Program program, const std::vector<std::string>& words) {
  return run(program, words, machine());
}

inline bool runs(const ParseOutcome& outcome) {
  return outcome.action == ParseOutcome::Action::kRun;
}

/// A folder of its own that is removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tandem-args-XXXXXX").string();
    const char* made = mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    path_ = pattern;
  }

  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

  [[nodiscard]] std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// Runs with a config file of this text.
inline ParseOutcome run_yaml(Program program,
                             const std::string& yaml,
                             std::vector<std::string> words = {}) {
  const TempFolder folder;
  words.insert(words.end(), {"--config", folder.write("c.yaml", yaml)});
  ParseOutcome outcome = run(program, words);
  // The folder's name is random; messages are compared without it.
  for (std::string* text : {&outcome.err, &outcome.out}) {
    const std::string prefix = folder.path("");
    for (std::size_t at = text->find(prefix); at != std::string::npos; at = text->find(prefix)) {
      text->erase(at, prefix.size());
    }
  }
  return outcome;
}

inline nlohmann::json dumped(const ParseOutcome& outcome) {
  return nlohmann::json::parse(dump_json(outcome.args));
}

/// The words that a program needs before it runs at all.
inline std::vector<std::string> minimum(Program program) {
  if (program == Program::kBootstrap) return {};
  return {"--model-path", "/m"};
}

inline std::vector<std::string> with(std::vector<std::string> words,
                                     const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace tandem::args::testing
