// Worker: one model server in any role, composed. Programs put a front door before it.
#pragma once

#include "common/args/options.h"
#include "common/base/status.h"
#include "common/core/generator.h"
#include "common/engine/engine.h"
#include "common/engine/model_executor.h"
#include "common/model/model.h"
#include "common/rpc/bootstrap.h"
#include "common/rpc/server.h"
#include "common/worker/engine_loop.h"
#include "common/worker/local_generator.h"
#include "common/worker/pd_roles.h"
#include "common/worker/plan.h"
#include "common/worker/session_endpoint.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tandem::worker {

/// Where this worker answers; known once the front door listens.
struct WorkerAddresses {
  std::string host;  ///< as peers reach it
  std::uint16_t http_port = 0;
  std::uint16_t grpc_port = 0;
  std::uint16_t bootstrap_port = 0;  ///< of the embedded service; 0: none
};

/// The tokenizer beside the model, which another thread reads while this one reads the weights.
struct TokenizerToCome {
  /// Its vocabulary digest, or why there is none; waits for it.
  std::function<Result<std::string>()> vocabulary_digest;
  /// Borrowed; true when there will be none, or nobody wants the worker any more: then weights need
  /// not be read to the end.
  const std::atomic<bool>* unwanted = nullptr;
};

/// Owns model, engine and the threads behind them. Made and ended on the main thread.
class Worker {
 public:
  /// Loads weights, allocates the pool, starts the engine thread and, in a disaggregated role, the
  /// KV transport. `tokenizer` is what is read meanwhile.
  static Result<std::unique_ptr<Worker>> create(const args::Arguments& args,
                                                const WorkerPlan& plan,
                                                const WorkerAddresses& addresses,
                                                const TokenizerToCome& tokenizer);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// The gRPC services of the role, for a server.
  /// `authorize` lets peers in (see rpc::SessionServiceOptions); empty: all.
  [[nodiscard]] std::vector<std::shared_ptr<rpc::Service>> services(
      const std::function<bool(std::string_view)>& authorize) const;

  [[nodiscard]] std::shared_ptr<core::Generator> generator() const { return generator_; }

  [[nodiscard]] const core::ServedModel& served_model() const { return info_.model; }

  /// Values that are known only now, as dest -> JSON text, for the argument dump.
  [[nodiscard]] std::map<std::string, std::string> computed_arguments() const;
  /// Makes the worker known to a bootstrap service ("host:port") for as long as it lives.
  void register_at(const std::string& bootstrap_address);

  /// No new requests.
  void drain() {
    generator_->drain();
    endpoint_->drain();
  }

  /// Whether any request is left.
  [[nodiscard]] bool idle() const;
  /// Ends everything; the services must not be called any more.
  void stop();

 private:
  Worker() = default;
  Status load(const args::Arguments& args, const WorkerPlan& plan, const std::atomic<bool>* stop);
  Status make_role(const args::Arguments& args,
                   const WorkerPlan& plan,
                   const WorkerAddresses& addresses);
  void describe(const args::Arguments& args,
                const WorkerPlan& plan,
                const WorkerAddresses& addresses);
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> extra_info() const;

  WorkerPlan plan_;
  rpc::WorkerInfo info_;
  std::unique_ptr<kernels::ThreadPool> pool_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<engine::ModelExecutor> executor_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<Role> role_;
  PdRole* pd_role_ = nullptr;  // role_, when disaggregated
  std::shared_ptr<SessionEndpoint> endpoint_;
  std::shared_ptr<LocalGenerator> generator_;
  std::unique_ptr<rpc::Registration> registration_;
  std::unique_ptr<LoopClient> status_log_;
  std::unique_ptr<LoopClient> ready_memory_;
};

}  // namespace tandem::worker
