#include "common/rpc/session_client.h"

#include "common/base/clock.h"
#include "common/rpc/internal/channel.h"
#include "common/rpc/internal/stream.h"
#include "common/rpc/wire.h"

#include "proto/tandem/v1/session.grpc.pb.h"

#include <algorithm>

namespace tandem::rpc {

struct SessionClient::Impl final : internal::StreamPeer<v1::SessionDown, v1::SessionUp> {
  Impl(const Options& options, std::shared_ptr<SessionClientHandler> handler_in)
      : StreamPeer(options.client.queued_bytes_max),
        handler(std::move(handler_in)),
        credit_every(std::max(1U, options.step_window / 2)) {}

  void received(v1::SessionDown&& message) override {
    if (outbox().closed()) return;
    const Status status = dispatch(message);
    if (!status.ok()) outbox().cancel(status);
  }

  void ended(const Status& status) override { handler->on_closed(status); }

  Status dispatch(const v1::SessionDown& message) {
    if ((message.kind_case() == v1::SessionDown::kHello) == greeted) {
      return failed_precondition("session: hello is not exactly the first message");
    }
    switch (message.kind_case()) {
      case v1::SessionDown::kHello: {
        TANDEM_TRY(auto info, read_worker_info(message.hello().info()));
        greeted = true;
        handler->on_hello(std::move(info));
        return {};
      }
      case v1::SessionDown::kStep:
        return step(message.step());
      case v1::SessionDown::kSubmitRejected:
        handler->on_rejected(core::RequestId{message.submit_rejected().id()},
                             message.submit_rejected().attempt(),
                             read_status(message.submit_rejected().status()));
        return {};
      case v1::SessionDown::kFlushed:
        handler->on_flushed(read_status(message.flushed().status()));
        return {};
      case v1::SessionDown::kTick:
        handler->on_tick(read_load(message.tick().load()));
        return {};
      default:
        return unimplemented("session: a message of an unknown kind");
    }
  }

  Status step(const v1::Step& message) {
    std::vector<core::TokenEvent> events;
    events.reserve(static_cast<std::size_t>(message.events_size()));
    for (const v1::TokenEvent& event : message.events()) {
      TANDEM_TRY(auto value, read_event(event));
      events.push_back(std::move(value));
    }
    handler->on_step(std::move(events), read_load(message.load()));
    if (++steps_taken < credit_every) return {};
    v1::SessionUp credit;
    credit.mutable_credit()->set_steps(steps_taken);
    steps_taken = 0;
    // Fails only when the stream is closed, and then nobody waits for credit.
    (void)outbox().send(std::move(credit));
    return {};
  }

  const std::shared_ptr<SessionClientHandler> handler;
  const std::uint32_t credit_every;
  // Both belong to the one reading callback.
  bool greeted = false;
  std::uint32_t steps_taken = 0;
};

Result<std::unique_ptr<SessionClient>> SessionClient::open(
    Options options, std::shared_ptr<SessionClientHandler> handler) {
  TANDEM_TRY(auto channel, internal::make_channel(options.client));
  auto impl = std::make_shared<Impl>(options, std::move(handler));
  v1::SessionUp hello;
  hello.mutable_hello()->set_incarnation(options.router_incarnation);
  hello.mutable_hello()->set_protocol_version(kProtocolVersion);
  hello.mutable_hello()->set_step_window(options.step_window);
  TANDEM_TRY(impl->outbox().send(std::move(hello)));
  using Stub = v1::Session::Stub;
  auto* reactor =
      new internal::ClientBidi<Stub, v1::SessionDown, v1::SessionUp>(std::move(channel), impl);
  reactor->start(options.client, [](Stub& stub, grpc::ClientContext* context, auto* self) {
    stub.async()->Open(context, self);
  });
  return std::unique_ptr<SessionClient>(new SessionClient(std::move(impl)));
}

SessionClient::SessionClient(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

SessionClient::~SessionClient() {
  cancel(cancelled("the session was dropped"));
}

Status SessionClient::submit(const Submission& submission) {
  v1::SessionUp message;
  write_submission(submission, steady_clock().now(), message.mutable_submit());
  return impl_->outbox().send(std::move(message));
}

Status SessionClient::abort(core::RequestId id) {
  v1::SessionUp message;
  message.mutable_abort()->set_id(id.value);
  return impl_->outbox().send(std::move(message));
}

Status SessionClient::abort_all() {
  return abort(core::RequestId{0});
}

Status SessionClient::flush_cache() {
  v1::SessionUp message;
  message.mutable_flush_cache();
  return impl_->outbox().send(std::move(message));
}

Status SessionClient::ping() {
  v1::SessionUp message;
  message.mutable_ping()->set_nonce(1);
  return impl_->outbox().send(std::move(message));
}

void SessionClient::close() {
  impl_->outbox().close(ok_status());
}

void SessionClient::cancel(const Status& why) {
  impl_->outbox().cancel(why);
}

}  // namespace tandem::rpc
