// What is served, how it is, and a few levers.
#include "common/api/body.h"
#include "common/api/routes.h"
#include "common/base/clock.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <utility>

namespace tandem::api {

namespace {

// A worker makes progress while it idles too, so this long without any is long dead.
constexpr Duration kProgressPatience = seconds(5);

void write_card(json::Writer& writer, const Context& context) {
  const core::ServedModel& model = context.options.model;
  writer.begin_object();
  writer.key("id");
  writer.string(model.served_model_name);
  writer.key("object");
  writer.string("model");
  writer.key("created");
  writer.number(unix_seconds());
  writer.key("owned_by");
  writer.string("tandem");
  writer.key("root");
  writer.string(model.served_model_name);
  writer.key("parent");
  writer.null();
  writer.key("max_model_len");
  writer.number(model.context_length);
  writer.end_object();
}

json::Object model_members(const Context& context) {
  const core::ServedModel& model = context.options.model;
  json::Array architectures;
  for (const std::string& name : model.architectures)
    architectures.emplace_back(name);
  json::Object out;
  out.set("model_path", json::Value(model.model_path));
  out.set("served_model_name", json::Value(model.served_model_name));
  out.set("tokenizer_path", json::Value(model.tokenizer_path));
  out.set("is_generation", json::Value(true));
  out.set("preferred_sampling_params", json::Value());
  out.set("weight_version", json::Value(model.weight_version));
  out.set("disaggregation_mode", json::Value(model.disaggregation_mode));
  out.set("has_image_understanding", json::Value(false));
  out.set("has_audio_understanding", json::Value(false));
  out.set("model_type", json::Value(model.model_type));
  out.set("architectures", json::Value(std::move(architectures)));
  out.set("context_length", json::Value(model.context_length));
  out.set("vocab_size", json::Value(model.vocab_size));
  return out;
}

double token_usage(const core::Load& load) {
  if (load.total_tokens <= 0) return 0;
  return static_cast<double>(load.used_tokens) / static_cast<double>(load.total_tokens);
}

json::Object load_members(const core::Load& load, std::size_t rank) {
  json::Object out;
  out.set("dp_rank", json::Value(rank));
  out.set("num_running_reqs", json::Value(load.running_requests));
  out.set("num_waiting_reqs", json::Value(load.waiting_requests));
  out.set("num_used_tokens", json::Value(load.used_tokens));
  out.set("num_total_tokens", json::Value(load.used_tokens));
  out.set("num_cached_tokens", json::Value(load.cached_tokens));
  out.set("max_total_num_tokens", json::Value(load.total_tokens));
  out.set("token_usage", json::Value(token_usage(load)));
  out.set("gen_throughput", json::Value(load.generation_throughput));
  out.set("free_pages", json::Value(load.free_pages));
  out.set("used_pages", json::Value(load.used_pages));
  out.set("cached_pages", json::Value(load.cached_pages));
  out.set("transferring_pages", json::Value(load.transferring_pages));
  out.set("total_pages", json::Value(load.total_pages));
  out.set("progress", json::Value(load.progress));
  return out;
}

json::Array all_loads(const Context& context) {
  json::Array out;
  for (const core::Load& load : context.generator->loads())
    out.emplace_back(load_members(load, out.size()));
  return out;
}

void send_plain(http::ResponseWriter& writer,
                const http::Request& request,
                int status,
                std::string text) {
  writer.send(status, answer_headers(request, "text/plain; charset=utf-8"), std::move(text));
}

}  // namespace

void handle_models(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  std::string out;
  json::Writer json(out);
  json.begin_object();
  json.key("object");
  json.string("list");
  json.key("data");
  json.begin_array();
  write_card(json, *context);
  json.end_array();
  json.end_object();
  send_json(*writer, request, std::move(out));
}

void handle_model(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  if (!context->serves(name)) return send_error(*writer, request, unknown_model(name));
  std::string out;
  json::Writer json(out);
  write_card(json, *context);
  send_json(*writer, request, std::move(out));
}

void handle_health(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  send_plain(*writer, request, context->generator->ready().ok() ? 200 : 503, {});
}

void handle_liveness(const ContextPtr& /*context*/,
                     const http::Request& request,
                     WriterPtr writer) {
  send_plain(*writer, request, 200, {});
}

// Looks at what real work does instead of running some: a probe must not take a slot.
void handle_health_generate(const ContextPtr& context,
                            const http::Request& request,
                            WriterPtr writer) {
  const bool ready = context->generator->ready().ok();
  const bool moving =
      ready &&
      context->progress.check(context->generator->loads(), steady_clock().now(), kProgressPatience)
          .ok();
  send_plain(*writer, request, moving ? 200 : 503, {});
}

void handle_model_info(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  send_json(*writer, request, json::to_string(json::Value(model_members(*context))));
}

void handle_server_info(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  json::Object out = context->server_args;
  for (const char* name : {"model_path",
                           "served_model_name",
                           "tokenizer_path",
                           "weight_version",
                           "disaggregation_mode"}) {
    if (out.contains(name)) continue;
    out.set(name, *model_members(*context).find(name));
  }
  const core::ServedModel& model = context->options.model;
  out.set("max_req_input_len", json::Value(model.max_request_tokens));
  out.set("startup_time", json::Value(context->options.startup_seconds));
  out.set("version", json::Value(context->options.version));
  out.set("engine_type", json::Value(context->options.engine_type));
  std::int64_t total = 0;
  for (const core::Load& load : context->generator->loads())
    total += load.total_tokens;
  out.set("max_total_num_tokens", json::Value(total));
  for (auto& [name, text] : context->generator->server_info()) {
    auto parsed = json::parse(text);
    out.set(name, parsed.ok() ? std::move(parsed).value() : json::Value(text));
  }
  out.set("internal_states", json::Value(all_loads(*context)));
  send_json(*writer, request, json::to_string(json::Value(std::move(out))));
}

void handle_get_load(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  json::Array out;
  for (const core::Load& load : context->generator->loads()) {
    json::Object entry;
    entry.set("dp_rank", json::Value(out.size()));
    entry.set("num_reqs", json::Value(load.running_requests + load.waiting_requests));
    entry.set("num_waiting_reqs", json::Value(load.waiting_requests));
    entry.set("num_tokens", json::Value(load.used_tokens));
    out.emplace_back(std::move(entry));
  }
  send_json(*writer, request, json::to_string(json::Value(std::move(out))));
}

void handle_loads(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  json::Array loads = all_loads(*context);
  if (const auto rank = http::query_value(request.query, "dp_rank")) {
    json::Array one;
    for (const json::Value& load : loads) {
      if (json::to_string(*load.find("dp_rank")) == *rank) one.push_back(load);
    }
    if (one.empty())
      return send_error(
          *writer, request, bad_request("dp_rank: there is no such rank here", "dp_rank"));
    loads = std::move(one);
  }
  json::Object out;
  out.set("timestamp", json::Value(unix_seconds_exact()));
  out.set("version", json::Value(context->options.version));
  out.set("loads", json::Value(std::move(loads)));
  send_json(*writer, request, json::to_string(json::Value(std::move(out))));
}

void handle_flush_cache(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  http::Headers headers = answer_headers(request, "text/plain; charset=utf-8");
  context->generator->flush_cache([writer = std::move(writer), headers](const Status& status) {
    if (status.ok()) {
      writer->send(200, headers, "Cache flushed.\n");
    } else {
      const ApiError error = to_api_error(status);
      writer->send(error.status, error_headers(error), error_body(error));
    }
  });
}

void handle_abort(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  const auto refuse = [&](const Status& status) {
    send_error(*writer, request, to_api_error(status));
  };
  const auto parsed = parse_body(request.body, context->options.limits);
  if (!parsed.ok()) return refuse(parsed.status());
  RequestBody body{json::Field(*parsed)};
  const auto all = body.take_bool("abort_all");
  if (!all.ok()) return refuse(all.status());
  const auto rid = body.take_string("rid");
  if (!rid.ok()) return refuse(rid.status());
  if (all->value_or(false)) {
    context->generator->abort_all();
  } else {
    if (!*rid || !is_request_name(**rid)) {
      return refuse(invalid_argument(
          "rid: expected 1 to 128 characters of A-Z a-z 0-9 . _ : -, or \"abort_all\": true"));
    }
    for (const core::RequestId id : context->registry.find(**rid))
      context->generator->abort(id);
  }
  writer->send(200, answer_headers(request, "text/plain; charset=utf-8", body.ignored()), {});
}

void handle_metrics(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  writer->send(200,
               answer_headers(request, "text/plain; version=0.0.4; charset=utf-8"),
               context->metrics->text());
}

void handle_root(const ContextPtr& context, const http::Request& request, WriterPtr writer) {
  send_plain(*writer,
             request,
             200,
             "Tandem " + context->options.version + " serves " +
                 context->options.model.served_model_name + ".\n");
}

}  // namespace tandem::api
