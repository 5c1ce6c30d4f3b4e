// Which worker takes a request: a pure function of a snapshot, a turn and a random stream.
#pragma once

#include "common/balance/prefix_index.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/core/request.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::balance {

enum class Method : std::uint8_t {
  kRandom,
  kRoundRobin,
  /// Fewest requests waiting or running, the router's unreported ones included; then fewest tokens;
  /// then round robin.
  kLeastLoad,
  /// Fewest tokens in use, unreported ones included; then fewest requests; then round robin.
  kMinimumTokens,
  /// Of two drawn at random, the one with fewer requests, then tokens; then the first.
  kPowerOfTwo,
  /// Who was sent the longest beginning of this prompt, unless that is short or the requests are
  /// spread too unevenly; then as kLeastLoad. See CacheAware.
  kCacheAware,
};

/// "random", "round_robin", "least_load" (also "shortest_queue", SGLang's word for it),
/// "minimum_tokens", "power_of_two", "cache_aware". kInvalidArgument lists the choices.
Result<Method> parse_method(std::string_view name);
std::string_view method_name(Method method);

/// One worker (or one DP rank of one) as the router sees it now.
struct Candidate {
  /// The router's number for it. Unique in a snapshot; equal numbers in successive snapshots mean
  /// the same worker.
  std::uint64_t id = 0;
  /// False: dead, suspect, draining, or of another model.
  bool usable = true;
  /// As last reported.
  core::Load load;
  /// Submitted since that report was made.
  std::int64_t unreported_requests = 0;
  std::int64_t unreported_tokens = 0;
  /// Prefill and decode of equal groups may serve together (model digest and layout).
  std::uint64_t group = 0;
};

/// What kCacheAware goes by; names and defaults as in sglang-router.
struct CacheAware {
  /// Borrowed. Not changed: who picks tells it what was sent where.
  const PrefixIndex* prefixes = nullptr;
  /// The prompt's share that must be known for a worker to be preferred, in whole blocks; more than
  /// this.
  double cache_threshold = 0.3;
  /// The most and the least requests of a worker are uneven when both their difference is above the
  /// first and their ratio above the second.
  std::int64_t balance_abs_threshold = 64;
  double balance_rel_threshold = 1.5;
};

struct Demand {
  /// KV tokens that the request will need, prompt and output; 0 is unknown. Workers that could not
  /// hold them now are passed over while another one can.
  std::int64_t tokens = 0;
  /// Ids that must not be picked: this request failed there.
  std::span<const std::uint64_t> excluded = {};
  /// PrefixIndex::keys_of the prompt; for kCacheAware.
  std::span<const std::uint64_t> prefix = {};
};

/// What a picker carries from one request to the next. One per pool of workers; the router's
/// strand owns it.
struct Turn {
  explicit Turn(std::uint64_t seed) : random(seed) {}

  Random random;
  bool any = false;
  std::uint64_t last_id = 0;
};

/// Index into `workers`. kUnavailable when none is usable, saying how many are dead and how many
/// were tried. Does not change `turn` on error.
Result<std::size_t> pick(Method method,
                         std::span<const Candidate> workers,
                         const Demand& demand,
                         Turn& turn,
                         const CacheAware& cache = {});

struct PairMethods {
  Method prefill = Method::kRoundRobin;
  Method decode = Method::kRoundRobin;
  CacheAware cache = {};
};

struct PairTurns {
  explicit PairTurns(std::uint64_t seed_in) : seed(seed_in), prefill(seed_in) {}

  std::uint64_t seed;
  Turn prefill;
  /// One per group: a circle that also turned for other groups would pass the same workers by each
  /// time. Started anew when more than kGroupsMax groups have been seen.
  std::map<std::uint64_t, Turn> decode;
  static constexpr std::size_t kGroupsMax = 256;
};

struct Pair {
  std::size_t prefill = 0;
  std::size_t decode = 0;
};

/// Indices of a prefill and a decode worker of one group. A prefill worker without a usable decode
/// worker of its group is not picked. kUnavailable names the side that lacks.
Result<Pair> pick_pair(const PairMethods& methods,
                       std::span<const Candidate> prefill,
                       std::span<const Candidate> decode,
                       const Demand& demand,
                       PairTurns& turns);

/// The DP rank that prefill and decode both compute for a room: room modulo size. Pre: size > 0.
std::uint32_t dp_rank_of_room(std::uint64_t room, std::uint32_t dp_size);

}  // namespace tandem::balance
