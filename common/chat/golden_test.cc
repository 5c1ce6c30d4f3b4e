// Templates of real models rendered by jinja2 (../shared/golden/chat).
#include "common/chat/template.h"
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace tandem::chat {
namespace {

std::filesystem::path golden_folder() {
  const char* set = std::getenv("TANDEM_SHARED_DIR");
  const auto shared = set != nullptr ? std::filesystem::path(set)
                                     : std::filesystem::path(TANDEM_SOURCE_DIR) / ".." / "shared";
  return shared / "golden" / "chat";
}

RenderOptions options_at(const std::string& iso) {
  WallTime t;
  std::sscanf(
      iso.c_str(), "%d-%d-%dT%d:%d:%d", &t.year, &t.month, &t.day, &t.hour, &t.minute, &t.second);
  RenderOptions options;
  options.now = t;
  return options;
}

std::string text_at(const json::Value& v, const char* key) {
  const json::Value* found = v.find(key);
  return found != nullptr && found->is_string() ? *found->if_string() : "";
}

/// Checks one result against `expected` or `error`.
void check(const json::Value& row, const Result<std::string>& got) {
  if (const json::Value* expected = row.find("expected")) {
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(*got, *expected->if_string());
    return;
  }
  ASSERT_FALSE(got.ok()) << "rendered: " << *got << "\nexpected the error "
                         << json::to_string(*row.find("message"));
  if (text_at(row, "error") == "TemplateError") {
    EXPECT_EQ(got.status().message(), text_at(row, "message"));
  }
}

json::Value context_of(const json::Value& file, const json::Value& row) {
  json::Object context;
  context.set("messages", *row.find("messages"));
  context.set("tools", *row.find("tools"));
  context.set("documents", nullptr);
  context.set("add_generation_prompt", *row.find("add_generation_prompt"));
  context.set("bos_token", *file.find("bos_token"));
  context.set("eos_token", *file.find("eos_token"));
  for (const json::Member& extra : *row.find("kwargs")->if_object()) {
    context.set(extra.key, extra.value);
  }
  return context;
}

TEST(GoldenChat, Templates) {
  const auto folder = golden_folder();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "skipped: ../shared is not here";
  int file_count = 0;
  int case_count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "micro.json") continue;
    ++file_count;
    const auto file = json::parse_file(entry.path());
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto source = json::read_text_file(folder / text_at(*file, "template"), 1 << 20);
    ASSERT_TRUE(source.ok());
    const auto compiled = ChatTemplate::compile(*source, text_at(*file, "template"));
    ASSERT_TRUE(compiled.ok()) << compiled.status().message();
    const RenderOptions options = options_at(text_at(*file, "now"));
    for (const json::Value& row : *file->find("cases")->if_array()) {
      SCOPED_TRACE(entry.path().filename().string() + " " + text_at(row, "name"));
      ++case_count;
      check(row, compiled->render(context_of(*file, row), options));
    }
  }
  EXPECT_GE(file_count, 20);
  EXPECT_GE(case_count, 700);
}

TEST(GoldenChat, Micro) {
  const auto path = golden_folder() / "micro.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "skipped: ../shared is not here";
  const auto file = json::parse_file(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const RenderOptions options = options_at(text_at(*file, "now"));
  for (const json::Value& row : *file->find("cases")->if_array()) {
    SCOPED_TRACE(text_at(row, "template"));
    const auto compiled = ChatTemplate::compile(text_at(row, "template"), "micro");
    if (!compiled.ok()) {
      EXPECT_NE(row.find("error"), nullptr) << compiled.status().message();
      continue;
    }
    const json::Value* vars = row.find("vars");
    check(row, compiled->render(vars != nullptr ? *vars : json::Value::object(), options));
  }
}

TEST(GoldenChat, PromptsOfModels) {
  const auto models = golden_folder().parent_path() / "models";
  if (!std::filesystem::exists(models)) GTEST_SKIP() << "skipped: ../shared is not here";
  const auto compiled = load_chat_template(models / "llama");
  ASSERT_TRUE(compiled.ok()) << compiled.status().message();
  const auto context =
      json::parse(R"({"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true})");
  EXPECT_EQ(*compiled->render(*context), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace tandem::chat
