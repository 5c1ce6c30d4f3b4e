// Sends the requests of a run over kept-alive connections and times the answers.
#pragma once

#include "bench/serve/answer.h"
#include "bench/serve/options.h"
#include "common/base/status.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem::bench {

struct LoadResult {
  std::vector<Outcome> outcomes;  ///< in the order of the bodies
  double duration_s = 0;          ///< from the first request to the last answer
  /// Tokens of the answers' text, counted anew with --tokenizer.
  std::optional<std::int64_t> retokenized;
  /// Tokens to a step of speculative decoding, where the server tells.
  std::optional<double> accept_length;
};

/// One thread, the caller's; blocks until every request has an outcome. Request i is sent when
/// `due_s[i]` has come and fewer than max_concurrency are under way; its clock starts then. Errors:
/// the name cannot be resolved. What goes wrong with a request is in its outcome.
Result<LoadResult> run_load(const Options& options,
                            const std::vector<std::string>& bodies,
                            const std::vector<double>& due_s);

}  // namespace tandem::bench
