#include "common/cluster/route.h"

#include <string>

namespace tandem::cluster {

namespace {

// Replicas that are whole processes (system dp) and attention groups within one are never used
// together.
std::uint32_t dp_rank(const Topology& topology) {
  return topology.system_dp_size == 1 ? topology.attn_dp_rank : topology.system_dp_rank;
}

}  // namespace

std::uint32_t dp_size(const Topology& topology) {
  return topology.system_dp_size == 1 ? topology.attn_dp_size : topology.system_dp_size;
}

Result<Member> find_rank(std::span<const Member> rows, const RouteQuery& query) {
  for (const Member& row : rows) {
    const Topology& t = row.topology;
    if (dp_rank(t) == query.prefill_dp_rank && t.attn_cp_rank == query.prefill_cp_rank &&
        t.attn_tp_rank == query.target_tp_rank && t.pp_rank == query.target_pp_rank) {
      return row;
    }
  }
  return not_found("no prefill rank with dp " + std::to_string(query.prefill_dp_rank) + ", cp " +
                   std::to_string(query.prefill_cp_rank) + ", tp " +
                   std::to_string(query.target_tp_rank) + ", pp " +
                   std::to_string(query.target_pp_rank));
}

}  // namespace tandem::cluster
