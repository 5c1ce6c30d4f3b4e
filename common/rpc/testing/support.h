// Fakes of both ends of the streams: they note what happens, and a test waits for a state of the
// notes.
#pragma once

#include "common/async/io_pool.h"
#include "common/base/clock.h"
#include "common/rpc/pair.h"
#include "common/rpc/server.h"
#include "common/rpc/session.h"
#include "common/rpc/session_client.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tandem::rpc::testing {

/// Values under a lock that tests can wait on. The time-out only ends a test that failed.
template <class State>
class Notes {
 public:
  template <class Change>
  void change(Change change) {
    {
      const std::lock_guard lock(mutex_);
      change(state_);
    }
    changed_.notify_all();
  }

  template <class Predicate>
  [[nodiscard]] bool wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return predicate(state_); });
  }

  State get() {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_;
};

struct WorkerNotes {
  /// Weak: a session holds its handler.
  std::vector<std::weak_ptr<WorkerSession>> sessions;
  std::vector<std::string> threads;  ///< that opened them
  std::vector<Submission> submissions;
  std::vector<core::RequestId> aborts;
  int abort_alls = 0;
  int flushes = 0;
  std::vector<Status> closed;
};

class FakeWorker final : public SessionHandler {
 public:
  WorkerInfo worker_info() override {
    WorkerInfo info;
    info.incarnation = 77;
    info.role = Role::kPrefill;
    info.model.vocab_size = 512;
    info.model.context_length = 1024;
    info.page_size = 16;
    info.dtype = "f32";
    info.arguments_json = R"({"page_size":16})";
    return info;
  }

  core::Load load() override {
    core::Load load;
    load.progress = progress.fetch_add(1);
    load.total_pages = 64;
    return load;
  }

  void on_open(const WorkerSessionPtr& session) override {
    char thread[16] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    notes.change([&](WorkerNotes& n) {
      n.sessions.push_back(session);
      n.threads.emplace_back(thread);
    });
  }

  void on_submit(const WorkerSessionPtr& session, Submission&& submission) override {
    if (on_submit_hook) on_submit_hook(session, submission);
    notes.change([&](WorkerNotes& n) { n.submissions.push_back(std::move(submission)); });
  }

  void on_abort(const WorkerSessionPtr& /*session*/, core::RequestId id) override {
    notes.change([&](WorkerNotes& n) { n.aborts.push_back(id); });
  }

  void on_abort_all(const WorkerSessionPtr& /*session*/) override {
    notes.change([](WorkerNotes& n) { ++n.abort_alls; });
  }

  void on_flush_cache(const WorkerSessionPtr& session) override {
    notes.change([](WorkerNotes& n) { ++n.flushes; });
    session->send_flushed(failed_precondition("requests are running"));
  }

  void on_closed(const WorkerSessionPtr& /*session*/, const Status& status) override {
    notes.change([&](WorkerNotes& n) { n.closed.push_back(status); });
  }

  Notes<WorkerNotes> notes;
  std::atomic<std::uint64_t> progress{1};
  std::function<void(const WorkerSessionPtr&, const Submission&)> on_submit_hook;
};

struct RouterNotes {
  std::vector<WorkerInfo> hellos;
  std::vector<core::TokenEvent> events;
  int steps = 0;
  std::vector<core::Load> ticks;
  std::vector<std::pair<core::RequestId, Status>> rejected;
  std::vector<Status> flushed;
  std::vector<Status> closed;
};

class FakeRouter final : public SessionClientHandler {
 public:
  void on_hello(WorkerInfo&& info) override {
    notes.change([&](RouterNotes& n) { n.hellos.push_back(std::move(info)); });
  }

  void on_step(std::vector<core::TokenEvent>&& events, const core::Load& /*load*/) override {
    if (on_step_hook) on_step_hook();
    notes.change([&](RouterNotes& n) {
      ++n.steps;
      for (core::TokenEvent& event : events)
        n.events.push_back(std::move(event));
    });
  }

  void on_tick(const core::Load& load) override {
    notes.change([&](RouterNotes& n) { n.ticks.push_back(load); });
  }

  void on_rejected(core::RequestId id, std::uint32_t /*attempt*/, const Status& why) override {
    notes.change([&](RouterNotes& n) { n.rejected.emplace_back(id, why); });
  }

  void on_flushed(const Status& result) override {
    notes.change([&](RouterNotes& n) { n.flushed.push_back(result); });
  }

  void on_closed(const Status& status) override {
    notes.change([&](RouterNotes& n) { n.closed.push_back(status); });
  }

  Notes<RouterNotes> notes;
  std::function<void()> on_step_hook;
};

inline std::unique_ptr<Server> start_server(std::vector<std::shared_ptr<Service>> services) {
  auto server = Server::start({.listen_address = "127.0.0.1:0"}, std::move(services));
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(server).value();
}

/// A socket of the test's own on the loopback interface, at a port that the system chose.
struct LoopbackPort {
  int fd = -1;
  std::uint16_t port = 0;

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

/// `backlog` 0: bound, but nobody listens.
inline LoopbackPort bind_loopback(int backlog) {
  LoopbackPort bound{.fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(bound.fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_TRUE(backlog == 0 || ::listen(bound.fd, backlog) == 0);
  EXPECT_EQ(::getsockname(bound.fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  bound.port = ntohs(address.sin_port);
  return bound;
}

inline std::string address_of(const Server& server) {
  return "127.0.0.1:" + std::to_string(server.port());
}

inline Submission make_submission(std::uint64_t id) {
  Submission submission;
  submission.request.id = core::RequestId{id};
  submission.request.input_ids = {1, 2, 3};
  submission.request.sampling.seed = id;
  return submission;
}

inline core::TokenEvent make_event(std::uint64_t id, std::int32_t index) {
  core::TokenEvent event;
  event.request = core::RequestId{id};
  event.first_index = index;
  event.tokens = {index + 100};
  return event;
}

/// For the sessions of a test program; enough threads that one that is held up holds up no other.
inline async::IoPool& io_pool() {
  static async::IoPool pool(4, "sessions");
  return pool;
}

inline std::unique_ptr<SessionClient> open_session(const std::string& address,
                                                   std::shared_ptr<SessionClientHandler> handler,
                                                   std::uint32_t step_window = 64) {
  SessionClient::Options options;
  options.io = &io_pool();
  options.client.address = address;
  options.client.connect_timeout = seconds(20);
  options.router_incarnation = 5;
  options.step_window = step_window;
  auto client = SessionClient::open(options, std::move(handler));
  EXPECT_TRUE(client.ok()) << client.status().message();
  return std::move(client).value();
}

}  // namespace tandem::rpc::testing
