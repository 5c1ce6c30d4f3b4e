// World: what may happen next, the network, the landing of bytes, and faults.
#include "common/handoff/fingerprint.h"
#include "tests/sim/handoff_world.h"

#include <algorithm>

namespace tandem::sim {

using namespace handoff;  // NOLINT: the whole file speaks of it

namespace {

std::uint32_t crc_of(const TransferName& name, const UnitRange& range) {
  return static_cast<std::uint32_t>(
      unit_digest(range, static_cast<std::uint32_t>(name.request_id)));
}

template <class T>
void erase_at(std::vector<T>& items, std::size_t index) {
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(index));
}

constexpr const char* kStepNames[] = {
    "submit",       "router->prefill", "router->decode", "compute",         "control",
    "drop control", "repeat control",  "unit arrives",   "unit lands",      "unit lands bad",
    "drop unit",    "repeat unit",     "local prefill",  "local decode",    "give pages",
    "engine frees", "crash prefill",   "crash decode",   "restart prefill", "restart decode",
    "notice loss",  "client leaves",   "expire"};

}  // namespace

std::string to_string(const Step& step) {
  return std::string(kStepNames[static_cast<std::size_t>(step.kind)]) + " " +
         std::to_string(step.a) + "," + std::to_string(step.b);
}

void World::steps(std::vector<Step>& out) const {
  out.clear();
  const auto offer = [&out](StepKind kind, std::size_t a, std::size_t b = 0) {
    out.push_back({kind, static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)});
  };
  for (std::size_t r = 0; r < requests_.size(); ++r)
    if (requests_[r].state == RequestState::kWaiting) offer(StepKind::kSubmit, r);
  for (std::size_t i = 0; i < prefills_.size(); ++i) {
    const Prefill& p = prefills_[i];
    if (!p.up) continue;
    if (!p.inbox.empty()) offer(StepKind::kRouterToPrefill, i);
    if (!p.local.empty()) offer(StepKind::kLocalPrefill, i);
    for (std::size_t c = 0; c < p.computing.size(); ++c)
      offer(StepKind::kCompute, i, c);
  }
  for (std::size_t i = 0; i < decodes_.size(); ++i) {
    const Decode& d = decodes_[i];
    if (!d.up) continue;
    if (!d.inbox.empty()) offer(StepKind::kRouterToDecode, i);
    if (!d.local.empty()) offer(StepKind::kLocalDecode, i);
    if (!d.waiters.empty() && !d.free_pages.empty()) offer(StepKind::kGivePages, i);
    for (std::size_t h = 0; h < d.held.size(); ++h)
      offer(StepKind::kEngineFrees, i, h);
  }
  for (std::size_t i = 0; i < controls_.size(); ++i)
    offer(StepKind::kControl, i);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const bool receiver_up = std::any_of(decodes_.begin(), decodes_.end(), [&](const Decode& d) {
      return d.up && d.incarnation == units_[i].to;
    });
    if (receiver_up) {
      offer(units_[i].landing ? StepKind::kUnitLands : StepKind::kUnitArrives, i);
    }
  }
  for (std::size_t i = 0; i < losses_.size(); ++i)
    offer(StepKind::kNoticeLoss, i);
  const bool idle = out.empty();
  offer_faults(out);
  if (idle && next_deadline()) offer(StepKind::kExpire, 0);
}

void World::offer_faults(std::vector<Step>& out) const {
  const auto offer = [&out](StepKind kind, std::size_t a) {
    out.push_back({kind, static_cast<std::uint32_t>(a), 0});
  };
  const FaultBudget& f = options_.faults;
  // Coming back is not a fault, but pointless once nothing is left to serve.
  if (!all_ended()) {
    for (std::size_t i = 0; i < prefills_.size(); ++i)
      if (!prefills_[i].up) offer(StepKind::kRestartPrefill, i);
    for (std::size_t i = 0; i < decodes_.size(); ++i)
      if (!decodes_[i].up) offer(StepKind::kRestartDecode, i);
  }
  if (f.total <= 0) return;
  for (std::size_t i = 0; i < controls_.size(); ++i) {
    if (f.drops > 0) offer(StepKind::kDropControl, i);
    if (f.duplicates > 0) offer(StepKind::kRepeatControl, i);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (f.duplicates > 0 && !units_[i].landing) offer(StepKind::kRepeatUnit, i);
    if (f.drops > 0 && !units_[i].landing) offer(StepKind::kDropUnit, i);
    if (f.corruptions > 0 && units_[i].landing) offer(StepKind::kUnitLandsBad, i);
  }
  if (f.expiries > 0 && next_deadline()) offer(StepKind::kExpire, 0);
  if (all_ended()) return;
  if (f.crashes > 0) {
    for (std::size_t i = 0; i < prefills_.size(); ++i)
      if (prefills_[i].up) offer(StepKind::kCrashPrefill, i);
    for (std::size_t i = 0; i < decodes_.size(); ++i)
      if (decodes_[i].up) offer(StepKind::kCrashDecode, i);
  }
  for (std::size_t r = 0; r < requests_.size() && f.cancels > 0; ++r)
    if (requests_[r].state == RequestState::kRunning) offer(StepKind::kCancel, r);
}

void World::apply(const Step& step) {
  if (log_ != nullptr) log(to_string(step) + "   [" + state_line() + "]");
  FaultBudget& f = options_.faults;
  const auto spend = [&f](int& budget) {
    --budget;
    --f.total;
  };
  switch (step.kind) {
    case StepKind::kSubmit:
      return submit(step.a);
    case StepKind::kRouterToPrefill:
      return router_to_prefill(step.a);
    case StepKind::kRouterToDecode:
      return router_to_decode(step.a);
    case StepKind::kCompute:
      return compute(step.a, step.b);
    case StepKind::kControl:
      return control(step.a, false);
    case StepKind::kDropControl:
      spend(f.drops);
      return erase_at(controls_, step.a);
    case StepKind::kRepeatControl:
      spend(f.duplicates);
      return control(step.a, true);
    case StepKind::kUnitArrives:
      return unit_arrives(step.a);
    case StepKind::kUnitLands:
      return unit_lands(step.a, true);
    case StepKind::kUnitLandsBad:
      spend(f.corruptions);
      return unit_lands(step.a, false);
    case StepKind::kDropUnit: {
      spend(f.drops);
      const DataUnit lost = units_[step.a];
      erase_at(units_, step.a);
      return sender_done(lost, true);
    }
    case StepKind::kRepeatUnit: {
      spend(f.duplicates);
      DataUnit again = units_[step.a];
      again.copy = true;
      units_.push_back(std::move(again));
      return;
    }
    case StepKind::kLocalPrefill: {
      const SendDone done = prefills_[step.a].local.front();
      prefills_[step.a].local.pop_front();
      return feed(prefills_[step.a], done);
    }
    case StepKind::kLocalDecode: {
      const LocalDecodeEvent event = decodes_[step.a].local.front();
      decodes_[step.a].local.pop_front();
      return std::visit([&](const auto& e) { feed(decodes_[step.a], e); }, event);
    }
    case StepKind::kGivePages:
      return give_pages(decodes_[step.a]);
    case StepKind::kEngineFrees:
      return engine_frees(decodes_[step.a], step.b);
    case StepKind::kCrashPrefill:
    case StepKind::kCrashDecode:
      spend(f.crashes);
      return crash(step.kind == StepKind::kCrashPrefill, step.a);
    case StepKind::kRestartPrefill:
    case StepKind::kRestartDecode:
      return restart(step.kind == StepKind::kRestartPrefill, step.a);
    case StepKind::kNoticeLoss:
      return notice_loss(step.a);
    case StepKind::kCancel:
      spend(f.cancels);
      return client_leaves(step.a);
    case StepKind::kExpire:
      if (f.total > 0 && f.expiries > 0) spend(f.expiries);
      return expire();
  }
}

void World::control(std::uint32_t index, bool keep) {
  const Control c = controls_[index];
  if (!keep) erase_at(controls_, index);
  if (const auto* m = std::get_if<DecodeToPrefill>(&c.message)) {
    if (Prefill* p = prefill_of(c.to)) feed(*p, FromDecode{c.from, *m});
  } else if (Decode* d = decode_of(c.to)) {
    feed(*d, FromPrefill{c.from, std::get<PrefillToDecode>(c.message)});
  }
}

void World::unit_arrives(std::uint32_t index) {
  DataUnit& u = units_[index];
  Decode* d = decode_of(u.to);
  const transfer::UnitHeader header{.name = u.name,
                                    .unit = u.range.unit,
                                    .first_page = u.range.first_page,
                                    .page_count = u.range.page_count,
                                    .page_offset = 64U * u.range.first_part,
                                    .page_length = 64U * u.range.part_count,
                                    .first_part = u.range.first_part,
                                    .part_count = u.range.part_count,
                                    .payload_crc = crc_of(u.name, u.range)};
  transfer::Landing landing;
  const transfer::LandingVerdict verdict = d->table.begin(header, &landing);
  if (verdict == transfer::LandingVerdict::kLand) {
    u.landing = std::move(landing);
    return;
  }
  if (log_ != nullptr) log("  unit of " + to_string(u.name) + " has no place to land");
  const DataUnit gone = std::move(u);
  erase_at(units_, index);
  sender_done(gone, true);
}

void World::unit_lands(std::uint32_t index, bool good) {
  const DataUnit u = std::move(units_[index]);
  erase_at(units_, index);
  Decode* d = decode_of(u.to);
  const auto parts =
      static_cast<std::uint16_t>(((1U << u.range.part_count) - 1U) << u.range.first_part);
  for (std::uint32_t i = 0; i < u.range.page_count; ++i) {
    Page& page = d->pages[u.landing->pages[i]];
    if (page.owner == Owner::kSide && page.name == u.name) {
      // The page belongs to this very transfer.
    } else if (page.owner == Owner::kEngine && page.name == u.name) {
      fail("bytes land in a page after it was delivered");
    } else {
      fail("foreign byte: a unit of " + to_string(u.name) + " lands in a page of " +
           (page.owner == Owner::kPool ? "the free pool" : to_string(page.name)));
    }
    const std::uint32_t page_index = u.range.first_page + i;
    if (!good) {
      page.content_parts = static_cast<std::uint16_t>(page.content_parts & ~parts);
    } else if (page.content_request == u.name.request_id && page.content_index == page_index) {
      page.content_parts = static_cast<std::uint16_t>(page.content_parts | parts);
    } else {
      page.content_request = u.name.request_id;
      page.content_index = page_index;
      page.content_parts = parts;
    }
  }
  d->local.push_back(UnitLanded{u.name, u.range, crc_of(u.name, u.range), good});
  end_landing(*d, *u.landing, good);
  sender_done(u, true);
}

void World::end_landing(Decode& d, const transfer::Landing& landing, bool good) {
  if (d.table.finish(landing, good)) d.local.push_back(LandingClosed{landing.name});
}

void World::sender_done(const DataUnit& unit, bool ok) {
  Prefill* p = prefill_of(unit.from);
  if (p == nullptr || unit.copy) return;
  p->local.push_back(SendDone{unit.name, unit.range.unit, ok, crc_of(unit.name, unit.range)});
  eager(*p);
}

void World::crash(bool prefill, std::uint32_t index) {
  const std::uint64_t dead = prefill ? prefills_[index].incarnation : decodes_[index].incarnation;
  log((prefill ? "P" : "D") + std::to_string(dead) + " crashes");
  if (prefill) {
    Prefill& p = prefills_[index];
    p.up = false;
    p.inbox.clear();
    p.local.clear();
    p.computing.clear();
    p.sources.clear();
    for (std::uint32_t d = 0; d < decodes_.size(); ++d)
      if (decodes_[d].up) losses_.push_back({false, d, decodes_[d].incarnation, dead});
  } else {
    Decode& d = decodes_[index];
    d.up = false;
    d.inbox.clear();
    d.local.clear();
    d.waiters.clear();
    d.held.clear();
    d.live.clear();
    for (DataUnit& u : units_)
      if (u.to == dead) u.landing.reset();
    for (std::uint32_t p = 0; p < prefills_.size(); ++p)
      if (prefills_[p].up) losses_.push_back({true, p, prefills_[p].incarnation, dead});
  }
  std::erase_if(controls_, [&](const Control& c) { return c.to == dead; });
  std::erase_if(losses_, [&](const Loss& l) { return l.observer_incarnation == dead; });
  for (std::uint32_t r = 0; r < requests_.size(); ++r) {
    Request& request = requests_[r];
    if (request.state == RequestState::kRunning &&
        (request.prefill_incarnation == dead || request.decode_incarnation == dead)) {
      attempt_failed(room(r), request.attempt);
    }
  }
}

void World::notice_loss(std::uint32_t index) {
  const Loss loss = losses_[index];
  erase_at(losses_, index);
  const PeerLost event{loss.lost, unavailable("the stream broke")};
  std::erase_if(controls_, [&](const Control& c) {
    return c.from == loss.lost && c.to == loss.observer_incarnation;
  });
  // The data endpoint is closed by force: what was in flight ends now, for good.
  std::vector<DataUnit> ended;
  for (std::size_t i = 0; i < units_.size();) {
    const DataUnit& u = units_[i];
    const bool mine = loss.observer_is_prefill
                          ? u.from == loss.observer_incarnation && u.to == loss.lost
                          : u.to == loss.observer_incarnation && u.from == loss.lost;
    if (!mine) {
      ++i;
      continue;
    }
    ended.push_back(u);
    erase_at(units_, i);
  }
  for (const DataUnit& u : ended) {
    if (loss.observer_is_prefill) sender_done(u, false);
    if (!loss.observer_is_prefill && u.landing) {
      end_landing(decodes_[loss.observer], *u.landing, false);
    }
  }
  if (loss.observer_is_prefill) {
    feed(prefills_[loss.observer], event);
  } else {
    feed(decodes_[loss.observer], event);
  }
}

void World::restart(bool prefill, std::uint32_t index) {
  const std::uint64_t old = prefill ? prefills_[index].incarnation : decodes_[index].incarnation;
  const std::uint64_t incarnation = next_incarnation_++;
  log((prefill ? "P" : "D") + std::to_string(old) + " comes back as " +
      std::to_string(incarnation));
  // The new incarnation ends the links to the old one at once.
  for (std::size_t i = 0; i < losses_.size();) {
    if (losses_[i].lost == old) {
      notice_loss(static_cast<std::uint32_t>(i));
      i = 0;
    } else {
      ++i;
    }
  }
  std::erase_if(units_, [&](const DataUnit& u) { return u.from == old || u.to == old; });
  if (prefill) {
    Prefill& p = prefills_[index];
    p.up = true;
    p.incarnation = incarnation;
    p.side = PrefillSide(side_options(incarnation));
  } else {
    Decode& d = decodes_[index];
    d.up = true;
    d.incarnation = incarnation;
    d.side = DecodeSide(side_options(incarnation));
    d.table = transfer::LandingTable(landing_limits());
    d.pages.assign(options_.pool_pages, Page{});
    d.free_pages.clear();
    for (std::uint32_t page = options_.pool_pages; page > 0; --page)
      d.free_pages.push_back(page - 1);
  }
  for (Prefill& p : prefills_) {
    for (Decode& d : decodes_) {
      if (!p.up || !d.up || (p.incarnation != incarnation && d.incarnation != incarnation))
        continue;
      feed(p, PeerLinked{d.incarnation});
      if (options_.local) feed(p, PeerIsLocal{d.incarnation});
      if (options_.near) feed(p, PeerIsNear{d.incarnation});
      feed(d, PeerLinked{p.incarnation});
    }
  }
}

void World::expire() {
  const std::optional<Time> next = next_deadline();
  if (next && *next > now_) now_ = *next;
  advance({0});
}

void World::advance(Duration by) {
  now_ = now_ + by;
  for (Prefill& p : prefills_)
    if (p.up && p.side.next_deadline() && *p.side.next_deadline() <= now_) feed(p, TimePassed{});
  for (Decode& d : decodes_)
    if (d.up && d.side.next_deadline() && *d.side.next_deadline() <= now_) feed(d, TimePassed{});
}

}  // namespace tandem::sim
