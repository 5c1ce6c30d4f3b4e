#include "common/cluster/dp_rank_table.h"

namespace tandem::cluster {

void DpRankTable::drop_oldest() {
  const Age& oldest = ages_.front();
  const auto found = rooms_.find(oldest.room);
  if (found != rooms_.end() && found->second.serial == oldest.serial) rooms_.erase(found);
  ages_.pop_front();
}

void DpRankTable::expire(Time now) {
  while (!ages_.empty() && ages_.front().expires <= now)
    drop_oldest();
}

void DpRankTable::put(std::uint64_t room, std::uint32_t dp_rank, Time now) {
  expire(now);
  const Entry entry{.dp_rank = dp_rank, .expires = now + options_.ttl, .serial = next_serial_++};
  rooms_[room] = entry;
  ages_.push_back({.room = room, .serial = entry.serial, .expires = entry.expires});
  // Bounds the void elements too: a room that is put over and over must not grow the queue.
  while (ages_.size() > options_.rooms_max)
    drop_oldest();
}

std::optional<std::uint32_t> DpRankTable::find(std::uint64_t room, Time now) const {
  const auto found = rooms_.find(room);
  if (found == rooms_.end() || found->second.expires <= now) return std::nullopt;
  return found->second.dp_rank;
}

}  // namespace tandem::cluster
