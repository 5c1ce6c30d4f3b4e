// UcxTransport: units through slots. The payload is copied into a slot here and out of it there,
// each time with its CRC in the same pass.
#include "common/transfer/short_message.h"
#include "common/transfer/ucx_transport.h"

#include <utility>

namespace tandem::transfer {

void UcxTransport::post_in_slot(Endpoint& endpoint, SendRequest& request, std::uint32_t slot) {
  UnitHeader& header = request.header;
  header.payload_crc = gather_crc(memory_, header, request.source_pages, slots_.slot(slot));
  in_slot_[slot] = lend(endpoint, header);
  std::vector<std::byte> message = unit_message(header);
  append(message, LentUnit{.from = own_crc_, .place = slot, .serial = in_slot_[slot].serial});
  const ucs_status_t status = send_note(endpoint, kSlotUnitId, std::move(message));
  if (UCS_STATUS_IS_ERR(status)) slot_send_ended(slot, status);
}

void UcxTransport::slot_send_ended(std::uint32_t slot, ucs_status_t status) {
  const Lent ended = std::exchange(in_slot_[slot], {});
  free_slot(slot);
  if (status == UCS_OK) ++counting_.sent_in_slots;
  lent_ended(ended, status);
}

void UcxTransport::free_slot(std::uint32_t slot) {
  slot_user_[slot] = nullptr;
  slots_.give(slot);
}

/// To put together what goes over the network: the other half stays for units in slots.
std::optional<std::uint32_t> UcxTransport::take_network_slot() {
  return slots_.free_count() > kSlotCount / 2 ? slots_.take() : std::nullopt;
}

/// Outside UCX's callbacks: units that had to wait, each peer's in order.
void UcxTransport::send_waiting() {
  for (const auto& [peer, endpoint] : peers_) {
    std::deque<SendRequest>& waiting = endpoint->waiting;
    while (!waiting.empty() && endpoint->failure == UCS_OK && post(*endpoint, waiting.front()))
      waiting.pop_front();
  }
}

void UcxTransport::slot_unit_arrived(std::span<const std::byte> message) {
  if (message.size() != kUnitHeaderBytes + kLentUnitBytes) {
    ++counting_.bad_headers;
    return;
  }
  const auto header = decode_unit_header(message.data(), kUnitHeaderBytes);
  const LentUnit unit = lent_unit_at(message.data() + kUnitHeaderBytes);
  Endpoint* endpoint = endpoint_of(unit.from);
  if (endpoint == nullptr || unit.place >= kSlotCount) {
    ++counting_.bad_headers;
    return;
  }
  // Whatever becomes of the unit, its slot is answered for: the sender waits for nothing else.
  Landing landing;
  if (!header.ok() || header->payload_bytes() > kSlotBytes) {
    ++counting_.bad_headers;
  } else if (admit(*header, landing)) {
    if (endpoint->slots) {
      landed(landing, scatter_crc(memory_, landing, endpoint->slots->slot(unit.place)));
    } else {
      receive_failed(landing);
    }
  }
  answer(*endpoint, unit.place, unit.serial);
}

}  // namespace tandem::transfer
