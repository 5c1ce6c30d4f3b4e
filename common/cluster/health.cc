#include "common/cluster/health.h"

namespace tandem::cluster {

std::string_view health_name(Health health) {
  switch (health) {
    case Health::kUnknown:
      return "unknown";
    case Health::kUp:
      return "up";
    case Health::kSuspect:
      return "suspect";
    case Health::kDead:
      return "dead";
  }
  return "unknown";
}

HealthChange WorkerHealth::become(Health next, bool restarted) {
  const HealthChange change{.before = health_, .after = next, .restarted = restarted};
  health_ = next;
  return change;
}

HealthChange WorkerHealth::on_hello(std::uint64_t incarnation, Time now) {
  const bool restarted = incarnation_ != 0 && incarnation_ != incarnation;
  incarnation_ = incarnation;
  progress_ = 0;
  progress_at_ = now;
  return become(Health::kUp, restarted);
}

HealthChange WorkerHealth::on_progress(std::uint64_t progress, Time now) {
  const bool in_session = health_ == Health::kUp || health_ == Health::kSuspect;
  if (!in_session || progress <= progress_) return become(health_);
  progress_ = progress;
  progress_at_ = now;
  return become(Health::kUp);
}

HealthChange WorkerHealth::on_closed(bool in_order) {
  if (health_ == Health::kDead) return become(health_);
  return become(in_order ? Health::kUnknown : Health::kDead);
}

HealthChange WorkerHealth::on_time(Time now) {
  if (health_ != Health::kUp && health_ != Health::kSuspect) return become(health_);
  const Duration still = now - progress_at_;
  if (still >= options_.dead_after) return become(Health::kDead);
  if (still >= options_.suspect_after) return become(Health::kSuspect);
  return become(health_);
}

std::optional<Time> WorkerHealth::next_deadline() const {
  if (health_ == Health::kUp) return progress_at_ + options_.suspect_after;
  if (health_ == Health::kSuspect) return progress_at_ + options_.dead_after;
  return std::nullopt;
}

}  // namespace tandem::cluster
