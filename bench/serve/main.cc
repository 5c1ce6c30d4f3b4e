// serve: puts load on a server over HTTP and prints what it measured, as bench_serving does. See
// docs/benchmarks.md.
#include "bench/serve/dataset.h"
#include "bench/serve/load.h"
#include "bench/serve/report.h"
#include "bench/serve/save.h"
#include "common/base/clock.h"
#include "common/http/client.h"
#include "common/json/parse.h"
#include "common/json/write.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>

namespace {

using namespace tandem;         // NOLINT: a program
using namespace tandem::bench;  // NOLINT

constexpr std::int32_t kVocabSizeUnknown = 256;

Result<json::Value> ask(const Options& options, const std::string& path) {
  http::ClientRequest request;
  request.host = options.host;
  request.port = options.port;
  request.path = options.path_prefix + path;
  for (const auto& [name, value] : options.headers)
    request.headers.add(name, value);
  TANDEM_TRY(const http::Response response,
             http::request(request, steady_clock().now() + seconds(10)));
  if (response.status != 200)
    return unavailable(path + " answered HTTP " + std::to_string(response.status));
  return json::parse(response.body);
}

// The first served model, when the command line names none. Native requests carry no name, so there
// it may be unknown.
Status settle_model(Options* options) {
  if (!options->model.empty()) return {};
  const auto answer = ask(*options, "/v1/models");
  if (!answer.ok()) return options->api == Api::kNative ? Status() : answer.status();
  const json::Value& models = *answer;
  const json::Value* data = models.find("data");
  const json::Array* list = data == nullptr ? nullptr : data->if_array();
  const json::Value* id = list == nullptr || list->empty() ? nullptr : list->front().find("id");
  if (id == nullptr || !id->is_string()) {
    if (options->api == Api::kNative) return {};
    return unavailable("/v1/models names no model: pass --model");
  }
  options->model = *id->if_string();
  return {};
}

// A server that does not tell gets ids below 256, which every vocabulary has.
std::int32_t vocab_size(const Options& options) {
  const auto info = ask(options, "/get_model_info");
  const json::Value* size = info.ok() ? info->find("vocab_size") : nullptr;
  if (size == nullptr || size->if_int() == nullptr || *size->if_int() < 1) return kVocabSizeUnknown;
  return static_cast<std::int32_t>(*size->if_int());
}

Status flush_cache(const Options& options) {
  http::ClientRequest request;
  request.method = "POST";
  request.host = options.host;
  request.port = options.port;
  request.path = options.path_prefix + "/flush_cache";
  TANDEM_TRY(const http::Response response,
             http::request(request, steady_clock().now() + seconds(10)));
  if (response.status == 200) return {};
  return unavailable("/flush_cache answered HTTP " + std::to_string(response.status));
}

Result<LoadResult> measure(const Options& options) {
  std::shared_ptr<const token::Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    TANDEM_TRY(tokenizer, token::Tokenizer::load(options.tokenizer));
  }
  TANDEM_TRY(const std::vector<Prompt> prompts, make_prompts(options, vocab_size(options)));
  std::vector<std::string> bodies;
  for (const Prompt& prompt : prompts)
    bodies.push_back(request_body(options, prompt));
  if (options.warmup_requests > 0) {
    const std::vector<std::string> warm(options.warmup_requests, bodies.front());
    const std::vector<double> at_once(warm.size(), 0.0);
    Options unnamed = options;  // Ids are for the requests that are measured.
    unnamed.request_id_prefix.clear();
    TANDEM_TRY(const LoadResult warmed, run_load(unnamed, warm, at_once));
    if (!warmed.outcomes.front().ok)
      std::cerr << "serve: the warm-up failed: " << warmed.outcomes.front().error << "\n";
  }
  if (options.flush_cache) {
    TANDEM_TRY(flush_cache(options));
  }
  TANDEM_TRY(LoadResult result, run_load(options, bodies, arrival_times(options, bodies.size())));
  if (tokenizer) result.retokenized = count_again(*tokenizer, result);
  if (options.backend.starts_with("sglang")) {
    const auto info = ask(options, "/get_server_info");
    if (info.ok()) result.accept_length = accept_length_of(*info);
  }
  return result;
}

int complain(const Status& status) {
  std::cerr << "serve: " << status.message() << "\n";
  return 1;
}

int report(const Options& options, const LoadResult& result) {
  const json::Object figures = make_report(options, result);
  std::cout << report_table(options, figures) << std::flush;
  json::Object detailed = figures;
  if (options.output_details || options.save_detailed) add_details(&detailed, result);
  if (!options.output_file.empty()) {
    std::ofstream file(options.output_file, std::ios::app);
    file << json::to_string(json::Value(options.output_details ? detailed : figures)) << "\n";
    if (!file.flush()) return complain(unavailable("cannot write " + options.output_file));
  }
  if (options.save_result || options.append_result) {
    const Status saved = save_result(options, options.save_detailed ? detailed : figures);
    if (!saved.ok()) return complain(saved);
  }
  std::size_t failed = 0;
  const std::string* first_error = nullptr;
  for (const Outcome& outcome : result.outcomes) {
    if (outcome.ok) continue;
    if (failed++ == 0) first_error = &outcome.error;
  }
  if (failed == 0) return 0;
  std::cerr << "serve: " << failed << " of " << result.outcomes.size()
            << " requests failed; the first: " << *first_error << "\n";
  return failed == result.outcomes.size() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  Parsed parsed = parse_options(argc, argv);
  if (!parsed.options) {
    (parsed.exit_code == 0 ? std::cout : std::cerr) << parsed.text << "\n";
    return parsed.exit_code;
  }
  Options& options = *parsed.options;
  if (const Status status = check_metadata(options); !status.ok()) {
    complain(status);
    return 2;
  }
  if (const Status status = settle_model(&options); !status.ok()) return complain(status);
  const auto result = measure(options);
  if (!result.ok()) return complain(result.status());
  return report(options, *result);
}
