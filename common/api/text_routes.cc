// /tokenize and /detokenize.
#include "common/api/body.h"
#include "common/api/plan.h"
#include "common/api/routes.h"
#include "common/json/write.h"

#include <algorithm>
#include <utility>

namespace tandem::api {

namespace {

using Ids = std::vector<core::TokenId>;

void write_ids(json::Writer& writer, const Ids& ids) {
  writer.begin_array();
  for (const core::TokenId id : ids)
    writer.number(id);
  writer.end_array();
}

std::string tokens_json(const Context& context, const std::vector<Ids>& lists, bool batch) {
  std::string out;
  json::Writer writer(out);
  writer.begin_object();
  writer.key("tokens");
  if (batch) writer.begin_array();
  for (const Ids& ids : lists)
    write_ids(writer, ids);
  if (batch) writer.end_array();
  writer.key("count");
  if (batch) writer.begin_array();
  for (const Ids& ids : lists)
    writer.number(ids.size());
  if (batch) writer.end_array();
  writer.key("max_model_len");
  writer.number(context.options.model.context_length);
  writer.end_object();
  return out;
}

// More than a context can hold is looked at too (people count documents), but not without bound: it
// happens on an I/O thread.
constexpr std::size_t kTokenizeBytesFloor = std::size_t{1} << 20U;

Status check_bytes(const Context& context, const json::Field& field, std::size_t bytes) {
  const ApiLimits& limits = context.options.limits;
  const std::size_t context_bytes =
      static_cast<std::size_t>(std::max(context.options.model.context_length, 1)) *
      limits.bytes_per_token_max;
  const std::size_t most =
      std::min(limits.prompt_bytes, std::max(kTokenizeBytesFloor, context_bytes));
  if (bytes <= most) return {};
  return field.error(std::to_string(bytes) + " bytes, expected at most " + std::to_string(most));
}

Result<std::string> tokenize(const Context& context, RequestBody& body) {
  TANDEM_TRY(const auto special, body.take_bool("add_special_tokens"));
  const bool add_special = special.value_or(true);
  const auto prompt = body.take("prompt");
  if (!prompt) {
    if (!body.take("messages"))
      return invalid_argument("prompt: missing, expected a text, a list of texts, or messages");
    TANDEM_TRY(const std::string text, render_chat(context, body));
    return tokens_json(context, {context.tokenizer->encode(text, false)}, false);
  }
  if (prompt->value().is_array()) {
    TANDEM_TRY(const auto texts, prompt->as_strings());
    std::size_t bytes = 0;
    for (const std::string& text : texts)
      bytes += text.size();
    TANDEM_TRY(check_bytes(context, *prompt, bytes));
    std::vector<Ids> lists;
    for (const std::string& text : texts)
      lists.push_back(context.tokenizer->encode(text, add_special));
    return tokens_json(context, lists, true);
  }
  TANDEM_TRY(const std::string_view text, prompt->as_string());
  TANDEM_TRY(check_bytes(context, *prompt, text.size()));
  return tokens_json(context, {context.tokenizer->encode(text, add_special)}, false);
}

Result<Ids> read_ids(const Context& context, const json::Field& field) {
  TANDEM_TRY(const auto wide, field.as_ints(0, context.options.model.vocab_size - 1));
  Ids ids;
  ids.reserve(wide.size());
  for (const std::int64_t id : wide)
    ids.push_back(static_cast<core::TokenId>(id));
  return ids;
}

Result<std::string> detokenize(const Context& context, RequestBody& body) {
  TANDEM_TRY(const auto skip, body.take_bool("skip_special_tokens"));
  const auto tokens = body.take("tokens");
  if (!tokens) return invalid_argument("tokens: missing, expected an array of token ids");
  TANDEM_TRY(const json::Array* array, tokens->as_array());
  std::string out;
  json::Writer writer(out);
  writer.begin_object();
  writer.key("text");
  if (!array->empty() && array->front().is_array()) {
    TANDEM_TRY(const auto items, tokens->items());
    writer.begin_array();
    for (const json::Field& item : items) {
      TANDEM_TRY(const Ids ids, read_ids(context, item));
      writer.string(context.tokenizer->decode(ids, skip.value_or(true)));
    }
    writer.end_array();
  } else {
    TANDEM_TRY(const Ids ids, read_ids(context, *tokens));
    writer.string(context.tokenizer->decode(ids, skip.value_or(true)));
  }
  writer.end_object();
  return out;
}

using Work = Result<std::string> (*)(const Context&, RequestBody&);

void answer(const ContextPtr& context, const http::Request& request, WriterPtr writer, Work work) {
  const auto refuse = [&](const ApiError& error) { send_error(*writer, request, error); };
  if (const Status type = require_json(request); !type.ok()) return refuse(to_api_error(type));
  const auto parsed = parse_body(request.body, context->options.limits);
  if (!parsed.ok()) return refuse(to_api_error(parsed.status()));
  RequestBody body{json::Field(*parsed)};
  const auto model = body.take_string("model");
  if (!model.ok()) return refuse(to_api_error(model.status()));
  if (*model && !context->serves(**model)) return refuse(unknown_model(**model));
  auto result = work(*context, body);
  if (!result.ok()) return refuse(plan_error(result.status()));
  writer->send(
      200, answer_headers(request, "application/json", body.ignored()), std::move(result).value());
}

}  // namespace

void handle_tokenize(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  answer(context, request, std::move(writer), tokenize);
}

void handle_detokenize(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  answer(context, request, std::move(writer), detokenize);
}

}  // namespace tandem::api
