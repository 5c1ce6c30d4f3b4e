// Where a request goes: what the fleet knows of its workers, put before room balance.
#include "common/fleet/fleet.h"

#include <algorithm>
#include <utility>

namespace tandem::fleet {
namespace {

// What a turn cuts from the tree of prefixes: some 0.2 ms.
constexpr std::size_t kPrefixesPerTurn = 2048;

// Blocks of a prompt that are looked up and remembered, which takes a step for each worker that has
// them: behind so many, hardly two prompts part.
constexpr std::size_t kPrefixBlocksMax = 2048;

}  // namespace

void Fleet::tend_prefixes(Time now) {
  const bool swept = prefixes_.sweep(kPrefixesPerTurn);
  if (now >= trim_at_) {
    trimming_ = true;
    ++prefix_trims_;
    trim_at_ = now + options_.eviction_interval;
  }
  if (trimming_) trimming_ = !prefixes_.trim(kPrefixesPerTurn);
  tending_ = trimming_ || !swept;
}

bool Fleet::by_prefix() const {
  constexpr auto kCacheAware = balance::Method::kCacheAware;
  if (!options_.disaggregated) return options_.policy == kCacheAware;
  return options_.prefill_policy == kCacheAware || options_.decode_policy == kCacheAware;
}

std::vector<balance::Candidate> Fleet::candidates(rpc::Role role) const {
  // One that has stood still for a while is passed over, but not when all have: a layer of a large
  // model takes its time, and a request can wait for it.
  const bool any_moves = std::any_of(workers_.begin(), workers_.end(), [role](const auto& entry) {
    const Worker& worker = entry.second;
    return worker.address.role == role && worker.state == State::kUp &&
           worker.health.health() == cluster::Health::kUp;
  });
  std::vector<balance::Candidate> found;
  found.reserve(workers_.size());
  for (const auto& [number, worker] : workers_) {
    if (worker.address.role != role || worker.state != State::kUp) continue;
    balance::Candidate candidate;
    candidate.id = worker.key.value;
    const cluster::Health health = worker.health.health();
    candidate.usable =
        health == cluster::Health::kUp || (!any_moves && health == cluster::Health::kSuspect);
    candidate.load = worker.load;
    // What this router has under way there and the last report does not count yet.
    const std::int64_t reported = worker.load.running_requests + worker.load.waiting_requests;
    candidate.unreported_requests = std::max<std::int64_t>(
        static_cast<std::int64_t>(flights_.active_at(worker.key)) - reported, 0);
    candidate.unreported_tokens =
        std::max<std::int64_t>(flights_.tokens_at(worker.key) - worker.load.used_tokens, 0);
    found.push_back(candidate);
  }
  return found;
}

std::optional<Placement> Fleet::pick(const core::Request& request,
                                     const std::set<WorkerKey>& tried) {
  std::vector<std::uint64_t> excluded;
  for (const WorkerKey key : tried)
    excluded.push_back(key.value);
  balance::Demand demand;
  demand.tokens =
      static_cast<std::int64_t>(request.input_ids.size()) + request.sampling.max_new_tokens;
  demand.excluded = excluded;
  if (!by_prefix()) return choose(demand);
  const auto up = std::ranges::count_if(
      workers_, [](const auto& entry) { return entry.second.state == State::kUp; });
  // One worker, or one pair, leaves nothing to choose.
  if (up < (options_.disaggregated ? 3 : 2)) return choose(demand);
  prefixes_.keys_of(request.input_ids, keys_);
  if (keys_.size() > kPrefixBlocksMax) keys_.resize(kPrefixBlocksMax);
  demand.prefix = keys_;
  const auto chosen = choose(demand);
  if (chosen) {
    prefixes_.insert(keys_, chosen->main.value);
    if (chosen->prefill) prefixes_.insert(keys_, chosen->prefill->value);
  }
  return chosen;
}

std::optional<Placement> Fleet::choose(const balance::Demand& demand) {
  if (!options_.disaggregated) {
    const auto workers = candidates(rpc::Role::kUnified);
    const auto chosen = balance::pick(options_.policy, workers, demand, turn_, options_.cache);
    if (!chosen.ok()) return std::nullopt;
    return Placement{{workers[*chosen].id}, std::nullopt};
  }
  auto prefill = candidates(rpc::Role::kPrefill);
  auto decode = candidates(rpc::Role::kDecode);
  const auto fits = [this](const balance::Candidate& p, const balance::Candidate& d) {
    return check_pair(by_key({p.id})->info, by_key({d.id})->info).ok();
  };
  for (balance::Candidate& p : prefill) {
    if (!pairs_differ_) break;
    p.usable = p.usable &&
               std::ranges::any_of(decode, [&](const auto& d) { return d.usable && fits(p, d); });
  }
  const auto pick_two = [&] {
    return balance::pick_pair({.prefill = options_.prefill_policy,
                               .decode = options_.decode_policy,
                               .cache = options_.cache},
                              prefill,
                              decode,
                              demand,
                              pair_turns_);
  };
  auto chosen = pick_two();
  if (pairs_differ_ && chosen.ok() && !fits(prefill[chosen->prefill], decode[chosen->decode])) {
    for (balance::Candidate& d : decode)
      d.usable = d.usable && fits(prefill[chosen->prefill], d);
    for (std::size_t i = 0; i < prefill.size(); ++i)
      prefill[i].usable = prefill[i].usable && i == chosen->prefill;
    chosen = pick_two();
  }
  if (!chosen.ok()) return std::nullopt;
  return Placement{{decode[chosen->decode].id}, WorkerKey{prefill[chosen->prefill].id}};
}

rpc::Disaggregation Fleet::describe_pair(const SubmitTo& submit,
                                         const Worker& worker,
                                         const Worker& peer) const {
  const bool to_prefill = submit.role == LegRole::kPrefill;
  const Worker& prefill = to_prefill ? worker : peer;
  const Worker& decode = to_prefill ? peer : worker;
  rpc::Disaggregation split;
  split.role = to_prefill ? rpc::Role::kPrefill : rpc::Role::kDecode;
  split.room = submit.request->id.value;
  split.attempt = submit.attempt;
  split.decode_incarnation = decode.info.incarnation;
  split.peer_grpc_address = peer.info.grpc_address;
  split.peer_incarnation = peer.info.incarnation;
  if (prefill.address.bootstrap_port) {
    split.bootstrap_host = prefill.address.host;
    split.bootstrap_port = *prefill.address.bootstrap_port;
  } else if (const auto announced =
                 parse_worker_url(prefill.info.bootstrap_address, rpc::Role::kPrefill);
             announced.ok()) {
    split.bootstrap_host = announced->host;
    split.bootstrap_port = announced->port;
  }
  return split;
}

}  // namespace tandem::fleet
