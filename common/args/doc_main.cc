// Prints what is generated from the descriptions of all arguments; ./dev args calls it.
#include "common/args/args.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace tandem::args;  // NOLINT: a program

constexpr const char* kUsage =
    "usage: tandem-args-doc                                  docs/arguments.md\n"
    "       tandem-args-doc --json                           totals per status, scope and tier\n"
    "       tandem-args-doc --list                           all arguments: status, test\n"
    "       tandem-args-doc --completion bash|zsh PROGRAM...  completion scripts\n"
    "       tandem-args-doc --man PROGRAM                    manual page\n"
    "       tandem-args-doc --json-schema PROGRAM            JSON Schema of the config file\n"
    "       tandem-args-doc --try PROGRAM                    for tests: parses each line of stdin "
    "(words with tabs between them), prints stderr with tabs for line breaks\n"
    "PROGRAM: router, prefill-server, decode-server, bootstrap-server\n";

/// "router", and the short names too: "prefill" is prefill-server.
std::optional<Program> program_of(std::string_view name) {
  for (const Program program :
       {Program::kRouter, Program::kPrefill, Program::kDecode, Program::kBootstrap}) {
    if (name == program_name(program) || std::string(name) + "-server" == program_name(program))
      return program;
  }
  return std::nullopt;
}

/// One process for thousands of command lines.
std::string tried(Program program) {
  std::string out;
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words = {std::string(program_name(program))};
    std::istringstream cut(line);
    for (std::string word; std::getline(cut, word, '\t');)
      words.push_back(word);
    std::vector<const char*> argv;
    for (const std::string& word : words)
      argv.push_back(word.c_str());
    std::string err = parse(program, static_cast<int>(argv.size()), argv.data(), Environment{}).err;
    std::replace(err.begin(), err.end(), '\n', '\t');
    out += err + "\n";
  }
  return out;
}

/// Nothing when the words are not one of the usages.
std::optional<std::string> text_of(const std::vector<std::string_view>& words) {
  if (words.empty()) return docs_markdown();
  if (words.size() == 1 && words[0] == "--json") return totals_json() + "\n";
  if (words.size() == 1 && words[0] == "--list") return list_json() + "\n";
  if (words.size() < 2) return std::nullopt;
  const bool completion = words[0] == "--completion";
  if (completion) {
    if (words[1] != "bash" && words[1] != "zsh") return std::nullopt;
    const Shell shell = words[1] == "bash" ? Shell::kBash : Shell::kZsh;
    std::string text;
    for (const Program program :
         {Program::kRouter, Program::kPrefill, Program::kDecode, Program::kBootstrap}) {
      bool wanted = words.size() == 2;
      for (std::size_t i = 2; i < words.size(); ++i)
        wanted |= program_of(words[i]) == program;
      if (wanted) text += completion_script(program, shell);
    }
    return text.empty() ? std::nullopt : std::optional(text);
  }
  const std::optional<Program> program = program_of(words[1]);
  if (!program || words.size() > 2) return std::nullopt;
  if (words[0] == "--man") return man_page(*program, Environment{}.version);
  if (words[0] == "--json-schema") return json_schema(*program);
  if (words[0] == "--try") return tried(*program);
  return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<std::string> text = text_of({argv + 1, argv + argc});
  if (!text) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  return std::fwrite(text->data(), 1, text->size(), stdout) == text->size() ? 0 : 1;
}
