// What SGLang's GET /route answers, from the rows of one complete prefill instance.
#pragma once

#include "common/base/status.h"
#include "common/cluster/member.h"

#include <cstdint>
#include <optional>
#include <span>

namespace tandem::cluster {

/// The query of GET /route; all four -1 asks for the layout, else for one rank's address.
struct RouteQuery {
  std::int64_t prefill_dp_rank = -1;
  std::int64_t prefill_cp_rank = -1;
  std::int64_t target_tp_rank = -1;
  std::int64_t target_pp_rank = -1;

  [[nodiscard]] bool asks_for_layout() const {
    return prefill_dp_rank == -1 && prefill_cp_rank == -1 && target_tp_rank == -1 &&
           target_pp_rank == -1;
  }
};

/// Number of data-parallel groups as SGLang counts them.
std::uint32_t dp_size(const Topology& topology);

/// The row at that place; kNotFound names the rank that nobody has.
Result<Member> find_rank(std::span<const Member> rows, const RouteQuery& query);

}  // namespace tandem::cluster
