#include "common/api/metrics.h"

#include <algorithm>
#include <utility>

namespace tandem::api {

struct ServingMetrics::Series {
  Series(obs::Metrics& metrics, const obs::Labels& labels)
      : requests(metrics.counter("sglang:num_requests_total", "Requests accepted.", labels)),
        prompt(metrics.counter("sglang:prompt_tokens_total", "Prompt tokens accepted.", labels)),
        generated(metrics.counter("sglang:generation_tokens_total", "Tokens generated.", labels)),
        first(metrics.histogram("sglang:time_to_first_token_seconds",
                                "From the request to its first token.",
                                obs::ttft_buckets(),
                                labels)),
        whole(metrics.histogram("sglang:e2e_request_latency_seconds",
                                "From the request to its last token.",
                                obs::e2e_buckets(),
                                labels)) {}

  obs::Counter requests;
  obs::Counter prompt;
  obs::Counter generated;
  obs::Histogram first;
  obs::Histogram whole;
};

namespace {

obs::Labels base_labels(const core::ServedModel& model, const std::string& engine_type) {
  return {{"model_name", model.served_model_name}, {"engine_type", engine_type}};
}

obs::Labels with(obs::Labels labels, const char* name, const char* value) {
  labels[name] = value;
  return labels;
}

// Sums over workers; ratios are of the sums.
struct LoadGauges {
  LoadGauges(obs::Metrics& metrics, const obs::Labels& labels)
      : running(metrics.gauge("sglang:num_running_reqs", "Requests running.", labels)),
        queued(metrics.gauge("sglang:num_queue_reqs", "Requests waiting.", labels)),
        used(metrics.gauge("sglang:num_used_tokens", "Tokens held by requests.", labels)),
        usage(metrics.gauge("sglang:token_usage", "Used share of the KV pool.", labels)),
        total(metrics.gauge("sglang:max_total_num_tokens", "Tokens of the KV pool.", labels)),
        evictable(metrics.gauge(
            "sglang:kv_evictable_tokens", "Tokens held by the prefix cache alone.", labels)),
        available(metrics.gauge("sglang:kv_available_tokens", "Tokens held by nobody.", labels)),
        throughput(metrics.gauge("sglang:gen_throughput", "Generated tokens per second.", labels)),
        hit_rate(metrics.gauge("sglang:cache_hit_rate",
                               "Share of prompt tokens served from a prefix cache since start.",
                               labels)),
        transferring(metrics.gauge(
            "tandem_kv_transferring_pages", "Pages promised to or held for a transfer.", labels)) {}

  void update(const std::vector<core::Load>& loads) const {
    core::Load sum;
    for (const core::Load& load : loads) {
      sum.running_requests += load.running_requests;
      sum.waiting_requests += load.waiting_requests;
      sum.used_tokens += load.used_tokens;
      sum.cached_tokens += load.cached_tokens;
      sum.total_tokens += load.total_tokens;
      sum.transferring_pages += load.transferring_pages;
      sum.generation_throughput += load.generation_throughput;
    }
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    running.set(number(sum.running_requests));
    queued.set(number(sum.waiting_requests));
    used.set(number(sum.used_tokens));
    usage.set(sum.total_tokens > 0 ? number(sum.used_tokens) / number(sum.total_tokens) : 0.0);
    total.set(number(sum.total_tokens));
    evictable.set(number(sum.cached_tokens));
    available.set(
        number(std::max<std::int64_t>(sum.total_tokens - sum.used_tokens - sum.cached_tokens, 0)));
    throughput.set(sum.generation_throughput);
    transferring.set(number(sum.transferring_pages));
  }

  obs::Gauge running;
  obs::Gauge queued;
  obs::Gauge used;
  obs::Gauge usage;
  obs::Gauge total;
  obs::Gauge evictable;
  obs::Gauge available;
  obs::Gauge throughput;
  obs::Gauge hit_rate;
  obs::Gauge transferring;
};

class CountingWriter final : public http::ResponseWriter {
 public:
  CountingWriter(std::shared_ptr<http::ResponseWriter> inner,
                 std::shared_ptr<obs::Metrics> metrics,
                 std::string endpoint,
                 std::string method)
      : inner_(std::move(inner)),
        metrics_(std::move(metrics)),
        endpoint_(std::move(endpoint)),
        method_(std::move(method)) {
    metrics_
        ->counter("sglang:http_requests_total",
                  "HTTP requests.",
                  {{"endpoint", endpoint_}, {"method", method_}})
        .add();
  }

  void send(int status, http::Headers headers, std::string body) override {
    count(status);
    inner_->send(status, std::move(headers), std::move(body));
  }

  void start_stream(int status, http::Headers headers) override {
    count(status);
    inner_->start_stream(status, std::move(headers));
  }

  bool write(std::string_view bytes) override { return inner_->write(bytes); }

  void on_drained(std::function<void()> callback) override {
    inner_->on_drained(std::move(callback));
  }

  void end(std::string_view last) override { inner_->end(last); }

  void fail(std::string_view last) override { inner_->fail(last); }

  void on_disconnect(std::function<void()> callback) override {
    inner_->on_disconnect(std::move(callback));
  }

  void post(std::function<void()> task) override { inner_->post(std::move(task)); }

  [[nodiscard]] bool is_on_strand() const override { return inner_->is_on_strand(); }

 private:
  void count(int status) const {
    metrics_
        ->counter(
            "sglang:http_responses_total",
            "HTTP responses.",
            {{"endpoint", endpoint_}, {"method", method_}, {"status_code", std::to_string(status)}})
        .add();
  }

  std::shared_ptr<http::ResponseWriter> inner_;
  std::shared_ptr<obs::Metrics> metrics_;
  std::string endpoint_;
  std::string method_;
};

}  // namespace

ServingMetrics::ServingMetrics(const std::shared_ptr<obs::Metrics>& metrics,
                               const std::shared_ptr<core::Generator>& generator,
                               const core::ServedModel& model,
                               const std::string& engine_type)
    : metrics_(metrics),
      plain_(std::make_shared<Series>(
          *metrics, with(base_labels(model, engine_type), "is_streaming", "false"))),
      streaming_(std::make_shared<Series>(
          *metrics, with(base_labels(model, engine_type), "is_streaming", "true"))),
      cached_(metrics->counter("sglang:cached_tokens_total",
                               "Prompt tokens served from a prefix cache.",
                               with(base_labels(model, engine_type), "cache_source", "total"))),
      aborted_(metrics->counter("sglang:num_aborted_requests_total",
                                "Requests that ended early.",
                                base_labels(model, engine_type))),
      retracted_(metrics->counter("sglang:num_retracted_requests_total",
                                  "Times that a running request was put back into the queue.",
                                  base_labels(model, engine_type))),
      inter_token_(metrics->histogram("sglang:inter_token_latency_seconds",
                                      "Between one token and the next.",
                                      obs::inter_token_buckets(),
                                      base_labels(model, engine_type))) {
  const auto gauges = std::make_shared<LoadGauges>(*metrics, base_labels(model, engine_type));
  // The registry may outlive the generator, which the programs tear down first.
  metrics->on_scrape([gauges,
                      weak = std::weak_ptr<core::Generator>(generator),
                      plain = plain_,
                      streaming = streaming_,
                      cached = cached_] {
    if (const auto alive = weak.lock()) gauges->update(alive->loads());
    const double prompt = plain->prompt.value() + streaming->prompt.value();
    gauges->hit_rate.set(prompt > 0 ? cached.value() / prompt : 0.0);
  });
}

const ServingMetrics::Series& ServingMetrics::series(bool stream) const {
  return stream ? *streaming_ : *plain_;
}

void ServingMetrics::on_request(bool stream, std::int64_t prompt_tokens) const {
  series(stream).requests.add();
  series(stream).prompt.add(static_cast<double>(prompt_tokens));
}

void ServingMetrics::on_tokens(bool stream,
                               std::int64_t tokens,
                               std::int64_t cached_tokens,
                               Time started,
                               std::optional<Time> last,
                               Time now) const {
  series(stream).generated.add(static_cast<double>(tokens));
  if (last) {
    if (tokens > 0) inter_token_.observe((now - *last).seconds() / static_cast<double>(tokens));
    return;
  }
  series(stream).first.observe((now - started).seconds());
  cached_.add(static_cast<double>(cached_tokens));
}

void ServingMetrics::on_finish(bool stream,
                               Duration since_start,
                               bool aborted,
                               std::int64_t retractions) const {
  series(stream).whole.observe(since_start.seconds());
  if (aborted) aborted_.add();
  if (retractions > 0) retracted_.add(static_cast<double>(retractions));
}

std::shared_ptr<http::ResponseWriter> ServingMetrics::counted(
    std::shared_ptr<http::ResponseWriter> writer,
    const std::string& endpoint,
    const std::string& method) const {
  return std::make_shared<CountingWriter>(std::move(writer), metrics_, endpoint, method);
}

}  // namespace tandem::api
