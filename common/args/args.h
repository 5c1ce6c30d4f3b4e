// Command line, YAML file and environment in; one frozen Arguments out, or the text and exit code
// to end with.
#pragma once

#include "common/args/options.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

/// What parse() may know about the machine. Tests fill it by hand; programs use system().
struct Environment {
  /// What a path names, links followed.
  enum class PathKind : std::uint8_t {
    kNothing,
    kFile,
    kFolder,
    kOther
  };

  std::function<std::optional<std::string>(std::string_view name)>
      variable;  ///< null: no variables
  std::function<PathKind(const std::string& path)>
      path_kind;                   ///< null: nobody looks; opens nothing
  std::uint32_t cpu_count = 1;     ///< cores the process may use
  std::uint64_t memory_bytes = 0;  ///< memory the process may use; 0: unknown
  bool has_amx = false;
  std::uint64_t entropy = 0;      ///< source of the computed --random-seed
  std::string version = "0.1.0";  ///< text of --version

  /// Variables, affinity, cgroup limits and CPU features of this process, and a random number.
  static Environment system();
};

/// kRun: go on with `args`. kExit: print `out` to stdout and `err` to stderr and end with
/// `exit_code`.
struct ParseOutcome {
  enum class Action : std::uint8_t {
    kRun,
    kExit
  };

  Action action = Action::kExit;
  Arguments args;
  int exit_code = 0;
  std::string out;
  std::string err;
};

/// Parses and resolves. Reads the --config file and nothing else; opens no port and no model file,
/// but looks with `environment.path_kind` whether the paths that it was given name what they
/// should.
/// All errors are reported together, one "<program>: error: ..." line each, with exit code 2.
/// argv[0] is skipped.
///
/// Warnings of a program that does not run come before the errors, as "<program>: warning: ...".
///
/// --help, --help-all, --version, --explain, --dump-config and the --print-... commands are
/// answered here (kExit). With --dump-config and
/// --dry-run together the outcome is kRun with the JSON in `out`: print it, then do the dry run.
/// Threads: pure apart from reading the file. Time is linear in argv and file (1 MiB at most).
ParseOutcome parse(Program program,
                   int argc,
                   const char* const* argv,
                   const Environment& environment);

/// The resolved arguments as one JSON object, keyed by dest as in /get_server_info: null when
/// unset, api_key only as "set" or null, and the origin of each value under "argument_sources".
///
/// `computed` overrides values that are known only after the model is read (dest -> JSON text, for
/// example
/// {"max_total_tokens", "8192"}); their origin becomes "computed" unless somebody gave the value.
std::string dump_json(const Arguments& args,
                      const std::map<std::string, std::string>& computed = {});

/// Words that give a worker started by the router every engine argument the router was given
/// explicitly, such as
/// {"--model-path=/m", "--page-size=16"}. `mode` is the role that the worker will have: entries
/// that this role does not take are left out. Host, ports, role, api key and replica counts are the
/// supervisor's and are left out too.
std::vector<std::string> worker_argv(const Arguments& args, DisaggregationMode mode);

/// The text of --help (`all` false) or --help-all.
std::string help_text(Program program, bool all);

/// A completion script. It offers what works; a router also offers what it forwards.
std::string completion_script(Program program, Shell shell);

/// The manual page in troff.
std::string man_page(Program program, std::string_view version);

/// JSON Schema 2020-12 of the program's config file.
std::string json_schema(Program program);

/// docs/arguments.md.
std::string docs_markdown();

/// One JSON array of all arguments: name, status, whether it is ours, its test in tests/arguments.
std::string list_json();

/// {"total":..,"works":..,"needs_hardware":..,"not_built":..,"deprecated":.., "scopes": {...},
/// "tiers": {...}, "ours": {...}}: the schema's entries, the same per scope and per tier, and our
/// own.
std::string totals_json();

/// The value's text in the spelling of the command line, for logs: "auto", "bfloat16",
/// "round_robin", ...
std::string_view to_string(DisaggregationMode value);
std::string_view to_string(DType value);
std::string_view to_string(KernelFamily value);
std::string_view to_string(LogLevel value);
std::string_view to_string(SchedulePolicy value);
std::string_view to_string(RoutingPolicy value);
std::string_view to_string(AttentionBackend value);
std::string_view to_string(TransferBackend value);
std::string_view to_string(LoadFormat value);

}  // namespace tandem::args
