// One argument's description, and the entries that every visitor (parser, YAML, help, docs, dump)
// walks over.
#pragma once

#include "common/args/field.h"
#include "common/args/options.h"

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::args {

/// Set of services that take an argument. kUnified is a worker whose --disaggregation-mode is null;
/// both worker programs offer it.
using Services = std::uint8_t;
inline constexpr Services kRouter = 1;
inline constexpr Services kPrefill = 2;
inline constexpr Services kDecode = 4;
inline constexpr Services kBootstrap = 8;
inline constexpr Services kUnified = 16;
inline constexpr Services kEngine = kPrefill | kDecode | kUnified;
inline constexpr Services kServing = kRouter | kEngine;
inline constexpr Services kEverywhere = kServing | kBootstrap;

/// The services that a program stands for.
Services services_of(Program program);

/// Numeric bounds of a value.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool exclusive_min = false;
  bool exclusive_max = false;
  double also_allowed = std::numeric_limits<double>::quiet_NaN();
};

/// What a plain number means; values may carry a suffix of the unit (4GB, 512MiB, 300ms, 5m).
enum class Unit : std::uint8_t {
  kNone,
  kBytes,
  kSeconds,
  kMilliseconds
};

/// What a text must look like. Checked where the value is read, and a pattern in the JSON Schema.
enum class Form : std::uint8_t {
  kAny,
  kFilled,        ///< not empty
  kModelName,     ///< not empty, no ':', which stands before an adapter's name
  kKey,           ///< not empty, fits into a header line
  kHostPort,      ///< host:port or [v6]:port
  kNames,         ///< names with commas between them
  kFailurePoints  ///< name=action[;name=action], see common/base/failpoint.h
};

/// Everything about one argument apart from its field. Lists are comma-separated text, so that a
/// row stays a literal.
struct Spec {
  std::string_view name;               ///< long name without dashes
  std::string_view aliases = "";       ///< without dashes, "h" is -h
  std::string_view dest = "";          ///< key in /get_server_info; "": name with underscores
  std::string_view type = "";          ///< "": from the field
  std::string_view arity = "";         ///< "0", "1", "0..1", "1+", "0+", "1..2"; "": from the type
  std::string_view choices = "";       ///< "": free
  std::string_view needs_cuda = "";    ///< choices that wait for a CUDA device
  std::string_view needs_rdma = "";    ///< choices that wait for an RDMA device
  std::string_view needs_vendor = "";  ///< choices that name another vendor's hardware
  std::string_view falls_back_to =
      "";  ///< choice used, with a note, when hardware is missing; "": refuse
  Range range = {};
  std::string_view default_json = "";  ///< "": from the field; "null" when resolved later
  std::string_view default_note = "";  ///< how a computed default comes about
  Services services = 0;
  std::string_view section = "";
  std::string_view env = "";  ///< variable that gives the value when nothing else does
  Unit unit = Unit::kNone;
  Form form = Form::kAny;
  std::uint8_t tier = 0;        ///< of the schema; 0: our own argument
  std::string_view scope = "";  ///< of the schema: the subsystem that implements it; "": ours
  bool common = false;          ///< shown first in --help
  bool secret = false;          ///< never printed
  bool ignore_case = false;
  bool path = false;            ///< names a file or folder, which shells complete
  bool command = false;         ///< steers the program itself; not allowed in a file, not forwarded
  bool repeatable = false;      ///< may be given several times; each adds one element
  bool spawn_only = false;      ///< on the router: only when it starts its own workers
  bool keep = false;            ///< on the router: not forwarded to workers
  bool pd_only = false;         ///< no effect with --disaggregation-mode null
  bool trivial_only = false;    ///< takes values that change nothing; the others are not built yet
  bool router_only = false;     ///< trivial_only on a worker, all of it on a router
  bool explicit_only = false;   ///< documented default is not in force when absent
  std::string_view needs = "";  ///< hardware or library that all of it is for, missing here
  bool ignored_without = false;   ///< without that a warning; else it is refused
  std::string_view instead = "";  ///< what the refusal points to
  std::string_view deprecated_for =
      "";  ///< what it is another name of: "--flag value" or "--flag set to the value of --flag"
  std::string_view help = "";
};

/// A spec bound to its field. field == nullptr: known, but not built yet.
struct Entry {
  Spec spec;
  void* field = nullptr;
  const FieldOps* ops = nullptr;
  std::string_view dest;
  std::string_view type;
  std::string_view arity;
  std::string_view default_json;

  [[nodiscard]] bool built() const { return field != nullptr; }

  [[nodiscard]] bool is_switch() const { return arity == "0"; }

  [[nodiscard]] bool ours() const { return spec.tier == 0; }

  [[nodiscard]] std::string flag() const { return "--" + std::string(spec.name); }
};

/// Owns texts that are made rather than written, such as a name with underscores.
using Texts = std::deque<std::string>;

/// How far an argument is built.
enum class Readiness : std::uint8_t {
  kWorks,          ///< a test sees its effect
  kNeedsHardware,  ///< all but one choice; checked without it: refused, or the told fallback
  kNotBuilt,       ///< refused by name, but for values that change nothing
  kDeprecated      ///< read as another argument, with one warning
};

/// Only what changes nothing is built, which is the default.
bool only_default(const Entry& entry, Program program);
/// Derived from the description.
Readiness readiness(const Entry& entry);
/// "works", "needs hardware", "not built yet", "deprecated".
std::string_view readiness_name(Readiness readiness);
/// The test in tests/arguments that sees the effect: "test_page_size"; "" when there is no field.
std::string effect_test(const Entry& entry);

/// The visitor of every describe(): binds specs to fields.
class Describe {
 public:
  Describe(std::vector<Entry>& entries, Texts& texts) : entries_(entries), texts_(texts) {}

  template <class T>
  void operator()(T& field, const Spec& spec) {
    add(&field, field_ops<T>(), spec);
  }

 private:
  void add(void* field, const FieldOps& ops, const Spec& spec);

  std::vector<Entry>& entries_;
  Texts& texts_;
};

// The single description of each section, in the order of --help.
void describe(ModelOptions& o, Describe& visit);
void describe(ServerOptions& o, Describe& visit);
void describe(RuntimeOptions& o, Describe& visit);
void describe(SchedulingOptions& o, Describe& visit);
void describe(KvCacheOptions& o, Describe& visit);
void describe(ParallelOptions& o, Describe& visit);
void describe(DisaggregationOptions& o, Describe& visit);
void describe(ObservabilityOptions& o, Describe& visit);
void describe(MoeOptions& o, Describe& visit);
void describe(ElsewhereOptions& o, Describe& visit);
void describe(RouterOptions& o, Describe& visit);
void describe(CommandOptions& o, Describe& visit);

/// Arguments that are known and refused: one row each. The schema's rows are generated by
/// tools/gen_args_table.py.
std::vector<Entry> unbuilt_entries(Texts& texts);

/// Every spelling, with dashes, and which entry it means.
using SpellingIndex = std::map<std::string, std::size_t, std::less<>>;

/// All entries, bound to the fields of one Arguments, with an index of every spelling. The
/// descriptions are walked once in a process; a registry copies their rows and moves the bindings
/// to its own Arguments, which takes some 20 us.
class Registry {
 public:
  /// Borrows `args` for the registry's lifetime.
  explicit Registry(Arguments& args);

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  /// By long name or alias without dashes; '_' equals '-'. Null when unknown.
  [[nodiscard]] const Entry* find(std::string_view name) const;
  [[nodiscard]] const Entry* find_dest(std::string_view dest) const;

  /// The known name nearest to `name`, taken by one of `services`, with its leading dashes; "" when
  /// nothing is near.
  [[nodiscard]] std::string nearest(std::string_view name, Services services) const;

 private:
  std::vector<Entry> entries_;
  const SpellingIndex& index_;
};

/// "a,b" -> {"a","b"}; "" -> {}; ",b" -> {"","b"}.
std::vector<std::string_view> split_list(std::string_view text);
/// '_' becomes '-'.
std::string normalized(std::string_view name);
/// "router, prefill-server and decode-server": the programs that take an entry.
std::string programs_text(Services services);

}  // namespace tandem::args
