#include "common/worker/role.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tandem::worker {

namespace {

class UnifiedRole final : public Role {
 public:
  explicit UnifiedRole(engine::Engine* engine) : engine_(engine) {}

  Status submit(rpc::Submission submission, core::EventSink sink) override {
    if (submission.disaggregation) {
      return failed_precondition(
          "this worker runs with --disaggregation-mode null and takes whole requests only; start "
          "it with prefill or "
          "decode to pair it");
    }
    const core::RequestId id = submission.request.id;
    TANDEM_TRY(engine_->submit(std::move(submission.request),
                               [this, id, sink = std::move(sink)](core::TokenEvent&& event) {
                                 if (event.finish) running_.erase(id);
                                 sink(std::move(event));
                               }));
    running_.insert(id);
    return {};
  }

  void abort(core::RequestId id, const Status& why) override { engine_->abort(id, why); }

  void abort_all(const Status& why) override {
    const std::vector<core::RequestId> all(running_.begin(), running_.end());
    for (const core::RequestId id : all)
      engine_->abort(id, why);
  }

  void before_step(Time /*now*/) override {}

  void after_step(Time /*now*/) override {}

 private:
  engine::Engine* engine_;
  std::unordered_set<core::RequestId> running_;
};

}  // namespace

std::unique_ptr<Role> make_unified_role(engine::Engine* engine) {
  return std::make_unique<UnifiedRole>(engine);
}

}  // namespace tandem::worker
