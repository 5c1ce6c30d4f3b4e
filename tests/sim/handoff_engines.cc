// World: the engines of its processes: computing prompts, lending and taking back pages.
#include "tests/sim/handoff_world.h"

namespace tandem::sim {

using namespace handoff;  // NOLINT: the whole file speaks of it

/// Serves the oldest waiter with what is free.
void World::give_pages(Decode& d) {
  if (d.waiters.empty() || d.free_pages.empty()) return;
  Waiter& w = d.waiters.front();
  PagesAvailable event{w.name, {}};
  while (w.count > 0 && !d.free_pages.empty()) {
    const std::uint32_t index = d.free_pages.back();
    d.free_pages.pop_back();
    d.pages[index] = Page{.owner = Owner::kSide,
                          .name = w.name,
                          .content_request = 0,
                          .content_index = 0,
                          .content_parts = 0};
    event.pages.push_back(index);
    --w.count;
  }
  if (w.count == 0) d.waiters.erase(d.waiters.begin());
  feed(d, event);
}

void World::engine_frees(Decode& d, std::size_t index) {
  const Held held = d.held[index];
  d.held.erase(d.held.begin() + static_cast<std::ptrdiff_t>(index));
  to_pool(d, held.name, held.pages, Owner::kEngine);
  eager(d);
}

void World::compute(std::uint32_t index, std::uint32_t b) {
  Prefill& p = prefills_[index];
  Computing& c = p.computing[b];
  const SendKey key = c.key;
  if (c.next_page < c.pages) {
    const std::uint32_t page = c.next_page++;
    feed(p, ChunkReady{key, page, {source_of(key.request_id, page)}, 0, 0});
    return;
  }
  p.computing.erase(p.computing.begin() + b);
  feed(p, FirstToken{key, CommitPayload{token_of(key.request_id), ""}});
}

void World::eager(Prefill& p) {
  if (!options_.eager_engines || !p.up) return;
  const auto index = static_cast<std::uint32_t>(&p - prefills_.data());
  while (!p.local.empty()) {
    const SendDone done = p.local.front();
    p.local.pop_front();
    feed(p, done);
  }
  if (!p.computing.empty()) compute(index, 0);
}

void World::eager(Decode& d) {
  if (!options_.eager_engines || !d.up) return;
  if (!d.held.empty()) {
    engine_frees(d, 0);
  } else if (!d.waiters.empty() && !d.free_pages.empty()) {
    give_pages(d);
  }
}

}  // namespace tandem::sim
