#include "common/serve/request_log.h"

#include "common/base/clock.h"
#include "common/obs/log.h"

#include <string>
#include <utility>

namespace tandem::serve {
namespace {

/// What the last line says of one request.
struct Seen {
  std::string id;
  std::string name;
  Time began;
  std::int64_t tokens = 0;
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

void log_end(const Seen& seen, const core::TokenEvent& event) {
  obs::info("request_finished",
            {{"request", seen.id},
             {"name", seen.name},
             {"finish", outcome(*event.finish)},
             {"reason", event.finish->status.message()},
             {"prompt_tokens", event.prompt_tokens},
             {"cached_tokens", event.cached_tokens},
             {"completion_tokens", seen.tokens},
             {"ms", (steady_clock().now() - seen.began).milliseconds()}});
}

class RequestLog final : public core::Generator {
 public:
  explicit RequestLog(std::shared_ptr<core::Generator> inner) : inner_(std::move(inner)) {}

  Status submit(core::Request request, core::EventSink sink) override {
    auto seen = std::make_shared<Seen>(
        Seen{core::to_string(request.id), request.client_id, steady_clock().now()});
    obs::info("request_received",
              {{"request", seen->id},
               {"name", seen->name},
               {"prompt_tokens", request.input_ids.size()},
               {"max_new_tokens", request.sampling.max_new_tokens}});
    Status status = inner_->submit(std::move(request),
                                   [seen, sink = std::move(sink)](core::TokenEvent&& event) {
                                     seen->tokens += static_cast<std::int64_t>(event.tokens.size());
                                     if (event.finish) log_end(*seen, event);
                                     sink(std::move(event));
                                   });
    if (!status.ok()) {
      obs::info("request_finished",
                {{"request", seen->id},
                 {"name", seen->name},
                 {"finish", "refused"},
                 {"reason", status.message()}});
    }
    return status;
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

std::shared_ptr<core::Generator> with_request_log(std::shared_ptr<core::Generator> inner) {
  return std::make_shared<RequestLog>(std::move(inner));
}

}  // namespace tandem::serve
