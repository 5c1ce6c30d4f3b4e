// The figures of the front door, under SGLang's names.
#pragma once

#include "common/base/ids.h"
#include "common/core/generator.h"
#include "common/http/server.h"
#include "common/obs/metrics.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tandem::api {

/// Any thread.
class ServingMetrics {
 public:
  /// Registers everything; gauges are read from `generator` at each scrape.
  ServingMetrics(const std::shared_ptr<obs::Metrics>& metrics,
                 const std::shared_ptr<core::Generator>& generator,
                 const core::ServedModel& model,
                 const std::string& engine_type);

  void on_request(bool stream, std::int64_t prompt_tokens) const;
  /// `tokens` came at `now`, the ones before them at `last`; without it they are the first ones of
  /// a request that began at `started`, and their latency is the time to the first token alone.
  void on_tokens(bool stream,
                 std::int64_t tokens,
                 std::int64_t cached_tokens,
                 Time started,
                 std::optional<Time> last,
                 Time now) const;
  void on_finish(bool stream, Duration since_start, bool aborted, std::int64_t retractions) const;

  /// A writer that counts the request and the status of its answer.
  std::shared_ptr<http::ResponseWriter> counted(std::shared_ptr<http::ResponseWriter> writer,
                                                const std::string& endpoint,
                                                const std::string& method) const;

 private:
  struct Series;

  [[nodiscard]] const Series& series(bool stream) const;

  std::shared_ptr<obs::Metrics> metrics_;
  std::shared_ptr<Series> plain_;
  std::shared_ptr<Series> streaming_;
  obs::Counter cached_;
  obs::Counter aborted_;
  obs::Counter retracted_;
  obs::Histogram inter_token_;
};

}  // namespace tandem::api
