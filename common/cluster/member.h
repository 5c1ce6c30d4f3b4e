// Member: one rank of one worker instance, as the registry holds it.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::cluster {

/// Numbers are the wire's.
enum class Role : std::uint8_t {
  kUnified = 1,
  kPrefill = 2,
  kDecode = 3,
};

/// Where a rank stands in the parallel layout, under SGLang's names.
struct Topology {
  std::uint32_t attn_tp_size = 1, attn_tp_rank = 0;
  std::uint32_t attn_cp_size = 1, attn_cp_rank = 0;
  std::uint32_t attn_dp_size = 1, attn_dp_rank = 0;
  std::uint32_t pp_size = 1, pp_rank = 0;
  std::uint32_t system_dp_size = 1, system_dp_rank = 0;
  friend bool operator==(const Topology&, const Topology&) = default;
};

struct Member {
  std::string instance;           ///< stable over restarts
  std::uint64_t incarnation = 0;  ///< of the process; 0: registered over HTTP, which has none
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;  ///< rows that make the instance complete
  Role role = Role::kPrefill;
  std::string http_address;
  std::string grpc_address;
  std::string model_digest;
  std::string weight_version;
  std::string served_model_name;
  Topology topology;
  std::string rank_ip;
  std::uint32_t rank_port = 0;
  std::uint32_t page_size = 0;
  std::string kv_cache_dtype;
  std::string kv_layout;
  std::string load_balance_method;
  std::uint32_t prefill_http_port = 0;
  std::string decode_allocation_policy;
  std::uint32_t bootstrap_port = 0;
  friend bool operator==(const Member&, const Member&) = default;
};

}  // namespace tandem::cluster
