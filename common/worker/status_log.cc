#include "common/worker/status_log.h"

#include "common/obs/log.h"

namespace tandem::worker {
namespace {

class StatusLog final : public LoopClient {
 public:
  StatusLog(engine::Engine* engine, std::uint32_t interval)
      : engine_(engine), interval_(interval) {}

  void before_step(Time /*now*/) override { had_work_ = engine_->has_work(); }

  void after_step(Time /*now*/) override {
    if (!had_work_ || ++steps_ < interval_) return;
    steps_ = 0;
    const core::Load load = engine_->load();
    if (load.running_requests == 0) return;
    const double usage = load.total_pages == 0 ? 0.0
                                               : static_cast<double>(load.used_pages) /
                                                     static_cast<double>(load.total_pages);
    obs::info("decode_status",
              {{"running", load.running_requests},
               {"queued", load.waiting_requests},
               {"used_tokens", load.used_tokens},
               {"token_usage", usage},
               {"new_token_ratio", engine_->new_token_ratio()},
               {"tokens_per_s", load.generation_throughput}});
  }

 private:
  engine::Engine* engine_;
  std::uint32_t interval_;
  std::uint32_t steps_ = 0;
  bool had_work_ = false;
};

}  // namespace

std::unique_ptr<LoopClient> make_status_log(engine::Engine* engine, std::uint32_t interval) {
  return std::make_unique<StatusLog>(engine, interval);
}

}  // namespace tandem::worker
