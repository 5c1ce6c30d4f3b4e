#include "common/serve/model_text.h"

#include "common/chat/template.h"
#include "common/json/value.h"
#include "common/obs/log.h"

#include <filesystem>
#include <utility>
#include <vector>

namespace tandem::serve {
namespace {

/// The variables that transformers gives a template, in its names.
Result<std::string> render(const chat::ChatTemplate& chat_template,
                           const token::Tokenizer& tokenizer,
                           api::ChatPrompt prompt) {
  std::vector<json::Member> variables;
  variables.reserve(7 + prompt.kwargs.size());
  const auto add = [&](std::string name, json::Value value) {
    variables.push_back({std::move(name), std::move(value)});
  };
  add("messages", std::move(prompt.messages));
  add("tools", nullptr);
  add("documents", nullptr);
  add("add_generation_prompt", prompt.add_generation_prompt);
  const auto add_token = [&](const char* name, std::optional<std::int32_t> id) {
    if (id) add(name, std::string(tokenizer.token_text(*id)));
  };
  add_token("bos_token", tokenizer.bos_id());
  add_token("eos_token", tokenizer.eos_id());
  add_token("pad_token", tokenizer.pad_id());
  // What a request sets takes the place of what has its name.
  for (json::Member& member : prompt.kwargs)
    add(std::move(member.key), std::move(member.value));
  return chat_template.render(json::Value(json::Object(std::move(variables))));
}

}  // namespace

Result<ModelText> load_model_text(const std::string& folder,
                                  const std::optional<std::string>& chat_template) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(std::filesystem::path(folder) / "tokenizer.json", error)) {
    return invalid_argument("argument --tokenizer-path: " + folder + ": no tokenizer.json");
  }
  ModelText text;
  TANDEM_TRY(text.tokenizer, token::Tokenizer::load(folder));
  chat::TemplateChoice choice;
  if (chat_template) {
    if (!std::filesystem::is_regular_file(*chat_template, error)) {
      return invalid_argument("argument --chat-template: " + *chat_template +
                              " is neither a built-in template nor a readable .jinja/.json file");
    }
    choice.explicit_path = *chat_template;
  }
  auto loaded = chat::load_chat_template(folder, choice);
  if (!loaded.ok()) {
    if (loaded.status().code() != Code::kNotFound || chat_template) return loaded.status();
    obs::warn("no_chat_template",
              {{"effect", "chat requests are refused"}, {"reason", loaded.status().message()}});
    return text;
  }
  text.chat = [compiled = std::move(*loaded), tokenizer = text.tokenizer](api::ChatPrompt prompt) {
    return render(compiled, *tokenizer, std::move(prompt));
  };
  return text;
}

}  // namespace tandem::serve
