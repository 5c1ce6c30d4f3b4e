#include "common/worker/prefill_handoff.h"

#include "common/base/clock.h"

#include <algorithm>
#include <utility>

namespace tandem::worker {

PrefillHandoff::PrefillHandoff(const PdOptions& options,
                               TaskLoop* loop,
                               std::function<std::uint64_t()> progress,
                               std::function<void(std::vector<EndedSend>&&)> on_ended)
    : options_(options),
      loop_(loop),
      progress_(std::move(progress)),
      on_ended_(std::move(on_ended)),
      side_(internal::side_options(options)) {}

Status PrefillHandoff::start(transfer::PageMemory memory, const MakeTransport& make_transport) {
  // The inbox, not the loop: the transport may outlive the latter.
  auto sink = [this, inbox = loop_->inbox()](transfer::TransportEvent&& event) {
    inbox->push([this, event = std::move(event)] { on_transport(event); });
  };
  TANDEM_TRY(transport_, make_transport(std::move(memory), std::move(sink)));
  hub_ = std::make_shared<PairHub>(internal::link_options(options_, transport_->address()),
                                   *loop_,
                                   progress_,
                                   hub_events(),
                                   options_.authorization);
  return {};
}

PairHubEvents PrefillHandoff::hub_events() {
  return {.on_linked =
              [this](std::uint64_t peer, const std::string& data_address) {
                transport_->connect(peer, data_address);
                feed(handoff::PeerLinked{peer});
              },
          .on_lost =
              [this](std::uint64_t peer, const Status& why) {
                if (transport_) transport_->disconnect(peer);
                feed(handoff::PeerLost{peer, why});
              },
          .on_unreachable = [](std::uint64_t, const Status&) {},
          .on_message =
              [this](std::uint64_t peer, PairValue&& value) {
                if (auto* message = std::get_if<handoff::DecodeToPrefill>(&value)) {
                  feed(handoff::FromDecode{peer, std::move(*message)});
                }
              }};
}

void PrefillHandoff::feed(const handoff::PrefillEvent& event) {
  std::vector<handoff::PrefillAction> actions;
  side_.on(event, steady_clock().now(), actions);
  // First, so that a request which comes again because a peer heard of its end is not taken for the
  // old one, unless that still has units in flight.
  std::vector<EndedSend> ended;
  for (const handoff::PrefillAction& action : actions) {
    if (const auto* refused = std::get_if<handoff::SendRefused>(&action)) {
      ended.push_back({refused->key, refused->status});
    } else if (const auto* release = std::get_if<handoff::ReleaseSource>(&action)) {
      ended.push_back({release->key, release->status});
    }
  }
  if (!ended.empty()) on_ended_(std::move(ended));
  for (handoff::PrefillAction& action : actions) {
    if (auto* unit = std::get_if<handoff::SendUnit>(&action)) {
      send(*unit);
    } else if (auto* message = std::get_if<handoff::ToDecode>(&action)) {
      hub_->send(message->peer, message->message);
    }
  }
}

void PrefillHandoff::send(handoff::SendUnit& unit) {
  transfer::SendRequest request;
  request.peer = unit.peer;
  request.header.name = unit.name;
  request.header.unit = unit.range.unit;
  request.header.first_page = unit.range.first_page;
  request.header.page_count = unit.range.page_count;
  request.header.first_part = unit.range.first_part;
  request.header.part_count = unit.range.part_count;
  request.header.page_offset = static_cast<std::uint32_t>(unit.byte_range.offset);
  request.header.page_length = static_cast<std::uint32_t>(unit.byte_range.length);
  request.source_pages = std::move(unit.source_pages);
  transport_->send(std::move(request));
}

void PrefillHandoff::on_transport(const transfer::TransportEvent& event) {
  if (!transport_) return;
  if (const auto* done = std::get_if<transfer::SendDoneEvent>(&event)) {
    feed(handoff::SendDone{done->name, done->unit, done->status.ok(), done->crc});
  } else if (const auto* local = std::get_if<transfer::PeerIsLocalEvent>(&event)) {
    feed(handoff::PeerIsLocal{local->peer});
  } else if (const auto* near = std::get_if<transfer::PeerIsNearEvent>(&event)) {
    feed(handoff::PeerIsNear{near->peer});
  } else if (const auto* error = std::get_if<transfer::PeerDataErrorEvent>(&event)) {
    hub_->data_path_failed(error->peer, error->status);
  }
}

void PrefillHandoff::before_step(Time now) {
  hub_->before_step(now);
  if (const auto deadline = side_.next_deadline(); deadline && *deadline <= now)
    feed(handoff::TimePassed{});
}

std::optional<Time> PrefillHandoff::next_deadline() const {
  const auto side = side_.next_deadline();
  const auto link = hub_->next_deadline();
  if (side && link) return std::min(*side, *link);
  return side ? side : link;
}

std::string PrefillHandoff::stats_json() const {
  return internal::side_stats_json(
      side_.stats(), transport_->stats(), hub_->linked().size(), side_.active_count());
}

void PrefillHandoff::shut_down() {
  hub_->close_all();
  transport_.reset();
}

}  // namespace tandem::worker
