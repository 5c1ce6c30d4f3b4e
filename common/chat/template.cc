#include "common/chat/template.h"

#include "common/chat/interp.h"
#include "common/chat/parser.h"
#include "common/json/parse.h"
#include "common/json/utf8.h"
#include "common/token/config.h"

#include <fmt/format.h>

#include <new>
#include <vector>

namespace tandem::chat {
namespace {

constexpr std::size_t kSourceBytesMax = 1 << 20;

}  // namespace

struct ChatTemplate::Compiled {
  std::string source;
  std::string name;
  Body body;
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}

const std::string& ChatTemplate::source() const {
  return compiled_->source;
}

const std::string& ChatTemplate::name() const {
  return compiled_->name;
}

Result<ChatTemplate> ChatTemplate::compile(std::string source, std::string name) {
  if (source.size() > kSourceBytesMax) {
    return invalid_argument(
        fmt::format("{}: {} bytes, at most {} are allowed", name, source.size(), kSourceBytesMax));
  }
  const std::size_t broken = json::find_invalid_utf8(source);
  if (broken != source.size()) {
    return invalid_argument(fmt::format("{}: invalid UTF-8 at byte {}", name, broken));
  }
  auto body = parse_template(source);
  if (!body.ok()) return body.status().with_context(name);
  auto compiled = std::make_shared<Compiled>();
  compiled->source = std::move(source);
  compiled->name = std::move(name);
  compiled->body = std::move(*body);
  return ChatTemplate(std::move(compiled));
}

Result<std::string> ChatTemplate::render(const json::Value& context,
                                         const RenderOptions& options) const {
  const json::Object* const object = context.if_object();
  if (object == nullptr) return invalid_argument("the context of a template must be an object");
  std::vector<Variable> variables;
  variables.reserve(object->size());
  for (const json::Member& member : *object)
    variables.push_back({member.key, &member.value});
  return render(variables, options);
}

Result<std::string> ChatTemplate::render(std::span<const Variable> variables,
                                         const RenderOptions& options) const {
  std::optional<Interp> interp;
  try {
    interp.emplace(variables, options);
    return interp->run(compiled_->body);
  } catch (const RenderError& e) {
    if (e.raised) return Status(e.code, e.message);
    const int line = interp ? interp->line() : 0;
    return Status(e.code, fmt::format("{}: line {}: {}", compiled_->name, line, e.message));
  } catch (const std::bad_alloc&) {
    return resource_exhausted(compiled_->name + ": out of memory");
  }
}

Result<ChatTemplate> load_chat_template(const std::filesystem::path& folder,
                                        const TemplateChoice& choice) {
  std::error_code ignored;
  auto path = choice.explicit_path.value_or(folder / "chat_template.jinja");
  if (choice.explicit_path || std::filesystem::exists(path, ignored)) {
    TANDEM_TRY(std::string source, json::read_text_file(path, kSourceBytesMax));
    return ChatTemplate::compile(std::move(source), path.string());
  }
  TANDEM_TRY(const auto config, token::TokenizerConfig::load(folder));
  const std::string wanted = choice.name.empty() ? "default" : choice.name;
  for (const token::ChatTemplateSource& source : config.chat_templates) {
    if (source.name != wanted) continue;
    const std::string where = (folder / "tokenizer_config.json").string() + ": chat_template";
    return ChatTemplate::compile(source.text,
                                 wanted == "default" ? where : where + " \"" + wanted + "\"");
  }
  return not_found(
      fmt::format("no chat template \"{}\": {} does not exist and {} has none of that name",
                  wanted,
                  path.string(),
                  (folder / "tokenizer_config.json").string()));
}

}  // namespace tandem::chat
