#include "common/cluster/registry.h"

#include <algorithm>

namespace tandem::cluster {

namespace {

std::uint32_t rank_product(const Topology& t) {
  // Sizes are bounded by the caller before they are multiplied.
  return t.attn_dp_size * t.attn_cp_size * t.attn_tp_size * t.pp_size;
}

Status check_rank(const char* name,
                  std::uint32_t rank,
                  std::uint32_t size,
                  std::uint32_t size_max) {
  if (size < 1 || size > size_max) {
    return invalid_argument(std::string(name) + "_size: found " + std::to_string(size) +
                            ", expected 1.." + std::to_string(size_max));
  }
  if (rank >= size) {
    return invalid_argument(std::string(name) + "_rank: found " + std::to_string(rank) +
                            ", expected less than " + name + "_size=" + std::to_string(size));
  }
  return {};
}

Status check_topology(const Topology& t, std::uint32_t ranks_max) {
  TANDEM_TRY(check_rank("attn_tp", t.attn_tp_rank, t.attn_tp_size, ranks_max));
  TANDEM_TRY(check_rank("attn_cp", t.attn_cp_rank, t.attn_cp_size, ranks_max));
  TANDEM_TRY(check_rank("attn_dp", t.attn_dp_rank, t.attn_dp_size, ranks_max));
  TANDEM_TRY(check_rank("pp", t.pp_rank, t.pp_size, ranks_max));
  TANDEM_TRY(check_rank("system_dp", t.system_dp_rank, t.system_dp_size, ranks_max));
  const std::uint64_t product = std::uint64_t{t.attn_dp_size} * t.attn_cp_size;
  if (product > ranks_max || product * t.attn_tp_size > ranks_max ||
      product * t.attn_tp_size * t.pp_size > ranks_max) {
    return invalid_argument("attn_dp_size * attn_cp_size * attn_tp_size * pp_size: more than " +
                            std::to_string(ranks_max) + " ranks");
  }
  return {};
}

bool same_layout(const Topology& a, const Topology& b) {
  return a.attn_tp_size == b.attn_tp_size && a.attn_cp_size == b.attn_cp_size &&
         a.attn_dp_size == b.attn_dp_size && a.pp_size == b.pp_size &&
         a.system_dp_size == b.system_dp_size;
}

}  // namespace

Status Registry::check(const Member& row) const {
  if (row.instance.empty()) return invalid_argument("instance: empty, expected a name");
  const std::pair<const char*, const std::string*> texts[] = {
      {"instance", &row.instance},
      {"http_address", &row.http_address},
      {"grpc_address", &row.grpc_address},
      {"model_digest", &row.model_digest},
      {"weight_version", &row.weight_version},
      {"served_model_name", &row.served_model_name},
      {"rank_ip", &row.rank_ip},
      {"kv_cache_dtype", &row.kv_cache_dtype},
      {"kv_layout", &row.kv_layout},
      {"load_balance_method", &row.load_balance_method},
      {"decode_allocation_policy", &row.decode_allocation_policy},
  };
  for (const auto& [name, text] : texts) {
    if (text->size() > options_.text_bytes_max) {
      return invalid_argument(std::string(name) + ": " + std::to_string(text->size()) +
                              " bytes, expected at most " +
                              std::to_string(options_.text_bytes_max));
    }
  }
  if (row.rank_count < 1 || row.rank_count > options_.ranks_max) {
    return invalid_argument("rank_count: found " + std::to_string(row.rank_count) +
                            ", expected 1.." + std::to_string(options_.ranks_max));
  }
  if (row.rank >= row.rank_count) {
    return invalid_argument("rank: found " + std::to_string(row.rank) +
                            ", expected less than rank_count=" + std::to_string(row.rank_count));
  }
  if (row.role < Role::kUnified || row.role > Role::kDecode) {
    return invalid_argument("role: found " + std::to_string(static_cast<int>(row.role)) +
                            ", expected unified, prefill or decode");
  }
  if (row.rank_port > 65535) {
    return invalid_argument("rank_port: found " + std::to_string(row.rank_port) +
                            ", expected 0..65535");
  }
  return check_topology(row.topology, options_.ranks_max);
}

Status Registry::check_all(std::span<const Member> rows) const {
  std::size_t fresh = 0;
  for (const Member& row : rows) {
    TANDEM_TRY(check(row));
    if (row.incarnation == 0) {
      return invalid_argument("incarnation: found 0, expected a random number");
    }
    if (row.incarnation != rows[0].incarnation || row.instance != rows[0].instance) {
      return invalid_argument("rows: instance " + row.instance + " beside " + rows[0].instance +
                              ", expected one incarnation of one instance in a registration");
    }
    const auto found = instances_.find(row.instance);
    if (found == instances_.end()) {
      ++fresh;
      continue;
    }
    const Instance& instance = found->second;
    if (std::ranges::find(instance.retired, row.incarnation) != instance.retired.end()) {
      return failed_precondition("incarnation: instance " + row.instance +
                                 " has started again since; this registration is of its past");
    }
    if (!instance.rows.contains(row.rank)) ++fresh;
  }
  if (row_count_ + fresh > options_.rows_max) {
    return resource_exhausted("the registry holds " + std::to_string(row_count_) +
                              " rows, the limit is " + std::to_string(options_.rows_max));
  }
  return {};
}

Status Registry::put(std::span<const Member> rows, Time now) {
  expire(now);
  TANDEM_TRY(check_all(rows));
  for (const Member& row : rows)
    store(row, now + options_.lease);
  return {};
}

Status Registry::put_unleased(Member row, Time now) {
  expire(now);
  row.incarnation = 0;
  // The position in the layout is the rank, so that registering again replaces and never counts
  // twice.
  const Topology& t = row.topology;
  TANDEM_TRY(check_topology(t, options_.ranks_max));
  row.rank_count = rank_product(t);
  row.rank =
      ((t.attn_dp_rank * t.attn_cp_size + t.attn_cp_rank) * t.attn_tp_size + t.attn_tp_rank) *
          t.pp_size +
      t.pp_rank;
  TANDEM_TRY(check(row));
  const auto found = instances_.find(row.instance);
  if (found == instances_.end() || !found->second.rows.contains(row.rank)) {
    if (row_count_ >= options_.rows_max) {
      return resource_exhausted("the registry holds " + std::to_string(row_count_) +
                                " rows, the limit is " + std::to_string(options_.rows_max));
    }
  }
  if (found != instances_.end() && !found->second.rows.empty()) {
    Instance& instance = found->second;
    const Member& other = instance.rows.begin()->second.member;
    if (!same_layout(other.topology, t)) {
      clear_rows(instance);
    } else if (other.decode_allocation_policy != row.decode_allocation_policy) {
      return invalid_argument("decode_allocation_policy: found '" + row.decode_allocation_policy +
                              "', the ranks that are in have '" + other.decode_allocation_policy +
                              "'");
    }
  }
  store(row, std::nullopt);
  return {};
}

void Registry::store(const Member& row, std::optional<Time> expires) {
  Instance& instance = instances_[row.instance];
  if (instance.incarnation != row.incarnation) {
    if (instance.incarnation != 0) {
      instance.retired.push_back(instance.incarnation);
      if (instance.retired.size() > options_.retired_max) instance.retired.pop_front();
    }
    clear_rows(instance);
    instance.incarnation = row.incarnation;
  }
  const auto [slot, is_new] = instance.rows.try_emplace(row.rank);
  slot->second.expires = expires;
  if (is_new) ++row_count_;
  if (!is_new && slot->second.member == row) return;
  slot->second.member = row;
  note_added(row);
}

void Registry::clear_rows(Instance& instance) {
  for (const auto& [rank, row] : instance.rows)
    note_removed(row.member);
  row_count_ -= instance.rows.size();
  instance.rows.clear();
}

void Registry::leave(std::span<const Member> rows) {
  for (const Member& row : rows) {
    const auto found = instances_.find(row.instance);
    if (found == instances_.end() || found->second.incarnation != row.incarnation) continue;
    const auto slot = found->second.rows.find(row.rank);
    if (slot == found->second.rows.end()) continue;
    note_removed(slot->second.member);
    found->second.rows.erase(slot);
    --row_count_;
    if (found->second.rows.empty() && found->second.retired.empty()) instances_.erase(found);
  }
}

void Registry::expire(Time now) {
  for (auto it = instances_.begin(); it != instances_.end();) {
    Instance& instance = it->second;
    std::erase_if(instance.rows, [&](const auto& entry) {
      const Row& row = entry.second;
      if (!row.expires || *row.expires > now) return false;
      note_removed(row.member);
      --row_count_;
      return true;
    });
    // What remembers nothing but a past is kept only while it is cheap.
    const bool forget = instance.rows.empty() &&
                        (instance.retired.empty() || instances_.size() > options_.rows_max);
    it = forget ? instances_.erase(it) : std::next(it);
  }
}

std::optional<Time> Registry::next_expiry() const {
  std::optional<Time> first;
  for (const auto& [name, instance] : instances_) {
    for (const auto& [rank, row] : instance.rows) {
      if (row.expires && (!first || *row.expires < *first)) first = row.expires;
    }
  }
  return first;
}

void Registry::note_added(const Member& row) {
  ++revision_;
  added_[{row.instance, row.rank}] = row;
}

void Registry::note_removed(const Member& row) {
  ++revision_;
  // A watcher that never saw the row need not hear of its end, but one that saw an earlier form of
  // it must: so the removal is always told.
  added_.erase({row.instance, row.rank});
  removed_.push_back(row);
}

Delta Registry::take_delta() {
  Delta delta{.revision = revision_, .added = {}, .removed = std::move(removed_)};
  removed_.clear();
  for (auto& [key, row] : added_)
    delta.added.push_back(std::move(row));
  added_.clear();
  return delta;
}

bool Registry::complete(const Instance& instance) {
  if (instance.rows.empty()) return false;
  // The ranks must be in one by one; how often any of them registered does not count.
  const std::uint32_t count = instance.rows.begin()->second.member.rank_count;
  if (instance.rows.size() != count) return false;
  return std::ranges::all_of(instance.rows, [&](const auto& entry) {
    return entry.second.member.rank_count == count && entry.first < count;
  });
}

std::vector<Member> Registry::list(std::optional<Role> role) const {
  std::vector<Member> rows;
  for (const auto& [name, instance] : instances_) {
    for (const auto& [rank, row] : instance.rows) {
      if (!role || row.member.role == *role) rows.push_back(row.member);
    }
  }
  return rows;
}

Result<std::vector<Member>> Registry::resolve(Role role, const std::string& name) const {
  bool known = false;
  for (const auto& [key, instance] : instances_) {
    if (instance.rows.empty() || (!name.empty() && key != name)) continue;
    if (instance.rows.begin()->second.member.role != role) continue;
    known = true;
    if (!complete(instance)) continue;
    std::vector<Member> rows;
    for (const auto& [rank, row] : instance.rows)
      rows.push_back(row.member);
    return rows;
  }
  const std::string what = name.empty() ? std::string("any instance of this role") : name;
  if (known) return unavailable("ranks of " + what + " are missing");
  return not_found(what + " is not registered");
}

}  // namespace tandem::cluster
