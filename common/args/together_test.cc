// What is wrong is told in one run: whatever a file breaks off at, however many names are wrong,
// and without what only seems to be wrong because of it. Warnings come with it.
#include "common/args/args.h"
#include "common/args/spec.h"
#include "common/args/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Program kP = Program::kPrefill;
constexpr Program kR = Program::kRouter;

/// The lines of stderr without the program's name: "error: ...", "warning: ...".
std::vector<std::string> lines(const ParseOutcome& outcome) {
  std::vector<std::string> found;
  std::istringstream text(outcome.err);
  for (std::string line; std::getline(text, line);)
    found.push_back(line.substr(line.find(": ") + 2));
  return found;
}

TEST(Together, ASyntaxErrorAndTheCommandLine) {
  EXPECT_THAT(
      lines(run_yaml(kP, "page-size: 0\nhost: [1\ndtype: half\n", {"--port", "x", "--prot", "1"})),
      ElementsAre("error: unrecognized argument: --prot (did you mean --port?)",
                  "error: config c.yaml:3:6: end of sequence flow not found",
                  "error: argument --page-size: 0 is out of range, expected >= 1 and <= 65536 "
                  "(c.yaml:1:12)",
                  "error: argument --port: invalid int value: 'x' (expected an integer >= 0 and <= "
                  "65535)"));
}

// The value of the last key before the place may be torn; a key that was read to its end is not.
TEST(Together, OnlyWhatSurelyStandsBeforeASyntaxErrorIsRead) {
  EXPECT_THAT(lines(run_yaml(kP, "page-size: 0\nport: 1\n   host: x\n")),
              ElementsAre(HasSubstr("config c.yaml:3:8"), HasSubstr("--page-size: 0 is out of")));
  EXPECT_THAT(lines(run_yaml(kP, "page-size: 0\n   host: x\n")),
              ElementsAre(HasSubstr("config c.yaml:2:8")));
  EXPECT_THAT(lines(run_yaml(kP, "port: 1\nport: 2\nhost: \"x\n")),
              ElementsAre("error: config c.yaml:3:7: a quote is opened and never closed",
                          "error: argument --port: given twice, at c.yaml:1:1 and at c.yaml:2:1"));
}

// yaml-cpp takes the end of the file for the end of the quote, and so the keys behind it for text.
TEST(Together, AQuoteThatIsNeverClosed) {
  for (const std::string text : {"host: \"a\nport: 1\n",
                                 "host: 'a\nport: 1\n",
                                 "host: 'it''s\n",
                                 "host: \"a\\\"\n",
                                 "host: &a \"a\n",
                                 "\xef\xbb\xbfhost: \"a\n",
                                 "# \xc3\xa9\nhost: 'a\n",
                                 "host: ! \"a\n",
                                 "host: &a ! 'a\nport: 1",
                                 "\"host: a\n"}) {
    SCOPED_TRACE(text);
    const ParseOutcome outcome = run_yaml(Program::kBootstrap, text);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("error: config c.yaml:"));
  }
  for (const std::string text : {"host: \"a\"\n",
                                 "host: 'it''s'\n",
                                 "host: \"a\\\"\"",
                                 "host: ''''\n",
                                 "host: &a \"a\"\n",
                                 "\xef\xbb\xbfhost: \"a\"\n",
                                 "# \xc3\xa9\nhost: '\xc3\xa9'\n",
                                 "host: ! \"a\"\r\nport: '1'\r\n",
                                 "{\"host\": \"a\\\\\"}"}) {
    SCOPED_TRACE(text);
    const ParseOutcome outcome = run_yaml(Program::kBootstrap, text);
    EXPECT_TRUE(runs(outcome)) << outcome.err;
  }
}

// What seems to be missing, or to be a default, may stand behind the place.
TEST(Together, NothingFollowsFromWhatCouldNotBeRead) {
  const std::string broken = "log-level: info\nhost: [\n";
  const std::vector<std::vector<std::string>> rows = {
      {},
      {"--prefill", "http://a:1"},
      {"--decode", "http://a:1"},
      {"--pd-disaggregation", "--decode", "http://a:1"},
      {"--prefill-workers", "2"},
      {"--prefill-policy", "random"},
      {"--num-reserved-decode-tokens", "5"},
      {"--grpc-port", "30000"},
  };
  for (const std::vector<std::string>& words : rows) {
    EXPECT_THAT(lines(run_yaml(kR, broken, words)), ElementsAre(HasSubstr("c.yaml:3:1")));
    EXPECT_THAT(lines(run(kR, with(words, {"--config", "/no/such.yaml"}))),
                ElementsAre("error: config /no/such.yaml: file not found"));
    EXPECT_THAT(lines(run(kR, with({"--config"}, words))),
                ElementsAre("error: argument --config: expected one argument"));
  }
  // Of two that were both given, nothing can make one not given.
  EXPECT_THAT(
      lines(run_yaml(kR, broken, {"--worker-urls", "http://a:1", "--pd-disaggregation"})),
      ElementsAre(HasSubstr("c.yaml:3:1"), HasSubstr("--worker-urls: excludes --pd-disagg")));
}

TEST(Together, EveryKeyThatStandsTwice) {
  EXPECT_THAT(
      lines(run_yaml(kP,
                     "port: 1\nport: 2\n"
                     "json-model-override-args: {a: 1, a: 2, b: {c: 1, c: 2, c: 3}}\n"
                     "page-size: 0\nport: 3\nprot: 1\n")),
      ElementsAre("error: config c.yaml:3:50: the key c is given twice, first at 3:44",
                  "error: config c.yaml:3:56: the key c is given twice, first at 3:44",
                  "error: config c.yaml:3:34: the key a is given twice, first at 3:28",
                  "error: argument --port: given twice, at c.yaml:1:1 and at c.yaml:2:1",
                  "error: argument --port: given twice, at c.yaml:1:1 and at c.yaml:5:1",
                  "error: c.yaml:6:1: unrecognized argument: prot (did you mean --port?)",
                  "error: argument --page-size: 0 is out of range, expected >= 1 and <= 65536 "
                  "(c.yaml:4:12)",
                  "error: the argument --model-path is required"));
}

TEST(Together, EveryTag) {
  EXPECT_THAT(lines(run_yaml(kP, "port: !!int 1\nhost: !x y\npage-size: 0\n", {"--model", "/m"})),
              ElementsAre(HasSubstr("c.yaml:1:7: the tag tag:yaml.org,2002:int is not allowed"),
                          HasSubstr("c.yaml:2:7: the tag !x is not allowed"),
                          HasSubstr("--page-size: 0 is out of range")));
}

TEST(Together, EveryAddressThatIsNone) {
  EXPECT_THAT(lines(run(kR, {"--worker-urls", "ftp://a:1", "http://b:1", "http://grpc://c:1"})),
              ElementsAre("error: argument --worker-urls: 'ftp://a:1' is not a worker address; "
                          "expected http://HOST:PORT or grpc://HOST:PORT; 'http://grpc://c:1' is "
                          "not a worker address; expected http://HOST:PORT or grpc://HOST:PORT"));
  EXPECT_THAT(lines(run(kR,
                        {"--pd-disaggregation",
                         "--prefill",
                         "a",
                         "--prefill",
                         "http://b:1",
                         "0",
                         "--decode",
                         "http://c:1"})),
              ElementsAre(::testing::AllOf(HasSubstr("--prefill: 'a' is not"),
                                           HasSubstr("; bootstrap port of http://b:1: 0 is out"))));
  const std::vector<std::string> many(5000, "x");
  const ParseOutcome outcome = run(kR, with({"--worker-urls"}, many));
  EXPECT_THAT(outcome.err, HasSubstr("; and 4992 more"));
  EXPECT_LT(outcome.err.size(), 2000U);
}

TEST(Together, AMistypedNameIsNotAlsoMissing) {
  EXPECT_THAT(
      lines(run(kP, {"--model-pth", "/m"})),
      ElementsAre("error: unrecognized argument: --model-pth (did you mean --model-path?)"));
  EXPECT_THAT(
      lines(run_yaml(kP, "modle: /m\n")),
      ElementsAre("error: c.yaml:1:1: unrecognized argument: modle (did you mean --model?)"));
  EXPECT_THAT(lines(run(kR, {"--worker-url", "http://a:1"})),
              ElementsAre(HasSubstr("--worker-url ")));
  EXPECT_THAT(lines(run(kR,
                        {"--pd-disagregation",
                         "--prefill",
                         "http://a:1",
                         "--decode",
                         "http://b:1",
                         "--prefill-policy",
                         "random"})),
              ElementsAre(HasSubstr("did you mean --pd-disaggregation?")));
  EXPECT_THAT(
      lines(run(kR, {"--pd-disaggregation", "--prefil", "http://a:1", "--decode", "http://b:1"})),
      ElementsAre(HasSubstr("did you mean --prefill?")));
  // A name that nothing is near to says nothing about what is missing.
  EXPECT_THAT(lines(run(kP, {"--zzzzzzzz", "/m"})),
              ElementsAre("error: unrecognized argument: --zzzzzzzz",
                          "error: the argument --model-path is required"));
}

TEST(Together, WordsThatAreNotUtf8) {
  EXPECT_THAT(
      lines(run(kP, {"--model-path", "/m", "--host", "\xff", "--page-size", "0", "--x\xff"})),
      ElementsAre("error: unrecognized argument: --x?",
                  "error: argument --host: the value is not valid UTF-8",
                  HasSubstr("--page-size: 0 is out of range")));
}

/// A machine with one model folder and nothing else.
Environment disk() {
  Environment environment = machine();
  environment.path_kind = [](const std::string& path) {
    using Kind = Environment::PathKind;
    const std::set<std::string> files = {
        "/m/config.json", "/m/tokenizer.json", "/t/tokenizer.json", "/f", "/bare/config.json"};
    const std::set<std::string> folders = {"/", "/m", "/t", "/empty", "/bare"};
    if (files.count(path) > 0) return Kind::kFile;
    if (folders.count(path) > 0) return Kind::kFolder;
    return path == "/fifo" ? Kind::kOther : Kind::kNothing;
  };
  return environment;
}

TEST(Together, PathsThatNameNothingAndTheRest) {
  EXPECT_THAT(
      lines(run(kP,
                {"--model-path",
                 "/no",
                 "--tokenizer-path",
                 "/f",
                 "--chat-template",
                 "/m",
                 "--port-file",
                 "/no/p",
                 "--page-size",
                 "0"},
                disk())),
      ElementsAre(HasSubstr("--page-size: 0"),
                  "error: argument --model-path: /no: no such folder (a local checkpoint "
                  "folder with config.json is expected)",
                  "error: argument --tokenizer-path: /f: not a folder",
                  "error: argument --chat-template: /m is neither a built-in template nor a "
                  "readable .jinja/.json file",
                  "error: argument --port-file: /no/p: no such folder"));
}

TEST(Together, PathsOfEachKind) {
  struct Row {
    Program program;
    std::vector<std::string> words;
    std::string says;  ///< "" runs
  };

  const std::vector<std::string> workers = {"--worker-urls", "http://a:1"};
  const Row rows[] = {
      {kP, {"--model-path", "/m"}, ""},
      {kP, {"--model-path", "/bare", "--tokenizer-path", "/t"}, ""},
      {kP,
       {"--model-path", "/bare"},
       "--model-path: /bare: no tokenizer.json (one elsewhere is given by --tokenizer-path)"},
      {kP, {"--model-path", "/empty", "--tokenizer-path", "/t"}, "--model-path: /empty: no config"},
      {kP, {"--model-path", "/f"}, "--model-path: /f: not a folder"},
      {kP, {"--model-path", "/fifo"}, "--model-path: /fifo: not a folder"},
      {kP, {"--model-path", "/m", "--chat-template", "/fifo"}, "--chat-template: /fifo is neither"},
      {kP, {"--model-path", "/m", "--port-file", "/m"}, "--port-file: /m: is a folder"},
      {kP, {"--model-path", "/m", "--port-file", "/p"}, ""},
      {kR, {"--model-path", "/no"}, "--model-path: /no: no such folder"},
      {kR, workers, ""},
      {kR, with(workers, {"--tokenizer-path", "/t"}), ""},
      {kR, with(workers, {"--model-path", "/m"}), ""},
      {kR, with(workers, {"--tokenizer-path", "/empty"}), "--tokenizer-path: /empty: no tokenizer"},
      {kR, with(workers, {"--model-path", "/no"}), "--model-path: /no: no such folder"},
      {Program::kBootstrap, {"--port-file", "/no/p"}, "--port-file: /no/p: no such folder"},
  };
  for (const Row& row : rows) {
    const ParseOutcome outcome = run(row.program, row.words, disk());
    SCOPED_TRACE(row.says + " " + outcome.err);
    EXPECT_EQ(runs(outcome), row.says.empty());
    if (row.says.empty()) continue;
    EXPECT_THAT(lines(outcome), ::testing::Contains(HasSubstr("error: argument " + row.says)));
  }
  // What is only printed may be meant for another machine.
  EXPECT_EQ(run(kP, {"--model-path", "/no", "--dump-config"}, disk()).exit_code, 0);
  EXPECT_EQ(run(kP, {"--model-path", "/no", "--explain", "port"}, disk()).exit_code, 0);
  EXPECT_EQ(run(kP, {"--model-path", "/no", "--dump-config", "--dry-run"}, disk()).exit_code, 2);
}

/// Every deprecated argument of the description.
std::vector<std::string> deprecated_names() {
  Arguments args;
  const Registry registry(args);
  std::vector<std::string> names;
  for (const Entry& entry : registry.entries()) {
    if (readiness(entry) == Readiness::kDeprecated) names.emplace_back(entry.spec.name);
  }
  return names;
}

// One warning that names the replacement, wherever it was given and whatever becomes of it.
TEST(Together, EachDeprecatedNameIsToldOnceWithItsReplacement) {
  const std::vector<std::string> names = deprecated_names();
  EXPECT_EQ(names.size(), 7U);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    Arguments args;
    const std::string use(Registry(args).find(name)->spec.deprecated_for);
    const std::string flag = use.substr(0, use.find(' '));
    const std::string warning = "warning: --" + name + " is deprecated; use " + use;
    const std::vector<std::string> model = {"--model-path", "/m"};
    const auto told = [&](const ParseOutcome& outcome, const std::string& want) {
      if (runs(outcome)) {
        // Logged: one note.
        return std::count_if(outcome.args.notes.begin(), outcome.args.notes.end(), [&](auto& note) {
          return note.level == NoteLevel::kWarning && "warning: " + note.text == want;
        });
      }
      const std::vector<std::string> all = lines(outcome);
      return std::count(all.begin(), all.end(), want);
    };
    const ParseOutcome cli = run(kP, with(model, {"--" + name}));
    EXPECT_EQ(told(cli, warning), 1) << cli.err;
    const ParseOutcome file = run_yaml(kP, name + ": true\n", model);
    EXPECT_EQ(lines(file).size(), runs(file) ? 0U : 2U) << file.err;
    const std::string place = " (c.yaml:1:" + std::to_string(name.size() + 3) + ")";
    if (!runs(file)) {
      EXPECT_EQ(told(file, warning + place), 1) << file.err;
    }
    const ParseOutcome both = run_yaml(kP, name + ": true\n", with(model, {"--" + name}));
    EXPECT_EQ(told(both, warning), 1) << both.err;
    // The target decides, in a sentence that names both.
    if (!runs(cli)) {
      EXPECT_THAT(lines(cli).back(), HasSubstr("error: argument --" + name + ": means " + flag));
      EXPECT_THAT(lines(cli).back(), HasSubstr("needs a CUDA device"));
    }
    // Off is no use of it.
    EXPECT_TRUE(runs(run_yaml(kP, name + ": false\n", model)));
    const ParseOutcome dump = run(kP, with(model, {"--" + name, "--dump-config"}));
    EXPECT_EQ(told(dump, warning), 1) << dump.err;
  }
}

TEST(Together, ARouterForwardsWhatADeprecatedNameStandsFor) {
  const ParseOutcome router = run(kR, {"--model-path", "/m", "--enable-ep-moe"});
  ASSERT_TRUE(runs(router)) << router.err;
  EXPECT_THAT(worker_argv(router.args, DisaggregationMode::kNull),
              ElementsAre("--model-path=/m", "--expert-parallel-size=1"));
}

}  // namespace
}  // namespace tandem::args
