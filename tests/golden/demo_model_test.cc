// The shipped demo model answers its own evaluation as recorded (greedy, float32): tokenizer, model
// and kernels together.
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/token/tokenizer.h"
#include "kernels/api/backend.h"
#include "tests/golden/model_runner.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace tandem::golden {
namespace {

constexpr const char* kFolder = TANDEM_SOURCE_DIR "/assets/demo-model";
constexpr std::int32_t kEos = 2;

/// Every question; one of eight, through every task, where each costs ten times as much.
#ifdef TANDEM_SANITIZED
constexpr std::size_t kEveryRow = 8;
#else
constexpr std::size_t kEveryRow = 1;
#endif

struct Question {
  std::string task;
  std::vector<std::int32_t> prompt_ids;
  std::vector<std::int32_t> answer_ids;
};

/// The template of tokenizer_config.json for one user message, written out: templates have tests of
/// their own.
Result<std::string> rendered(const json::Field& question) {
  TANDEM_TRY(const json::Field messages, question.at("messages"));
  TANDEM_TRY(const auto items, messages.items());
  std::string text;
  for (const json::Field& message : items) {
    TANDEM_TRY(const json::Field role, message.at("role"));
    TANDEM_TRY(const std::string_view role_text, role.as_string());
    TANDEM_TRY(const json::Field content, message.at("content"));
    TANDEM_TRY(const std::string_view content_text, content.as_string());
    text +=
        "<|im_start|>" + std::string(role_text) + "\n" + std::string(content_text) + "<|im_end|>\n";
  }
  return text + "<|im_start|>assistant\n";
}

Result<Question> read_question(const token::Tokenizer& tokenizer,
                               const std::string& question_line,
                               const std::string& answer_line) {
  TANDEM_TRY(const json::Value asked, json::parse(question_line));
  TANDEM_TRY(const json::Value answered, json::parse(answer_line));
  Question question;
  TANDEM_TRY(const std::string text, rendered(json::Field(asked)));
  question.prompt_ids = tokenizer.encode(text, false);
  TANDEM_TRY(const json::Field task, json::Field(answered).at("task"));
  TANDEM_TRY(question.task, task.as_string());
  TANDEM_TRY(const json::Field ids_field, json::Field(answered).at("output_ids"));
  TANDEM_TRY(const std::vector<std::int64_t> ids, ids_field.as_ints());
  question.answer_ids.assign(ids.begin(), ids.end());
  TANDEM_TRY(const json::Field count_field, json::Field(answered).at("prompt_tokens"));
  TANDEM_TRY(const std::int64_t count, count_field.as_int());
  if (static_cast<std::size_t>(count) != question.prompt_ids.size()) {
    return invalid_argument("prompt of " + std::to_string(question.prompt_ids.size()) +
                            " tokens, recorded " + std::to_string(count));
  }
  return question;
}

std::vector<Question> questions() {
  const auto tokenizer = token::Tokenizer::load(kFolder);
  TANDEM_CHECK(tokenizer.ok(), tokenizer.status().message());
  std::ifstream asked(std::string(kFolder) + "/eval.jsonl");
  std::ifstream answered(std::string(kFolder) + "/eval_reference.jsonl");
  std::vector<Question> all;
  std::string question_line;
  std::string answer_line;
  for (std::size_t row = 0;
       std::getline(asked, question_line) && std::getline(answered, answer_line);
       ++row) {
    if (row % kEveryRow != 0) continue;
    auto question = read_question(**tokenizer, question_line, answer_line);
    TANDEM_CHECK(question.ok(), question.status().message());
    all.push_back(std::move(*question));
  }
  return all;
}

TEST(DemoModel, AnswersAsRecorded) {
  kernels::ThreadPool pool(2);
  auto model = model::Model::load({.folder = kFolder,
                                   .dtype = model::DTypeChoice::kF32,
                                   .override_json = "",
                                   .backend = kernels::select(kernels::Family::kAuto, nullptr),
                                   .pool = &pool,
                                   .limits = {.token_count_max = 1024,
                                              .logit_row_count_max = 256,
                                              .sequence_count_max = 64,
                                              .context_length = 2048}});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<Question> all = questions();
  ASSERT_EQ(all.size(), (435U + kEveryRow - 1) / kEveryRow);
  ModelRunner runner(**model, {.page_size = 16, .page_count = 1024});
  const auto vocab = static_cast<std::size_t>((*model)->config().vocab_size);
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE("question " + std::to_string(i) + " (" + all[i].task + ")");
    const Question& question = all[i];
    const std::size_t prompt = question.prompt_ids.size();
    Track track = runner.start(question.prompt_ids, prompt + question.answer_ids.size() + 1);
    std::vector<std::int32_t> answer;
    while (answer.size() < question.answer_ids.size()) {
      ASSERT_TRUE(runner.run(track, 512).ok());
      const auto last = std::span(track.logits).last(vocab);
      const std::int32_t next = kernels::argmax(last);
      answer.push_back(next);
      track.tokens.push_back(next);
      track.logits.clear();
      if (next == kEos) break;
    }
    EXPECT_EQ(answer, question.answer_ids);
    runner.finish(track);
  }
}

}  // namespace
}  // namespace tandem::golden
