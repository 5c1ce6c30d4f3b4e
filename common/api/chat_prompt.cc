// From a chat's messages to the text of its prompt.
#include "common/api/body.h"
#include "common/api/routes.h"
#include "common/json/parse.h"

#include <algorithm>
#include <array>
#include <utility>

namespace tandem::api {

namespace {

constexpr std::array<std::string_view, 6> kRoles{
    "system", "developer", "user", "assistant", "tool", "function"};
// Variables that are ours to set; a request may not replace them (nor bring its own template).
constexpr std::array<std::string_view, 8> kReserved{"messages",
                                                    "tools",
                                                    "add_generation_prompt",
                                                    "continue_final_message",
                                                    "bos_token",
                                                    "eos_token",
                                                    "chat_template",
                                                    "tokenize"};

// The text of a content that is no string: null, or parts of type text, joined by blanks as SGLang
// does.
Result<std::string> join_content(const json::Field& message) {
  const auto content = message.find("content");
  if (!content) return std::string();
  if (!content->value().is_array())
    return content->mismatch("a string or an array of parts of type text");
  TANDEM_TRY(const auto parts, content->items());
  std::string joined;
  bool first = true;
  for (const json::Field& part : parts) {
    TANDEM_TRY(const json::Field type, part.at("type"));
    TANDEM_TRY(const std::string_view name, type.as_string());
    if (name != "text")
      return type.error("parts of type " + json::describe(type.value()) +
                        " are not supported by this server, expected \"text\"");
    TANDEM_TRY(const json::Field text, part.at("text"));
    TANDEM_TRY(const std::string_view value, text.as_string());
    if (!first) joined.push_back(' ');
    first = false;
    joined.append(value);
  }
  return joined;
}

// Templates expect the arguments of earlier tool calls as objects; OpenAI's clients send text.
void open_tool_arguments(json::Object* message) {
  json::Value* calls = message->find("tool_calls");
  json::Array* list = calls == nullptr ? nullptr : calls->if_array();
  if (list == nullptr) return;
  for (json::Value& call : *list) {
    json::Object* object = call.if_object();
    json::Value* function = object == nullptr ? nullptr : object->find("function");
    json::Object* members = function == nullptr ? nullptr : function->if_object();
    json::Value* arguments = members == nullptr ? nullptr : members->find("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    auto parsed = json::parse(*arguments->if_string(), {.max_bytes = 1U << 20U, .max_depth = 32});
    if (parsed.ok() && parsed->is_object()) *arguments = std::move(parsed).value();
  }
}

/// A message for the template; none: it can have the one of the request.
Result<std::optional<json::Value>> changed(const json::Object& object, const json::Field& item) {
  const json::Value* content = object.find("content");
  const bool is_text = content != nullptr && content->is_string();
  if (is_text && object.find("tool_calls") == nullptr) return std::nullopt;
  json::Object message = object;
  if (!is_text) {
    TANDEM_TRY(std::string text, join_content(item));
    message.set("content", json::Value(std::move(text)));
  }
  open_tool_arguments(&message);
  return json::Value(std::move(message));
}

/// An array; copied to `own` only where some message is changed: contexts are long.
Result<const json::Value*> read_messages(RequestBody& body, json::Value* own) {
  const auto field = body.take("messages");
  if (!field) return invalid_argument("messages: missing, expected an array of messages");
  TANDEM_TRY(const auto items, field->items());
  if (items.empty()) return field->error("empty, expected at least one message");
  const json::Value* messages = &field->value();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const json::Field& item = items[i];
    TANDEM_TRY(const json::Object* object, item.as_object());
    TANDEM_TRY(const json::Field role, item.at("role"));
    TANDEM_TRY(const std::string_view name, role.as_string());
    if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end())
      return role.mismatch("system, developer, user, assistant or tool");
    TANDEM_TRY(auto message, changed(*object, item));
    if (!message) continue;
    if (messages != own) *own = *messages;
    messages = own;
    (*own->if_array())[i] = *std::move(message);
  }
  return messages;
}

Status refuse_tools(RequestBody& body) {
  const auto choice = body.take("tool_choice");
  const std::string* name = choice ? choice->value().if_string() : nullptr;
  if (name != nullptr && *name == "none") {
    body.take("tools");
    return {};
  }
  static const RequestBody::Names kTools{"tools", "functions", "function_call"};
  TANDEM_TRY(body.refuse(kTools));
  if (choice && (name == nullptr || *name != "auto"))
    return choice->error("not supported by this server without tools, expected \"none\"");
  return {};
}

Result<json::Object> read_kwargs(RequestBody& body) {
  json::Object kwargs;
  if (const auto field = body.take("chat_template_kwargs")) {
    TANDEM_TRY(const auto members, field->members());
    for (const auto& [name, value] : members) {
      if (std::find(kReserved.begin(), kReserved.end(), name) != kReserved.end())
        return value.error("this variable is set by the server");
      kwargs.set(std::string(name), value.value());
    }
  }
  if (const auto effort = body.take("reasoning_effort"))
    kwargs.set("reasoning_effort", effort->value());
  return kwargs;
}

}  // namespace

Result<std::string> render_chat(const Context& context, RequestBody& body) {
  if (!context.chat)
    return invalid_argument("messages: this model has no chat template, expected a plain prompt");
  json::Value own;
  TANDEM_TRY(const json::Value* messages, read_messages(body, &own));
  TANDEM_TRY(refuse_tools(body));
  TANDEM_TRY(json::Object kwargs, read_kwargs(body));
  TANDEM_TRY(const auto add, body.take_bool("add_generation_prompt"));
  TANDEM_TRY(const auto goes_on, body.take_bool("continue_final_message"));
  std::string start_of_answer;
  if (goes_on.value_or(false)) {
    if (messages != &own) own = *messages;
    messages = &own;
    const json::Value& last = own.if_array()->back();
    if (*last.find("role") != json::Value("assistant"))
      return invalid_argument("continue_final_message: the last message is not the assistant's");
    start_of_answer = *last.find("content")->if_string();
    own.if_array()->pop_back();
  }
  auto text = context.chat({.messages = *messages,
                            .add_generation_prompt = goes_on.value_or(false) || add.value_or(true),
                            .kwargs = std::move(kwargs)});
  if (!text.ok()) {
    // What a template refuses (raise_exception) or cannot render is about this request.
    return invalid_argument("messages: " + text.status().message());
  }
  return std::move(text).value() + start_of_answer;
}

}  // namespace tandem::api
