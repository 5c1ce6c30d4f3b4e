// Registration and watch: each is one thread that does nothing but wait on its stream, so the
// blocking client API keeps them readable. One of each per process.
#include "common/base/random.h"
#include "common/rpc/bootstrap.h"
#include "common/rpc/internal/channel.h"
#include "common/rpc/internal/grpc_status.h"

#include "proto/tandem/v1/bootstrap.grpc.pb.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tandem::rpc {

namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kBackoffFirst{100};
constexpr Milliseconds kBackoffMax{2000};
constexpr Milliseconds kLeaseMin{100};
// How long leaving in order may take before the stream is cut.
constexpr Milliseconds kLeaveGrace{1000};

/// The stop flag, the sleep and the running call of one client thread. The mutex guards these
/// between the thread and its owner's destructor.
class Life {
 public:
  /// False when stopped.
  bool sleep(Milliseconds time, const bool& wake) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return stop_ || wake; });
    return !stop_;
  }

  bool enter(grpc::ClientContext* context) {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    context_ = context;
    return true;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    context_ = nullptr;
  }

  /// Cuts the running call after `grace`, then joins.
  void stop(std::thread& thread, Milliseconds grace) {
    {
      std::unique_lock lock(mutex_);
      stop_ = true;
      changed_.notify_all();
      if (grace.count() > 0) changed_.wait_for(lock, grace, [&] { return done_; });
      if (context_ != nullptr) context_->TryCancel();
    }
    thread.join();
  }

  void done() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  [[nodiscard]] bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stop_;
  }

  std::mutex& mutex() const { return mutex_; }

  void notify() { changed_.notify_all(); }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool done_ = false;
  grpc::ClientContext* context_ = nullptr;
};

/// 100 ms doubling to 2 s, with jitter so that a fleet does not come back in step.
class Backoff {
 public:
  Milliseconds next() {
    const Milliseconds wait = current_;
    current_ = std::min(current_ * 2, kBackoffMax);
    return Milliseconds(wait.count() / 2 + static_cast<std::int64_t>(random_.below(
                                               static_cast<std::uint64_t>(wait.count() / 2 + 1))));
  }

  void reset() { current_ = kBackoffFirst; }

 private:
  Milliseconds current_ = kBackoffFirst;
  Random random_{system_random()};
};

class RegistrationImpl final : public Registration {
 public:
  RegistrationImpl(ClientOptions options, std::vector<v1::MemberRow> rows)
      : options_(std::move(options)), rows_(std::move(rows)), thread_([this] { run(); }) {}

  ~RegistrationImpl() override { life_.stop(thread_, kLeaveGrace); }

  void update(std::vector<v1::MemberRow> rows) override {
    const std::lock_guard lock(life_.mutex());
    rows_ = std::move(rows);
    changed_ = true;
    life_.notify();
  }

  [[nodiscard]] Status state() const override {
    const std::lock_guard lock(life_.mutex());
    return state_;
  }

 private:
  void run() {
    auto channel = internal::make_channel(options_);
    if (channel.ok()) {
      const auto stub = v1::Bootstrap::NewStub(*channel);
      Backoff backoff;
      const bool never = false;
      do {
        set_state(serve(*stub, backoff));
      } while (life_.sleep(backoff.next(), never));
    } else {
      set_state(channel.status());
    }
    life_.done();
  }

  // One stream, until it breaks or the registration ends.
  Status serve(v1::Bootstrap::Stub& stub, Backoff& backoff) {
    grpc::ClientContext context;
    if (!life_.enter(&context)) return cancelled("stopped");
    const auto stream = stub.Register(&context);
    Status refused;
    v1::RegisterReply reply;
    while (true) {
      const v1::RegisterRequest request = take_request();
      if (!stream->Write(request) || !stream->Read(&reply) || request.leave()) break;
      refused = internal::from_grpc(grpc::Status(
          static_cast<grpc::StatusCode>(reply.status().code()), reply.status().message()));
      set_state(refused);
      backoff.reset();
      const Milliseconds lease(reply.lease_ms());
      (void)life_.sleep(std::max(lease, kLeaseMin) / 3, changed_);
    }
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    life_.leave();
    return status.ok() ? unavailable("the bootstrap service ended the stream")
                       : internal::from_grpc(status).with_context(options_.address);
  }

  v1::RegisterRequest take_request() {
    v1::RegisterRequest request;
    request.set_leave(life_.stopped());
    const std::lock_guard lock(life_.mutex());
    for (const v1::MemberRow& row : rows_)
      *request.add_rows() = row;
    changed_ = false;
    return request;
  }

  void set_state(const Status& state) {
    const std::lock_guard lock(life_.mutex());
    state_ = state;
  }

  const ClientOptions options_;
  Life life_;
  // Under life_.mutex():
  std::vector<v1::MemberRow> rows_;
  bool changed_ = false;
  Status state_ = unavailable("not registered yet");
  std::thread thread_;
};

class WatchImpl final : public Watch {
 public:
  WatchImpl(ClientOptions options,
            v1::Role role,
            std::function<void(v1::MembershipDelta&&)> on_delta)
      : options_(std::move(options)),
        role_(role),
        on_delta_(std::move(on_delta)),
        thread_([this] { run(); }) {}

  ~WatchImpl() override { life_.stop(thread_, Milliseconds(0)); }

 private:
  void run() {
    auto channel = internal::make_channel(options_);
    if (!channel.ok()) return;
    const auto stub = v1::Bootstrap::NewStub(*channel);
    Backoff backoff;
    const bool never = false;
    do {
      serve(*stub, backoff);
    } while (life_.sleep(backoff.next(), never));
  }

  void serve(v1::Bootstrap::Stub& stub, Backoff& backoff) {
    grpc::ClientContext context;
    if (!life_.enter(&context)) return;
    v1::WatchRequest request;
    request.set_role(role_);
    const auto stream = stub.Watch(&context, request);
    v1::MembershipDelta delta;
    while (stream->Read(&delta)) {
      backoff.reset();
      on_delta_(std::move(delta));
      delta.Clear();
    }
    (void)stream->Finish();
    life_.leave();
  }

  const ClientOptions options_;
  const v1::Role role_;
  const std::function<void(v1::MembershipDelta&&)> on_delta_;
  Life life_;
  std::thread thread_;
};

/// A unary question and all that must live until its answer.
template <class Request, class Reply>
struct Question {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Bootstrap::Stub> stub;
  grpc::ClientContext context;
  Request request;
  Reply reply;
  std::function<void(Result<Reply>)> done;

  void answered(const grpc::Status& status) {
    status.ok() ? done(std::move(reply)) : done(internal::from_grpc(status));
  }
};

template <class Request, class Reply>
std::shared_ptr<Question<Request, Reply>> make_question(const ClientOptions& options,
                                                        const Request& request,
                                                        std::function<void(Result<Reply>)> done) {
  auto channel = internal::make_channel(options);
  if (!channel.ok()) {
    done(channel.status());
    return nullptr;
  }
  auto question = std::make_shared<Question<Request, Reply>>();
  question->channel = std::move(channel).value();
  question->stub = v1::Bootstrap::NewStub(question->channel);
  question->context.set_deadline(std::chrono::system_clock::now() +
                                 std::chrono::nanoseconds(options.connect_timeout.ns));
  question->request = request;
  question->done = std::move(done);
  return question;
}

}  // namespace

std::unique_ptr<Registration> keep_registered(const ClientOptions& options,
                                              std::vector<v1::MemberRow> rows) {
  return std::make_unique<RegistrationImpl>(options, std::move(rows));
}

std::unique_ptr<Watch> watch_members(const ClientOptions& options,
                                     v1::Role role,
                                     std::function<void(v1::MembershipDelta&&)> on_delta) {
  return std::make_unique<WatchImpl>(options, role, std::move(on_delta));
}

void resolve_members(const ClientOptions& options,
                     const v1::ResolveRequest& request,
                     std::function<void(Result<v1::ResolveReply>)> done) {
  auto question =
      make_question<v1::ResolveRequest, v1::ResolveReply>(options, request, std::move(done));
  if (!question) return;
  question->stub->async()->Resolve(
      &question->context,
      &question->request,
      &question->reply,
      [question](const grpc::Status& status) { question->answered(status); });
}

void list_members(const ClientOptions& options,
                  const v1::ListRequest& request,
                  std::function<void(Result<v1::ListReply>)> done) {
  auto question = make_question<v1::ListRequest, v1::ListReply>(options, request, std::move(done));
  if (!question) return;
  question->stub->async()->List(
      &question->context,
      &question->request,
      &question->reply,
      [question](const grpc::Status& status) { question->answered(status); });
}

}  // namespace tandem::rpc
