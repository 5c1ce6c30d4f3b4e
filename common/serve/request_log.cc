#include "common/serve/request_log.h"

#include "common/base/clock.h"
#include "common/obs/log.h"

#include <string>
#include <utility>

namespace tandem::serve {
namespace {

/// What the last line says of one request. That line is written once, at the latest when nobody can
/// send events for the request any more.
struct Seen {
  Seen(const core::Request& request, Time now)
      : id(core::to_string(request.id)), name(request.client_id), began(now) {}

  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;

  ~Seen() {
    if (!ended) end("handed_on", "");
  }

  void end(std::string_view finish, std::string_view reason) {
    ended = true;
    obs::info("request_finished",
              {{"request", id},
               {"name", name},
               {"finish", finish},
               {"reason", reason},
               {"prompt_tokens", prompt_tokens},
               {"cached_tokens", cached_tokens},
               {"completion_tokens", tokens},
               {"ms", (steady_clock().now() - began).milliseconds()}});
  }

  std::string id;
  std::string name;
  Time began;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t tokens = 0;
  bool ended = false;
};

std::string_view outcome(const core::FinishReason& finish) {
  switch (finish.kind) {
    case core::FinishKind::kStop:
      return "stop";
    case core::FinishKind::kLength:
      return "length";
    case core::FinishKind::kAbort:
      break;
  }
  return "abort";
}

std::shared_ptr<Seen> log_start(const core::Request& request) {
  auto seen = std::make_shared<Seen>(request, steady_clock().now());
  obs::info("request_received",
            {{"request", seen->id},
             {"name", seen->name},
             {"prompt_tokens", request.input_ids.size()},
             {"max_new_tokens", request.sampling.max_new_tokens}});
  return seen;
}

core::EventSink counted(const std::shared_ptr<Seen>& seen, core::EventSink sink) {
  return [seen, sink = std::move(sink)](core::TokenEvent&& event) {
    seen->tokens += static_cast<std::int64_t>(event.tokens.size());
    seen->prompt_tokens = event.prompt_tokens;
    seen->cached_tokens = event.cached_tokens;
    if (event.finish && !seen->ended)
      seen->end(outcome(*event.finish), event.finish->status.message());
    sink(std::move(event));
  };
}

class RequestLog final : public core::Generator {
 public:
  explicit RequestLog(std::shared_ptr<core::Generator> inner) : inner_(std::move(inner)) {}

  Status submit(core::Request request, core::EventSink sink) override {
    return submit_logged(request, std::move(sink), [&](core::EventSink logged) {
      return inner_->submit(std::move(request), std::move(logged));
    });
  }

  void abort(core::RequestId id) override { inner_->abort(id); }

  void abort_all() override { inner_->abort_all(); }

  void flush_cache(std::function<void(Status)> done) override {
    inner_->flush_cache(std::move(done));
  }

  [[nodiscard]] std::vector<core::Load> loads() const override { return inner_->loads(); }

  [[nodiscard]] Status ready() const override { return inner_->ready(); }

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> server_info() const override {
    return inner_->server_info();
  }

 private:
  std::shared_ptr<core::Generator> inner_;
};

}  // namespace

Status submit_logged(const core::Request& request,
                     core::EventSink sink,
                     const std::function<Status(core::EventSink)>& submit) {
  const auto seen = log_start(request);
  Status status = submit(counted(seen, std::move(sink)));
  if (!status.ok() && !seen->ended) seen->end("refused", status.message());
  return status;
}

std::shared_ptr<core::Generator> with_request_log(std::shared_ptr<core::Generator> inner) {
  return std::make_shared<RequestLog>(std::move(inner));
}

}  // namespace tandem::serve
