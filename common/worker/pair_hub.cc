#include "common/worker/pair_hub.h"

#include "common/base/clock.h"
#include "common/obs/log.h"
#include "common/rpc/bootstrap.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace tandem::worker {
namespace {

/// The address of the prefill process with this incarnation among what a bootstrap service lists.
Result<std::string> find_address(const PeerHint& hint, const Result<v1::ListReply>& reply) {
  const std::string where = "bootstrap service " + hint.bootstrap_address;
  if (!reply.ok()) return reply.status().with_context(where);
  for (const v1::MemberRow& row : reply->rows()) {
    if (row.incarnation() == hint.incarnation) return row.grpc_address();
  }
  return unavailable(where +
                     " does not know the prefill process that the router named; has it restarted?");
}

}  // namespace

PairHub::PairHub(handoff::LinkOptions options,
                 const TaskLoop& loop,
                 std::function<std::uint64_t()> progress,
                 PairHubEvents events,
                 std::string authorization)
    : role_(options.role),
      incarnation_(options.incarnation),
      tick_interval_(options.tick_interval),
      hello_within_(options.hello_within),
      links_(std::move(options)),
      progress_(std::move(progress)),
      inbox_(loop.inbox()),
      events_(std::move(events)),
      authorization_(std::move(authorization)),
      ticker_([this] { run_ticks(); }) {
  pthread_setname_np(ticker_.native_handle(), "ticks");
}

PairHub::~PairHub() {
  close_all();
}

void PairHub::run_ticks() {
  const auto interval = std::chrono::nanoseconds(tick_interval_.ns);
  std::unique_lock lock(ticks_mutex_);
  while (!ticks_end_.wait_for(lock, interval, [this] { return ticks_over_; })) {
    const auto streams = ticked_;
    lock.unlock();
    const handoff::LinkMessage tick = handoff::TickMessage{incarnation_, progress_()};
    for (const auto& [number, stream] : streams)
      (void)stream->send(to_wire(tick)).ok();  // a stream that is over reports its own end
    lock.lock();
  }
}

void PairHub::start_ticks(const rpc::PairStreamPtr& stream) {
  const std::lock_guard lock(ticks_mutex_);
  if (!ticks_over_) ticked_[stream->number()] = stream;
}

void PairHub::stop_ticks(std::uint64_t stream) {
  const std::lock_guard lock(ticks_mutex_);
  ticked_.erase(stream);
}

bool PairHub::is_linked(std::uint64_t incarnation) const {
  return links_.stream_of(incarnation).has_value();
}

void PairHub::ensure(const PeerHint& hint) {
  if (is_linked(hint.incarnation) || wanted_.contains(hint.incarnation)) return;
  wanted_[hint.incarnation] = {};
  // With a key only the router's word counts: anybody may register at a bootstrap service, and must
  // not be shown it.
  const bool trust_router = !authorization_.empty() && !hint.grpc_address.empty();
  if (hint.bootstrap_address.empty() || trust_router) {
    resolved(hint, hint.grpc_address);
    return;
  }
  rpc::ClientOptions options;
  options.address = hint.bootstrap_address;
  v1::ListRequest request;
  request.set_role(v1::ROLE_PREFILL);
  rpc::list_members(
      options, request, [self = shared_from_this(), hint](const Result<v1::ListReply>& reply) {
        self->inbox_->push(
            [self, hint, address = find_address(hint, reply)] { self->resolved(hint, address); });
      });
}

void PairHub::resolved(const PeerHint& hint, const Result<std::string>& address) {
  if (!wanted_.contains(hint.incarnation)) return;
  if (address.ok()) {
    connect(hint.incarnation, *address);
  } else if (!hint.grpc_address.empty()) {
    // The bootstrap service must not be what everything hangs on: the router knows an address too,
    // and the link compares incarnations anyhow.
    obs::warn("bootstrap_unavailable",
              {{"reason", address.status().message()}, {"instead", hint.grpc_address}});
    connect(hint.incarnation, hint.grpc_address);
  } else {
    give_up(hint.incarnation, address.status());
  }
}

void PairHub::connect(std::uint64_t incarnation, const std::string& address) {
  rpc::ClientOptions options;
  options.address = address;
  options.authorization = authorization_;
  options.connect_timeout = hello_within_;
  auto stream = rpc::open_pair(options, shared_from_this());
  if (!stream.ok()) {
    give_up(incarnation, stream.status().with_context("pair stream to " + address));
    return;
  }
  wanted_[incarnation].stream = (*stream)->number();
}

void PairHub::give_up(std::uint64_t incarnation, const Status& why) {
  if (wanted_.erase(incarnation) == 0) return;
  // The pair ran out of time, not the request: another pair may do.
  const bool late = why.code() == Code::kDeadlineExceeded;
  events_.on_unreachable(incarnation, late ? unavailable(why.message()) : why);
}

void PairHub::send(std::uint64_t incarnation, const handoff::DecodeToPrefill& message) {
  send_on(incarnation, to_wire(message));
}

void PairHub::send(std::uint64_t incarnation, const handoff::PrefillToDecode& message) {
  send_on(incarnation, to_wire(message));
}

void PairHub::send_on(std::uint64_t incarnation, v1::PairMessage&& message) {
  const auto stream = links_.stream_of(incarnation);
  if (!stream) return;  // the loss of the link has been, or is about to be, reported
  const auto found = streams_.find(stream->value);
  if (found == streams_.end()) return;
  if (const Status status = found->second->send(std::move(message)); !status.ok()) {
    feed(handoff::StreamBroken{*stream, status.message()});
  }
}

void PairHub::data_path_failed(std::uint64_t incarnation, const Status& why) {
  if (const auto stream = links_.stream_of(incarnation)) {
    const auto found = streams_.find(stream->value);
    if (found != streams_.end()) found->second->cancel(why);
    feed(handoff::StreamBroken{*stream, why.message()});
  }
}

void PairHub::close_all() {
  {
    const std::lock_guard lock(ticks_mutex_);
    ticks_over_ = true;
    ticked_.clear();
  }
  ticks_end_.notify_all();
  if (ticker_.joinable()) ticker_.join();
  for (auto& [number, stream] : streams_)
    stream->cancel(unavailable("the worker is stopping"));
}

void PairHub::before_step(Time now) {
  feed(handoff::OwnProgress{progress_()});
  if (const auto deadline = links_.next_deadline(); deadline && *deadline <= now)
    feed(handoff::LinkTime{});
}

void PairHub::after_step(Time /*now*/) {}

void PairHub::feed(const handoff::LinkEvent& event) {
  std::vector<handoff::LinkAction> actions;
  links_.on(event, steady_clock().now(), actions);
  for (const handoff::LinkAction& action : actions)
    apply(action);
}

void PairHub::apply(const handoff::LinkAction& action) {
  if (const auto* send = std::get_if<handoff::LinkSend>(&action)) {
    const auto found = streams_.find(send->stream.value);
    if (found != streams_.end()) (void)found->second->send(to_wire(send->message)).ok();
  } else if (const auto* close = std::get_if<handoff::LinkClose>(&action)) {
    const auto found = streams_.find(close->stream.value);
    if (found != streams_.end()) found->second->close(close->reason);
    stream_ended(close->stream.value, close->reason);
  } else if (const auto* up = std::get_if<handoff::LinkUp>(&action)) {
    obs::info("pair_linked", {{"peer", up->instance}, {"incarnation", up->incarnation}});
    peer_of_stream_[up->stream.value] = up->incarnation;
    if (!up->plan.same_numerics) {
      obs::warn("pair_numerics_differ",
                {{"peer", up->instance},
                 {"effect", "equal bits are not promised between these two workers"}});
    }
    wanted_.erase(up->incarnation);
    events_.on_linked(up->incarnation, up->data_address);
    // A process that answers under another incarnation than the wanted one has restarted since.
    std::vector<std::uint64_t> others;
    for (const auto& [incarnation, wanted] : wanted_) {
      if (wanted.stream == up->stream.value) others.push_back(incarnation);
    }
    for (const std::uint64_t incarnation : others) {
      give_up(incarnation, unavailable("the prefill process " + up->instance + " has restarted"));
    }
  } else if (const auto* down = std::get_if<handoff::LinkDown>(&action)) {
    obs::warn("pair_lost", {{"peer", down->instance}, {"reason", down->reason.message()}});
    events_.on_lost(down->incarnation, down->reason);
  } else if (const auto* refused = std::get_if<handoff::LinkRefused>(&action)) {
    obs::error("pair_refused",
               {{"peer", refused->instance}, {"reason", refused->reason.message()}});
    stream_ended(refused->stream.value,
                 failed_precondition("the pair does not fit: " + refused->reason.message()));
  }
}

void PairHub::stream_ended(std::uint64_t stream, const Status& why) {
  stop_ticks(stream);
  std::vector<std::uint64_t> lost;
  for (const auto& [incarnation, wanted] : wanted_) {
    if (wanted.stream == stream) lost.push_back(incarnation);
  }
  for (const std::uint64_t incarnation : lost)
    give_up(incarnation, why);
}

void PairHub::on_open(const rpc::PairStreamPtr& stream) {
  // Not only once linked: the peer links as soon as it has our answer, and the loop's thread may be
  // in a long step of decode's engine then, before it has the peer's.
  start_ticks(stream);
  inbox_->push([self = shared_from_this(), stream] {
    self->streams_[stream->number()] = stream;
    self->feed(handoff::StreamOpened{{stream->number()}});
  });
}

void PairHub::on_message(const rpc::PairStreamPtr& stream, v1::PairMessage&& message) {
  auto value = from_wire(message, role_);
  if (!value.ok()) {
    stream->cancel(value.status());
    return;
  }
  inbox_->push([self = shared_from_this(),
                number = stream->number(),
                value = std::move(*value)]() mutable { self->received(number, std::move(value)); });
}

void PairHub::received(std::uint64_t stream, PairValue&& value) {
  if (const auto* link = std::get_if<handoff::LinkMessage>(&value)) {
    feed(handoff::LinkReceived{{stream}, *link});
    return;
  }
  const auto peer = peer_of_stream_.find(stream);
  if (peer == peer_of_stream_.end()) return;  // before the link: nothing it says counts
  events_.on_message(peer->second, std::move(value));
}

void PairHub::on_closed(const rpc::PairStreamPtr& stream, const Status& status) {
  inbox_->push([self = shared_from_this(), number = stream->number(), status] {
    self->feed(handoff::StreamBroken{{number},
                                     status.ok() ? "the peer ended the stream" : status.message()});
    self->stream_ended(number, status.ok() ? unavailable("the peer ended the stream") : status);
    self->streams_.erase(number);
    self->peer_of_stream_.erase(number);
  });
}

}  // namespace tandem::worker
