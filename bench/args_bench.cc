// How long a program needs to read its arguments. One JSON line a case: median and 99th percentile
// in microseconds.
//
//   parse_300_flags   300 different flags on one command line, unbuilt ones refused by name
//   parse_300_keys    the same 300 in a config file
//   parse_16000_urls  a flag with so many values: quadratic growth would take minutes
//   parse_typical     the flags of a common start
//   help, help_all    the text of --help and --help-all, as a library call
//   help_process      prefill-server --help as a process, start to end (when it is built)
#include "common/args/args.h"

#include "common/args/spec.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace {

using namespace tandem::args;  // NOLINT: a program

constexpr std::size_t kArguments = 300;

void report(const char* name, int rounds, const std::function<void()>& work) {
  work();  // the descriptions are walked once in a process; help_process includes it
  std::vector<double> us;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                     .count());
  }
  std::sort(us.begin(), us.end());
  std::printf(
      "{\"bench\":\"args\",\"case\":\"%s\",\"rounds\":%d,\"us_p50\":%.1f,\"us_p99\":%.1f}\n",
      name,
      rounds,
      us[us.size() / 2],
      us[us.size() * 99 / 100]);
}

void parse_words(Program program, const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"program"};
  for (const std::string& word : words)
    argv.push_back(word.c_str());
  parse(program, static_cast<int>(argv.size()), argv.data(), Environment{});
}

/// A value that the argument's type takes.
std::string sample(const Entry& entry) {
  if (entry.is_switch()) return "";
  if (!entry.spec.choices.empty()) return std::string(split_list(entry.spec.choices).front());
  if (entry.type.starts_with("json")) return "{}";
  return entry.type == "bool" ? "true" : "1";
}

void help_process(const char* self) {
  const std::filesystem::path program =
      std::filesystem::path(self).parent_path().parent_path() / "bin" / "prefill-server";
  if (!std::filesystem::exists(program)) return;
  double cpu_us = 0;
  int runs = 0;
  report("help_process", 50, [&] {
    std::string path = program.string();
    std::string flag = "--help";
    char* const argv[] = {path.data(), flag.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    pid_t child = 0;
    rusage use{};
    if (posix_spawn(&child, path.c_str(), &actions, nullptr, argv, environ) == 0)
      wait4(child, nullptr, 0, &use);
    posix_spawn_file_actions_destroy(&actions);
    for (const timeval& each : {use.ru_utime, use.ru_stime})
      cpu_us += static_cast<double>(each.tv_sec) * 1e6 + static_cast<double>(each.tv_usec);
    ++runs;
  });
  // What it costs on a machine that does nothing else.
  std::printf("{\"bench\":\"args\",\"case\":\"help_process_cpu\",\"rounds\":%d,\"us_mean\":%.1f}\n",
              runs,
              cpu_us / runs);
}

}  // namespace

int main(int /*argc*/, char** argv) {
  Arguments args;
  const Registry registry(args);
  std::vector<std::string> words;
  std::string yaml;
  std::size_t count = 0;
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.command || (entry.spec.services & services_of(Program::kPrefill)) == 0) continue;
    if (count++ == kArguments) break;
    const std::string value = sample(entry);
    words.push_back(entry.flag());
    if (!value.empty()) words.push_back(value);
    yaml +=
        std::string(entry.spec.name) + ": " + (value.empty() ? "true" : "'" + value + "'") + "\n";
  }
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("tandem-args-bench-" + std::to_string(getpid()) + ".yaml");
  std::ofstream(file) << yaml;
  report("parse_300_flags", 500, [&words] { parse_words(Program::kPrefill, words); });
  report("parse_300_keys", 500, [&file] {
    parse_words(Program::kPrefill, {"--config", file.string()});
  });
  std::filesystem::remove(file);
  std::vector<std::string> urls = {"--worker-urls"};
  for (int i = 1; i <= 16000; ++i)
    urls.push_back("http://host:" + std::to_string(i));
  report("parse_16000_urls", 20, [&urls] { parse_words(Program::kRouter, urls); });
  report("parse_typical", 500, [] {
    parse_words(Program::kPrefill,
                {"--model-path",
                 "/m",
                 "--disaggregation-mode",
                 "prefill",
                 "--port",
                 "30001",
                 "--page-size",
                 "16",
                 "--mem-fraction-static",
                 "0.8",
                 "--log-level",
                 "info",
                 "--enable-metrics",
                 "--max-running-requests",
                 "64"});
  });
  report("help", 200, [] { help_text(Program::kPrefill, false); });
  report("help_all", 200, [] { help_text(Program::kPrefill, true); });
  help_process(argv[0]);
}
