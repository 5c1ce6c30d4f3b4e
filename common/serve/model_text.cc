#include "common/serve/model_text.h"

#include "common/chat/template.h"
#include "common/json/value.h"
#include "common/obs/log.h"

#include <boost/container/small_vector.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <utility>
#include <vector>

namespace tandem::serve {
namespace {

// The variables that transformers gives a template, in its names.

/// Those that are the same for all requests of a model.
std::vector<json::Member> model_variables(const token::Tokenizer& tokenizer) {
  std::vector<json::Member> variables{{"tools", nullptr}, {"documents", nullptr}};
  const auto add_token = [&](const char* name, std::optional<std::int32_t> id) {
    if (id) variables.push_back({name, std::string(tokenizer.token_text(*id))});
  };
  add_token("bos_token", tokenizer.bos_id());
  add_token("eos_token", tokenizer.eos_id());
  add_token("pad_token", tokenizer.pad_id());
  return variables;
}

Result<std::string> render(const chat::ChatTemplate& chat_template,
                           const std::vector<json::Member>& of_model,
                           const api::ChatPrompt& prompt) {
  const json::Value add_generation_prompt(prompt.add_generation_prompt);
  boost::container::small_vector<chat::Variable, 16> variables;
  variables.push_back({"messages", &prompt.messages});
  variables.push_back({"add_generation_prompt", &add_generation_prompt});
  for (const json::Member& member : of_model)
    variables.push_back({member.key, &member.value});
  // What a request sets takes the place of what has its name. It may set very many, each once.
  const std::size_t ours = variables.size();
  for (const json::Member& member : prompt.kwargs) {
    const auto end = variables.begin() + static_cast<std::ptrdiff_t>(ours);
    const auto there = std::ranges::find(variables.begin(), end, member.key, &chat::Variable::name);
    if (there != end) {
      there->value = &member.value;
    } else {
      variables.push_back({member.key, &member.value});
    }
  }
  return chat_template.render(variables);
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
  text.chat = [compiled = std::move(*loaded), of_model = model_variables(*text.tokenizer)](
                  const api::ChatPrompt& prompt) { return render(compiled, of_model, prompt); };
  return text;
}

}  // namespace tandem::serve
