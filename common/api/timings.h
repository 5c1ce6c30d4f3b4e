// Timings: where the time of a request went, for clients that send "return_timings": true.
#pragma once

#include "common/base/ids.h"
#include "common/core/request.h"
#include "common/json/write.h"

namespace tandem::api {

/// What is known of one sequence; unknown parts are negative.
struct SequenceTimings {
  core::Timings worker;      ///< as the workers report it
  Duration tokenize{-1};     ///< the prompt's text to ids; negative when ids were sent
  Duration first_token{-1};  ///< from the complete request to its first token
  /// Tokens after those of the first event, over the time from that event to the last one.
  double decode_tokens_per_second = -1;

  /// Takes the parts that a worker's report knows.
  void merge(const core::Timings& report);

  /// Adds a sequence of the same answer. They run side by side: of times the longest counts, bytes
  /// and rates add up.
  void add(const SequenceTimings& other);
};

/// Writes the object; unknown parts are null.
void write_timings(json::Writer& writer, const SequenceTimings& timings);

}  // namespace tandem::api
