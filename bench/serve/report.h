// The figures of a run, under the names that bench_serving gives them.
#pragma once

#include "bench/serve/load.h"
#include "bench/serve/options.h"
#include "common/json/value.h"

#include <string>
#include <vector>

namespace tandem::bench {

/// Mean, median, standard deviation (of the whole population) and percentiles (linear between
/// neighbours, as numpy). All 0 for no values.
struct Summary {
  double mean = 0;
  double median = 0;
  double deviation = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

Summary summarize(std::vector<double> values);

/// Whether a request met every goal.
bool is_good(const Outcome& outcome, const std::vector<Goal>& goals);

/// Arguments and figures. Counts, rates and latencies are over the requests that succeeded.
json::Object make_report(const Options& options, const LoadResult& result);

/// The table for people.
std::string report_table(const json::Object& report);

}  // namespace tandem::bench
