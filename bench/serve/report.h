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

/// Percentile of sorted values, linear between neighbours; 0 for none.
double percentile(const std::vector<double>& sorted, double percent);
/// "99", "99.9": the number in "p99_ttft_ms".
std::string percent_word(double percent);

/// Whether a request met every goal.
bool is_good(const Outcome& outcome, const std::vector<Goal>& goals);

/// Arguments and figures. Counts, rates and latencies are over the requests that succeeded.
json::Object make_report(const Options& options, const LoadResult& result);

/// Adds a list for each figure of single requests.
void add_details(json::Object* report, const LoadResult& result);

/// The table for people: the latencies and percentiles that `options` asks for, out of `report`.
std::string report_table(const Options& options, const json::Object& report);

}  // namespace tandem::bench
