// Job: one client request while it runs: its sequences, their text, and the answer.
#pragma once

#include "common/api/format.h"
#include "common/api/plan.h"
#include "common/base/ids.h"
#include "common/http/server.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tandem::api {

/// Lives on the strand of the client's connection: events of the Generator are posted there, so it
/// needs no lock and a slow client never holds up an engine. Kept alive by the sinks it hands out.
class Job : public std::enable_shared_from_this<Job> {
 public:
  Job(std::shared_ptr<Context> context,
      std::shared_ptr<http::ResponseWriter> writer,
      http::Headers headers,
      std::unique_ptr<Format> format,
      Time started);

  /// Submits everything, on the strand: at once when called there, else soon. (Large requests are
  /// read elsewhere, and what comes of the first sequence, or the client's end, may be here before
  /// the second one is submitted.)
  void start(Plan plan);

 private:
  struct Running {
    explicit Running(TextStream stream) : text(std::move(stream)) {}

    Sequence sequence;
    TextStream text;
    RequestRegistry::Entry entry;
    Time first_tokens_at{};
    std::int32_t first_token_count = 0;
    std::optional<Time> last_token;
    bool submitted = false;
    /// What came while the client did not keep up, and is still to be told.
    std::optional<Delta> held;
  };

  void on_event(Running& running, core::TokenEvent&& event);
  bool take_tokens(Running& running, core::TokenEvent& event, Delta* delta);
  void take_finish(Running& running, const core::FinishReason& reason, Delta* delta);
  void count_tokens(Running& running, std::int32_t tokens);
  void emit(Running& running, Delta&& delta);
  [[gnu::cold]] void hold(Running& running, Delta&& delta);
  [[gnu::cold]] void tell_held();
  [[gnu::cold]] void take_held();
  void send();
  void end_sequence(Running& running);
  [[gnu::cold]] void fail(const ApiError& error);
  [[gnu::cold]] void on_disconnect();
  void abort_rest();
  [[nodiscard]] std::vector<Sequence> take_sequences();

  std::shared_ptr<Context> context_;
  std::shared_ptr<http::ResponseWriter> writer_;
  http::Headers headers_;
  std::unique_ptr<Format> format_;
  Time started_;
  bool stream_ = false;
  bool keep_history_ = true;
  bool stream_open_ = false;
  bool over_ = false;
  bool holding_ = false;  ///< the client reads slower than tokens come
  /// Mostly one; they stay where they are.
  std::list<Running> running_;
  std::size_t unfinished_ = 0;
  std::string out_;  ///< what is told now; empty otherwise, but its room stays
};

}  // namespace tandem::api
