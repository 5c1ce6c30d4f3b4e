// Generator: what stands behind the HTTP and gRPC API. A stand-alone server puts its own engine
// there, the router a whole fleet; the API cannot tell which.
#pragma once

#include "common/base/status.h"
#include "common/core/request.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tandem::core {

/// Receives the events of one request, in order, the last one with `finish`. Called on a thread of
/// the Generator, never concurrently for one request; it must not block (post to your own
/// executor).
using EventSink = std::function<void(TokenEvent&&)>;

/// What the API needs to know of the model that is served.
struct ServedModel {
  std::string model_path;
  std::string served_model_name;
  std::string tokenizer_path;
  std::vector<std::string> architectures;
  std::string model_type;
  std::string weight_version = "default";
  std::int32_t vocab_size = 0;
  /// token::Tokenizer::vocabulary_digest() of the tokenizer that belongs to the model.
  std::string vocabulary_digest;
  /// Longest prompt plus output, in tokens.
  std::int32_t context_length = 0;
  /// Longest prompt that the KV pool of a worker can ever hold.
  std::int32_t max_request_tokens = 0;
  /// Ids that end an output unless ignore_eos.
  std::vector<TokenId> eos_token_ids;
  /// Defaults of generation_config.json that apply when a request leaves the field out.
  SamplingParams default_sampling;
  std::string disaggregation_mode = "null";
};

class Generator {
 public:
  virtual ~Generator() = default;

  /// Takes the request or says at once why not (kInvalidArgument, kResourceExhausted = try later,
  /// kUnavailable = nobody can serve). After ok, exactly one finishing event reaches `sink`. Any
  /// thread.
  virtual Status submit(Request request, EventSink sink) = 0;

  /// Ends a request early; its sink still gets a finishing event (kAbort, kCancelled). Unknown ids
  /// are ignored. Any thread.
  virtual void abort(RequestId id) = 0;

  /// Aborts all requests.
  virtual void abort_all() = 0;

  /// Drops the prefix cache. kFailedPrecondition while requests run. `done` may be called on any
  /// thread, once.
  virtual void flush_cache(std::function<void(Status)> done) = 0;

  /// One Load per worker (one for a stand-alone server). Any thread, cheap.
  [[nodiscard]] virtual std::vector<Load> loads() const = 0;

  /// Ok when requests can be served now; else why not. Any thread, cheap: never a generation.
  [[nodiscard]] virtual Status ready() const = 0;

  /// Extra members of /get_server_info beyond the resolved arguments, as (key, JSON text). Any
  /// thread.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> server_info() const = 0;
};

}  // namespace tandem::core
