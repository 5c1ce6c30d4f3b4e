// What the requests of a run ask for: lengths and prompts, from a seed or from a file.
#pragma once

#include "bench/serve/options.h"
#include "common/base/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::bench {

struct Prompt {
  /// One of the two is set.
  std::string text;
  std::vector<std::int32_t> ids;
  std::int64_t output_len = 0;  ///< tokens to generate
};

/// `vocab_size`: random ids are drawn below it. Random prompts are ids where the API takes them,
/// else words (about a token each). The same seed gives the same prompts. Errors: a file that is
/// not there or holds no usable conversation.
Result<std::vector<Prompt>> make_prompts(const Options& options, std::int32_t vocab_size);

/// Body of one request, JSON.
std::string request_body(const Options& options, const Prompt& prompt);

/// Seconds from the start of the run at which each request is due, all 0 for an infinite rate. The
/// gaps are gamma-distributed with shape `burstiness` and mean 1 / rate; 1 is Poisson.
std::vector<double> arrival_times(const Options& options, std::size_t count);

}  // namespace tandem::bench
