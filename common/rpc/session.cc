#include "common/rpc/session.h"

#include "common/base/clock.h"
#include "common/rpc/internal/h2_answer.h"
#include "common/rpc/internal/stream.h"
#include "common/rpc/wire.h"

#include "proto/tandem/v1/session.grpc.pb.h"

#include <condition_variable>
#include <limits>
#include <thread>

namespace tandem::rpc {

namespace {

using internal::PeerSet;
using internal::StreamPeer;

void merge_steps(v1::SessionDown& into, v1::SessionDown&& more) {
  v1::Step& step = *into.mutable_step();
  for (v1::TokenEvent& event : *more.mutable_step()->mutable_events()) {
    *step.add_events() = std::move(event);
  }
  step.mutable_load()->Swap(more.mutable_step()->mutable_load());
}

class SessionPeer;
using Peers = PeerSet<SessionPeer>;

class SessionPeer final : public StreamPeer<v1::SessionUp, v1::SessionDown>,
                          public WorkerSession,
                          public std::enable_shared_from_this<SessionPeer> {
 public:
  SessionPeer(std::uint64_t number,
              std::size_t queued_bytes_max,
              std::shared_ptr<SessionHandler> handler,
              std::shared_ptr<Peers> peers)
      : StreamPeer(queued_bytes_max, merge_steps),
        number_(number),
        handler_(std::move(handler)),
        peers_(std::move(peers)) {}

  // WorkerSession
  [[nodiscard]] std::uint64_t number() const override { return number_; }

  [[nodiscard]] std::uint64_t router_incarnation() const override { return router_.load(); }

  [[nodiscard]] bool closed() const override {
    return const_cast<SessionPeer*>(this)->outbox().closed();
  }

  void send_step(std::vector<core::TokenEvent>&& events, const core::Load& load) override {
    v1::SessionDown message;
    v1::Step& step = *message.mutable_step();
    step.mutable_events()->Reserve(static_cast<int>(events.size()));
    for (const core::TokenEvent& event : events)
      write_event(event, step.add_events());
    write_load(load, step.mutable_load());
    (void)outbox().send_mergeable(std::move(message));
    sent_at_.store(steady_clock().now().ns, std::memory_order_relaxed);
  }

  void send_rejected(core::RequestId id, std::uint32_t attempt, const Status& why) override {
    v1::SessionDown message;
    message.mutable_submit_rejected()->set_id(id.value);
    message.mutable_submit_rejected()->set_attempt(attempt);
    write_status(why, message.mutable_submit_rejected()->mutable_status());
    (void)outbox().send(std::move(message));
  }

  void send_flushed(const Status& result) override {
    v1::SessionDown message;
    write_status(result, message.mutable_flushed()->mutable_status());
    (void)outbox().send(std::move(message));
  }

  void close(const Status& status) override { outbox().close(status); }

  void tick_if_idle(Time now, Duration interval) {
    if (!open_.load() || (now - Time{sent_at_.load(std::memory_order_relaxed)}) < interval) return;
    outbox().send_if_idle(tick(0));
    sent_at_.store(now.ns, std::memory_order_relaxed);
  }

  // StreamPeer
  void received(v1::SessionUp&& message) override {
    if (outbox().closed()) return;
    const bool greeting = message.kind_case() == v1::SessionUp::kHello;
    if (greeting == open_.load()) {
      outbox().close(failed_precondition(greeting ? "session: a second hello"
                                                  : "session: the first message is not a hello"));
      return;
    }
    greeting ? greet(message.hello()) : dispatch(message);
  }

  void ended(const Status& status) override {
    if (open_.load()) handler_->on_closed(shared_from_this(), status);
    peers_->remove(this);
  }

 private:
  void greet(const v1::RouterHello& hello) {
    if (hello.protocol_version() != kProtocolVersion) {
      outbox().close(failed_precondition("hello.protocol_version: found " +
                                         std::to_string(hello.protocol_version()) + ", expected " +
                                         std::to_string(kProtocolVersion)));
      return;
    }
    if (hello.incarnation() == 0) {
      outbox().close(invalid_argument("hello.incarnation: found 0, expected a random number"));
      return;
    }
    router_.store(hello.incarnation());
    outbox().set_window(hello.step_window());
    v1::SessionDown answer;
    write_worker_info(handler_->worker_info(), answer.mutable_hello()->mutable_info());
    (void)outbox().send(std::move(answer));
    handler_->on_open(shared_from_this());
    // Last, so that a tick cannot overtake the hello.
    open_.store(true);
  }

  void dispatch(const v1::SessionUp& message) {
    switch (message.kind_case()) {
      case v1::SessionUp::kSubmit:
        submit(message.submit());
        break;
      case v1::SessionUp::kAbort:
        if (message.abort().id() == 0) {
          handler_->on_abort_all(shared_from_this());
        } else {
          handler_->on_abort(shared_from_this(), core::RequestId{message.abort().id()});
        }
        break;
      case v1::SessionUp::kCredit:
        outbox().credit(message.credit().steps());
        break;
      case v1::SessionUp::kFlushCache:
        handler_->on_flush_cache(shared_from_this());
        break;
      case v1::SessionUp::kPing:
        (void)outbox().send(tick(message.ping().nonce()));
        break;
      default:
        outbox().close(unimplemented("session: a message of an unknown kind"));
    }
  }

  void submit(const v1::Submit& message) {
    auto submission = read_submission(message, steady_clock().now());
    if (!submission.ok()) {
      send_rejected(
          core::RequestId{message.request().id()}, message.attempt(), submission.status());
      return;
    }
    handler_->on_submit(shared_from_this(), std::move(submission).value());
  }

  v1::SessionDown tick(std::uint64_t nonce) {
    v1::SessionDown message;
    message.mutable_tick()->set_ping_nonce(nonce);
    write_load(handler_->load(), message.mutable_tick()->mutable_load());
    return message;
  }

  const std::uint64_t number_;
  const std::shared_ptr<SessionHandler> handler_;
  const std::shared_ptr<Peers> peers_;
  std::atomic<std::uint64_t> router_{0};
  std::atomic<bool> open_{false};
  std::atomic<std::int64_t> sent_at_{0};
};

/// The way in to a worker, whichever server took the connection.
class Entrance {
 public:
  Entrance(std::shared_ptr<SessionHandler> handler, SessionServiceOptions options)
      : handler_(std::move(handler)),
        options_(std::move(options)),
        peers_(std::make_shared<Peers>(options_.sessions_max)) {}

  [[nodiscard]] const SessionServiceOptions& options() const { return options_; }

  [[nodiscard]] const std::shared_ptr<Peers>& peers() const { return peers_; }

  /// Whom to talk to.
  std::shared_ptr<SessionPeer> make_peer() {
    return std::make_shared<SessionPeer>(
        next_number_.fetch_add(1), options_.queued_bytes_max, handler_, peers_);
  }

  /// Whether the peer may enter.
  Status admit(const std::shared_ptr<SessionPeer>& peer, std::string_view authorization) {
    const bool allowed = !options_.authorize || options_.authorize(authorization);
    return allowed ? peers_->add(peer) : internal::refuse_key();
  }

 private:
  const std::shared_ptr<SessionHandler> handler_;
  const SessionServiceOptions options_;
  const std::shared_ptr<Peers> peers_;
  std::atomic<std::uint64_t> next_number_{1};
};

constexpr const char* kPath = "/tandem.v1.Session/Open";

class SessionService final : public Service, private v1::Session::CallbackService {
 public:
  SessionService(std::shared_ptr<SessionHandler> handler, SessionServiceOptions options)
      : entrance_(std::make_shared<Entrance>(std::move(handler), std::move(options))),
        taken_(std::make_shared<internal::AnswerSet>(entrance_->options().sessions_max)),
        ticker_([this] { run_ticks(); }) {}

  ~SessionService() override {
    {
      const std::lock_guard lock(stop_mutex_);
      stop_ = true;
    }
    stopping_.notify_all();
    ticker_.join();
  }

  grpc::Service* grpc_service() override { return this; }

  void close_all(const Status& status) override { entrance_->peers()->close_all(status); }

  bool take(int fd, const ServerOptions& options) override {
    using Answer = internal::H2Bidi<v1::SessionUp, v1::SessionDown>;
    if (!internal::is_tcp(fd) || !internal::begins_with_session_mark(fd)) return false;
    const auto answer = std::make_shared<Answer>(
        Answer::Limits{.message_bytes_max = options.message_bytes_max,
                       // Its outbox has the bound.
                       .queued_bytes_max = std::numeric_limits<std::size_t>::max() / 2,
                       .keepalive = options.keepalive},
        kPath,
        *options.io,
        [entrance =
             entrance_](std::string_view authorization) -> Result<std::shared_ptr<Answer::Peer>> {
          const std::shared_ptr<SessionPeer> peer = entrance->make_peer();
          TANDEM_TRY(entrance->admit(peer, authorization));
          return std::shared_ptr<Answer::Peer>(peer);
        },
        taken_);
    if (!taken_->add(answer)) return false;
    answer->start(fd);
    return true;
  }

  void end_taken(Duration grace) override { taken_->end_all(grace); }

 private:
  grpc::ServerBidiReactor<v1::SessionUp, v1::SessionDown>* Open(
      grpc::CallbackServerContext* context) override {
    const std::shared_ptr<SessionPeer> peer = entrance_->make_peer();
    auto* reactor = new internal::ServerBidi<v1::SessionUp, v1::SessionDown>(context, peer);
    const Status admitted = entrance_->admit(peer, internal::authorization_of(*context));
    if (admitted.ok()) {
      reactor->start();
    } else {
      peer->outbox().close(admitted);
    }
    return reactor;
  }

  void run_ticks() {
    // Twice per interval, so that no silence lasts one and a half of them.
    const Duration interval = entrance_->options().tick_interval;
    const auto period = std::chrono::nanoseconds(interval.ns / 2 + 1);
    std::unique_lock lock(stop_mutex_);
    while (!stopping_.wait_for(lock, period, [this] { return stop_; })) {
      lock.unlock();
      const Time now = steady_clock().now();
      for (const auto& peer : entrance_->peers()->all())
        peer->tick_if_idle(now, interval);
      lock.lock();
    }
  }

  const std::shared_ptr<Entrance> entrance_;
  const std::shared_ptr<internal::AnswerSet> taken_;
  // Only wakes the ticker for its end.
  std::mutex stop_mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread ticker_;
};

}  // namespace

std::shared_ptr<Service> make_session_service(std::shared_ptr<SessionHandler> handler,
                                              SessionServiceOptions options) {
  return std::make_shared<SessionService>(std::move(handler), std::move(options));
}

}  // namespace tandem::rpc
