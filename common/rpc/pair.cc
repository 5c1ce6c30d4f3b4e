#include "common/rpc/pair.h"

#include "common/rpc/internal/channel.h"
#include "common/rpc/internal/stream.h"

#include "proto/tandem/v1/pair.grpc.pb.h"

namespace tandem::rpc {

namespace {

using internal::PeerSet;
using internal::StreamPeer;

class PairPeer;
using Peers = PeerSet<PairPeer>;

std::uint64_t draw_number() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}

class PairPeer final : public StreamPeer<v1::PairMessage, v1::PairMessage>,
                       public PairStream,
                       public std::enable_shared_from_this<PairPeer> {
 public:
  PairPeer(std::size_t queued_bytes_max,
           std::shared_ptr<PairHandler> handler,
           std::shared_ptr<Peers> peers)
      : StreamPeer(queued_bytes_max), handler_(std::move(handler)), peers_(std::move(peers)) {}

  // PairStream
  [[nodiscard]] std::uint64_t number() const override { return number_; }

  Status send(v1::PairMessage&& message) override { return outbox().send(std::move(message)); }

  void close(const Status& status) override { outbox().close(status); }

  void cancel(const Status& why) override { outbox().cancel(why); }

  // StreamPeer
  void received(v1::PairMessage&& message) override {
    if (outbox().closed()) return;
    handler_->on_message(shared_from_this(), std::move(message));
  }

  void ended(const Status& status) override {
    if (opened_.load()) handler_->on_closed(shared_from_this(), status);
    if (peers_) peers_->remove(this);
  }

  void open() {
    opened_.store(true);
    handler_->on_open(shared_from_this());
  }

 private:
  const std::uint64_t number_ = draw_number();
  const std::shared_ptr<PairHandler> handler_;
  const std::shared_ptr<Peers> peers_;  // server's side only
  std::atomic<bool> opened_{false};
};

class PairService final : public Service, private v1::Pair::CallbackService {
 public:
  PairService(std::shared_ptr<PairHandler> handler, PairServiceOptions options)
      : handler_(std::move(handler)),
        options_(std::move(options)),
        peers_(std::make_shared<Peers>(options_.streams_max)) {}

  grpc::Service* grpc_service() override { return this; }

  void close_all(const Status& status) override { peers_->close_all(status); }

 private:
  grpc::ServerBidiReactor<v1::PairMessage, v1::PairMessage>* Open(
      grpc::CallbackServerContext* context) override {
    auto peer = std::make_shared<PairPeer>(options_.queued_bytes_max, handler_, peers_);
    auto* reactor = new internal::ServerBidi<v1::PairMessage, v1::PairMessage>(context, peer);
    const bool allowed =
        !options_.authorize || options_.authorize(internal::authorization_of(*context));
    const Status admitted = allowed ? peers_->add(peer) : internal::refuse_key();
    if (admitted.ok()) {
      peer->open();
      reactor->start();
    } else {
      peer->outbox().close(admitted);
    }
    return reactor;
  }

  const std::shared_ptr<PairHandler> handler_;
  const PairServiceOptions options_;
  const std::shared_ptr<Peers> peers_;
};

}  // namespace

std::shared_ptr<Service> make_pair_service(std::shared_ptr<PairHandler> handler,
                                           PairServiceOptions options) {
  return std::make_shared<PairService>(std::move(handler), std::move(options));
}

Result<PairStreamPtr> open_pair(const ClientOptions& options,
                                std::shared_ptr<PairHandler> handler) {
  TANDEM_TRY(auto channel, internal::make_channel(options));
  auto peer = std::make_shared<PairPeer>(options.queued_bytes_max, std::move(handler), nullptr);
  using Stub = v1::Pair::Stub;
  auto* reactor =
      new internal::ClientBidi<Stub, v1::PairMessage, v1::PairMessage>(std::move(channel), peer);
  peer->open();
  reactor->start(options, [](Stub& stub, grpc::ClientContext* context, auto* self) {
    stub.async()->Open(context, self);
  });
  return PairStreamPtr(std::move(peer));
}

}  // namespace tandem::rpc
