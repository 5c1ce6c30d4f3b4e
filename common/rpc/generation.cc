#include "common/rpc/generation.h"

#include "common/base/clock.h"
#include "common/rpc/internal/stream.h"

#include "proto/tandem/v1/generate.grpc.pb.h"

namespace tandem::rpc {

namespace {

using internal::authorization_of;
using internal::to_grpc;
using Writer = internal::ServerWriter<v1::GenerateResponse>;

std::optional<Time> deadline_of(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  // gRPC hands out a wall-clock time; what is left of it counts.
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      deadline - std::chrono::system_clock::now());
  constexpr std::chrono::hours kFar{24 * 365};
  if (left > kFar) return std::nullopt;
  return steady_clock().now() + nanoseconds(left.count());
}

class Call;
using Calls = internal::PeerSet<Call>;

class Call final : public Writer::Peer,
                   public GenerationCall,
                   public std::enable_shared_from_this<Call> {
 public:
  Call(const grpc::CallbackServerContext& context,
       const v1::GenerateRequest& request,
       std::size_t queued_bytes_max,
       std::shared_ptr<GenerationHandler> handler,
       std::shared_ptr<Calls> calls)
      : Peer(queued_bytes_max),
        request_(request),
        deadline_(deadline_of(context)),
        authorization_(authorization_of(context)),
        handler_(std::move(handler)),
        calls_(std::move(calls)) {}

  [[nodiscard]] const v1::GenerateRequest& request() const override { return request_; }

  [[nodiscard]] std::optional<Time> deadline() const override { return deadline_; }

  [[nodiscard]] const std::string& authorization() const override { return authorization_; }

  Status write(v1::GenerateResponse&& response) override {
    return outbox().send(std::move(response));
  }

  void finish(const Status& status) override {
    finished_.store(true);
    outbox().close(status);
  }

  void start() {
    started_.store(true);
    handler_->on_generate(shared_from_this());
  }

  void cancelled_by_client() override { stop(); }

  void ended() override {
    // Also when the call broke without a cancel, e.g. over the bound of the queue.
    stop();
    calls_->remove(this);
  }

 private:
  void stop() {
    if (started_.load() && !finished_.exchange(true)) handler_->on_cancel(shared_from_this());
  }

  const v1::GenerateRequest request_;
  const std::optional<Time> deadline_;
  const std::string authorization_;
  const std::shared_ptr<GenerationHandler> handler_;
  const std::shared_ptr<Calls> calls_;
  std::atomic<bool> started_{false};
  std::atomic<bool> finished_{false};
};

class GenerationService final : public Service, private v1::Generation::CallbackService {
 public:
  GenerationService(std::shared_ptr<GenerationHandler> handler, GenerationServiceOptions options)
      : handler_(std::move(handler)),
        options_(options),
        calls_(std::make_shared<Calls>(options.calls_max)) {}

  grpc::Service* grpc_service() override { return this; }

  void close_all(const Status& status) override { calls_->close_all(status); }

 private:
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
    auto call =
        std::make_shared<Call>(*context, *request, options_.queued_bytes_max, handler_, calls_);
    auto* reactor = new Writer(context, call);
    const Status admitted = calls_->add(call);
    if (admitted.ok()) {
      call->start();
    } else {
      call->outbox().close(admitted);
    }
    return reactor;
  }

  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const v1::ModelInfoRequest* /*request*/,
                                         v1::ModelInfo* reply) override {
    auto info = handler_->model_info(authorization_of(*context));
    const Status status = info.status();
    if (status.ok()) *reply = std::move(info).value();
    return finish(context, status);
  }

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::ServerInfoRequest* /*request*/,
                                          v1::ServerInfo* reply) override {
    auto json = handler_->server_info_json(authorization_of(*context));
    const Status status = json.status();
    if (status.ok()) reply->set_json(std::move(json).value());
    return finish(context, status);
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortReply* /*reply*/) override {
    return finish(context, handler_->abort(authorization_of(*context), *request));
  }

  static grpc::ServerUnaryReactor* finish(grpc::CallbackServerContext* context,
                                          const Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(to_grpc(status));
    return reactor;
  }

  const std::shared_ptr<GenerationHandler> handler_;
  const GenerationServiceOptions options_;
  const std::shared_ptr<Calls> calls_;
};

}  // namespace

std::shared_ptr<Service> make_generation_service(std::shared_ptr<GenerationHandler> handler,
                                                 GenerationServiceOptions options) {
  return std::make_shared<GenerationService>(std::move(handler), options);
}

}  // namespace tandem::rpc
