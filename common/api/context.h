// What the routes of one API share. Private to room api.
#pragma once

#include "common/api/api_server.h"
#include "common/api/auth.h"
#include "common/api/errors.h"
#include "common/api/metrics.h"
#include "common/base/ids.h"
#include "common/core/generator.h"

#include <boost/intrusive/list.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::api {

/// The running sequences with the client's names for them, for /abort_request. Any thread. Every
/// sequence comes and goes here and hardly any is looked for: a list, in which to look takes long.
class RequestRegistry {
 public:
  /// A sequence's place in the list; leaves it when it ends. The registry outlives it.
  class Entry : public boost::intrusive::list_base_hook<> {
   public:
    Entry() = default;

    ~Entry() { leave(); }

    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    /// Not twice. Borrows the name.
    void join(RequestRegistry& registry, std::string_view name, core::RequestId id);
    void leave();

   private:
    friend class RequestRegistry;

    RequestRegistry* registry_ = nullptr;
    std::string_view name_;
    core::RequestId id_;
  };

  /// Ids of all sequences whose name begins with `prefix`, as SGLang matches them.
  [[nodiscard]] std::vector<core::RequestId> find(std::string_view prefix) const;

 private:
  // Guards `running_`: requests of all connections come and go here, and an abort names any of
  // them.
  mutable std::mutex mutex_;
  boost::intrusive::list<Entry> running_;
};

/// Says whether workers whose progress counters we sample now and then still move. Any thread.
class ProgressWatch {
 public:
  /// Ok, or unavailable when no counter has moved over an interval of `patience` or more.
  Status check(const std::vector<core::Load>& loads, Time now, Duration patience);

 private:
  // Guards the last sample: probes may come on several connections at once.
  std::mutex mutex_;
  std::vector<std::uint64_t> last_;
  Time changed_{};
};

struct Context {
  ApiOptions options;
  std::shared_ptr<core::Generator> generator;
  std::shared_ptr<const token::Tokenizer> tokenizer;
  ChatRenderer chat;
  std::shared_ptr<obs::Metrics> metrics;
  std::unique_ptr<ServingMetrics> serving;
  KeyCheck key;
  RequestRegistry registry;
  ProgressWatch progress;
  /// The resolved arguments; the key never among them.
  json::Object server_args;

  explicit Context(ApiOptions api_options);

  /// Whether `name` means the served model.
  [[nodiscard]] bool serves(std::string_view name) const;
};

/// Fields that every answer of a request carries: x-request-id, and the names of members that were
/// not used.
http::Headers answer_headers(const http::Request& request,
                             std::string_view content_type,
                             const std::vector<std::string>& ignored = {});

[[gnu::cold]] void send_error(http::ResponseWriter& writer,
                              const http::Request& request,
                              const ApiError& error);
void send_json(http::ResponseWriter& writer, const http::Request& request, std::string body);

/// 404 naming the model, as OpenAI answers.
ApiError unknown_model(std::string_view name);

}  // namespace tandem::api
