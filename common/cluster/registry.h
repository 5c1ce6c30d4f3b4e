// Registry: who serves, kept true by leases. Pure: rows and times in, changes out.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/cluster/member.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem::cluster {

/// What changed in one revision.
struct Delta {
  std::uint64_t revision = 0;
  std::vector<Member> added;    ///< new or changed
  std::vector<Member> removed;  ///< as they last were

  [[nodiscard]] bool empty() const { return added.empty() && removed.empty(); }
};

struct RegistryOptions {
  Duration lease = seconds(3);
  std::size_t rows_max = 65'536;
  std::uint32_t ranks_max = 4096;  ///< of one instance
  std::size_t text_bytes_max = 1024;
  /// Earlier incarnations of an instance that are remembered, so that what they still say is
  /// refused.
  std::size_t retired_max = 8;
};

/// Rows are keyed by (instance, incarnation, rank), but an instance has one incarnation at a time:
/// rows of another one replace all of the earlier. One owner thread, no clock.
class Registry {
 public:
  using Options = RegistryOptions;

  explicit Registry(Options options = {}) : options_(options) {}

  /// Takes rows and renews their leases. All or none: kInvalidArgument names the field,
  /// kFailedPrecondition a replaced incarnation, kResourceExhausted a full table.
  Status put(std::span<const Member> rows, Time now);

  /// One row without a lease and without an incarnation: SGLang's PUT /route, which is never
  /// renewed. A row of a different layout (sizes) starts the instance anew; kInvalidArgument when
  /// decode_allocation_policy differs from the ranks that are in.
  Status put_unleased(Member row, Time now);

  /// Drops these rows (key fields count) if they are still the ones meant.
  void leave(std::span<const Member> rows);

  /// Drops rows whose lease has run out at `now`.
  void expire(Time now);
  [[nodiscard]] std::optional<Time> next_expiry() const;

  /// Changes since the last call, as one delta; empty when there are none.
  Delta take_delta();

  /// Grows with every change of any row; renewals alone do not count.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }

  /// All rows of a role (all roles without one), by instance and rank.
  [[nodiscard]] std::vector<Member> list(std::optional<Role> role) const;

  /// All rows of one complete instance, by rank; an empty name stands for the first complete one.
  /// kNotFound: no such instance; kUnavailable: it is there but ranks are missing.
  [[nodiscard]] Result<std::vector<Member>> resolve(Role role, const std::string& instance) const;

  [[nodiscard]] std::size_t row_count() const { return row_count_; }

 private:
  struct Row {
    Member member;
    std::optional<Time> expires;
  };

  struct Instance {
    std::uint64_t incarnation = 0;
    std::map<std::uint32_t, Row> rows;
    std::deque<std::uint64_t> retired;
  };

  [[nodiscard]] Status check(const Member& row) const;
  [[nodiscard]] Status check_all(std::span<const Member> rows) const;
  void store(const Member& row, std::optional<Time> expires);
  void clear_rows(Instance& instance);
  void note_added(const Member& row);
  void note_removed(const Member& row);
  [[nodiscard]] static bool complete(const Instance& instance);

  Options options_;
  // Instances without rows stay while they remember retired incarnations (expire forgets).
  std::map<std::string, Instance> instances_;
  std::size_t row_count_ = 0;
  std::uint64_t revision_ = 0;
  std::map<std::pair<std::string, std::uint32_t>, Member> added_;
  std::vector<Member> removed_;
};

}  // namespace tandem::cluster
