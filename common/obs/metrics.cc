#include "common/obs/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>
#include <set>
#include <utility>

namespace tandem::obs {

struct Metrics::State {
  Labels constant;
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Merge};
  // Guards `seen` and `refreshers`; the registry has its own lock.
  mutable std::mutex mutex;
  std::map<std::string, std::set<Labels>> seen;
  std::vector<std::function<void()>> refreshers;

  // The labels to use: those asked for, or "other" when the family is full.
  Labels admit(const std::string& name, const Labels& labels) {
    const std::lock_guard lock(mutex);
    std::set<Labels>& family = seen[name];
    if (family.contains(labels)) return labels;
    if (family.size() < kSeriesMax) {
      family.insert(labels);
      return labels;
    }
    Labels other = labels;
    for (auto& [key, value] : other)
      value = "other";
    return other;
  }
};

Metrics::Metrics(Labels constant) : state_(std::make_unique<State>()) {
  state_->constant = std::move(constant);
}

Metrics::~Metrics() = default;

Counter Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  auto& family = prometheus::BuildCounter()
                     .Name(name)
                     .Help(help)
                     .Labels(state_->constant)
                     .Register(state_->registry);
  return Counter(&family.Add(state_->admit(name, labels)));
}

Gauge Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  auto& family = prometheus::BuildGauge()
                     .Name(name)
                     .Help(help)
                     .Labels(state_->constant)
                     .Register(state_->registry);
  return Gauge(&family.Add(state_->admit(name, labels)));
}

Histogram Metrics::histogram(const std::string& name,
                             const std::string& help,
                             const std::vector<double>& bounds,
                             const Labels& labels) {
  auto& family = prometheus::BuildHistogram()
                     .Name(name)
                     .Help(help)
                     .Labels(state_->constant)
                     .Register(state_->registry);
  return Histogram(&family.Add(state_->admit(name, labels), bounds));
}

void Metrics::on_scrape(std::function<void()> refresh) {
  const std::lock_guard lock(state_->mutex);
  state_->refreshers.push_back(std::move(refresh));
}

std::string Metrics::text() const {
  std::vector<std::function<void()>> refreshers;
  {
    const std::lock_guard lock(state_->mutex);
    refreshers = state_->refreshers;
  }
  for (const auto& refresh : refreshers)
    refresh();
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

void Counter::add(double amount) const {
  series_->Increment(amount);
}

double Counter::value() const {
  return series_->Value();
}

void Gauge::set(double value) const {
  series_->Set(value);
}

void Gauge::add(double amount) const {
  series_->Increment(amount);
}

double Gauge::value() const {
  return series_->Value();
}

void Histogram::observe(double value) const {
  series_->Observe(value);
}

const std::vector<double>& ttft_buckets() {
  static const std::vector<double> kBounds{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4,
                                           0.6,   0.8,   1,    2,     4,    6,   8,   10,
                                           20,    40,    60,   80,    100,  200, 400};
  return kBounds;
}

const std::vector<double>& inter_token_buckets() {
  static const std::vector<double> kBounds{
      0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04,
      0.06,   0.08,  0.1,   0.2,   0.4,   0.6,   0.8,  1,     2,    4,     6,    8};
  return kBounds;
}

const std::vector<double>& e2e_buckets() {
  static const std::vector<double> kBounds{0.01, 0.05, 0.1, 0.2, 0.4, 0.6,  0.8,  1,
                                           2,    4,    6,   8,   10,  20,   40,   60,
                                           80,   100,  200, 400, 600, 1200, 1800, 2400};
  return kBounds;
}

}  // namespace tandem::obs
