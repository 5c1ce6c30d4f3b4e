// The result file that --save-result writes, and what is asked for once a run is over.
#pragma once

#include "bench/serve/load.h"
#include "bench/serve/options.h"
#include "common/base/status.h"
#include "common/json/value.h"
#include "common/token/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tandem::bench {

/// Errors: a key of --metadata is the name of a figure, which it would hide.
Status check_metadata(const Options& options);

/// --result-filename, else LABEL-RATEqps[-concurrencyN][-MODEL]-DATE.json as vLLM has it (rate as
/// Python writes a float, the model's name after its last '/'), in --result-dir. `report`: gives
/// the date.
std::filesystem::path result_path(const Options& options, const json::Object& report);

/// Writes `report` as one JSON value, or appends it on a line of its own; makes the folder.
/// Errors: cannot be written.
Status save_result(const Options& options, const json::Object& report);

/// Tokens of the text of the answers that succeeded, without special tokens at the start.
std::int64_t count_again(const token::Tokenizer& tokenizer, const LoadResult& result);

/// avg_spec_accept_length out of the answer of /get_server_info: of its first internal state or of
/// that of its first decode server. Nothing where it is not told.
std::optional<double> accept_length_of(const json::Value& server_info);

}  // namespace tandem::bench
