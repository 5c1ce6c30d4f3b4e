// For tests only: requests, events, and a FlightTable that keeps what it asks for.
#pragma once

#include "common/fleet/flight_table.h"

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::fleet {

inline core::Request request_of(std::uint64_t id, std::int32_t max_new_tokens = 4) {
  core::Request request;
  request.id = {id};
  request.input_ids = {1, 2, 3};
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

/// The token at an output index of every request: the same on all workers, as promise 1 has it.
inline core::TokenId token_at(std::int32_t index) {
  return 100 + index;
}

inline core::TokenEvent tokens(core::RequestId id,
                               std::int32_t first,
                               std::int32_t count,
                               bool finish = false) {
  core::TokenEvent event;
  event.request = id;
  event.first_index = first;
  for (std::int32_t i = 0; i < count; ++i)
    event.tokens.push_back(token_at(first + i));
  if (finish) event.finish = core::FinishReason{core::FinishKind::kLength, std::nullopt, {}};
  return event;
}

template <class T>
std::vector<T> all(const std::vector<FlightAction>& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const T* match = std::get_if<T>(&action)) found.push_back(*match);
  }
  return found;
}

struct Book {
  std::vector<WorkerKey> prefill;
  std::vector<WorkerKey> main{{1}, {2}};
  std::uint64_t next_wire = 1000;
  FlightTable table{
      {.draw_id = [this] { return core::RequestId{next_wire++}; }},
      [this](const core::Request&, const std::set<WorkerKey>& tried) { return pick(tried); }};
  std::vector<FlightAction> out;

  std::optional<Placement> pick(const std::set<WorkerKey>& tried) const {
    const auto choose = [&](const std::vector<WorkerKey>& from) -> std::optional<WorkerKey> {
      for (const WorkerKey key : from) {
        if (!tried.contains(key)) return key;
      }
      return std::nullopt;
    };
    const auto chosen = choose(main);
    if (!chosen) return std::nullopt;
    if (prefill.empty()) return Placement{*chosen, std::nullopt};
    const auto first = choose(prefill);
    if (!first) return std::nullopt;
    return Placement{*chosen, first};
  }

  std::vector<FlightAction> take() { return std::exchange(out, {}); }
};

}  // namespace tandem::fleet
