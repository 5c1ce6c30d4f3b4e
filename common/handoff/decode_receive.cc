// DecodeSide: landed units, the commit, and the two exits of a transfer.
#include "common/handoff/decode_side.h"

#include <algorithm>

namespace tandem::handoff {

namespace {

std::uint16_t part_mask(std::uint32_t first_part, std::uint32_t part_count) {
  return static_cast<std::uint16_t>(((1U << part_count) - 1U) << first_part);
}

}  // namespace

void DecodeSide::landed(const UnitLanded& event, Out& out) {
  Slot* slot = find(event.name);
  switch (rule_for(slot, DecodeEventKind::kUnitLanded)) {
    case Rule::kVerify:
      verify(*slot, event, out);
      break;
    case Rule::kNoteLanded:
      note_landed(*slot, event);
      break;
    default:
      break;
  }
}

bool DecodeSide::note_landed(Slot& slot, const UnitLanded& event) {
  const UnitRange& range = event.range;
  const std::uint64_t end = std::uint64_t{range.first_page} + range.page_count;
  if (range.page_count == 0 || range.first_page < slot.first_page ||
      end > slot.first_page + slot.pages.size() || range.part_count == 0 ||
      std::uint32_t{range.first_part} + range.part_count > options_.layout.part_count) {
    ++stats_.invalid;
    return false;
  }
  const std::uint16_t all = part_mask(0, options_.layout.part_count);
  const std::uint16_t mask = part_mask(range.first_part, range.part_count);
  for (std::uint64_t p = range.first_page; p < end; ++p) {
    std::uint16_t& parts = slot.landed_parts[static_cast<std::size_t>(p - slot.first_page)];
    const bool was_whole = parts == all;
    parts = event.crc_ok ? static_cast<std::uint16_t>(parts | mask)
                         : static_cast<std::uint16_t>(parts & ~mask);
    if (!was_whole && parts == all) ++slot.verified_pages;
    if (was_whole && parts != all) --slot.verified_pages;
  }
  return true;
}

void DecodeSide::verify(Slot& slot, const UnitLanded& event, Out& out) {
  if (!note_landed(slot, event)) return;
  const std::uint32_t unit = event.range.unit;
  // Each covers a part of a page at least that no other one covers. What is kept of each is
  // bounded so, whatever numbers the peer makes up.
  const std::uint64_t units_max = std::uint64_t{slot.page_count} * options_.layout.part_count;
  if (unit >= units_max) {
    ++stats_.invalid;
    begin_release(
        slot,
        data_loss("unit " + std::to_string(unit) + ": " + std::to_string(slot.page_count) +
                  " pages of " + std::to_string(options_.layout.part_count) + " parts make " +
                  std::to_string(units_max) + " units at most"),
        /*tell=*/true,
        out);
    return;
  }
  const auto known = slot.units.find(unit);
  if (!event.crc_ok) {
    ++stats_.units_bad_crc;
    if (known != slot.units.end()) {
      slot.digest -= unit_digest(event.range, known->second);
      slot.units.erase(known);
    }
    if (++slot.bad[unit] > options_.resends_max) {
      begin_release(slot,
                    data_loss("unit " + std::to_string(unit) + " (pages " +
                              std::to_string(event.range.first_page) + " to " +
                              std::to_string(event.range.first_page + event.range.page_count - 1) +
                              "): wrong CRC " + std::to_string(slot.bad[unit]) + " times"),
                    /*tell=*/true,
                    out);
      return;
    }
    out.emplace_back(ToPrefill{slot.peer, ResendMessage{slot.name, unit}});
    return;
  }
  ++stats_.units;
  if (known == slot.units.end()) {
    slot.units.emplace(unit, event.crc);
    slot.digest += unit_digest(event.range, event.crc);
  }
  ask_pages(slot, out);
  try_deliver(slot, out);
}

void DecodeSide::message(const FromPrefill& event, Out& out) {
  const TransferName& name = name_of(event.message);
  Slot* slot = find(name);
  if (slot != nullptr && slot->peer != event.peer && !options_.bugs.skip_generation_check) {
    ++stats_.stale_dropped;
    return;
  }
  if (const auto* m = std::get_if<CommitMessage>(&event.message)) {
    const Rule found = rule_for(slot, DecodeEventKind::kCommit);
    if (found == Rule::kTakeCommit) {
      if (slot->commit) {
        ++stats_.out_of_order_dropped;
      } else if (m->payload.state.size() > options_.commit_bytes_max) {
        ++stats_.invalid;
        begin_release(*slot,
                      invalid_argument("commit: " + std::to_string(m->payload.state.size()) +
                                       " bytes of state, at most " +
                                       std::to_string(options_.commit_bytes_max)),
                      /*tell=*/true,
                      out);
      } else {
        slot->commit = *m;
        try_deliver(*slot, out);
      }
    } else if (options_.bugs.double_accept && slot != nullptr &&
               slot->state == DecodeState::kDelivering) {
      out.emplace_back(ToPrefill{slot->peer, AcceptedMessage{slot->name}});
      out.emplace_back(Deliver{slot->name, slot->pages, slot->commit->payload});
    }
  } else if (const auto* c = std::get_if<CancelMessage>(&event.message)) {
    if (rule_for(slot, DecodeEventKind::kCancel) == Rule::kRelease) {
      slot->tell_drained = true;
      begin_release(*slot,
                    Status(c->code == Code::kOk ? Code::kCancelled : c->code,
                           "prefill gave up: " + c->reason),
                    /*tell=*/false,
                    out);
    }
  } else {
    if (rule_for(slot, DecodeEventKind::kDrained) == Rule::kCountDrained) ++stats_.peer_drained;
  }
}

void DecodeSide::try_deliver(Slot& slot, Out& out) {
  if (!slot.commit || slot.verified_pages != slot.page_count) return;
  const CommitMessage& commit = *slot.commit;
  if (commit.unit_count != slot.units.size() || commit.digest != slot.digest) {
    begin_release(
        slot,
        data_loss("commit: prefill sent " + std::to_string(commit.unit_count) +
                  " units with digest " + std::to_string(commit.digest) + ", decode has " +
                  std::to_string(slot.units.size()) + " with " + std::to_string(slot.digest)),
        /*tell=*/true,
        out);
    return;
  }
  slot.state = DecodeState::kDelivering;
  close_landing(slot, out);
}

void DecodeSide::close_landing(Slot& slot, Out& out) {
  if (slot.pages_asked > 0) {
    slot.pages_asked = 0;
    out.emplace_back(PagesNotNeeded{slot.name});
  }
  if (slot.landing_open) {
    slot.landing_open = false;
    out.emplace_back(CloseLanding{slot.name});
    return;
  }
  // Nothing was ever opened, so nothing can be in flight.
  if (slot.pages.empty()) {
    slot.state == DecodeState::kDelivering ? deliver(slot, out) : give_back(slot, out);
  }
}

void DecodeSide::begin_release(Slot& slot, Status reason, bool tell, Out& out) {
  slot.end_reason = std::move(reason);
  if (tell) {
    out.emplace_back(ToPrefill{
        slot.peer, CancelMessage{slot.name, slot.end_reason.code(), slot.end_reason.message()}});
  }
  const bool closing = slot.state == DecodeState::kDelivering;
  slot.state = DecodeState::kReleasing;
  if (options_.bugs.free_on_timer) {
    out.emplace_back(CloseLanding{slot.name});
    give_back(slot, out);
    return;
  }
  if (!closing) close_landing(slot, out);
}

void DecodeSide::closed(const LandingClosed& event, Out& out) {
  Slot* slot = find(event.name);
  switch (rule_for(slot, DecodeEventKind::kLandingClosed)) {
    case Rule::kDeliver:
      deliver(*slot, out);
      break;
    case Rule::kGiveBack:
      give_back(*slot, out);
      break;
    default:
      break;
  }
}

void DecodeSide::deliver(Slot& slot, Out& out) {
  ++stats_.succeeded;
  out.emplace_back(ToPrefill{slot.peer, AcceptedMessage{slot.name}});
  out.emplace_back(Deliver{slot.name, std::move(slot.pages), std::move(slot.commit->payload)});
  clear(slot);
}

void DecodeSide::give_back(Slot& slot, Out& out) {
  ++stats_.failed;
  const std::uint16_t all = part_mask(0, options_.layout.part_count);
  std::uint32_t good = 0;
  while (good < slot.pages.size() && slot.landed_parts[good] == all)
    ++good;
  const std::uint64_t tokens = std::min<std::uint64_t>(
      std::uint64_t{good} * options_.layout.page_size,
      slot.prompt_tokens - std::uint64_t{slot.first_page} * options_.layout.page_size);
  if (slot.tell_drained) {
    out.emplace_back(ToPrefill{
        slot.peer, DrainedMessage{slot.name, static_cast<std::uint32_t>(slot.pages.size())}});
  }
  out.emplace_back(Release{slot.name,
                           std::move(slot.pages),
                           static_cast<std::uint32_t>(tokens),
                           std::move(slot.end_reason)});
  clear(slot);
}

void DecodeSide::clear(Slot& slot) {
  const TransferName name = slot.name;
  slot = Slot{};
  slot.name = name;
}

}  // namespace tandem::handoff
