#include "common/balance/balance.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace tandem::balance {

namespace {

struct NameRow {
  std::string_view name;
  Method method;
};

// The first name of a method is the one that is printed.
constexpr std::array kNames = {
    NameRow{"random", Method::kRandom},
    NameRow{"round_robin", Method::kRoundRobin},
    NameRow{"least_load", Method::kLeastLoad},
    NameRow{"shortest_queue", Method::kLeastLoad},
    NameRow{"minimum_tokens", Method::kMinimumTokens},
    NameRow{"power_of_two", Method::kPowerOfTwo},
    NameRow{"cache_aware", Method::kCacheAware},
};

using Indices = std::vector<std::size_t>;
using Score = std::pair<std::int64_t, std::int64_t>;

bool is_excluded(const Candidate& worker, const Demand& demand) {
  return std::ranges::find(demand.excluded, worker.id) != demand.excluded.end();
}

bool has_room(const Candidate& worker, std::int64_t tokens) {
  // Without a report nothing speaks against it.
  if (worker.load.total_tokens <= 0) return true;
  const std::int64_t held = worker.load.used_tokens + worker.unreported_tokens;
  return worker.load.total_tokens - held >= tokens;
}

Indices eligible(std::span<const Candidate> workers, const Demand& demand) {
  Indices all;
  all.reserve(workers.size());
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].usable && !is_excluded(workers[i], demand)) all.push_back(i);
  }
  Indices roomy;
  roomy.reserve(all.size());
  std::ranges::copy_if(all, std::back_inserter(roomy), [&](std::size_t i) {
    return has_room(workers[i], demand.tokens);
  });
  // (A choice of the two in one expression would copy.)
  if (roomy.empty()) return all;
  return roomy;
}

std::int64_t requests_at(const Candidate& worker) {
  return worker.load.running_requests + worker.load.waiting_requests + worker.unreported_requests;
}

Score score(Method method, const Candidate& worker) {
  const std::int64_t requests = requests_at(worker);
  const std::int64_t tokens = worker.load.used_tokens + worker.unreported_tokens;
  return method == Method::kMinimumTokens ? Score{tokens, requests} : Score{requests, tokens};
}

Indices lowest(Method method, std::span<const Candidate> workers, const Indices& indices) {
  Indices best;
  best.reserve(indices.size());
  std::optional<Score> best_score;
  for (const std::size_t i : indices) {
    const Score s = score(method, workers[i]);
    if (!best_score || s < *best_score) {
      best.clear();
      best_score = s;
    }
    if (s == *best_score) best.push_back(i);
  }
  return best;
}

// The next id after the last one, in a circle: fair whatever comes and goes in between.
std::size_t next_in_turn(std::span<const Candidate> workers,
                         const Indices& indices,
                         const Turn& turn) {
  const auto rank = [&](std::size_t i) {
    const bool later = !turn.any || workers[i].id > turn.last_id;
    return std::pair<bool, std::uint64_t>(!later, workers[i].id);
  };
  return *std::ranges::min_element(indices, {}, rank);
}

std::size_t better_of_two(std::span<const Candidate> workers,
                          const Indices& indices,
                          Random& random) {
  const std::size_t one = random.below(indices.size());
  if (indices.size() == 1) return indices[one];
  // Drawn among the others: adding what was drawn first leaves that one out.
  const std::size_t step = 1 + random.below(indices.size() - 1);
  const std::size_t first = indices[one];
  const std::size_t second = indices[(one + step) % indices.size()];
  return score(Method::kPowerOfTwo, workers[second]) < score(Method::kPowerOfTwo, workers[first])
             ? second
             : first;
}

bool is_uneven(std::span<const Candidate> workers,
               const Indices& indices,
               const CacheAware& cache) {
  std::int64_t least = requests_at(workers[indices.front()]);
  std::int64_t most = least;
  for (const std::size_t i : indices) {
    least = std::min(least, requests_at(workers[i]));
    most = std::max(most, requests_at(workers[i]));
  }
  return most - least > cache.balance_abs_threshold &&
         static_cast<double>(most) > cache.balance_rel_threshold * static_cast<double>(least);
}

/// Those of `indices` that know enough of the prompt and as much as anybody; all when none does.
Indices knowing(std::span<const Candidate> workers,
                const Indices& indices,
                const Demand& demand,
                const CacheAware& cache) {
  if (cache.prefixes == nullptr || demand.prefix.empty() || indices.size() < 2 ||
      is_uneven(workers, indices, cache)) {
    return indices;
  }
  std::vector<std::uint64_t> among;
  among.reserve(indices.size());
  for (const std::size_t i : indices)
    among.push_back(workers[i].id);
  std::vector<std::uint64_t> found;
  const auto depth = static_cast<double>(cache.prefixes->deepest(demand.prefix, among, found));
  if (!(depth > cache.cache_threshold * static_cast<double>(demand.prefix.size()))) return indices;
  Indices chosen;
  for (const std::size_t i : indices) {
    if (std::ranges::find(found, workers[i].id) != found.end()) chosen.push_back(i);
  }
  return chosen;
}

Status nobody(std::string_view side, std::span<const Candidate> workers, const Demand& demand) {
  const auto usable = std::ranges::count_if(workers, [](const Candidate& w) { return w.usable; });
  const auto tried =
      std::ranges::count_if(workers, [&](const Candidate& w) { return is_excluded(w, demand); });
  return unavailable(
      "no " + std::string(side) + " can take the request: " + std::to_string(workers.size()) +
      " known, " + std::to_string(usable) + " usable, " + std::to_string(tried) + " tried already");
}

Result<std::size_t> pick_named(std::string_view side,
                               Method method,
                               std::span<const Candidate> workers,
                               const Demand& demand,
                               Turn& turn,
                               const CacheAware& cache) {
  Indices indices = eligible(workers, demand);
  if (indices.empty()) return nobody(side, workers, demand);
  std::size_t chosen = 0;
  if (method == Method::kRandom) {
    chosen = indices[turn.random.below(indices.size())];
  } else if (method == Method::kPowerOfTwo) {
    chosen = better_of_two(workers, indices, turn.random);
  } else {
    if (method == Method::kCacheAware) indices = knowing(workers, indices, demand, cache);
    if (method != Method::kRoundRobin) indices = lowest(method, workers, indices);
    chosen = next_in_turn(workers, indices, turn);
  }
  turn.any = true;
  turn.last_id = workers[chosen].id;
  return chosen;
}

}  // namespace

Result<Method> parse_method(std::string_view name) {
  std::string choices;
  for (const NameRow& row : kNames) {
    if (row.name == name) return row.method;
    choices += (choices.empty() ? "" : ", ") + std::string(row.name);
  }
  return invalid_argument("policy: found '" + std::string(name) + "', expected one of " + choices);
}

std::string_view method_name(Method method) {
  for (const NameRow& row : kNames) {
    if (row.method == method) return row.name;
  }
  return "unknown";
}

Result<std::size_t> pick(Method method,
                         std::span<const Candidate> workers,
                         const Demand& demand,
                         Turn& turn,
                         const CacheAware& cache) {
  return pick_named("worker", method, workers, demand, turn, cache);
}

Result<Pair> pick_pair(const PairMethods& methods,
                       std::span<const Candidate> prefill,
                       std::span<const Candidate> decode,
                       const Demand& demand,
                       PairTurns& turns) {
  std::vector<Candidate> sources(prefill.begin(), prefill.end());
  for (Candidate& source : sources) {
    source.usable = source.usable && std::ranges::any_of(decode, [&](const Candidate& w) {
                      return w.usable && w.group == source.group && !is_excluded(w, demand);
                    });
  }
  const bool any_decode = std::ranges::any_of(
      decode, [&](const Candidate& w) { return w.usable && !is_excluded(w, demand); });
  if (!any_decode) return nobody("decode worker", decode, demand);
  Turn prefill_turn = turns.prefill;
  TANDEM_TRY(
      const std::size_t source,
      pick_named("prefill worker", methods.prefill, sources, demand, prefill_turn, methods.cache));
  std::vector<Candidate> sinks(decode.begin(), decode.end());
  for (Candidate& sink : sinks)
    sink.usable = sink.usable && sink.group == sources[source].group;
  if (turns.decode.size() >= PairTurns::kGroupsMax) turns.decode.clear();
  Turn& decode_turn = turns.decode.try_emplace(sources[source].group, turns.seed + 1).first->second;
  TANDEM_TRY(
      const std::size_t sink,
      pick_named("decode worker", methods.decode, sinks, demand, decode_turn, methods.cache));
  turns.prefill = prefill_turn;
  return Pair{.prefill = source, .decode = sink};
}

std::uint32_t dp_rank_of_room(std::uint64_t room, std::uint32_t dp_size) {
  TANDEM_CHECK(dp_size > 0, "dp_rank_of_room");
  return static_cast<std::uint32_t>(room % dp_size);
}

}  // namespace tandem::balance
