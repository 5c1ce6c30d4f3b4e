// DpRankTable: which DP rank of prefill took a bootstrap room (SGLang's /register_dp_rank).
#pragma once

#include "common/base/ids.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

namespace tandem::cluster {

struct DpRankTableOptions {
  Duration ttl = seconds(120);
  std::size_t rooms_max = 1U << 18U;
};

/// Entries live `ttl`; over the bound the oldest goes. One owner thread, no clock.
class DpRankTable {
 public:
  explicit DpRankTable(DpRankTableOptions options = {}) : options_(options) {}

  /// A room that is there already takes the new rank and a new life.
  void put(std::uint64_t room, std::uint32_t dp_rank, Time now);
  [[nodiscard]] std::optional<std::uint32_t> find(std::uint64_t room, Time now) const;

  [[nodiscard]] std::size_t size() const { return rooms_.size(); }

 private:
  struct Entry {
    std::uint32_t dp_rank = 0;
    Time expires;
    std::uint64_t serial = 0;
  };

  struct Age {
    std::uint64_t room = 0;
    std::uint64_t serial = 0;
    Time expires;
  };

  void drop_oldest();
  void expire(Time now);

  DpRankTableOptions options_;
  std::unordered_map<std::uint64_t, Entry> rooms_;
  /// By age; an element whose serial is not the room's any more is void.
  std::deque<Age> ages_;
  std::uint64_t next_serial_ = 1;
};

}  // namespace tandem::cluster
