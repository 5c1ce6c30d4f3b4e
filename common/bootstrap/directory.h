// Directory: the registry and the room table behind one lock, with their watchers and their clock.
#pragma once

#include "common/bootstrap/bootstrap_server.h"
#include "common/cluster/dp_rank_table.h"
#include "common/cluster/registry.h"
#include "common/cluster/route.h"
#include "common/rpc/bootstrap.h"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tandem::bootstrap {

/// Threads: any. The mutex serialises gRPC's and HTTP's threads around the pure tables; each hold
/// is a table operation and the queueing of a delta, so no strand is needed. One thread of its own
/// lets leases run out.
class Directory final : public rpc::BootstrapBackend {
 public:
  explicit Directory(const BootstrapOptions& options);
  ~Directory() override;

  // rpc::BootstrapBackend
  v1::RegisterReply register_rows(const v1::RegisterRequest& request) override;
  Result<v1::ResolveReply> resolve(const v1::ResolveRequest& request) override;
  Result<v1::ListReply> list(const v1::ListRequest& request) override;
  void on_watch(const v1::WatchRequest& request,
                const std::shared_ptr<rpc::WatchStream>& stream) override;
  void on_watch_closed(const std::shared_ptr<rpc::WatchStream>& stream) override;

  // SGLang's routes
  Status put_route(const cluster::Member& row);
  /// The rows of the first complete prefill instance.
  Result<std::vector<cluster::Member>> prefill_rows();
  void put_room(std::uint64_t room, std::uint32_t dp_rank);
  /// (room, rank) of those that are known.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> find_rooms(
      const std::vector<std::uint64_t>& rooms);

  struct Counts {
    std::size_t rows = 0;
    std::size_t rooms = 0;
    std::size_t watchers = 0;
    std::uint64_t revision = 0;
  };

  Counts counts();

 private:
  void run_leases();
  /// Tells the watchers what changed since the last call. Under the lock, so that deltas stay in
  /// order.
  void publish_locked();

  const Duration lease_;
  std::mutex mutex_;
  cluster::Registry registry_;
  cluster::DpRankTable rooms_;
  std::map<std::shared_ptr<rpc::WatchStream>, std::optional<cluster::Role>> watchers_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread leases_;
};

}  // namespace tandem::bootstrap
