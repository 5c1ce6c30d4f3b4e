#include "bench/router/fake_worker.h"

#include "common/async/io_pool.h"
#include "common/base/random.h"
#include "common/http/server.h"
#include "common/rpc/library.h"
#include "common/rpc/server.h"
#include "common/rpc/session.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem::bench {

namespace {

// Tokens of the answers: ids that are words in any vocabulary.
constexpr core::TokenId kFirstToken = 300;
constexpr core::TokenId kTokenCount = 64;

// A small part of what clients take to read as much as a worker may be ahead.
constexpr std::chrono::microseconds kClientsBehind(50);

core::TokenId token_at(std::int32_t index) {
  return kFirstToken + index % kTokenCount;
}

class FakeWorker final : public rpc::SessionHandler {
 public:
  FakeWorker(int step_us, int whole_max, const ReadTokens& read)
      : step_us_(step_us), whole_max_(whole_max), read_(read), incarnation_(system_random() | 1U) {
    stepper_ = std::thread([this] { run_steps(); });
  }

  ~FakeWorker() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    stepper_.join();
  }

  rpc::WorkerInfo worker_info() override {
    rpc::WorkerInfo info;
    info.incarnation = incarnation_;
    info.model_digest = "fake";
    info.model.model_path = "fake";
    info.model.served_model_name = "m";
    info.model.architectures = {"Fake"};
    info.model.vocab_size = 2048;
    info.model.context_length = 1 << 20;
    info.model.max_request_tokens = 1 << 20;
    info.page_size = 16;
    info.version = "bench";
    return info;
  }

  core::Load load() override {
    core::Load load;
    load.progress = progress_.fetch_add(1);
    load.total_tokens = std::int64_t{1} << 30;
    return load;
  }

  void on_open(const rpc::WorkerSessionPtr& /*session*/) override {}

  void on_submit(const rpc::WorkerSessionPtr& session, rpc::Submission&& submission) override {
    const core::Request& request = submission.request;
    if (request.sampling.max_new_tokens <= whole_max_) {
      std::vector<core::TokenEvent> events;
      events.push_back(event(request.id, 0, request.sampling.max_new_tokens, true));
      session->send_step(std::move(events), load());
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      streams_[session->number()].session = session;
      streams_[session->number()].running.push_back(
          {.id = request.id,
           .connection = request.sampling.seed % ReadTokens::kConnections,
           .count = request.sampling.max_new_tokens});
    }
    wake_.notify_one();
  }

  void on_abort(const rpc::WorkerSessionPtr& /*session*/, core::RequestId /*id*/) override {}

  void on_abort_all(const rpc::WorkerSessionPtr& /*session*/) override {}

  void on_flush_cache(const rpc::WorkerSessionPtr& session) override { session->send_flushed({}); }

  void on_closed(const rpc::WorkerSessionPtr& session, const Status& /*status*/) override {
    const std::lock_guard lock(mutex_);
    streams_.erase(session->number());
  }

 private:
  struct Stream {
    core::RequestId id;
    std::size_t connection = 0;  ///< of the client
    std::int32_t next = 0;
    std::int32_t count = 0;
  };

  struct Session {
    rpc::WorkerSessionPtr session;
    std::vector<Stream> running;
  };

  static core::TokenEvent event(core::RequestId id,
                                std::int32_t first,
                                std::int32_t count,
                                bool last) {
    core::TokenEvent event;
    event.request = id;
    event.first_index = first;
    for (std::int32_t i = 0; i < count; ++i)
      event.tokens.push_back(token_at(first + i));
    event.prompt_tokens = 1;
    if (last) event.finish = core::FinishReason{core::FinishKind::kLength, std::nullopt, {}};
    return event;
  }

  // One engine step for all running streams, again and again.
  void run_steps() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      bool any = false;
      bool sent = false;
      for (auto& [number, session] : streams_) {
        if (session.running.empty()) continue;
        any = true;
        std::vector<core::TokenEvent> events;
        events.reserve(session.running.size());
        for (Stream& stream : session.running) {
          if (stream.next - read_.of(stream.connection) >= kAheadTokens) continue;
          const bool last = stream.next + 1 == stream.count;
          events.push_back(event(stream.id, stream.next++, 1, last));
        }
        if (events.empty()) continue;
        sent = true;
        std::erase_if(session.running, [](const Stream& s) { return s.next == s.count; });
        session.session->send_step(std::move(events), load());
      }
      if (!any) {
        wake_.wait(lock);
      } else if (step_us_ > 0) {
        wake_.wait_for(lock, std::chrono::microseconds(step_us_), [this] { return stop_; });
      } else if (!sent) {
        // The clients are behind, and the processor is theirs and the router's.
        wake_.wait_for(lock, kClientsBehind);
      } else {
        // Lets submissions in.
        lock.unlock();
        lock.lock();
      }
    }
  }

  const int step_us_;
  const int whole_max_;
  const ReadTokens& read_;
  const std::uint64_t incarnation_;
  std::atomic<std::uint64_t> progress_{1};
  // Guards the streams between gRPC's threads and the stepping one.
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::map<std::uint64_t, Session> streams_;
  std::thread stepper_;
};

constexpr const char* kCanned =
    R"({"text":" a canned answer of the size that the router's own has","output_ids":[300,301,302,)"
    R"(303,304,305,306,307],"meta_info":{"id":"0123456789abcdef","finish_reason":{"type":"length",)"
    R"("length":8},"prompt_tokens":450,"weight_version":"default","num_retractions":0,)"
    R"("completion_tokens":8,"cached_tokens":0,"e2e_latency":0.000123}})";

}  // namespace

int run_fake_worker(int step_us, int whole_max, const ReadTokens& read) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const rpc::Library library;
  // One port for both, as a worker has it.
  async::IoPool io(1, "http");
  rpc::ServerOptions server_options;
  server_options.io = &io;
  auto server = rpc::Server::start(
      server_options,
      {rpc::make_session_service(std::make_shared<FakeWorker>(step_us, whole_max, read))});
  if (!server.ok()) {
    std::cerr << server.status().message() << "\n";
    return 1;
  }
  http::ServerOptions options;
  options.on_http2 = [raw = server->get()](int fd) { (void)raw->accept_fd(fd); };
  http::Server canned(
      io, std::move(options), [](http::Request&&, std::shared_ptr<http::ResponseWriter> writer) {
        writer->send(200, {{"content-type", "application/json"}}, kCanned);
      });
  const auto port = canned.listen("127.0.0.1", 0);
  if (!port.ok()) {
    std::cerr << port.status().message() << "\n";
    return 1;
  }
  std::printf("%u\n", unsigned{*port});
  std::fflush(stdout);
  int number = 0;
  ::sigwait(&set, &number);
  canned.stop();
  (*server)->shutdown({0});
  return 0;
}

}  // namespace tandem::bench
