// The bootstrap service over its backend.
#include "common/rpc/bootstrap.h"

#include "common/rpc/internal/stream.h"

#include "proto/tandem/v1/bootstrap.grpc.pb.h"

namespace tandem::rpc {

namespace {

using internal::PeerSet;
using internal::to_grpc;
using Writer = internal::ServerWriter<v1::MembershipDelta>;

class RegisterPeer;
using RegisterPeers = PeerSet<RegisterPeer>;

class RegisterPeer final : public internal::StreamPeer<v1::RegisterRequest, v1::RegisterReply> {
 public:
  RegisterPeer(std::size_t queued_bytes_max,
               std::shared_ptr<BootstrapBackend> backend,
               std::shared_ptr<RegisterPeers> peers)
      : StreamPeer(queued_bytes_max), backend_(std::move(backend)), peers_(std::move(peers)) {}

  void received(v1::RegisterRequest&& message) override {
    if (outbox().closed()) return;
    (void)outbox().send(backend_->register_rows(message));
  }

  // The rows stay until their lease runs out: a broken stream alone proves nothing.
  void ended(const Status& /*status*/) override { peers_->remove(this); }

 private:
  const std::shared_ptr<BootstrapBackend> backend_;
  const std::shared_ptr<RegisterPeers> peers_;
};

class Watcher;
using Watchers = PeerSet<Watcher>;

class Watcher final : public Writer::Peer,
                      public WatchStream,
                      public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(std::size_t queued_bytes_max,
          std::shared_ptr<BootstrapBackend> backend,
          std::shared_ptr<Watchers> watchers)
      : Peer(queued_bytes_max), backend_(std::move(backend)), watchers_(std::move(watchers)) {}

  Status send(v1::MembershipDelta&& delta) override { return outbox().send(std::move(delta)); }

  void close(const Status& status) override { outbox().close(status); }

  void start(const v1::WatchRequest& request) {
    started_.store(true);
    backend_->on_watch(request, shared_from_this());
  }

  void cancelled_by_client() override {}

  void ended() override {
    if (started_.load()) backend_->on_watch_closed(shared_from_this());
    watchers_->remove(this);
  }

 private:
  const std::shared_ptr<BootstrapBackend> backend_;
  const std::shared_ptr<Watchers> watchers_;
  std::atomic<bool> started_{false};
};

class BootstrapService final : public Service, private v1::Bootstrap::CallbackService {
 public:
  BootstrapService(std::shared_ptr<BootstrapBackend> backend, BootstrapServiceOptions options)
      : backend_(std::move(backend)),
        options_(options),
        registrants_(std::make_shared<RegisterPeers>(options.streams_max)),
        watchers_(std::make_shared<Watchers>(options.streams_max)) {}

  grpc::Service* grpc_service() override { return this; }

  void close_all(const Status& status) override {
    registrants_->close_all(status);
    watchers_->close_all(status);
  }

 private:
  grpc::ServerBidiReactor<v1::RegisterRequest, v1::RegisterReply>* Register(
      grpc::CallbackServerContext* context) override {
    auto peer = std::make_shared<RegisterPeer>(options_.queued_bytes_max, backend_, registrants_);
    auto* reactor = new internal::ServerBidi<v1::RegisterRequest, v1::RegisterReply>(context, peer);
    const Status admitted = registrants_->add(peer);
    if (admitted.ok()) {
      reactor->start();
    } else {
      peer->outbox().close(admitted);
    }
    return reactor;
  }

  grpc::ServerWriteReactor<v1::MembershipDelta>* Watch(grpc::CallbackServerContext* context,
                                                       const v1::WatchRequest* request) override {
    auto watcher = std::make_shared<Watcher>(options_.queued_bytes_max, backend_, watchers_);
    auto* reactor = new Writer(context, watcher);
    const Status admitted = watchers_->add(watcher);
    if (admitted.ok()) {
      watcher->start(*request);
    } else {
      watcher->outbox().close(admitted);
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* Resolve(grpc::CallbackServerContext* context,
                                    const v1::ResolveRequest* request,
                                    v1::ResolveReply* reply) override {
    return answer(context, backend_->resolve(*request), reply);
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListReply* reply) override {
    return answer(context, backend_->list(*request), reply);
  }

  template <class Reply>
  static grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context,
                                          Result<Reply> result,
                                          Reply* reply) {
    const Status status = result.status();
    if (status.ok()) *reply = std::move(result).value();
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(to_grpc(status));
    return reactor;
  }

  const std::shared_ptr<BootstrapBackend> backend_;
  const BootstrapServiceOptions options_;
  const std::shared_ptr<RegisterPeers> registrants_;
  const std::shared_ptr<Watchers> watchers_;
};

}  // namespace

std::shared_ptr<Service> make_bootstrap_service(std::shared_ptr<BootstrapBackend> backend,
                                                BootstrapServiceOptions options) {
  return std::make_shared<BootstrapService>(std::move(backend), options);
}

}  // namespace tandem::rpc
