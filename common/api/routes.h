// The handlers behind the routes. Each takes over the request and answers once. Private to room
// api.
#pragma once

#include "common/api/context.h"
#include "common/http/server.h"

#include <memory>

namespace tandem::api {

using ContextPtr = std::shared_ptr<Context>;
using WriterPtr = std::shared_ptr<http::ResponseWriter>;

// Generation.
void handle_chat(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_completion(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_generate(const ContextPtr& context, const http::Request& request, WriterPtr writer);

// Text.
void handle_tokenize(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_detokenize(const ContextPtr& context, const http::Request& request, WriterPtr writer);

// What is served, how it is, and a few levers.
void handle_models(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_model(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_health(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_liveness(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_health_generate(const ContextPtr& context,
                            const http::Request& request,
                            WriterPtr writer);
void handle_model_info(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_server_info(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_get_load(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_loads(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_flush_cache(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_abort(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_metrics(const ContextPtr& context, const http::Request& request, WriterPtr writer);
void handle_root(const ContextPtr& context, const http::Request& request, WriterPtr writer);

/// OpenAI's routes take application/json only (parameters after ';' are fine, absence too).
Status require_json(const http::Request& request);

/// Text of a chat prompt, from the members messages, chat_template_kwargs, add_generation_prompt,
/// continue_final_message, tools, tool_choice and reasoning_effort.
class RequestBody;
Result<std::string> render_chat(const Context& context, RequestBody& body);

}  // namespace tandem::api
