// World: what can be seen of it from outside.
#include "common/handoff/fingerprint.h"
#include "tests/sim/handoff_world.h"

#include <algorithm>

namespace tandem::sim {

using namespace handoff;  // NOLINT: the whole file speaks of it

namespace {

void add(Fingerprint& f, const GrantMessage& m) {
  f.add(1).add(m.name).add(m.first_page).add(m.page_count);
  f.add(static_cast<std::uint64_t>(m.deadline_left.ns));
}

void add(Fingerprint& f, const ResendMessage& m) {
  f.add(2).add(m.name).add(m.unit);
}

void add(Fingerprint& f, const AcceptedMessage& m) {
  f.add(3).add(m.name);
}

void add(Fingerprint& f, const CancelMessage& m) {
  f.add(4).add(m.name).add(static_cast<std::uint64_t>(m.code));
}

void add(Fingerprint& f, const DrainedMessage& m) {
  f.add(5).add(m.name).add(m.page_count);
}

void add(Fingerprint& f, const CommitMessage& m) {
  f.add(6).add(m.name).add(m.unit_count).add(m.digest);
  f.add(static_cast<std::uint64_t>(m.payload.first_token));
}

}  // namespace

bool World::all_ended() const {
  return std::all_of(requests_.begin(), requests_.end(), [](const Request& r) {
    return r.state == RequestState::kOk || r.state == RequestState::kError;
  });
}

std::size_t World::error_count() const {
  return static_cast<std::size_t>(
      std::count_if(requests_.begin(), requests_.end(), [](const Request& r) {
        return r.state == RequestState::kError;
      }));
}

std::optional<Time> World::next_deadline() const {
  std::optional<Time> next;
  const auto take = [&next](std::optional<Time> t) {
    if (t) next = next ? std::min(*next, *t) : *t;
  };
  for (const Prefill& p : prefills_)
    if (p.up) take(p.side.next_deadline());
  for (const Decode& d : decodes_)
    if (d.up) take(d.side.next_deadline());
  return next;
}

void World::check_quiescent() {
  if (!all_ended()) fail("a request never ends");
  for (const Prefill& p : prefills_) {
    if (p.up && p.side.active_count() != 0) fail("prefill keeps a transfer for ever");
    if (p.up && !p.sources.empty()) fail("prefill keeps source pages for ever");
    if (p.up && p.side.units_in_flight() != 0) fail("prefill counts units that are not in flight");
  }
  for (const Decode& d : decodes_) {
    if (!d.up) continue;
    if (d.side.active_count() != 0 || !d.live.empty()) fail("decode keeps a transfer for ever");
    if (d.side.held_page_count() != 0) fail("decode keeps pages for ever");
    if (d.table.open_count() != 0) fail("a landing stays open for ever");
    if (d.free_pages.size() != options_.pool_pages) fail("a page is lost");
    if (!d.waiters.empty()) fail("decode waits for pages that nobody needs");
  }
}

std::string World::state_line() const {
  std::string s;
  for (const Prefill& p : prefills_) {
    s += "P" + std::to_string(p.incarnation) + (p.up ? "" : "(down)") +
         " sends=" + std::to_string(p.side.active_count()) + " ";
  }
  for (const Decode& d : decodes_) {
    s += "D" + std::to_string(d.incarnation) + (d.up ? "" : "(down)") +
         " receives=" + std::to_string(d.side.active_count()) +
         " free=" + std::to_string(d.free_pages.size()) + " ";
  }
  return s + "controls=" + std::to_string(controls_.size()) +
         " units=" + std::to_string(units_.size());
}

std::uint64_t World::fingerprint() const {
  Fingerprint f;
  f.add(static_cast<std::uint64_t>(now_.ns)).add(next_incarnation_);
  const FaultBudget& b = options_.faults;
  for (const int n :
       {b.drops, b.duplicates, b.corruptions, b.crashes, b.cancels, b.expiries, b.total})
    f.add(static_cast<std::uint64_t>(n));
  const auto inbox = [&f](const std::deque<RouterCommand>& commands) {
    f.add(commands.size());
    for (const RouterCommand& c : commands)
      f.add((std::uint64_t{c.request} << 8U) | static_cast<std::uint64_t>(c.kind)).add(c.attempt);
  };
  for (const Prefill& p : prefills_) {
    f.add(p.up ? p.incarnation : 0);
    if (!p.up) continue;
    f.add(p.side.fingerprint());
    inbox(p.inbox);
    for (const SendDone& done : p.local)
      f.add(done.name).add((std::uint64_t{done.unit} << 1U) | (done.ok ? 1U : 0U));
    for (const Computing& c : p.computing)
      f.add(c.key.request_id).add((std::uint64_t{c.key.attempt} << 32U) | c.next_page);
  }
  for (const Decode& d : decodes_) {
    f.add(d.up ? d.incarnation : 0);
    if (!d.up) continue;
    f.add(d.side.fingerprint()).add(d.table.fingerprint());
    inbox(d.inbox);
    for (const LocalDecodeEvent& e : d.local) {
      f.add(e.index());
      if (const auto* u = std::get_if<UnitLanded>(&e))
        f.add(u->name).add(u->range.unit * 2 + (u->crc_ok ? 1U : 0U));
      if (const auto* c = std::get_if<LandingClosed>(&e)) f.add(c->name);
    }
    for (const Page& page : d.pages) {
      f.add(static_cast<std::uint64_t>(page.owner)).add(page.content_request);
      f.add((std::uint64_t{page.content_index} << 16U) | page.content_parts);
    }
    for (const Waiter& w : d.waiters)
      f.add(w.name).add(w.count);
    for (const Held& h : d.held)
      f.add(h.name);
  }
  for (const Request& r : requests_) {
    f.add(static_cast<std::uint64_t>(r.state)).add(r.attempt);
    f.add((std::uint64_t{r.prefill} << 32U) | r.decode);
    f.add(r.prefill_incarnation).add(r.decode_incarnation);
  }
  // What is in flight has no order: sums of hashes.
  std::uint64_t flying = 0;
  for (const Control& c : controls_) {
    Fingerprint g;
    g.add(c.from).add(c.to);
    std::visit([&g](const auto& way) { std::visit([&g](const auto& m) { add(g, m); }, way); },
               c.message);
    flying += g.value();
  }
  for (const DataUnit& u : units_) {
    Fingerprint g;
    g.add(7).add(u.from).add(u.to).add(u.name).add(u.range.unit);
    g.add((u.copy ? 1U : 0U) | (u.landing ? 2U : 0U));
    if (u.landing) g.add(u.landing->name);
    flying += g.value();
  }
  for (const Loss& l : losses_)
    flying += Fingerprint().add(8).add(l.observer_incarnation).add(l.lost).value();
  return f.add(flying).value();
}

}  // namespace tandem::sim
