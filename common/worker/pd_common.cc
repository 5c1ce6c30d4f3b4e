#include "common/worker/pd_roles.h"

#include <fmt/format.h>

#include <utility>

namespace tandem::worker {

transfer::PageMemory page_memory(const engine::Engine& engine,
                                 const handoff::LayoutDescriptor& layout) {
  transfer::PageMemory memory;
  memory.base = engine.page_address({0});
  memory.stride_bytes = engine.page_bytes();
  memory.page_count = static_cast<std::uint32_t>(engine.page_count());
  for (std::uint32_t part = 0; part < layout.part_count; ++part) {
    memory.part_offsets.push_back(handoff::part_bytes(layout, part, 1).offset);
  }
  memory.part_offsets.push_back(layout.page_bytes);
  memory.shared = engine.shared_pages();
  return memory;
}

namespace internal {

static_assert(handoff::kRunBytes + transfer::kTcpPieceHeadersMax <= transfer::kTcpPieceBytes);
static_assert(handoff::kListPartBytes >= transfer::kListPartBytes);

handoff::SideOptions side_options(const PdOptions& options) {
  handoff::SideOptions side;
  side.layout = options.layout;
  side.incarnation = options.incarnation;
  side.window_pages = options.grant_window_pages;
  side.pages_max = 1U << 20U;
  return side;
}

handoff::LinkOptions link_options(const PdOptions& options, std::string data_address) {
  handoff::LinkOptions link;
  link.role = options.role;
  link.instance = options.instance;
  link.incarnation = options.incarnation;
  link.layout = options.layout;
  link.data_address = std::move(data_address);
  link.transfer_backend = options.transfer_backend;
  link.tick_interval = options.tick_interval;
  link.lost_after = options.peer_lost_after;
  link.stuck_after = options.peer_stuck_after;
  // Decode's engine thread takes the answer between its steps, and one may last. A peer that is
  // dead or hung is noticed by the router meanwhile.
  link.hello_within = seconds(10);
  return link;
}

std::string side_stats_json(const handoff::SideStats& stats,
                            const transfer::TransportStats& transport,
                            std::size_t linked,
                            std::size_t active) {
  return fmt::format(
      R"({{"linked_peers":{},"active_transfers":{},"started":{},"succeeded":{},"failed":{},"refused":{},)"
      R"("stale_dropped":{},"units_bad_crc":{},"sent_units":{},"sent_bytes":{},"sent_in_slots":{},)"
      R"("sent_from_pool":{},"spliced_bytes":{},"landed_units":{},"landed_bytes":{},"landings_open":{},"landings_closing":{}}})",
      linked,
      active,
      stats.started,
      stats.succeeded,
      stats.failed,
      stats.refused,
      stats.stale_dropped + transport.dropped_stale,
      stats.units_bad_crc,
      transport.sent_units,
      transport.sent_bytes,
      transport.sent_in_slots,
      transport.sent_from_pool,
      transport.spliced_bytes,
      transport.landed_units,
      transport.landed_bytes,
      transport.landings_open,
      transport.landings_closing);
}

}  // namespace internal
}  // namespace tandem::worker
