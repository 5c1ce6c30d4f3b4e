// Small sides, their events and what they asked for: for the tests of both sides.
#pragma once

#include "common/handoff/decode_side.h"
#include "common/handoff/prefill_side.h"

#include <vector>

namespace tandem::handoff::testing {

inline constexpr std::uint64_t kP = 11;
inline constexpr std::uint64_t kD = 22;
inline constexpr Time kStart{0};
inline constexpr Time kDeadline{1'000'000'000};
inline constexpr SendKey kKey{7, 0};

inline SideOptions options(std::uint64_t incarnation) {
  SideOptions o;
  o.layout = {.layout_version = 1,
              .page_size = 4,
              .layer_count = 2,
              .kv_head_count = 1,
              .head_dim = 8,
              .dtype = "f32",
              .page_bytes = 512,
              .page_stride_bytes = 512,
              .part_count = 2,
              .model_digest = {},
              .weight_version = {},
              .numerics_family = {}};
  o.incarnation = incarnation;
  o.unit_bytes = 1024;
  o.window_pages = 0;
  return o;
}

/// One side with the actions that it has asked for.
template <class Side, class Event, class Action>
struct Driver {
  explicit Driver(SideOptions o) : side(std::move(o)) {}

  std::vector<Action> feed(const Event& event, Time now = kStart) {
    std::vector<Action> out;
    side.on(event, now, out);
    return out;
  }

  Side side;
};

using D = Driver<DecodeSide, DecodeEvent, DecodeAction>;
using P = Driver<PrefillSide, PrefillEvent, PrefillAction>;

template <class T, class Action>
std::vector<T> all(const std::vector<Action>& actions) {
  std::vector<T> found;
  for (const Action& action : actions)
    if (const auto* a = std::get_if<T>(&action)) found.push_back(*a);
  return found;
}

template <class M>
std::vector<M> messages(const std::vector<DecodeAction>& actions) {
  std::vector<M> found;
  for (const ToPrefill& to : all<ToPrefill>(actions))
    if (const auto* m = std::get_if<M>(&to.message)) found.push_back(*m);
  return found;
}

template <class M>
std::vector<M> messages(const std::vector<PrefillAction>& actions) {
  std::vector<M> found;
  for (const ToDecode& to : all<ToDecode>(actions))
    if (const auto* m = std::get_if<M>(&to.message)) found.push_back(*m);
  return found;
}

inline StartReceive start_receive(std::uint32_t tokens = 11, std::uint32_t start_token = 0) {
  return {.request_id = 7,
          .attempt = 0,
          .prefill_incarnation = kP,
          .prompt_tokens = tokens,
          .start_token = start_token,
          .deadline = kDeadline};
}

inline UnitLanded unit(const TransferName& name,
                       std::uint32_t id,
                       std::uint32_t page,
                       bool ok = true) {
  return {
      .name = name,
      .range = {.unit = id, .first_page = page, .page_count = 1, .first_part = 0, .part_count = 2},
      .crc = 1000 + id,
      .crc_ok = ok};
}

inline CommitMessage commit(const TransferName& name, std::uint32_t units) {
  CommitMessage m{.name = name, .payload = {5, "state"}, .unit_count = units, .digest = 0};
  for (std::uint32_t id = 0; id < units; ++id)
    m.digest += unit_digest(unit(name, id, id).range, 1000 + id);
  return m;
}

inline GrantMessage grant_of(const TransferName& name,
                             std::uint32_t first,
                             std::uint32_t count,
                             std::uint32_t tokens = 11) {
  return {.name = name,
          .prompt_tokens = tokens,
          .first_needed_page = 0,
          .first_page = first,
          .page_count = count,
          .deadline_left = seconds(1)};
}

inline TransferName name_at_prefill() {
  return {.request_id = 7, .attempt = 0, .decode_incarnation = kD, .slot = 0, .generation = 1};
}

}  // namespace tandem::handoff::testing
