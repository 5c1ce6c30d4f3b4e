#include "common/rpc/session_client.h"

#include "common/base/clock.h"
#include "common/rpc/internal/h2_call.h"
#include "common/rpc/wire.h"

#include "proto/tandem/v1/session.pb.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <array>
#include <mutex>

namespace tandem::rpc {

namespace {

/// Room for a submission that stays between them.
constexpr std::size_t kBytesKept = 256U << 10U;
/// The same for events of a step.
constexpr std::size_t kEventsKept = 256;
constexpr const char* kPath = "/tandem.v1.Session/Open";

/// Messages one after the other in memory that stays. Not thread-safe.
template <class Message>
class MessagePlace {
 public:
  MessagePlace() : arena_(block_->data(), block_->size()) {}

  /// Valid until the next call.
  Message* make() {
    arena_.Reset();
    return google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }

 private:
  std::unique_ptr<std::array<char, 16 << 10>> block_ =
      std::make_unique<std::array<char, 16 << 10>>();
  google::protobuf::Arena arena_;
};

/// What comes from the worker.
class Receiver final : public internal::H2CallHandler {
 public:
  Receiver(std::uint32_t step_window, std::shared_ptr<SessionClientHandler> handler)
      : handler_(std::move(handler)), credit_every_(std::max(1U, step_window / 2)) {}

  Status on_message(internal::H2Call& call, std::string_view bytes) override {
    v1::SessionDown& message = *place_.make();
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
      return internal_error("session: a message that cannot be read");
    if ((message.kind_case() == v1::SessionDown::kHello) == greeted_) {
      return failed_precondition("session: hello is not exactly the first message");
    }
    switch (message.kind_case()) {
      case v1::SessionDown::kHello: {
        TANDEM_TRY(auto info, read_worker_info(message.hello().info()));
        greeted_ = true;
        handler_->on_hello(std::move(info));
        return {};
      }
      case v1::SessionDown::kStep:
        return step(call, message.step());
      case v1::SessionDown::kSubmitRejected:
        handler_->on_rejected(core::RequestId{message.submit_rejected().id()},
                              message.submit_rejected().attempt(),
                              read_status(message.submit_rejected().status()));
        return {};
      case v1::SessionDown::kFlushed:
        handler_->on_flushed(read_status(message.flushed().status()));
        return {};
      case v1::SessionDown::kTick:
        handler_->on_tick(read_load(message.tick().load()));
        return {};
      default:
        return unimplemented("session: a message of an unknown kind");
    }
  }

  void on_ended(const Status& status) override { handler_->on_closed(status); }

 private:
  Status step(internal::H2Call& call, const v1::Step& message) {
    events_.reserve(static_cast<std::size_t>(message.events_size()));
    for (const v1::TokenEvent& event : message.events()) {
      TANDEM_TRY(auto value, read_event(event));
      events_.push_back(std::move(value));
    }
    handler_->on_step(std::move(events_), read_load(message.load()));
    // Whoever takes the events mostly leaves the vector.
    events_.clear();
    if (events_.capacity() > kEventsKept) std::vector<core::TokenEvent>().swap(events_);
    if (++steps_taken_ < credit_every_) return {};
    v1::SessionUp credit;
    credit.mutable_credit()->set_steps(steps_taken_);
    steps_taken_ = 0;
    // Fails only when the stream is closed, and then nobody waits for credit.
    (void)call.send(credit);
    return {};
  }

  const std::shared_ptr<SessionClientHandler> handler_;
  const std::uint32_t credit_every_;
  MessagePlace<v1::SessionDown> place_;
  std::vector<core::TokenEvent> events_;  // empty between steps; its room stays
  bool greeted_ = false;
  std::uint32_t steps_taken_ = 0;
};

}  // namespace

struct SessionClient::Impl {
  std::shared_ptr<internal::H2Call> call;
  // Guards the members below, in which whoever submits writes its message.
  std::mutex mutex;
  MessagePlace<v1::SessionUp> place;
  std::string bytes;
};

Result<std::unique_ptr<SessionClient>> SessionClient::open(
    Options options, std::shared_ptr<SessionClientHandler> handler) {
  TANDEM_CHECK(options.io != nullptr, "SessionClient::open without a pool");
  auto impl = std::make_unique<Impl>();
  auto receiver = std::make_shared<Receiver>(options.step_window, std::move(handler));
  TANDEM_TRY(impl->call,
             internal::H2Call::make(options.client, kPath, *options.io, std::move(receiver)));
  v1::SessionUp hello;
  hello.mutable_hello()->set_incarnation(options.router_incarnation);
  hello.mutable_hello()->set_protocol_version(kProtocolVersion);
  hello.mutable_hello()->set_step_window(options.step_window);
  TANDEM_TRY(impl->call->send(hello));
  impl->call->start();
  return std::unique_ptr<SessionClient>(new SessionClient(std::move(impl)));
}

SessionClient::SessionClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SessionClient::~SessionClient() {
  cancel(cancelled("the session was dropped"));
}

Status SessionClient::submit(const SubmissionView& submission) {
  const std::lock_guard lock(impl_->mutex);
  impl_->bytes.clear();
  append_submission(submission, steady_clock().now(), impl_->place.make(), &impl_->bytes);
  Status sent = impl_->call->send(impl_->bytes);
  // A giant's room is not kept. (Assigning an empty string would keep it.)
  if (impl_->bytes.capacity() > kBytesKept) std::string().swap(impl_->bytes);
  return sent;
}

Status SessionClient::abort(core::RequestId id) {
  v1::SessionUp message;
  message.mutable_abort()->set_id(id.value);
  return impl_->call->send(message);
}

Status SessionClient::abort_all() {
  return abort(core::RequestId{0});
}

Status SessionClient::flush_cache() {
  v1::SessionUp message;
  message.mutable_flush_cache();
  return impl_->call->send(message);
}

Status SessionClient::ping() {
  v1::SessionUp message;
  message.mutable_ping()->set_nonce(1);
  return impl_->call->send(message);
}

void SessionClient::close() {
  impl_->call->finish();
}

void SessionClient::cancel(const Status& why) {
  impl_->call->cancel(why);
}

}  // namespace tandem::rpc
