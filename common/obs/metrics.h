// Counters, gauges and histograms with labels, and their Prometheus text form.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace tandem::obs {

using Labels = std::map<std::string, std::string>;

/// Handle of one series; cheap to copy; valid as long as its Metrics. Any thread.
class Counter {
 public:
  explicit Counter(prometheus::Counter* series) : series_(series) {}

  /// Negative amounts are ignored: a counter only grows.
  void add(double amount = 1.0) const;
  [[nodiscard]] double value() const;

 private:
  prometheus::Counter* series_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* series) : series_(series) {}

  void set(double value) const;
  void add(double amount) const;
  [[nodiscard]] double value() const;

 private:
  prometheus::Gauge* series_;
};

class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* series) : series_(series) {}

  void observe(double value) const;

 private:
  prometheus::Histogram* series_;
};

/// All metrics of one process. Asking for a (name, labels) that exists returns the same series.
/// A family holds at most kSeriesMax label sets; further ones share one series whose labels say
/// "other", so that no client can grow the process by naming things.
class Metrics {
 public:
  static constexpr std::size_t kSeriesMax = 1024;

  /// `constant` is put on every series (model_name, engine_type, ...).
  explicit Metrics(Labels constant = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  Counter counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  /// `bounds`: upper bounds of the buckets, ascending; +Inf is added.
  Histogram histogram(const std::string& name,
                      const std::string& help,
                      const std::vector<double>& bounds,
                      const Labels& labels = {});

  /// Called at the start of each text(): refreshes gauges that are read, not counted.
  void on_scrape(std::function<void()> refresh);

  /// Prometheus text exposition format 0.0.4. Any thread.
  [[nodiscard]] std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Buckets of SGLang's latency histograms, seconds.
const std::vector<double>& ttft_buckets();
const std::vector<double>& inter_token_buckets();
const std::vector<double>& e2e_buckets();

}  // namespace tandem::obs
