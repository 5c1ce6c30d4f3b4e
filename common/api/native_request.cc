// /generate: from the body to a Job.
#include "common/api/body.h"
#include "common/api/job.h"
#include "common/api/routes.h"
#include "common/base/clock.h"

#include <set>
#include <string_view>
#include <utility>

namespace tandem::api {

namespace {

constexpr std::int32_t kNewTokensDefault = 128;

struct NativeRequest {
  Plan plan;
  bool timings = false;
  NativeShape shape;
};

struct NativePrompts {
  std::vector<TokenizedPrompt> all;
  bool batch = false;
};

Status refuse_unbuilt(RequestBody& body) {
  static const RequestBody::Names kUnbuilt{"input_embeds",
                                           "image_data",
                                           "video_data",
                                           "audio_data",
                                           "token_ids_logprob",
                                           "return_hidden_states",
                                           "return_routed_experts",
                                           "return_entropy",
                                           "return_bytes",
                                           "background",
                                           "lora_path",
                                           "lora_id",
                                           "session_params",
                                           "session_id",
                                           "custom_logit_processor",
                                           "max_thinking_tokens",
                                           "require_reasoning",
                                           "cache_salt",
                                           "extra_key",
                                           "bootstrap_host",
                                           "bootstrap_port",
                                           "bootstrap_room",
                                           "bootstrap_pair_key"};
  return body.refuse(kUnbuilt);
}

Result<TokenizedPrompt> read_text(const Context& context, const json::Field& field) {
  TANDEM_TRY(const std::string_view text, field.as_string());
  return tokenize_prompt(context, text, true, field.path());
}

Result<TokenizedPrompt> read_ids(const Context& context, const json::Field& field) {
  TokenizedPrompt out;
  TANDEM_TRY(out.ids, read_prompt_ids(context, field));
  return out;
}

Status read_batch(const Context& context,
                  const json::Field& field,
                  bool texts,
                  NativePrompts* out) {
  out->batch = true;
  TANDEM_TRY(const auto items, field.items());
  if (items.size() > context.options.limits.sequences) {
    return field.error(std::to_string(items.size()) + " prompts, expected at most " +
                       std::to_string(context.options.limits.sequences));
  }
  for (const json::Field& item : items) {
    TANDEM_TRY(auto prompt, texts ? read_text(context, item) : read_ids(context, item));
    out->all.push_back(std::move(prompt));
  }
  return {};
}

Result<NativePrompts> read_prompts(const Context& context, RequestBody& body) {
  const auto text = body.take("text");
  const auto ids = body.take("input_ids");
  if (text.has_value() == ids.has_value())
    return invalid_argument("text: expected exactly one of text and input_ids");
  NativePrompts out;
  const json::Field& field = text ? *text : *ids;
  const json::Array* array = field.value().if_array();
  if (array != nullptr && array->empty())
    return field.error("empty, expected at least one " + std::string(text ? "text" : "token id"));
  const bool batch = array != nullptr && (text || array->front().is_array());
  if (batch) {
    TANDEM_TRY(read_batch(context, field, text.has_value(), &out));
    return out;
  }
  TANDEM_TRY(auto one, text ? read_text(context, field) : read_ids(context, field));
  out.all.push_back(std::move(one));
  return out;
}

// Element `index` of a member that is one value for all prompts or a list with one for each.
Result<std::optional<json::Field>> pick(RequestBody& body,
                                        std::string_view name,
                                        std::size_t index,
                                        std::size_t count) {
  const auto field = body.take(name);
  if (!field || !field->value().is_array()) return field;
  TANDEM_TRY(const auto items, field->items());
  if (items.size() != count) {
    return field->error(std::to_string(items.size()) + " entries, expected one for each of the " +
                        std::to_string(count) + " prompts");
  }
  if (items[index].is_null()) return std::optional<json::Field>();
  return std::optional<json::Field>(items[index]);
}

Status read_logprobs(const Context& context,
                     RequestBody& body,
                     std::size_t index,
                     std::size_t count,
                     PromptPlan* prompt) {
  TANDEM_TRY(const auto wanted, pick(body, "return_logprob", index, count));
  TANDEM_TRY(const auto start, pick(body, "logprob_start_len", index, count));
  TANDEM_TRY(const auto top, pick(body, "top_logprobs_num", index, count));
  if (wanted) {
    TANDEM_TRY(prompt->return_logprob, wanted->as_bool());
  }
  if (start) {
    TANDEM_TRY(const std::int64_t value, start->as_int(-1, 1 << 30));
    prompt->logprob_start_len = static_cast<std::int32_t>(value);
  }
  if (top) {
    TANDEM_TRY(const std::int64_t value,
               top->as_int(0, context.options.limits.top_logprobs_native));
    prompt->top_logprobs_num = static_cast<std::int32_t>(value);
  }
  if (!prompt->return_logprob) {
    prompt->logprob_start_len = -1;
    prompt->top_logprobs_num = 0;
  }
  return {};
}

Status read_name(RequestBody& body, std::size_t index, std::size_t count, PromptPlan* prompt) {
  TANDEM_TRY(const auto rid, pick(body, "rid", index, count));
  if (!rid) return {};
  TANDEM_TRY(const std::string_view name, rid->as_string());
  if (!is_request_name(name))
    return rid->error("expected 1 to 128 characters of A-Z a-z 0-9 . _ : -");
  const bool shared = count > 1 && !body.root().find("rid")->value().is_array();
  prompt->name = std::string(name) + (shared ? "_" + std::to_string(index) : "");
  return {};
}

/// As SGLang refuses them. Equal names of requests that run at the same time are nobody's fault: a
/// retry may overtake the end of what it repeats.
Status refuse_equal_names(const Plan& plan) {
  if (plan.sequences.size() == 1) return {};
  std::set<std::string_view> names;
  for (const SequencePlan& sequence : plan.sequences) {
    if (!names.insert(sequence.name).second) {
      return invalid_argument("rid: \"" + sequence.name +
                              "\" names two outputs of this request, expected one name for each");
    }
  }
  return {};
}

Status read_sampling(const Context& context,
                     RequestBody& body,
                     std::size_t index,
                     std::size_t count,
                     Plan* plan,
                     PromptPlan* prompt) {
  const auto whole = body.take("sampling_params");
  const json::Value none{json::Object()};
  TANDEM_TRY(const auto field, pick(body, "sampling_params", index, count));
  RequestBody members(field ? *field : json::Field(none, "sampling_params"));
  TANDEM_TRY([[maybe_unused]] const json::Object* object, members.root().as_object());
  TANDEM_TRY(prompt->fields,
             read_native_sampling(members, context.options.model, context.options.limits));
  if (index == 0) {
    for (const std::string& name : members.ignored())
      plan->ignored.push_back("sampling_params." + name);
  }
  return {};
}

Result<NativeRequest> read_generate(const Context& context, RequestBody& body) {
  NativeRequest out;
  TANDEM_TRY(refuse_unbuilt(body));
  TANDEM_TRY(const auto stream, body.take_bool("stream"));
  TANDEM_TRY(const auto text_in_logprobs, body.take_bool("return_text_in_logprobs"));
  TANDEM_TRY(const auto timings, body.take_bool("return_timings"));
  TANDEM_TRY(NativePrompts prompts, read_prompts(context, body));
  out.timings = timings.value_or(false);
  out.plan.stream = stream.value_or(false);
  out.shape.text_in_logprobs = text_in_logprobs.value_or(false);
  const std::size_t count = prompts.all.size();
  for (std::size_t i = 0; i < count; ++i) {
    PromptPlan prompt;
    prompt.ids = std::move(prompts.all[i].ids);
    prompt.tokenize = prompts.all[i].time;
    prompt.default_max_new_tokens = kNewTokensDefault;
    TANDEM_TRY(read_sampling(context, body, i, count, &out.plan, &prompt));
    TANDEM_TRY(read_logprobs(context, body, i, count, &prompt));
    TANDEM_TRY(read_name(body, i, count, &prompt));
    out.shape.return_logprob |= prompt.return_logprob;
    out.shape.top_logprobs |= prompt.top_logprobs_num > 0;
    TANDEM_TRY(add_prompt(context, std::move(prompt), &out.plan));
  }
  TANDEM_TRY(refuse_equal_names(out.plan));
  out.shape.is_list = prompts.batch || out.plan.sequences.size() > 1;
  return out;
}

}  // namespace

void handle_generate(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  const Time started = steady_clock().now();
  const auto refuse = [&](const ApiError& error) { send_error(*writer, request, error); };
  constexpr std::string_view kIdLists[] = {"input_ids"};
  const auto parsed = parse_body(request.body, context->options.limits, kIdLists);
  if (!parsed.ok()) return refuse(to_api_error(parsed.status()));
  RequestBody body{json::Field(*parsed)};
  auto wanted = read_generate(*context, body);
  if (!wanted.ok()) return refuse(plan_error(wanted.status()));
  std::vector<std::string> ignored = body.ignored();
  ignored.insert(ignored.end(), wanted->plan.ignored.begin(), wanted->plan.ignored.end());
  http::Headers headers = answer_headers(
      request, wanted->plan.stream ? "text/event-stream" : "application/json", ignored);
  if (wanted->plan.stream) headers.add("cache-control", "no-cache");
  FormatInfo info;
  info.context = context;
  info.timings = wanted->timings;
  const auto job =
      std::make_shared<Job>(context,
                            std::move(writer),
                            std::move(headers),
                            make_native_format(std::move(info), wanted->shape, started),
                            started);
  job->start(std::move(wanted->plan));
}

}  // namespace tandem::api
