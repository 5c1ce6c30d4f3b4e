// The YAML file: the statements of the config-file kind, places in messages, and files made to
// hurt.
#include "common/args/args.h"
#include "common/args/test_support.h"
#include "common/args/yaml_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

constexpr Program kP = Program::kPrefill;
constexpr Program kD = Program::kDecode;
constexpr Program kR = Program::kRouter;
constexpr Program kB = Program::kBootstrap;

TEST(ConfigFile, CommandLineBeatsFileBeatsVariableBeatsDefault) {
  const TempFolder folder;
  const std::string file = folder.write("c.yml", "log-level: error\nmodel-path: /f\n");
  const Environment env = machine({{"LOG_LEVEL", "debug"}});

  struct Row {
    std::vector<std::string> words;
    const Environment environment;
    LogLevel want;
    const char* origin;
  };

  const Row rows[] = {
      {{"--log-level", "critical", "--config", file}, env, LogLevel::kCritical, "cli"},
      {{"--config", file}, env, LogLevel::kError, "file"},
      {{"--model-path", "/m"}, env, LogLevel::kDebug, "env"},
      {{"--model-path", "/m"}, machine(), LogLevel::kInfo, "default"},
      {{"--model-path", "/m"}, machine({{"LOG_LEVEL", ""}}), LogLevel::kInfo, "default"},
  };
  for (const Row& row : rows) {
    const ParseOutcome outcome = run(kP, row.words, row.environment);
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    EXPECT_EQ(outcome.args.observability.log_level, row.want);
    EXPECT_EQ(dumped(outcome).at("argument_sources").at("log_level"), row.origin);
  }
}

TEST(ConfigFile, VariablesAreChecked) {
  EXPECT_EQ(run(kP, {"--model-path", "/m"}, machine({{"TP_SIZE", "two"}})).err,
            "prefill-server: error: argument --tensor-parallel-size: invalid int value: 'two' "
            "(expected an integer >= 1 and <= 1024) (environment variable TP_SIZE)\n");
  EXPECT_EQ(run(kP, {"--model-path", "/m"}, machine({{"LOG_LEVEL", "\xff"}})).exit_code, 2);
  // A variable of something that is not built yet is not a reason to stop, and not silent either.
  const ParseOutcome outcome = run(kP, {"--model-path", "/m"}, machine({{"REUSE_CACHE", "1"}}));
  ASSERT_TRUE(runs(outcome));
  ASSERT_EQ(outcome.args.notes.size(), 1U);
  EXPECT_EQ(outcome.args.notes[0].level, NoteLevel::kWarning);
  EXPECT_EQ(outcome.args.notes[0].text,
            "environment variable REUSE_CACHE names --reuse-cache, which is known, but not built "
            "yet; it has no effect");
}

TEST(ConfigFile, EqualsTheSameFlags) {
  const ParseOutcome file =
      run_yaml(kP,
               "model-path: /m\nhost: 0.0.0.0\nport: 30000\ntensor-parallel-size: "
               "1\nenable-metrics: true\nlog-requests: true\n");
  const ParseOutcome flags = run(kP,
                                 {"--model-path",
                                  "/m",
                                  "--host",
                                  "0.0.0.0",
                                  "--port",
                                  "30000",
                                  "--tensor-parallel-size",
                                  "1",
                                  "--enable-metrics",
                                  "--log-requests"});
  nlohmann::json from_file = dumped(file);
  nlohmann::json from_flags = dumped(flags);
  for (nlohmann::json* dump : {&from_file, &from_flags}) {
    dump->erase("argument_sources");
    dump->erase("config");
  }
  EXPECT_EQ(from_file, from_flags);
}

TEST(ConfigFile, OneFileServesEveryProgram) {
  const std::string yaml =
      "model-path: /m\nport: 1234\npage-size: 16\nnum-reserved-decode-tokens: 7\nqueue-size: 5\n"
      "disaggregation-bootstrap-port: 1234\n";
  EXPECT_EQ(run_yaml(kP, yaml).args.kv_cache.page_size, 16U);
  EXPECT_EQ(run_yaml(kD, yaml).args.disaggregation.num_reserved_decode_tokens, 7U);
  EXPECT_EQ(run_yaml(kR, yaml).args.router.queue_size, 5U);
  EXPECT_EQ(run_yaml(kB, yaml).args.server.port, 1234);
  const ParseOutcome prefill = run_yaml(kP, yaml);
  std::vector<std::string> debug;
  for (const Note& note : prefill.args.notes) {
    const std::size_t slash = note.text.rfind('/');
    const std::size_t open = note.text.rfind('(');
    if (note.level == NoteLevel::kDebug)
      debug.push_back(note.text.substr(0, open + 1) + note.text.substr(slash + 1));
  }
  EXPECT_THAT(
      debug,
      ::testing::ElementsAre("--num-reserved-decode-tokens is an argument of decode-server; "
                             "ignored here (c.yaml:4:29)",
                             "--queue-size is an argument of router; ignored here (c.yaml:5:13)"));
}

TEST(ConfigFile, ValuesOfEveryShape) {
  struct Row {
    const char* name;
    Program program;
    const char* yaml;
    const char* dest;
    const char* json;
  };

  const Row rows[] = {
      {"switch off", kP, "enable-metrics: false", "enable_metrics", "false"},
      {"switch with capitals", kP, "enable-metrics: True", "enable_metrics", "true"},
      {"switch of something not built, off", kP, "enable-lora: false", "page_size", "1"},
      {"null is unset", kP, "context-length: null", "context_length", "null"},
      {"empty is unset", kP, "context-length:", "context_length", "null"},
      {"null is a mode", kP, "disaggregation-mode: null", "disaggregation_mode", R"("null")"},
      {"quoted null is a mode",
       kP,
       "disaggregation-mode: 'null'",
       "disaggregation_mode",
       R"("null")"},
      {"nested JSON",
       kP,
       "json-model-override-args: {a: 2, b: [1.5, x, 'true', true, null]}",
       "json_model_override_args",
       R"("{\"a\":2,\"b\":[1.5,\"x\",\"true\",true,null]}")"},
      {"what JSON calls no number",
       kP,
       "json-model-override-args: {a: [1., .5, +1, 01, 1e, -0.5e3, 1e999, 0]}",
       "json_model_override_args",
       R"("{\"a\":[\"1.\",\".5\",\"+1\",\"01\",\"1e\",-500.0,\"1e999\",0]}")"},
      {"list",
       kR,
       "worker-urls: [http://a:1, 'http://b:2']",
       "worker_urls",
       R"(["http://a:1", "http://b:2"])"},
      {"one of a list", kR, "worker-urls: http://a:1", "worker_urls", R"(["http://a:1"])"},
      {"empty list", kR, "model-path: /m\nworker-urls: []", "worker_urls", "[]"},
      {"repeatable",
       kR,
       "pd-disaggregation: true\nprefill: [http://a:1 8998, [http://b:2, none]]\ndecode: "
       "[http://c:3]",
       "prefill",
       R"([["http://a:1", 8998], ["http://b:2", null]])"},
      {"unit", kP, "max-body-bytes: 4GB", "max_body_bytes", "4000000000"},
      {"part of a unit", kP, "max-body-bytes: 1.5MiB", "max_body_bytes", "1572864"},
      {"unit of Kubernetes", kP, "max-body-bytes: 512Ki", "max_body_bytes", "524288"},
      {"smaller unit", kP, "shutdown-grace-period-secs: 3000ms", "shutdown_grace_period_secs", "3"},
      {"alias", kP, "tp: 1", "tp_size", "1"},
      {"anchor and alias",
       kP,
       "model-path: &m /m\nserved-model-name: *m",
       "served_model_name",
       R"("/m")"},
      {"comments, document mark", kP, "--- # top\n# more\nport: 5 # here\n", "port", "5"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const bool has_model =
        std::string(row.yaml).find("model-path") != std::string::npos || row.program == kR;
    const ParseOutcome outcome = run_yaml(
        row.program, row.yaml, has_model ? std::vector<std::string>{} : minimum(row.program));
    ASSERT_TRUE(runs(outcome)) << outcome.err;
    EXPECT_EQ(dumped(outcome).at(row.dest), nlohmann::json::parse(row.json))
        << dumped(outcome).at(row.dest);
  }
  EXPECT_TRUE(runs(run_yaml(kB, "")));
  EXPECT_TRUE(runs(run_yaml(kB, "# nothing\n")));
}

struct BadRow {
  const char* name;
  std::string yaml;
  const char* want;
};

TEST(ConfigFile, ErrorsNameFileLineAndColumn) {
  const BadRow rows[] = {
      {"unknown key",
       "port: 1\nprot: 2\n",
       "c.yaml:2:1: unrecognized argument: prot (did you mean --port?)"},
      {"bad value",
       "\n  port: many\n",
       "argument --port: invalid int value: 'many' (expected an integer >= 0 and <= 65535) "
       "(c.yaml:2:9)"},
      {"not built",
       "modelopt-quant: fp8",
       "--modelopt-quant is known, but not built yet (c.yaml:1:17)"},
      {"two spellings",
       "tp: 1\ntp_size: 1\n",
       "argument --tensor-parallel-size: given twice, at c.yaml:1:1 and at c.yaml:2:1"},
      {"same key twice",
       "port: 1\nport: 1\n",
       "argument --port: given twice, at c.yaml:1:1 and at c.yaml:2:1"},
      {"a key twice below the root",
       "json-model-override-args:\n  a: 1\n  b: {c: 1, c: 2}\n",
       "config c.yaml:3:13: the key c is given twice, first at 3:7"},
      {"list for one value",
       "port: [1, 2]",
       "argument --port: expected one value, found a list of 2 (c.yaml:1:7)"},
      {"mapping for one value",
       "port: {a: 1}",
       "argument --port: expected one value, found a mapping (c.yaml:1:7)"},
      {"word for a switch",
       "enable-metrics: 1",
       "argument --enable-metrics: expected true or false, got '1' (c.yaml:1:17)"},
      {"a command",
       "config: other.yaml",
       "c.yaml:1:1: --config belongs on the command line, not in a config file"},
      {"root is a list", "- a\n- b\n", "config c.yaml: root is not a mapping"},
      {"root is a word", "hello", "config c.yaml: root is not a mapping"},
      {"key is a list", "[a]: 1", "c.yaml:1:1: a key must be the long name of an argument"},
      {"tag",
       "port: !!python/object 1",
       "config c.yaml:1:7: the tag tag:yaml.org,2002:python/object is not allowed here"},
      {"two documents",
       "port: 1\n---\nport: 2\n",
       "config c.yaml:2:1: more than one YAML document"},
      {"NUL byte",
       std::string("port: 1\0", 8),
       "config c.yaml:1:8: holds a NUL byte, so it is not text"},
      {"invalid UTF-8", "port: 1\nhost: \xc3\xa9\xff", "config c.yaml:2:9: not valid UTF-8"},
      {"escaped NUL",
       "host: \"a\\0b\"",
       "argument --host: the value holds a NUL byte (c.yaml:1:7)"},
      {"beyond 64 bits",
       "random-seed: 99999999999999999999999",
       "argument --random-seed: 99999999999999999999999 is out of range, expected <= 4294967295 "
       "(c.yaml:1:14)"},
      {"checked after the merge",
       "chunked-prefill-size: 10\npage-size: 16\n",
       "argument --chunked-prefill-size: 10 is not -1 and not a multiple of the page size 16 "
       "(c.yaml:1:23)"},
  };
  for (const BadRow& row : rows) {
    SCOPED_TRACE(row.name);
    const ParseOutcome outcome = run_yaml(kP, row.yaml, {"--model-path", "/m"});
    EXPECT_EQ(outcome.err, std::string("prefill-server: error: ") + row.want + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
  }
}

// One file may serve all programs: what a key of another one holds is its business.
TEST(ConfigFile, KeysOfOtherProgramsMayHoldAnything) {
  for (const char* value : {"{a: 1}", "[1, 2]", "[[1]]", "[]", "nonsense"}) {
    for (const char* key : {"worker-urls", "page-size", "policy", "enable-lora", "cuda-graph-bs"}) {
      const ParseOutcome outcome = run_yaml(kB, std::string(key) + ": " + value + "\n");
      EXPECT_TRUE(runs(outcome)) << outcome.err;
    }
  }
  const ParseOutcome router = run_yaml(kR, "worker-urls: [http://a:1]\npage-size: {a: 1}\n");
  EXPECT_TRUE(runs(router)) << router.err;
}

TEST(ConfigFile, UnreadableFiles) {
  const TempFolder folder;
  const std::string text = folder.write("c.txt", "port: 1");
  const std::string good = folder.write("c.yaml", "port: 1");
  const std::string large = folder.write("large.yaml", "# " + std::string(2U << 20U, 'x'));
  std::filesystem::create_directory(folder.path("d.yaml"));
  const std::string huge = folder.write("huge.yaml", "port: 1\nhost: ");
  std::filesystem::resize_file(huge, 100U << 20U);  // sparse

  struct Row {
    std::vector<std::string> words;
    std::string want;
  };

  const Row rows[] = {
      {{"--config", folder.path("no.yaml")},
       "config " + folder.path("no.yaml") + ": file not found"},
      {{"--config", text}, "config " + text + ": not a .yaml/.yml file"},
      {{"--config", folder.path("d.yaml")},
       "config " + folder.path("d.yaml") + ": not a regular file"},
      {{"--config", large}, "config " + large + ": larger than 1 MiB"},
      {{"--config", huge}, "config " + huge + ": larger than 1 MiB"},
      {{"--config", good, "--config", good}, "argument --config: given more than once"},
      {{"--config"}, "argument --config: expected one argument"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.want);
    EXPECT_EQ(run(kB, row.words).err, "bootstrap-server: error: " + row.want + "\n");
  }
  // The model may stand in a file that cannot be read: that it is missing is not said too.
  EXPECT_EQ(run(kP, {"--config", "/no/such.yaml"}).err,
            "prefill-server: error: config /no/such.yaml: file not found\n");
}

TEST(ConfigFile, AbuseEndsInASentence) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k)
      bomb += (k == 0 ? "" : ", ") + before;
    bomb += "]\n";
  }
  std::string keys;
  for (int i = 0; i < 30000; ++i)
    keys += "k" + std::to_string(i) + ": 1\n";
  const BadRow rows[] = {
      {"alias bomb", bomb, "more than 20000 values"},
      {"deep flow", "port: " + std::string(100000, '['), "config c.yaml:"},
      {"deep flow maps", "port: " + std::string(100000, '{'), "config c.yaml:"},
      {"deep block",
       [] {
         std::string text;
         for (int i = 0; i < 400; ++i)
           text += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
         return text;
       }(),
       "config c.yaml:"},
      {"dashes", std::string(50000, '-') + "\n- - - - - -", "config c.yaml"},
      {"self alias", "a: &a [*a]", "config c.yaml:1:"},
      {"unknown anchor", "port: *nobody", "config c.yaml:1:"},
      {"many keys", keys, "more than 20000 values"},
      {"long key", std::string(500000, 'k') + ": 1", "config c.yaml"},
      {"long value", "dtype: " + std::string(1000000, 'v'), "..."},
      {"open quote", "host: \"" + std::string(500000, 'q'), "config c.yaml"},
      {"tabs", "\tport: 1", "config c.yaml:"},
      {"merge key", "<<: {port: 1}", "unrecognized argument: <<"},
  };
  for (const BadRow& row : rows) {
    SCOPED_TRACE(row.name);
    const ParseOutcome outcome = run_yaml(kP, row.yaml, {"--model-path", "/m"});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr(row.want));
    EXPECT_LT(outcome.err.size(), 4000U);
  }
}

// Straight into the tree, without a file each: a sentence or a tree whose JSON is JSON. The seed is
// printed.
TEST(ConfigFile, RandomBytesNeverCrash) {
  const unsigned seed = 20260102;
  std::mt19937 random(seed);
  const std::string alphabet = "ab:-[]{},&*!|>'\"%@#\n\t ?\\~0.e";
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 2 == 0 ? "port: " : "";
    for (std::size_t n = random() % 40; n > 0; --n)
      text += alphabet[random() % alphabet.size()];
    const YamlDocument document = parse_yaml(text);
    EXPECT_TRUE(nlohmann::json::accept(yaml_to_json(document.root)))
        << "seed " << seed << " round " << round;
    EXPECT_EQ(document.whole || !document.complaints.empty(), true)
        << "seed " << seed << " round " << round;
  }
}

}  // namespace
}  // namespace tandem::args
