// Reactors of both sides over an Outbox. A reactor owns itself and dies in OnDone; what outlives it
// is the StreamPeer, which the owner of the stream and the reactor share.
#pragma once

#include "common/rpc/internal/grpc_status.h"
#include "common/rpc/internal/outbox.h"
#include "common/rpc/session_client.h"

#include <grpcpp/alarm.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem::rpc::internal {

/// The lasting half of one stream.
template <class In, class Out>
class StreamPeer {
 public:
  using Incoming = In;
  using Outgoing = Out;

  explicit StreamPeer(std::size_t queued_bytes_max, typename Outbox<Out>::Merge merge = nullptr)
      : outbox_(queued_bytes_max, merge) {}

  virtual ~StreamPeer() = default;
  /// One call at a time; the next message is read when it returns.
  virtual void received(In&& message) = 0;
  /// Once, after all else.
  virtual void ended(const Status& status) = 0;

  Outbox<Out>& outbox() { return outbox_; }

 private:
  Outbox<Out> outbox_;
};

/// The value of the metadata `authorization`; empty without one.
inline std::string authorization_of(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) return {};
  return {found->second.data(), found->second.size()};
}

/// What a peer that may not enter is told.
inline Status refuse_key() {
  return unauthenticated(
      "metadata authorization: expected 'Bearer KEY' with the worker's --api-key");
}

/// The status a stream ended with: a local reason beats what gRPC makes of it.
inline Status final_status(const std::optional<Status>& local, const Status& remote) {
  if (local && !local->ok()) return *local;
  return remote;
}

template <class In, class Out>
class ServerBidi final : public grpc::ServerBidiReactor<In, Out>, public StreamOps<Out> {
 public:
  ServerBidi(grpc::CallbackServerContext* context, std::shared_ptr<StreamPeer<In, Out>> peer)
      : context_(context), peer_(std::move(peer)) {
    peer_->outbox().attach(this);
  }

  /// Not for a stream that was refused (its outbox was closed before).
  void start() { this->StartRead(&in_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      peer_->outbox().close(ok_status());
      return;
    }
    peer_->received(std::move(in_));
    in_.Clear();
    this->StartRead(&in_);
  }

  void OnWriteDone(bool ok) override { peer_->outbox().write_done(ok); }

  void OnCancel() override {
    cancelled_.store(true);
    peer_->outbox().broken();
  }

  void OnDone() override {
    const std::optional<Status> local = peer_->outbox().detach();
    const Status remote =
        cancelled_.load() ? cancelled("the peer ended or lost the stream") : Status();
    const std::shared_ptr<StreamPeer<In, Out>> peer = std::move(peer_);
    delete this;
    peer->ended(final_status(local, remote));
  }

  void start_write(const Out* message) override { this->StartWrite(message); }

  void start_finish(const Status& status, bool /*broken*/) override {
    this->Finish(to_grpc(status));
  }

  void cancel_now(bool writing) override {
    // With nothing in flight Finish goes through at once, and its status reaches the client.
    if (writing) context_->TryCancel();
  }

 private:
  grpc::CallbackServerContext* context_;
  std::shared_ptr<StreamPeer<In, Out>> peer_;
  std::atomic<bool> cancelled_{false};
  In in_;
};

/// One request, many answers. StreamPeer::received is not used.
template <class Out>
class ServerWriter final : public grpc::ServerWriteReactor<Out>, public StreamOps<Out> {
 public:
  class Peer {
   public:
    explicit Peer(std::size_t queued_bytes_max) : outbox_(queued_bytes_max) {}

    virtual ~Peer() = default;
    /// At most once, before ended.
    virtual void cancelled_by_client() = 0;
    virtual void ended() = 0;

    Outbox<Out>& outbox() { return outbox_; }

   private:
    Outbox<Out> outbox_;
  };

  ServerWriter(grpc::CallbackServerContext* context, std::shared_ptr<Peer> peer)
      : context_(context), peer_(std::move(peer)) {
    peer_->outbox().attach(this);
  }

  void OnWriteDone(bool ok) override { peer_->outbox().write_done(ok); }

  void OnCancel() override {
    peer_->cancelled_by_client();
    peer_->outbox().broken();
  }

  void OnDone() override {
    (void)peer_->outbox().detach();
    const std::shared_ptr<Peer> peer = std::move(peer_);
    delete this;
    peer->ended();
  }

  void start_write(const Out* message) override { this->StartWrite(message); }

  void start_finish(const Status& status, bool /*broken*/) override {
    this->Finish(to_grpc(status));
  }

  void cancel_now(bool writing) override {
    // With nothing in flight Finish goes through at once, and its status reaches the client.
    if (writing) context_->TryCancel();
  }

 private:
  grpc::CallbackServerContext* context_;
  std::shared_ptr<Peer> peer_;
};

/// Client of a bidirectional stream. `Stub` is the generated stub class of the service.
template <class Stub, class In, class Out>
class ClientBidi final : public grpc::ClientBidiReactor<Out, In>, public StreamOps<Out> {
 public:
  ClientBidi(std::shared_ptr<grpc::Channel> channel, std::shared_ptr<StreamPeer<In, Out>> peer)
      : channel_(std::move(channel)), stub_(channel_), peer_(std::move(peer)) {}

  /// `open` starts the call: stub.async()->Open(context, reactor). After this the object may be
  /// gone.
  template <class Open>
  void start(const ClientOptions& options, Open open) {
    const std::shared_ptr<StreamPeer<In, Out>> peer = peer_;
    const std::shared_ptr<std::atomic<bool>> greeted = greeted_;
    const auto deadline =
        std::chrono::system_clock::now() + std::chrono::nanoseconds(options.connect_timeout.ns);
    alarm_.Set(
        deadline,
        [peer, greeted, address = options.address, ms = options.connect_timeout.milliseconds()](
            bool expired) {
          if (!expired || greeted->load()) return;
          peer->outbox().cancel(deadline_exceeded("no first message from " + address + " within " +
                                                  std::to_string(ms) + " ms"));
        });
    if (!options.authorization.empty())
      context_.AddMetadata("authorization", options.authorization);
    open(stub_, &context_, this);
    this->AddHold();  // until the outbox starts nothing any more
    this->StartRead(&in_);
    this->StartCall();
    peer->outbox().attach(this);
    // What was sent or ended before there was a stream.
    peer->outbox().credit(0);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      peer_->outbox().broken();
      return;
    }
    greeted_->store(true);
    peer_->received(std::move(in_));
    in_.Clear();
    this->StartRead(&in_);
  }

  void OnWriteDone(bool ok) override { peer_->outbox().write_done(ok); }

  void OnDone(const grpc::Status& status) override {
    const std::optional<Status> local = peer_->outbox().detach();
    const std::shared_ptr<StreamPeer<In, Out>> peer = std::move(peer_);
    const Status remote = from_grpc(status);
    delete this;
    peer->ended(final_status(local, remote));
  }

  void start_write(const Out* message) override { this->StartWrite(message); }

  void start_finish(const Status& /*status*/, bool broken) override {
    if (!broken) this->StartWritesDone();
    this->RemoveHold();
  }

  void cancel_now(bool /*writing*/) override { context_.TryCancel(); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  Stub stub_;
  std::shared_ptr<StreamPeer<In, Out>> peer_;
  std::shared_ptr<std::atomic<bool>> greeted_ = std::make_shared<std::atomic<bool>>(false);
  grpc::ClientContext context_;
  grpc::Alarm alarm_;
  In in_;
};

/// The open streams of one service: a bound, and a way to reach them all. The mutex guards a small
/// map between gRPC threads.
template <class Peer>
class PeerSet {
 public:
  explicit PeerSet(std::size_t count_max) : count_max_(count_max) {}

  Status add(const std::shared_ptr<Peer>& peer) {
    const std::lock_guard lock(mutex_);
    if (closed_) return unavailable("the server is shutting down");
    if (peers_.size() >= count_max_) {
      return resource_exhausted("the server has " + std::to_string(peers_.size()) +
                                " open streams of this kind, the limit is " +
                                std::to_string(count_max_));
    }
    peers_.emplace(peer.get(), peer);
    return {};
  }

  void remove(const Peer* peer) {
    const std::lock_guard lock(mutex_);
    peers_.erase(peer);
  }

  [[nodiscard]] std::vector<std::shared_ptr<Peer>> all() const {
    std::vector<std::shared_ptr<Peer>> live;
    const std::lock_guard lock(mutex_);
    live.reserve(peers_.size());
    for (const auto& [key, peer] : peers_) {
      if (auto strong = peer.lock()) live.push_back(std::move(strong));
    }
    return live;
  }

  void close_all(const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    for (const std::shared_ptr<Peer>& peer : all())
      peer->outbox().close(status);
  }

 private:
  const std::size_t count_max_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::unordered_map<const Peer*, std::weak_ptr<Peer>> peers_;
};

}  // namespace tandem::rpc::internal
