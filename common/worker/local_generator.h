// LocalGenerator: core::Generator over the engine of this process, for stand-alone servers.
#pragma once

#include "common/core/generator.h"
#include "common/worker/engine_loop.h"
#include "common/worker/role.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tandem::worker {

/// Any thread; what it does happens on the engine thread. All pointers are borrowed.
class LocalGenerator final : public core::Generator, public LoopClient {
 public:
  /// `extra_info` gives more members for /get_server_info; called on any thread.
  LocalGenerator(Role* role,
                 engine::Engine* engine,
                 EngineLoop* loop,
                 std::function<std::vector<std::pair<std::string, std::string>>()> extra_info);

  Status submit(core::Request request, core::EventSink sink) override;
  void abort(core::RequestId id) override;
  void abort_all() override;
  void flush_cache(std::function<void(Status)> done) override;

  [[nodiscard]] std::vector<core::Load> loads() const override { return {loop_->load()}; }

  [[nodiscard]] Status ready() const override;

  [[nodiscard]] std::vector<std::pair<std::string, std::string>> server_info() const override {
    return extra_info_();
  }

  /// From now on new requests are refused with kUnavailable.
  void drain() { draining_.store(true); }

  void before_step(Time /*now*/) override {}

  /// Hands the events of the step on. Not before: whoever has the last token may ask for the loads,
  /// and they must not count the request any more.
  void after_step(Time now) override;

 private:
  struct Waiting {
    std::shared_ptr<core::EventSink> sink;
    core::TokenEvent event;
  };

  Role* role_;
  engine::Engine* engine_;
  EngineLoop* loop_;
  std::function<std::vector<std::pair<std::string, std::string>>()> extra_info_;
  // The engine thread's: of this step, and those that are handed on. Both keep their memory.
  std::vector<Waiting> events_;
  std::vector<Waiting> sending_;
  std::atomic<bool> draining_{false};
  // What ready() saw last: progress and when it last moved (ns on the steady clock).
  mutable std::atomic<std::uint64_t> seen_progress_{0};
  mutable std::atomic<std::int64_t> seen_at_ns_{0};
};

}  // namespace tandem::worker
