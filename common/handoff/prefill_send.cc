// PrefillSide: cutting units out of what is ready and granted, and sending them.
#include "common/base/check.h"
#include "common/handoff/prefill_side.h"

#include <algorithm>
#include <bit>

namespace tandem::handoff {

namespace {

/// A unit's pages become one scatter list on the other side.
constexpr std::uint32_t kUnitPagesMax = 1024;

std::uint16_t part_mask(std::uint32_t first_part, std::uint32_t part_count) {
  return static_cast<std::uint16_t>(((1U << part_count) - 1U) << first_part);
}

}  // namespace

bool PrefillSide::note_chunk(Sends::iterator it, const ChunkReady& event, Out& out) {
  Send& send = it->second;
  const std::uint32_t parts = options_.layout.part_count;
  const std::uint32_t part_count = event.part_count == 0 ? parts : event.part_count;
  if (event.source_pages.size() > send.pages.size() ||
      event.first_page > send.pages.size() - event.source_pages.size() ||
      event.first_part + part_count > parts) {
    ++stats_.invalid;
    abort(it,
          internal_error("chunk: pages " + std::to_string(event.first_page) + " + " +
                         std::to_string(event.source_pages.size()) + ", parts " +
                         std::to_string(event.first_part) + " + " + std::to_string(part_count) +
                         " are not within " + std::to_string(send.pages.size()) + " pages of " +
                         std::to_string(parts) + " parts"),
          out);
    return false;
  }
  const std::uint16_t mask = part_mask(event.first_part, part_count);
  for (std::size_t i = 0; i < event.source_pages.size(); ++i) {
    Page& page = send.pages[event.first_page + i];
    page.source = event.source_pages[i];
    page.ready_parts = static_cast<std::uint16_t>(page.ready_parts | mask);
  }
  return true;
}

void PrefillSide::pump_all(Out& out) {
  // One unit for each in turn, beginning after the one that got the last: no transfer starves, as
  // long as it is units that are at their limit, or those that do not fit into what is left of
  // bytes_in_flight_max are as large as others.
  bool sent = true;
  while (sent && units_in_flight_ < options_.units_in_flight_max) {
    sent = false;
    auto it = sends_.upper_bound(pump_after_);
    for (std::size_t n = sends_.size(); n > 0; --n) {
      if (it == sends_.end()) it = sends_.begin();
      const PrefillState state = it->second.state;
      const bool sends = state == PrefillState::kSending || state == PrefillState::kCommitted;
      if (sends && send_one(it->second, out)) {
        sent = true;
        pump_after_ = it->first;
      }
      ++it;
    }
  }
}

void PrefillSide::pump(Send& send, Out& out) {
  while (send_one(send, out)) {
  }
}

/// Sends a unit that is wanted again, or cuts the next one and sends that; false when there is none
/// or a limit is reached.
bool PrefillSide::send_one(Send& send, Out& out) {
  if (units_in_flight_ >= options_.units_in_flight_max ||
      send.in_flight >= options_.units_in_flight_per_transfer) {
    return false;
  }
  if (send.wanted.empty()) return cut_one(send, out);
  Unit& unit = send.units[send.wanted.front()];
  if (!has_room(bytes_of(unit.range))) return false;
  unit.wanted = false;
  send.wanted.pop_front();
  post(send, unit, out);
  return true;
}

bool PrefillSide::has_room(std::uint64_t bytes) const {
  return bytes_in_flight_ == 0 || bytes_in_flight_ + bytes <= options_.bytes_in_flight_max;
}

std::uint64_t PrefillSide::bytes_of(const UnitRange& range) const {
  return part_bytes(options_.layout, range.first_part, range.part_count).length * range.page_count;
}

/// False when nothing is ready and granted, or there is no room for its bytes.
bool PrefillSide::cut_one(Send& send, Out& out) {
  const std::uint16_t all = part_mask(0, options_.layout.part_count);
  const auto open_parts = [&](std::size_t p) {
    const Page& page = send.pages[p];
    return page.granted ? static_cast<std::uint16_t>(page.ready_parts & ~page.cut_parts)
                        : std::uint16_t{0};
  };
  while (send.scan_from < send.pages.size() && send.pages[send.scan_from].cut_parts == all)
    ++send.scan_from;
  std::uint32_t first = send.scan_from;
  while (first < send.pages.size() && open_parts(first) == 0)
    ++first;
  if (first == send.pages.size()) return false;

  const std::uint32_t open = open_parts(first);
  const auto first_part = static_cast<std::uint16_t>(std::countr_zero(open));
  const auto open_count = static_cast<std::uint16_t>(std::countr_one(open >> first_part));
  const auto linked = peers_.find(send.peer);
  const Peer peer = linked != peers_.end() ? linked->second : Peer{};
  const std::uint64_t run_bytes =
      peer.local ? options_.unit_bytes : std::min(options_.run_bytes, options_.unit_bytes);
  const auto length = [&](std::uint16_t parts) {
    return part_bytes(options_.layout, first_part, parts).length;
  };
  std::uint16_t part_count = 1;
  while (part_count < open_count && length(static_cast<std::uint16_t>(part_count + 1)) <= run_bytes)
    ++part_count;
  const std::uint16_t mask = part_mask(first_part, part_count);
  const std::uint64_t bytes = length(part_count);
  const auto pages_in = [bytes](std::uint64_t limit) {
    return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(limit / bytes, 1, kUnitPagesMax));
  };
  const std::uint32_t run_pages_max = pages_in(run_bytes);
  // Runs that are nearly as long as one may be go best alone: nobody has to put them together.
  const bool as_list = bytes >= options_.list_part_bytes && peer.near;
  const bool put_together = run_pages_max > 1 && !as_list;
  const std::uint32_t apart_pages_max =
      put_together ? pages_in(options_.unit_bytes) : run_pages_max;
  bool apart = false;
  std::uint32_t count = 1;
  while (first + count < send.pages.size() && count < (apart ? apart_pages_max : run_pages_max) &&
         (open_parts(first + count) & mask) == mask) {
    apart = apart || mask != all ||
            send.pages[first + count].source != send.pages[first + count - 1].source + 1;
    ++count;
  }
  if (!has_room(bytes * count)) return false;
  for (std::uint32_t p = first; p < first + count; ++p) {
    send.pages[p].cut_parts = static_cast<std::uint16_t>(send.pages[p].cut_parts | mask);
  }
  while (send.scan_from < send.pages.size() && send.pages[send.scan_from].cut_parts == all)
    ++send.scan_from;
  Unit& unit = send.units.emplace_back();
  unit.range = {.unit = static_cast<std::uint32_t>(send.units.size() - 1),
                .first_page = first,
                .page_count = count,
                .first_part = first_part,
                .part_count = part_count};
  post(send, unit, out);
  return true;
}

void PrefillSide::post(Send& send, Unit& unit, Out& out) {
  const UnitRange& range = unit.range;
  SendUnit action{.name = send.name,
                  .peer = send.peer,
                  .range = range,
                  .byte_range = part_bytes(options_.layout, range.first_part, range.part_count),
                  .source_pages = {}};
  action.source_pages.reserve(range.page_count);
  for (std::uint32_t i = 0; i < range.page_count; ++i)
    action.source_pages.push_back(send.pages[range.first_page + i].source);
  ++unit.in_flight;
  ++unit.sends;
  ++send.in_flight;
  ++units_in_flight_;
  bytes_in_flight_ += bytes_of(range);
  ++stats_.units;
  out.emplace_back(std::move(action));
}

void PrefillSide::resend(Sends::iterator it, const ResendMessage& message, Out& out) {
  Send& send = it->second;
  if (message.unit >= send.units.size()) {
    ++stats_.invalid;
    abort(it,
          invalid_argument("resend: unit " + std::to_string(message.unit) + " of " +
                           std::to_string(send.units.size())),
          out);
    return;
  }
  Unit& unit = send.units[message.unit];
  if (unit.wanted) {
    ++stats_.out_of_order_dropped;
    return;
  }
  ++stats_.units_bad_crc;
  if (unit.sends > options_.resends_max) {
    abort(it,
          data_loss("unit " + std::to_string(message.unit) + ": sent " +
                    std::to_string(unit.sends) + " times, wrong CRC each time"),
          out);
    return;
  }
  unit.wanted = true;
  send.wanted.push_back(message.unit);
  pump(send, out);
}

void PrefillSide::send_done(const SendDone& event, Out& out) {
  const auto it = sends_.find({event.name.request_id, event.name.attempt});
  if (it != sends_.end() && (!it->second.named || it->second.name != event.name)) {
    ++stats_.stale_dropped;
    return;
  }
  if (rule_for(it, PrefillEventKind::kSendDone) != Rule::kSendDone) return;
  Send& send = it->second;
  if (event.unit >= send.units.size() || send.units[event.unit].in_flight == 0) {
    ++stats_.invalid;
    return;
  }
  Unit& unit = send.units[event.unit];
  --unit.in_flight;
  --send.in_flight;
  --units_in_flight_;
  bytes_in_flight_ -= bytes_of(unit.range);
  if (send.state == PrefillState::kDraining) {
    finish_if_drained(it, out);
  } else if (!event.ok) {
    abort(it, unavailable("unit " + std::to_string(event.unit) + " could not be sent"), out);
  } else if (!unit.done) {
    unit.done = true;
    ++send.units_done;
    send.digest += unit_digest(unit.range, event.crc);
    if (send.state == PrefillState::kSending) try_commit(send, out);
  }
  pump_all(out);
}

void PrefillSide::try_commit(Send& send, Out& out) {
  if (send.state != PrefillState::kSending || !send.token || send.scan_from != send.pages.size() ||
      send.units_done != send.units.size()) {
    return;
  }
  send.state = PrefillState::kCommitted;
  out.emplace_back(
      ToDecode{send.peer,
               CommitMessage{.name = send.name,
                             .payload = std::move(*send.token),
                             .unit_count = static_cast<std::uint32_t>(send.units.size()),
                             .digest = send.digest}});
  send.token = CommitPayload{};
}

}  // namespace tandem::handoff
