// /v1/chat/completions and /v1/completions: from the body to a Job.
#include "common/api/body.h"
#include "common/api/job.h"
#include "common/api/routes.h"
#include "common/base/clock.h"

#include <utility>

namespace tandem::api {

namespace {

constexpr std::int64_t kTopLogprobsMax = 20;
constexpr std::int32_t kCompletionTokensDefault = 16;

struct StreamFields {
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

struct OpenAiRequest {
  Plan plan;
  StreamFields stream;
  std::string id;
  std::string model;
  bool logprobs = false;
  CompletionEcho echo;
};

struct LogprobFields {
  bool wanted = false;
  std::int32_t top = 0;
};

Result<StreamFields> read_stream(RequestBody& body) {
  StreamFields out;
  TANDEM_TRY(const auto stream, body.take_bool("stream"));
  out.stream = stream.value_or(false);
  const auto options = body.take("stream_options");
  if (!options) return out;
  if (!out.stream) return options->error("only allowed together with \"stream\": true");
  TANDEM_TRY([[maybe_unused]] const json::Object* object, options->as_object());
  TANDEM_TRY(const auto usage, options->optional_bool("include_usage"));
  TANDEM_TRY(const auto continuous, options->optional_bool("continuous_usage_stats"));
  out.include_usage = usage.value_or(false);
  out.continuous_usage = continuous.value_or(false);
  return out;
}

// Members that would change the output and that nothing here carries out.
Status refuse_unbuilt(RequestBody& body) {
  static const RequestBody::Names kUnbuilt{"lora_path",
                                           "suffix",
                                           "input_embeds",
                                           "input_ids",
                                           "prompt_embeds",
                                           "image_data",
                                           "video_data",
                                           "audio_data",
                                           "audio",
                                           "prediction",
                                           "web_search_options",
                                           "session_params",
                                           "session_id",
                                           "return_hidden_states",
                                           "cache_salt",
                                           "extra_key",
                                           "bootstrap_host",
                                           "bootstrap_port",
                                           "bootstrap_room",
                                           "use_beam_search",
                                           "truncate_prompt_tokens"};
  TANDEM_TRY(body.refuse(kUnbuilt));
  static const RequestBody::Names kGuided{
      "guided_json", "guided_regex", "guided_choice", "guided_grammar"};
  TANDEM_TRY(body.refuse(kGuided, kNoGrammar));
  if (const auto format = body.take("response_format")) {
    TANDEM_TRY(const json::Field type, format->at("type"));
    TANDEM_TRY(const std::string_view name, type.as_string());
    if (name != "text")
      return type.mismatch("\"text\", the only one while --grammar-backend is none");
  }
  if (const auto modalities = body.take("modalities")) {
    TANDEM_TRY(const auto names, modalities->as_strings());
    for (const std::string& name : names) {
      if (name != "text") return modalities->error("only \"text\" is supported by this server");
    }
  }
  return {};
}

Status refuse_best_of(RequestBody& body, std::int32_t n) {
  TANDEM_TRY(const auto best_of, body.take_int("best_of", 1, 1 << 20));
  if (best_of && *best_of != n) {
    return invalid_argument("best_of: not supported by this server, expected n=" +
                            std::to_string(n));
  }
  return {};
}

Status read_identity(RequestBody& body, const char* prefix, OpenAiRequest* out) {
  TANDEM_TRY(const auto rid, body.take_string("rid"));
  if (rid && !is_request_name(*rid))
    return invalid_argument("rid: expected 1 to 128 characters of A-Z a-z 0-9 . _ : -");
  out->id = rid ? *rid : prefix + core::to_string(core::draw_request_id());
  return {};
}

Result<LogprobFields> read_chat_logprobs(RequestBody& body) {
  TANDEM_TRY(const auto wanted, body.take_bool("logprobs"));
  TANDEM_TRY(const auto top, body.take_int("top_logprobs", 0, kTopLogprobsMax));
  if (top && *top > 0 && !wanted.value_or(false))
    return invalid_argument("top_logprobs: only allowed together with \"logprobs\": true");
  return LogprobFields{.wanted = wanted.value_or(false),
                       .top = static_cast<std::int32_t>(top.value_or(0))};
}

Result<OpenAiRequest> read_chat(const Context& context, RequestBody& body) {
  OpenAiRequest out;
  TANDEM_TRY(read_identity(body, "chatcmpl-", &out));
  TANDEM_TRY(out.stream, read_stream(body));
  TANDEM_TRY(refuse_unbuilt(body));
  PromptPlan prompt;
  TANDEM_TRY(prompt.fields,
             read_openai_sampling(body, context.options.model, context.options.limits));
  TANDEM_TRY(refuse_best_of(body, prompt.fields.n));
  TANDEM_TRY(const LogprobFields logprobs, read_chat_logprobs(body));
  TANDEM_TRY(const std::string text, render_chat(context, body));
  // The template has written the special tokens itself.
  TANDEM_TRY(TokenizedPrompt tokenized, tokenize_prompt(context, text, false, "the rendered chat"));
  prompt.ids = std::move(tokenized.ids);
  prompt.tokenize = tokenized.time;
  prompt.return_logprob = logprobs.wanted;
  prompt.top_logprobs_num = logprobs.top;
  prompt.name = out.id;
  out.logprobs = logprobs.wanted;
  TANDEM_TRY(add_prompt(context, std::move(prompt), &out.plan));
  return out;
}

struct Prompt {
  TokenizedPrompt tokenized;
  std::string text;
};

Result<Prompt> read_one_prompt(const Context& context, const json::Field& field, bool want_text) {
  Prompt out;
  if (const std::string* text = field.value().if_string()) {
    TANDEM_TRY(out.tokenized, tokenize_prompt(context, *text, true, field.path()));
    if (want_text) out.text = *text;
    return out;
  }
  if (!field.value().is_array()) return field.mismatch("a string or an array of token ids");
  TANDEM_TRY(out.tokenized.ids, read_prompt_ids(context, field));
  if (want_text) out.text = context.tokenizer->decode(out.tokenized.ids, false);
  return out;
}

// A string, ids, or a list of either.
Result<std::vector<Prompt>> read_prompts(const Context& context,
                                         RequestBody& body,
                                         bool want_text) {
  const auto field = body.take("prompt");
  if (!field) return invalid_argument("prompt: missing, expected a string or token ids");
  const json::Array* array = field->value().if_array();
  const bool one = array == nullptr || array->empty() || array->front().is_number();
  std::vector<Prompt> prompts;
  if (one) {
    TANDEM_TRY(Prompt prompt, read_one_prompt(context, *field, want_text));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (array->size() > context.options.limits.sequences) {
    return field->error(std::to_string(array->size()) + " prompts, expected at most " +
                        std::to_string(context.options.limits.sequences));
  }
  std::size_t bytes = 0;
  for (const json::Value& item : *array)
    bytes += item.if_string() != nullptr ? item.if_string()->size() : 0;
  if (bytes > context.options.limits.prompt_bytes) {
    return field->error(std::to_string(bytes) + " bytes in all, expected at most " +
                        std::to_string(context.options.limits.prompt_bytes));
  }
  TANDEM_TRY(const auto items, field->items());
  for (const json::Field& item : items) {
    TANDEM_TRY(Prompt prompt, read_one_prompt(context, item, want_text));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

Result<OpenAiRequest> read_completion(const Context& context, RequestBody& body) {
  OpenAiRequest out;
  TANDEM_TRY(read_identity(body, "cmpl-", &out));
  TANDEM_TRY(out.stream, read_stream(body));
  TANDEM_TRY(refuse_unbuilt(body));
  TANDEM_TRY(SamplingFields fields,
             read_openai_sampling(body, context.options.model, context.options.limits));
  TANDEM_TRY(refuse_best_of(body, fields.n));
  TANDEM_TRY(const auto logprobs, body.take_int("logprobs", 0, kTopLogprobsMax));
  TANDEM_TRY(const auto echo, body.take_bool("echo"));
  out.logprobs = logprobs.has_value();
  out.echo.echo = echo.value_or(false);
  TANDEM_TRY(std::vector<Prompt> prompts, read_prompts(context, body, out.echo.echo));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    PromptPlan prompt;
    prompt.ids = std::move(prompts[i].tokenized.ids);
    prompt.tokenize = prompts[i].tokenized.time;
    prompt.fields = fields;
    prompt.default_max_new_tokens = kCompletionTokensDefault;
    prompt.return_logprob = out.logprobs;
    prompt.top_logprobs_num = static_cast<std::int32_t>(logprobs.value_or(0));
    prompt.logprob_start_len = out.echo.echo && out.logprobs ? 0 : -1;
    prompt.name = prompts.size() == 1 ? out.id : out.id + "_" + std::to_string(i);
    TANDEM_TRY(add_prompt(context, std::move(prompt), &out.plan));
    out.echo.prompt_texts.push_back(std::move(prompts[i].text));
  }
  return out;
}

using Reader = Result<OpenAiRequest> (*)(const Context&, RequestBody&);

void handle_openai(const ContextPtr& context,
                   const http::Request& request,
                   WriterPtr writer,
                   Reader read,
                   bool chat) {
  const Time started = steady_clock().now();
  const auto refuse = [&](const ApiError& error) { send_error(*writer, request, error); };
  if (const Status type = require_json(request); !type.ok()) return refuse(to_api_error(type));
  constexpr std::string_view kIdLists[] = {"prompt"};
  const auto parsed = parse_body(request.body, context->options.limits, kIdLists);
  if (!parsed.ok()) return refuse(to_api_error(parsed.status()));
  RequestBody body{json::Field(*parsed)};
  const auto model = body.take_string("model");
  if (!model.ok()) return refuse(to_api_error(model.status()));
  if (*model && !context->serves(**model)) return refuse(unknown_model(**model));
  const auto timings = body.take_bool("return_timings");
  if (!timings.ok()) return refuse(to_api_error(timings.status()));
  auto wanted = read(*context, body);
  if (!wanted.ok()) return refuse(plan_error(wanted.status()));
  wanted->plan.stream = wanted->stream.stream;
  FormatInfo info{.context = context,
                  .id = std::move(wanted->id),
                  .created = unix_seconds(),
                  .model = *model ? **model : context->options.model.served_model_name,
                  .include_usage = wanted->stream.include_usage,
                  .continuous_usage = wanted->stream.continuous_usage,
                  .logprobs = wanted->logprobs,
                  .timings = timings->value_or(false)};
  http::Headers headers = answer_headers(
      request, wanted->plan.stream ? "text/event-stream" : "application/json", body.ignored());
  if (wanted->plan.stream) headers.add("cache-control", "no-cache");
  auto format = chat ? make_chat_format(std::move(info))
                     : make_completion_format(std::move(info), std::move(wanted->echo));
  const auto job = std::make_shared<Job>(
      context, std::move(writer), std::move(headers), std::move(format), started);
  job->start(std::move(wanted->plan));
}

}  // namespace

Status require_json(const http::Request& request) {
  const auto type = request.headers.find("content-type");
  if (!type) return {};
  std::string_view name = type->substr(0, type->find(';'));
  while (!name.empty() && name.back() == ' ')
    name.remove_suffix(1);
  if (http::equals_ignoring_case(name, "application/json")) return {};
  return invalid_argument("the content-type must be application/json");
}

void handle_chat(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  handle_openai(context, request, std::move(writer), read_chat, true);
}

void handle_completion(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  handle_openai(context, request, std::move(writer), read_completion, false);
}

}  // namespace tandem::api
