// World: router, processes and their engines. Network and landing: handoff_network.cc.
#include "tests/sim/handoff_world.h"

#include "common/handoff/fingerprint.h"

#include <algorithm>

namespace tandem::sim {

using namespace handoff;  // NOLINT: the whole file speaks of it

namespace {

constexpr std::uint32_t kPageSize = 4;

/// Prompts end in the middle of their last page, unless all of it is cached.
std::uint32_t prompt_tokens(const RequestPlan& plan) {
  return plan.pages * kPageSize - (plan.cached_pages == plan.pages ? 0 : 1);
}

}  // namespace

World::World(WorldOptions options) : options_(std::move(options)) {
  for (std::uint32_t i = 0; i < options_.prefill_count; ++i) {
    const auto incarnation = next_incarnation_++;
    prefills_.push_back(Prefill{.up = true,
                                .incarnation = incarnation,
                                .side = PrefillSide(side_options(incarnation)),
                                .inbox = {},
                                .local = {},
                                .computing = {},
                                .sources = {}});
  }
  for (std::uint32_t i = 0; i < options_.decode_count; ++i) {
    const auto incarnation = next_incarnation_++;
    decodes_.push_back(Decode{.up = true,
                              .incarnation = incarnation,
                              .side = DecodeSide(side_options(incarnation)),
                              .table = transfer::LandingTable(landing_limits()),
                              .inbox = {},
                              .local = {},
                              .pages = std::vector<Page>(options_.pool_pages),
                              .free_pages = {},
                              .waiters = {},
                              .held = {},
                              .live = {}});
    for (std::uint32_t page = options_.pool_pages; page > 0; --page)
      decodes_.back().free_pages.push_back(page - 1);
  }
  for (Prefill& p : prefills_) {
    for (Decode& d : decodes_) {
      feed(p, PeerLinked{d.incarnation});
      if (options_.local) feed(p, PeerIsLocal{d.incarnation});
      if (options_.near) feed(p, PeerIsNear{d.incarnation});
      feed(d, PeerLinked{p.incarnation});
    }
  }
  for (const RequestPlan& plan : options_.requests) {
    Request request;
    request.prefill = plan.prefill;
    request.decode = plan.decode;
    request.deadline = now_ + plan.deadline;
    requests_.push_back(request);
  }
}

SideOptions World::side_options(std::uint64_t incarnation) const {
  SideOptions o;
  o.layout = {.page_size = kPageSize,
              .layer_count = options_.part_count,
              .kv_head_count = 1,
              .head_dim = 1,
              .dtype = "f32",
              .page_bytes = 64UL * options_.part_count,
              .page_stride_bytes = 64UL * options_.part_count,
              .part_count = options_.part_count};
  o.incarnation = incarnation;
  o.transfers_max = options_.slots;
  o.window_pages = options_.window_pages;
  o.unit_bytes = std::uint64_t{64} * options_.part_count * options_.unit_pages;
  o.run_bytes = std::uint64_t{64} * options_.run_parts;
  o.list_part_bytes = 64;
  o.units_in_flight_max = options_.units_in_flight;
  o.units_in_flight_per_transfer = options_.units_in_flight;
  o.resends_max = 2;
  o.ended_max = 4;
  o.bugs = options_.bugs;
  return o;
}

transfer::LandingLimits World::landing_limits() const {
  transfer::LandingLimits limits;
  limits.pool_pages = options_.pool_pages;
  for (std::uint32_t part = 0; part <= options_.part_count; ++part)
    limits.part_offsets.push_back(std::uint64_t{64} * part);
  limits.planted_skip_generation_check = options_.bugs.skip_generation_check;
  return limits;
}

void World::fail(const std::string& what) {
  if (violation_.empty()) violation_ = what;
  log("VIOLATION " + what);
}

void World::log(const std::string& line) {
  if (log_ != nullptr) *log_ += "t=" + std::to_string(now_.ns / 1000) + "us " + line + "\n";
}

// Router.

void World::submit(std::uint32_t index) {
  Request& r = requests_[index];
  r.state = RequestState::kRunning;
  r.prefill_incarnation = prefills_[r.prefill].up ? prefills_[r.prefill].incarnation : 0;
  r.decode_incarnation = decodes_[r.decode].up ? decodes_[r.decode].incarnation : 0;
  if (r.prefill_incarnation == 0 || r.decode_incarnation == 0) {
    attempt_failed(room(index), r.attempt);
    return;
  }
  // Every other request tells prefill which decode process it is; the others let it pair with
  // whoever grants.
  const std::uint64_t told = index % 2 == 0 ? r.decode_incarnation : 0;
  prefills_[r.prefill].inbox.push_back({RouterCommand::Kind::kStart, index, r.attempt, told});
  decodes_[r.decode].inbox.push_back(
      {RouterCommand::Kind::kStart, index, r.attempt, r.prefill_incarnation});
}

void World::router_to_prefill(std::uint32_t index) {
  Prefill& p = prefills_[index];
  const RouterCommand c = p.inbox.front();
  p.inbox.pop_front();
  const SendKey key{room(c.request), c.attempt};
  if (c.kind == RouterCommand::Kind::kCancel) {
    feed(p, CancelSend{key, cancelled("the client left")});
    return;
  }
  const RequestPlan& plan = options_.requests[c.request];
  p.sources.push_back(key);
  p.computing.push_back({key, 0, plan.pages});
  feed(p, StartSend{key, c.peer, prompt_tokens(plan), requests_[c.request].deadline});
}

void World::router_to_decode(std::uint32_t index) {
  Decode& d = decodes_[index];
  const RouterCommand c = d.inbox.front();
  d.inbox.pop_front();
  if (c.kind == RouterCommand::Kind::kCancel) {
    feed(d, CancelReceive{room(c.request), c.attempt, cancelled("the client left")});
    return;
  }
  const RequestPlan& plan = options_.requests[c.request];
  feed(d,
       StartReceive{.request_id = room(c.request),
                    .attempt = c.attempt,
                    .prefill_incarnation = c.peer,
                    .prompt_tokens = prompt_tokens(plan),
                    .start_token = plan.cached_pages * kPageSize,
                    .deadline = requests_[c.request].deadline});
}

void World::attempt_cancel(std::uint32_t index) {
  const Request& r = requests_[index];
  Prefill& p = prefills_[r.prefill];
  Decode& d = decodes_[r.decode];
  const RouterCommand cancel{RouterCommand::Kind::kCancel, index, r.attempt, 0};
  if (p.up && p.incarnation == r.prefill_incarnation) p.inbox.push_back(cancel);
  if (d.up && d.incarnation == r.decode_incarnation) d.inbox.push_back(cancel);
}

void World::client_leaves(std::uint32_t index) {
  log("client of request " + std::to_string(index) + " leaves");
  Request& r = requests_[index];
  r.client_left = true;
  if (r.state == RequestState::kRunning) attempt_cancel(index);
  r.state = RequestState::kError;
}

/// One of the two legs reports that this attempt is over without a result.
void World::attempt_failed(std::uint64_t request_id, std::uint32_t attempt) {
  const auto index = static_cast<std::uint32_t>(request_id - 100);
  Request& r = requests_[index];
  if (r.state != RequestState::kRunning || r.attempt != attempt) return;
  attempt_cancel(index);
  if (r.attempt + 1 < options_.attempts_max) {
    ++r.attempt;
    r.prefill = (r.prefill + 1) % options_.prefill_count;
    r.decode = (r.decode + 1) % options_.decode_count;
    r.state = RequestState::kWaiting;
  } else {
    r.state = RequestState::kError;
  }
}

// Processes.

World::Prefill* World::prefill_of(std::uint64_t incarnation) {
  for (Prefill& p : prefills_)
    if (p.up && p.incarnation == incarnation) return &p;
  return nullptr;
}

World::Decode* World::decode_of(std::uint64_t incarnation) {
  for (Decode& d : decodes_)
    if (d.up && d.incarnation == incarnation) return &d;
  return nullptr;
}

void World::feed(Prefill& p, const PrefillEvent& event) {
  std::vector<PrefillAction> out;
  p.side.on(event, now_, out);
  for (const PrefillAction& action : out)
    act(p, action);
  eager(p);
}

void World::feed(Decode& d, const DecodeEvent& event) {
  std::vector<DecodeAction> out;
  d.side.on(event, now_, out);
  for (const DecodeAction& action : out)
    act(d, action);
  eager(d);
}

void World::act(Prefill& p, const PrefillAction& action) {
  if (log_ != nullptr) {
    log("  P" + std::to_string(p.incarnation) + " " + std::string(to_string(action)));
  }
  if (const auto* a = std::get_if<SendUnit>(&action)) send_unit(p, *a);
  if (const auto* a = std::get_if<ToDecode>(&action)) {
    controls_.push_back(
        {.to_prefill = false, .from = p.incarnation, .to = a->peer, .message = a->message});
  }
  const auto stop_computing = [&p](SendKey key) {
    std::erase_if(p.computing, [&](const Computing& c) { return c.key == key; });
    return std::erase(p.sources, key);
  };
  if (const auto* a = std::get_if<SendRefused>(&action)) {
    stop_computing(a->key);
    attempt_failed(a->key.request_id, a->key.attempt);
  }
  if (const auto* a = std::get_if<ReleaseSource>(&action)) {
    if (stop_computing(a->key) != 1) fail("source pages released that are not held");
    for (const DataUnit& u : units_) {
      if (u.from == p.incarnation && !u.copy && u.name.request_id == a->key.request_id &&
          u.name.attempt == a->key.attempt) {
        fail("source pages released while a unit is being sent from them");
      }
    }
    if (!a->status.ok()) attempt_failed(a->key.request_id, a->key.attempt);
  }
}

void World::send_unit(Prefill& p, const SendUnit& a) {
  if (std::find(p.sources.begin(), p.sources.end(), SendKey{a.name.request_id, a.name.attempt}) ==
      p.sources.end()) {
    fail("unit sent from pages that are not held");
  }
  for (std::uint32_t i = 0; i < a.range.page_count; ++i) {
    if (a.source_pages[i] != source_of(a.name.request_id, a.range.first_page + i)) {
      fail("unit sent from the wrong source page");
    }
  }
  if (decode_of(a.peer) == nullptr) {
    p.local.push_back(SendDone{a.name, a.range.unit, false, 0});
    return;
  }
  units_.push_back(DataUnit{.from = p.incarnation,
                            .to = a.peer,
                            .name = a.name,
                            .range = a.range,
                            .copy = false,
                            .landing = std::nullopt});
}

void World::act(Decode& d, const DecodeAction& action) {
  if (log_ != nullptr) {
    log("  D" + std::to_string(d.incarnation) + " " + std::string(to_string(action)));
  }
  if (const auto* a = std::get_if<ReceiveStarted>(&action)) d.live.push_back(a->name);
  if (const auto* a = std::get_if<ReceiveRefused>(&action))
    attempt_failed(a->request_id, a->attempt);
  if (const auto* a = std::get_if<NeedPages>(&action))
    d.waiters.push_back({a->name, a->page_count});
  if (const auto* a = std::get_if<PagesNotNeeded>(&action)) {
    std::erase_if(d.waiters, [&](const Waiter& w) { return w.name == a->name; });
  }
  if (const auto* a = std::get_if<ReturnPages>(&action))
    to_pool(d, a->name, a->pages, Owner::kSide);
  if (const auto* a = std::get_if<Deliver>(&action)) deliver(d, *a);
  if (const auto* a = std::get_if<Release>(&action)) {
    if (std::erase(d.live, a->name) != 1) fail("a transfer ended twice");
    std::uint32_t good = 0;
    const std::uint32_t cached =
        options_.requests[static_cast<std::size_t>(a->name.request_id - 100)].cached_pages;
    for (; good * kPageSize < a->verified_tokens && good < a->pages.size(); ++good) {
      const Page& page = d.pages[a->pages[good]];
      if (page.content_request != a->name.request_id || page.content_index != cached + good) {
        fail("the verified prefix of a failed transfer is not its KV");
      }
    }
    to_pool(d, a->name, a->pages, Owner::kSide);
    attempt_failed(a->name.request_id, a->name.attempt);
  }
  if (const auto* a = std::get_if<OpenLanding>(&action)) {
    d.table.open(a->name, a->first_page, a->pages);
  }
  if (const auto* a = std::get_if<CloseLanding>(&action)) {
    if (d.table.close(a->name)) d.local.push_back(LandingClosed{a->name});
  }
  if (const auto* a = std::get_if<ToPrefill>(&action)) {
    controls_.push_back(
        {.to_prefill = true, .from = d.incarnation, .to = a->peer, .message = a->message});
  }
}

void World::deliver(Decode& d, const Deliver& a) {
  if (std::erase(d.live, a.name) != 1) fail("a request was delivered twice");
  const std::uint64_t request_id = a.name.request_id;
  const auto index = static_cast<std::uint32_t>(request_id - 100);
  const RequestPlan& plan = options_.requests[index];
  if (a.payload.first_token != token_of(request_id)) fail("delivered with another's first token");
  if (a.pages.size() != plan.pages - plan.cached_pages) fail("delivered with a page too few");
  for (std::size_t i = 0; i < a.pages.size(); ++i) {
    Page& page = d.pages[a.pages[i]];
    if (page.owner != Owner::kSide || page.name != a.name) fail("delivered page owned twice");
    page.owner = Owner::kEngine;
    if (page.content_request != request_id || page.content_index != plan.cached_pages + i ||
        page.content_parts != (1U << options_.part_count) - 1U) {
      fail("delivered page does not hold the prompt's KV");
    }
  }
  d.held.push_back({a.name, a.pages});
  ++delivered_;
  Request& r = requests_[index];
  if (r.state == RequestState::kRunning && r.attempt == a.name.attempt) r.state = RequestState::kOk;
}

void World::to_pool(Decode& d,
                    const TransferName& name,
                    const std::vector<std::uint32_t>& pages,
                    Owner from) {
  for (const std::uint32_t index : pages) {
    Page& page = d.pages[index];
    if (page.owner != from || page.name != name) fail("page freed by one who does not own it");
    page = Page{};
    d.free_pages.push_back(index);
  }
  std::sort(d.free_pages.rbegin(), d.free_pages.rend());
}

}  // namespace tandem::sim
