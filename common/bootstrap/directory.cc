#include "common/bootstrap/directory.h"

#include "common/base/clock.h"
#include "common/obs/log.h"

#include <algorithm>
#include <chrono>

namespace tandem::bootstrap {

namespace {

constexpr int kRowsPerRequestMax = 1024;
// How late a lease may be seen to have run out.
constexpr std::chrono::milliseconds kLeaseTick{100};

// Proto3 has no absent numbers: a size that was left out is 1.
std::uint32_t size_or_one(std::uint32_t size) {
  return std::max(size, 1U);
}

cluster::Member read_row(const v1::MemberRow& row) {
  cluster::Member member;
  member.instance = row.instance();
  member.incarnation = row.incarnation();
  member.rank = row.rank();
  member.rank_count = size_or_one(row.rank_count());
  member.role = static_cast<cluster::Role>(row.role());
  member.http_address = row.http_address();
  member.grpc_address = row.grpc_address();
  member.model_digest = row.model_digest();
  member.weight_version = row.weight_version();
  member.served_model_name = row.served_model_name();
  cluster::Topology& t = member.topology;
  t.attn_tp_size = size_or_one(row.attn_tp_size());
  t.attn_tp_rank = row.attn_tp_rank();
  t.attn_cp_size = size_or_one(row.attn_cp_size());
  t.attn_cp_rank = row.attn_cp_rank();
  t.attn_dp_size = size_or_one(row.attn_dp_size());
  t.attn_dp_rank = row.attn_dp_rank();
  t.pp_size = size_or_one(row.pp_size());
  t.pp_rank = row.pp_rank();
  t.system_dp_size = size_or_one(row.system_dp_size());
  t.system_dp_rank = row.system_dp_rank();
  member.rank_ip = row.rank_ip();
  member.rank_port = row.rank_port();
  member.page_size = row.page_size();
  member.kv_cache_dtype = row.kv_cache_dtype();
  member.kv_layout = row.kv_layout();
  member.load_balance_method = row.load_balance_method();
  member.prefill_http_port = row.prefill_http_port();
  member.decode_allocation_policy = row.decode_allocation_policy();
  member.bootstrap_port = row.bootstrap_port();
  return member;
}

void write_row(const cluster::Member& member, v1::MemberRow* row) {
  row->set_instance(member.instance);
  row->set_incarnation(member.incarnation);
  row->set_rank(member.rank);
  row->set_rank_count(member.rank_count);
  row->set_role(static_cast<v1::Role>(member.role));
  row->set_http_address(member.http_address);
  row->set_grpc_address(member.grpc_address);
  row->set_model_digest(member.model_digest);
  row->set_weight_version(member.weight_version);
  row->set_served_model_name(member.served_model_name);
  const cluster::Topology& t = member.topology;
  row->set_attn_tp_size(t.attn_tp_size);
  row->set_attn_tp_rank(t.attn_tp_rank);
  row->set_attn_cp_size(t.attn_cp_size);
  row->set_attn_cp_rank(t.attn_cp_rank);
  row->set_attn_dp_size(t.attn_dp_size);
  row->set_attn_dp_rank(t.attn_dp_rank);
  row->set_pp_size(t.pp_size);
  row->set_pp_rank(t.pp_rank);
  row->set_system_dp_size(t.system_dp_size);
  row->set_system_dp_rank(t.system_dp_rank);
  row->set_rank_ip(member.rank_ip);
  row->set_rank_port(member.rank_port);
  row->set_page_size(member.page_size);
  row->set_kv_cache_dtype(member.kv_cache_dtype);
  row->set_kv_layout(member.kv_layout);
  row->set_load_balance_method(member.load_balance_method);
  row->set_prefill_http_port(member.prefill_http_port);
  row->set_decode_allocation_policy(member.decode_allocation_policy);
  row->set_bootstrap_port(member.bootstrap_port);
}

void write_rows(const std::vector<cluster::Member>& members,
                std::optional<cluster::Role> role,
                google::protobuf::RepeatedPtrField<v1::MemberRow>* rows) {
  for (const cluster::Member& member : members) {
    if (!role || member.role == *role) write_row(member, rows->Add());
  }
}

Result<std::optional<cluster::Role>> read_role(v1::Role role) {
  if (role == v1::ROLE_UNSPECIFIED) return std::optional<cluster::Role>();
  if (role < v1::ROLE_UNIFIED || role > v1::ROLE_DECODE) {
    return invalid_argument("role: found " + std::to_string(role) + ", expected 0..3");
  }
  return std::optional<cluster::Role>(static_cast<cluster::Role>(role));
}

Time now() {
  return steady_clock().now();
}

}  // namespace

Directory::Directory(const BootstrapOptions& options)
    : lease_(options.registry.lease),
      registry_(options.registry),
      rooms_(options.rooms),
      leases_([this] { run_leases(); }) {}

Directory::~Directory() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  leases_.join();
}

v1::RegisterReply Directory::register_rows(const v1::RegisterRequest& request) {
  v1::RegisterReply reply;
  reply.set_lease_ms(static_cast<std::uint32_t>(lease_.milliseconds()));
  Status status;
  std::vector<cluster::Member> rows;
  if (request.rows_size() > kRowsPerRequestMax) {
    status = invalid_argument("rows: found " + std::to_string(request.rows_size()) +
                              ", expected at most " + std::to_string(kRowsPerRequestMax));
  } else {
    for (const v1::MemberRow& row : request.rows())
      rows.push_back(read_row(row));
  }
  const std::lock_guard lock(mutex_);
  if (status.ok() && request.leave()) {
    registry_.leave(rows);
  } else if (status.ok()) {
    status = registry_.put(rows, now());
  }
  publish_locked();
  reply.set_revision(registry_.revision());
  reply.mutable_status()->set_code(static_cast<int>(status.code()));
  if (!status.ok()) reply.mutable_status()->set_message(status.message());
  return reply;
}

Result<v1::ResolveReply> Directory::resolve(const v1::ResolveRequest& request) {
  TANDEM_TRY(const auto role, read_role(request.role()));
  if (!role) return invalid_argument("role: absent, expected unified, prefill or decode");
  const std::lock_guard lock(mutex_);
  registry_.expire(now());
  publish_locked();
  TANDEM_TRY(const auto rows, registry_.resolve(*role, request.instance()));
  v1::ResolveReply reply;
  reply.set_revision(registry_.revision());
  write_rows(rows, std::nullopt, reply.mutable_rows());
  return reply;
}

Result<v1::ListReply> Directory::list(const v1::ListRequest& request) {
  TANDEM_TRY(const auto role, read_role(request.role()));
  const std::lock_guard lock(mutex_);
  registry_.expire(now());
  publish_locked();
  v1::ListReply reply;
  reply.set_revision(registry_.revision());
  write_rows(registry_.list(role), std::nullopt, reply.mutable_rows());
  return reply;
}

void Directory::on_watch(const v1::WatchRequest& request,
                         const std::shared_ptr<rpc::WatchStream>& stream) {
  const auto role = read_role(request.role());
  if (!role.ok()) {
    stream->close(role.status());
    return;
  }
  const std::lock_guard lock(mutex_);
  publish_locked();
  v1::MembershipDelta delta;
  delta.set_revision(registry_.revision());
  delta.set_full(true);
  write_rows(registry_.list(*role), std::nullopt, delta.mutable_added());
  // A send that fails closes the stream, and on_watch_closed follows.
  (void)stream->send(std::move(delta));
  watchers_.emplace(stream, *role);
}

void Directory::on_watch_closed(const std::shared_ptr<rpc::WatchStream>& stream) {
  const std::lock_guard lock(mutex_);
  watchers_.erase(stream);
}

Status Directory::put_route(const cluster::Member& row) {
  const std::lock_guard lock(mutex_);
  Status status = registry_.put_unleased(row, now());
  publish_locked();
  return status;
}

Result<std::vector<cluster::Member>> Directory::prefill_rows() {
  const std::lock_guard lock(mutex_);
  registry_.expire(now());
  publish_locked();
  return registry_.resolve(cluster::Role::kPrefill, "");
}

void Directory::put_room(std::uint64_t room, std::uint32_t dp_rank) {
  const std::lock_guard lock(mutex_);
  rooms_.put(room, dp_rank, now());
}

std::vector<std::pair<std::uint64_t, std::uint32_t>> Directory::find_rooms(
    const std::vector<std::uint64_t>& rooms) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t room : rooms) {
    if (const auto rank = rooms_.find(room, now())) found.emplace_back(room, *rank);
  }
  return found;
}

Directory::Counts Directory::counts() {
  const std::lock_guard lock(mutex_);
  return {.rows = registry_.row_count(),
          .rooms = rooms_.size(),
          .watchers = watchers_.size(),
          .revision = registry_.revision()};
}

void Directory::run_leases() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kLeaseTick, [this] { return stop_; })) {
    registry_.expire(now());
    publish_locked();
  }
}

void Directory::publish_locked() {
  const cluster::Delta delta = registry_.take_delta();
  if (delta.empty()) return;
  obs::info("membership_changed",
            {{"revision", delta.revision},
             {"added", delta.added.size()},
             {"removed", delta.removed.size()},
             {"rows", registry_.row_count()}});
  for (const auto& [stream, role] : watchers_) {
    v1::MembershipDelta message;
    message.set_revision(delta.revision);
    write_rows(delta.added, role, message.mutable_added());
    for (const cluster::Member& member : delta.removed) {
      if (role && member.role != *role) continue;
      v1::MemberRow* row = message.add_removed();
      row->set_instance(member.instance);
      row->set_incarnation(member.incarnation);
      row->set_rank(member.rank);
      row->set_role(static_cast<v1::Role>(member.role));
    }
    if (message.added().empty() && message.removed().empty()) continue;
    (void)stream->send(std::move(message));
  }
}

}  // namespace tandem::bootstrap
