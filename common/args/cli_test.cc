// The command line as a whole: spellings, arity, other services' flags, several errors at once,
// abuse.
#include "common/args/args.h"
#include "common/args/input.h"
#include "common/args/test_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

namespace tandem::args {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Program kP = Program::kPrefill;
constexpr Program kD = Program::kDecode;
constexpr Program kR = Program::kRouter;
constexpr Program kB = Program::kBootstrap;

struct ErrorRow {
  const char* name;
  Program program;
  std::vector<std::string> words;
  const char* want;  ///< the whole of stderr after "<program>: error: ", one line
};

TEST(CommandLine, ErrorsAreOneSentence) {
  const std::vector<ErrorRow> rows = {
      {"unknown, nearest",
       kP,
       {"--modl-path", "x"},
       "unrecognized argument: --modl-path (did you mean --model-path?)"},
      {"unknown, swapped letters",
       kP,
       {"--prot", "1"},
       "unrecognized argument: --prot (did you mean --port?)"},
      {"unknown, cut off",
       kP,
       {"--max-running", "1"},
       "unrecognized argument: --max-running (did you mean --max-running-requests?)"},
      {"unknown, nothing near", kP, {"--zzzzzz"}, "unrecognized argument: --zzzzzz"},
      {"prefix of a flag is not that flag",
       kP,
       {"--mem-fraction-stati", "0.5"},
       "unrecognized argument: --mem-fraction-stati (did you mean --mem-fraction-static?)"},
      {"one dash", kP, {"-port", "1"}, "unrecognized argument: -port (did you mean --port?)"},
      {"two dashes, one letter", kP, {"--h"}, "unrecognized argument: --h"},
      {"lone dashes", kP, {"--"}, "unrecognized argument: --"},
      {"switch with a word behind it",
       kP,
       {"--enable-metrics", "true"},
       "argument --enable-metrics: takes no value, got 'true'"},
      {"role of spawned workers",
       kR,
       {"--disaggregation-mode", "prefill"},
       "--disaggregation-mode is an argument of prefill-server and decode-server, not of router, "
       "which sets it for "
       "the workers that it starts"},
      {"stray word",
       kP,
       {"serve", "now"},
       "unexpected argument 'serve' and 1 more: values follow a flag that starts with --"},
      {"alias and name",
       kR,
       {"--dp", "1", "--dp-size", "1"},
       "argument --data-parallel-size: given twice, as --dp and as --dp-size"},
      {"dash and underscore",
       kP,
       {"--log-level", "info", "--log_level", "info"},
       "argument --log-level: given twice, as --log-level and as --log_level"},
      {"same spelling twice",
       kP,
       {"--port", "1", "--port", "2"},
       "argument --port: given more than once"},
      {"decode's flag on prefill",
       kP,
       {"--num-reserved-decode-tokens", "1"},
       "--num-reserved-decode-tokens is an argument of decode-server, not of prefill-server"},
      {"router's flag on decode",
       kD,
       {"--worker-urls", "http://a:1"},
       "--worker-urls is an argument of router, not of decode-server"},
      {"engine flag on bootstrap",
       kB,
       {"--page-size", "16"},
       "--page-size is an argument of prefill-server and decode-server, not of bootstrap-server"},
      {"decode's flag on a unified router",
       kR,
       {"--num-reserved-decode-tokens", "1"},
       "--num-reserved-decode-tokens is an argument of decode-server, not of router that starts "
       "workers of one kind "
       "(see --pd-disaggregation)"},
      {"not built",
       kP,
       {"--modelopt-quant", "fp8"},
       "--modelopt-quant is known, but not built yet"},
      {"not built, choice",
       kP,
       {"--torchao-config", "int8dq"},
       "argument --torchao-config: int8dq is known, but not built yet; available here: int8wo, "
       "int4wo-128"},
      {"two quantizations",
       kP,
       {"--torchao-config", "int8wo", "--quantization", "w8a8_int8"},
       "argument --torchao-config: excludes --quantization; give one of the two"},
      {"not built, alias, underscore",
       kP,
       {"--speculative_draft_model=x"},
       "--speculative-draft-model-path is known, but not built yet"},
      {"not built, upstream underscore name",
       kP,
       {"--eplb-mode", "ALL"},
       "--eplb_mode is known, but not built yet"},
      {"not built, router's own",
       kR,
       {"--retry-max-retries", "3"},
       "--retry-max-retries is known, but not built yet"},
      {"not built, list takes its words",
       kP,
       {"--prompt-tokens-buckets", "tse", "1000", "2", "8"},
       "--prompt-tokens-buckets is known, but not built yet"},
      {"vendor hardware",
       kP,
       {"--device", "npu"},
       "argument --device: npu needs another vendor's hardware, which is not part of this build; "
       "available here: cpu"},
      {"beyond 64 bits",
       kP,
       {"--max-total-tokens", "99999999999999999999999999"},
       "argument --max-total-tokens: 99999999999999999999999999 is out of range, expected <= "
       "9223372036854775807"},
      {"beyond 32 bits",
       kP,
       {"--random-seed", "4294967296"},
       "argument --random-seed: 4294967296 is out of range, expected <= 4294967295"},
      {"beyond 64 bits below",
       kP,
       {"--chunked-prefill-size", "-99999999999999999999999999"},
       "argument --chunked-prefill-size: -99999999999999999999999999 is out of range, expected >= "
       "1 or -1"},
      {"JSON list",
       kP,
       {"--json-model-override-args", "[1]"},
       "argument --json-model-override-args: not a JSON object: found array at offset 0"},
      {"JSON with a key twice",
       kP,
       {"--json-model-override-args", R"({"a": {"b": 1, "b": 2}})"},
       "argument --json-model-override-args: not valid JSON: the key b is given twice"},
      {"part of a second",
       kP,
       {"--shutdown-grace-period-secs", "1.5s"},
       "argument --shutdown-grace-period-secs: invalid int value: '1.5s' (expected an integer >= 0 "
       "and <= 86400, plain seconds or with a unit (30s, 5m, 2h))"},
      {"a unit beyond 64 bits",
       kP,
       {"--max-body-bytes", "9223372036854775807TiB"},
       "argument --max-body-bytes: 9223372036854775807TiB is out of range, expected >= 1024 and "
       "<= 4294967296"},
      {"control characters are not printed",
       kP,
       {"--dtype", "a\x1b[31m\n"},
       "argument --dtype: invalid choice: 'a?[31m?' (choose from 'auto', 'half', 'float16', "
       "'bfloat16', 'float', "
       "'float32')"},
      {"api key with a line break",
       kP,
       {"--api-key", "a\nb"},
       "argument --api-key: the key holds a line break"},
  };
  for (const ErrorRow& row : rows) {
    SCOPED_TRACE(row.name);
    const ParseOutcome outcome = run(row.program, with(minimum(row.program), row.words));
    EXPECT_EQ(outcome.err, std::string(program_name(row.program)) + ": error: " + row.want + "\n");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.action, ParseOutcome::Action::kExit);
  }
}

TEST(CommandLine, AllErrorsAreReportedTogether) {
  const ParseOutcome outcome = run(kP,
                                   {"--prot",
                                    "1",
                                    "--port",
                                    "x",
                                    "--dtype",
                                    "y",
                                    "--modelopt-quant",
                                    "fp8",
                                    "--page-size",
                                    "0"});
  for (const char* part : {"--prot",
                           "--port: invalid",
                           "--dtype: invalid",
                           "--modelopt-quant is known",
                           "--page-size: 0",
                           "--model-path is required"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 6);
}

TEST(CommandLine, ManyErrorsAreCut) {
  std::vector<std::string> words;
  for (int i = 0; i < 1000; ++i)
    words.push_back("--nobody-knows-" + std::to_string(i));
  const ParseOutcome outcome = run(kP, words);
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 21);
  EXPECT_THAT(outcome.err, HasSubstr("and 980 more errors"));
}

TEST(CommandLine, NegativeNumbersAreValues) {
  EXPECT_EQ(run(kP, {"--model-path", "/m", "--chunked-prefill-size", "-1"})
                .args.scheduling.chunked_prefill_size,
            -1);
}

TEST(CommandLine, ListsTakeWordsUpToTheNextFlag) {
  const ParseOutcome outcome =
      run(kR, {"--worker-urls", "http://a:1", "grpc://b:2", "--port", "1"});
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  EXPECT_EQ(outcome.args.router.worker_urls,
            (std::vector<std::string>{"http://a:1", "grpc://b:2"}));
  EXPECT_EQ(outcome.args.server.port, 1);
}

TEST(CommandLine, ValuesThatLookLikeOptionsAreValues) {
  const auto path = [](const std::vector<std::string>& words) {
    const ParseOutcome outcome = run(kP, words);
    return runs(outcome) ? outcome.args.model.model_path : outcome.err;
  };
  EXPECT_EQ(path({"--model-path=--port"}), "--port");
  EXPECT_EQ(path({"--model-path=a=b"}), "a=b");
  EXPECT_EQ(path({"--model-path", "a=b"}), "a=b");
  EXPECT_EQ(path({"--model_path", "-"}), "-");
  EXPECT_EQ(path({"--model", "[a,b]"}), "[a,b]");
  EXPECT_EQ(path({"--model-path", "++"}), "++");
  EXPECT_EQ(path({"--model-path", "{}"}), "{}");
  EXPECT_THAT(path({"--model-path=", "x"}), HasSubstr("argument --model-path: empty value"));
  EXPECT_THAT(path({"--model-path", "--port", "1"}),
              HasSubstr("argument --model-path: expected one argument\n"));
  EXPECT_THAT(run(kP, {"--model-path", "/m", "--mem-fraction-static", "-.5"}).err,
              HasSubstr("argument --mem-fraction-static: -0.5 is not between 0 and 1"));
}

// More flags than CLI11 is given at once: none is lost, and repetition is seen across the blocks.
TEST(CommandLine, EveryArgumentAtOnce) {
  Arguments args;
  const Registry registry(args);
  std::vector<std::string> words;
  std::size_t count = 0;
  for (const Entry& entry : registry.entries()) {
    if (entry.spec.command) continue;
    words.push_back(entry.flag());
    if (!entry.is_switch()) words.emplace_back("1");
    ++count;
  }
  words.insert(words.end(), {"--model-path", "again", "stray"});
  std::vector<const char*> argv = {"prefill-server"};
  for (const std::string& word : words)
    argv.push_back(word.c_str());
  Errors errors;
  const std::vector<Given> given =
      scan_command_line(registry, kP, static_cast<int>(argv.size()), argv.data(), errors);
  EXPECT_EQ(given.size(), count);
  EXPECT_EQ(errors.report(kP),
            "prefill-server: error: argument --model-path: given more than once\n"
            "prefill-server: error: unexpected argument 'stray': values follow a flag that starts "
            "with --\n");
}

TEST(CommandLine, PrefillTakesAnOptionalBootstrapPort) {
  const ParseOutcome outcome = run(kR,
                                   {"--pd-disaggregation",
                                    "--prefill",
                                    "http://a:1",
                                    "8998",
                                    "--prefill",
                                    "http://b:2",
                                    "none",
                                    "--prefill",
                                    "http://c:3",
                                    "--decode",
                                    "http://d:4",
                                    "--decode",
                                    "http://e:5"});
  ASSERT_TRUE(runs(outcome)) << outcome.err;
  const std::vector<PrefillUrl> want = {{"http://a:1", std::uint16_t{8998}},
                                        {"http://b:2", std::nullopt, true},
                                        {"http://c:3", std::nullopt}};
  EXPECT_EQ(outcome.args.router.prefill, want);
  EXPECT_EQ(outcome.args.router.decode, (std::vector<std::string>{"http://d:4", "http://e:5"}));
  const ParseOutcome bad =
      run(kR, {"--pd-disaggregation", "--prefill", "http://a:1", "0", "--decode", "http://d:4"});
  EXPECT_THAT(bad.err,
              HasSubstr("argument --prefill: bootstrap port of http://a:1: 0 is out of range"));
}

TEST(CommandLine, HelpVersionAndExplainEndTheProgramWell) {
  for (const Program program : kAllPrograms) {
    const std::string name(program_name(program));
    for (const char* flag : {"--help", "-h"}) {
      const ParseOutcome help = run(program, {"--nonsense", flag});
      EXPECT_EQ(help.exit_code, 0);
      EXPECT_THAT(help.out, HasSubstr("usage: " + name + " "));
    }
    EXPECT_EQ(run(program, {"--version"}).out, name + " 9.9.9\n");
  }
  const ParseOutcome explained =
      run(kP, {"--model-path", "/m", "--page-size", "16", "--explain", "--page-size"});
  EXPECT_EQ(explained.exit_code, 0);
  EXPECT_THAT(explained.out, HasSubstr("--page-size = 16 (cli: --page-size)"));
  EXPECT_THAT(run(kP, {"--model-path", "/m", "--explain", "api-key", "--api-key", "hush"}).out,
              ::testing::AllOf(HasSubstr("[secret]"), Not(HasSubstr("hush"))));
  EXPECT_THAT(run(kP, {"--model-path", "/m", "--explain", "modelopt-quant"}).out,
              HasSubstr("known, but not built yet"));
  EXPECT_THAT(run(kP, {"--explain", "tp"}).out,
              ::testing::AllOf(HasSubstr("; built: the default"), HasSubstr("not built yet\n")));
  EXPECT_THAT(run(kR, {"--explain", "dp"}).out,
              ::testing::AllOf(Not(HasSubstr("built:")), HasSubstr("status    works\n")));
  EXPECT_EQ(run(kP, {"--explain="}).err,
            "prefill-server: error: argument --explain: expected the name of an argument\n");
  EXPECT_EQ(run(kP, {"--explain"}).err,
            "prefill-server: error: argument --explain: expected one argument\n");
  EXPECT_EQ(run(kP, {"--model-path", "/m", "--explain", "quantisation"}).err,
            "prefill-server: error: unrecognized argument: quantisation (did you mean "
            "--quantization?)\n");
}

TEST(CommandLine, InvalidUtf8IsRefusedByName) {
  for (const char* bad : {"\xff", "a\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const ParseOutcome outcome = run(kP, {"--model-path", bad});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err,
              "prefill-server: error: argument --model-path: the value is not valid UTF-8\n");
  }
  EXPECT_TRUE(runs(run(kP, {"--model-path", "/模型/é😀"})));
}

TEST(CommandLine, HugeArgvEndsInOneSentence) {
  EXPECT_THAT(run(kP, std::vector<std::string>(20000, "--port")).err,
              HasSubstr("20001 words; at most 16384"));
  EXPECT_THAT(run(kP, {"--model-path", std::string((1U << 20U) + 1, 'x')}).err,
              HasSubstr("longer than 1 MiB"));
  const std::string huge(100U << 20U, '7');
  EXPECT_THAT(run(kP, {"--port", huge}).err, HasSubstr("longer than 1 MiB"));
  EXPECT_EQ(run(kP, {"--model-path", "/m"}, machine({{"TP_SIZE", huge}})).err,
            "prefill-server: error: argument --tensor-parallel-size: environment variable TP_SIZE "
            "is longer than 1 MiB\n");
  EXPECT_THAT(run(kP, {"--" + std::string(1U << 20U, 'x')}).err,
              Not(HasSubstr(std::string(200, 'x'))));
  EXPECT_THAT(run(kP, {"--json-model-override-args", std::string(500000, '[')}).err,
              HasSubstr("nested deeper than 64"));
  EXPECT_THAT(run(kP, {"--json-model-override-args", R"({"a": 1e999})"}).err,
              HasSubstr("not valid JSON"));
  EXPECT_EQ(run(kP, {}).exit_code, 2);
  EXPECT_EQ(parse(kP, 0, nullptr, machine()).exit_code, 2);
}

// Random words of the flag alphabet: never a crash, and a refusal always has a sentence. The seed
// is printed.
TEST(CommandLine, RandomWordsNeverCrash) {
  const unsigned seed = 20260101;
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {
      "--", "-",  "=",       "port",   "model-path",  "tp",         "_",        "1", "null", "{",
      "}",  "\"", "prefill", "decode", "worker-urls", "http://a:1", "\xc3\xa9", " ", ",",    "a"};
  for (int round = 0; round < 1500; ++round) {
    std::vector<std::string> words(random() % 8);
    for (std::string& word : words) {
      for (std::size_t n = random() % 5; n > 0; --n)
        word += parts[random() % parts.size()];
    }
    const ParseOutcome outcome = run(kAllPrograms[random() % 4], words);
    EXPECT_TRUE(runs(outcome) || outcome.exit_code == 0 || !outcome.err.empty())
        << "seed " << seed << " round " << round;
  }
}

TEST(CommandLine, TakesManyValues) {
  // What it takes to read them is args_bench's: parse_16000_urls.
  std::vector<std::string> urls = {"--worker-urls"};
  for (int i = 0; i < 16000; ++i)
    urls.push_back("http://host:" + std::to_string(i % 60000 + 1));
  EXPECT_TRUE(runs(run(kR, urls)));
}

}  // namespace
}  // namespace tandem::args
