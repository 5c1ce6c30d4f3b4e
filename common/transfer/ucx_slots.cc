// UcxTransport: units through memory that a peer on the same machine maps. UCX carries the headers,
// the answers and the news that a peer is lost; the payload is copied into a slot here and out of
// it there, each time with its CRC in the same pass.
#include "common/base/failpoint.h"
#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <cstring>

namespace tandem::transfer {

namespace {

constexpr unsigned kSlotUnitId = 2;
constexpr unsigned kSlotDoneId = 3;
constexpr unsigned kSlotOfferId = 4;
constexpr unsigned kSlotAcceptId = 5;
constexpr std::size_t kEarlyOffersMax = 256;

/// What follows the unit header (kSlotUnitId), or stands alone (kSlotDoneId).
struct SlotUse {
  std::uint32_t from = 0;  ///< CRC of the sender's address
  std::uint32_t slot = 0;
  std::uint32_t serial = 0;  ///< of this use: an answer to an earlier one is not for this one
};

constexpr std::size_t kUseBytes = 12;

void append(std::vector<std::byte>& out, const SlotUse& use) {
  for (const std::uint32_t value : {use.from, use.slot, use.serial}) {
    for (unsigned i = 0; i < 4; ++i)
      out.push_back(static_cast<std::byte>((value >> (8 * i)) & 0xFFU));
  }
}

SlotUse use_at(const std::byte* in) {
  std::array<std::uint32_t, 3> values{};
  for (std::uint32_t& value : values) {
    for (unsigned i = 0; i < 4; ++i)
      value |= std::to_integer<std::uint32_t>(*in++) << (8 * i);
  }
  return {values[0], values[1], values[2]};
}

}  // namespace

Status UcxTransport::handle_notes() {
  const auto handler = [this](unsigned id, ucp_am_recv_callback_t callback) -> Status {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = id;
    param.cb = callback;
    param.arg = this;
    const ucs_status_t s = ucp_worker_set_am_recv_handler(worker_, &param);
    return s == UCS_OK ? Status() : ucx_error("ucp_worker_set_am_recv_handler", s);
  };
  // Everything is in the header of the message; a payload is ignored.
#define TANDEM_NOTE(method)                                                                    \
  [](void* self,                                                                               \
     const void* header,                                                                       \
     std::size_t length,                                                                       \
     void*,                                                                                    \
     std::size_t,                                                                              \
     const ucp_am_recv_param_t*) {                                                             \
    static_cast<UcxTransport*>(self)->method({static_cast<const std::byte*>(header), length}); \
    return UCS_OK;                                                                             \
  }
  TANDEM_TRY(handler(kSlotUnitId, TANDEM_NOTE(slot_unit_arrived)));
  TANDEM_TRY(handler(kSlotDoneId, TANDEM_NOTE(slot_done_arrived)));
  TANDEM_TRY(handler(kSlotOfferId, TANDEM_NOTE(offer_arrived)));
  return handler(kSlotAcceptId, TANDEM_NOTE(accept_arrived));
#undef TANDEM_NOTE
}

UcxTransport::Endpoint* UcxTransport::endpoint_of(std::uint32_t address_crc) {
  for (const auto& [peer, endpoint] : peers_)
    if (endpoint->address_crc == address_crc && endpoint->failure == UCS_OK) return endpoint;
  return nullptr;
}

ucs_status_t UcxTransport::send_note(Endpoint& endpoint,
                                     unsigned id,
                                     std::vector<std::byte> bytes) {
  Note& note = notes_.emplace_back();
  note.owner = this;
  note.self = std::prev(notes_.end());
  note.bytes = std::move(bytes);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxTransport::on_note_sent;
  param.user_data = &note;
  ucs_status_ptr_t posted =
      ucp_am_send_nbx(endpoint.ep, id, note.bytes.data(), note.bytes.size(), nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(posted)) return UCS_INPROGRESS;
  notes_.erase(note.self);
  return UCS_PTR_RAW_STATUS(posted);
}

void UcxTransport::on_note_sent(void* request, ucs_status_t /*status*/, void* user_data) {
  auto* note = static_cast<Note*>(user_data);
  note->owner->notes_.erase(note->self);
  ucp_request_free(request);
}

// Getting to know each other.

void UcxTransport::offer_slots(Endpoint& endpoint) {
  if (!share_slots_) return;
  const SlotOfferBytes bytes = encode(slots_.offer(own_crc_));
  send_note(endpoint, kSlotOfferId, {bytes.begin(), bytes.end()});
  const auto early = early_offers_.find(endpoint.address_crc);
  if (early != early_offers_.end()) accept_slots(endpoint, early->second);
}

void UcxTransport::offer_arrived(std::span<const std::byte> message) {
  const std::optional<SlotOffer> offer = decode_slot_offer(message);
  if (!offer || !share_slots_) return;
  // Kept also when it is accepted now: the endpoint may be about to be replaced, and the peer
  // offers once. Those of peers that are gone are not worth keeping.
  if (early_offers_.size() >= kEarlyOffersMax && !early_offers_.contains(offer->from))
    early_offers_.clear();
  early_offers_[offer->from] = *offer;
  if (Endpoint* endpoint = endpoint_of(offer->from); endpoint != nullptr)
    accept_slots(*endpoint, *offer);
}

/// Peers on other machines, or in containers of their own, fail here: they keep to the network.
void UcxTransport::accept_slots(Endpoint& endpoint, const SlotOffer& offer) {
  auto opened = PeerSlots::open(offer);
  if (!opened.ok()) return;
  endpoint.slots = std::move(opened).value();
  SlotOffer accepted = offer;
  accepted.from = own_crc_;
  const SlotOfferBytes bytes = encode(accepted);
  send_note(endpoint, kSlotAcceptId, {bytes.begin(), bytes.end()});
}

void UcxTransport::accept_arrived(std::span<const std::byte> message) {
  const std::optional<SlotOffer> accepted = decode_slot_offer(message);
  if (!accepted || accepted->token != slots_.offer(own_crc_).token) return;
  if (Endpoint* endpoint = endpoint_of(accepted->from); endpoint != nullptr)
    endpoint->maps_slots = true;
}

// Sending.

void UcxTransport::post_in_slot(Endpoint& endpoint, SendRequest& request, std::uint32_t slot) {
  UnitHeader& header = request.header;
  header.payload_crc = gather_crc(memory_, header, request.source_pages, slots_.slot(slot));
  InSlot& use = in_slot_[slot];
  use = {.endpoint = &endpoint,
         .serial = ++next_serial_,
         .name = header.name,
         .unit = header.unit,
         .crc = header.payload_crc,
         .bytes = header.payload_bytes()};
  // Tests: a unit that is damaged on its way looks like one whose CRC does not fit.
  if (!failpoint::hit("transfer.corrupt").ok()) header.payload_crc ^= 1U;
  const UnitHeaderBytes bytes = encode(header);
  std::vector<std::byte> message(bytes.size());
  std::memcpy(message.data(), bytes.data(), bytes.size());
  append(message, {.from = own_crc_, .slot = slot, .serial = use.serial});
  const ucs_status_t status = send_note(endpoint, kSlotUnitId, std::move(message));
  if (UCS_STATUS_IS_ERR(status)) slot_send_ended(slot, status);
}

void UcxTransport::slot_done_arrived(std::span<const std::byte> message) {
  if (message.size() != kUseBytes) return;
  const SlotUse use = use_at(message.data());
  if (use.slot >= kSlotCount) return;
  const InSlot& mine = in_slot_[use.slot];
  if (mine.endpoint == nullptr || mine.serial != use.serial) return;
  slot_send_ended(use.slot, UCS_OK);
}

void UcxTransport::slot_send_ended(std::uint32_t slot, ucs_status_t status) {
  const InSlot ended = std::exchange(in_slot_[slot], {});
  free_slot(slot);
  SendDoneEvent event{ended.name, ended.unit, ok_status(), ended.crc};
  if (status == UCS_OK) {
    ++counting_.sent_units;
    ++counting_.sent_in_slots;
    counting_.sent_bytes += ended.bytes;
  } else {
    ++counting_.send_errors;
    event.status = ucx_error("send", status);
  }
  sink_(std::move(event));
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

/// What the peer of a lost endpoint has not answered ends with an error; what waits too.
/// The peer may still read such a slot while it is used again: the CRC tells it.
void UcxTransport::drop_slot_sends(Endpoint& endpoint) {
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    if (in_slot_[slot].endpoint == &endpoint) slot_send_ended(slot, UCS_ERR_CANCELED);
  // The next endpoint may lie at this address; what is still sent over the network frees its slot.
  std::replace(slot_user_.begin(),
               slot_user_.end(),
               static_cast<const Endpoint*>(&endpoint),
               static_cast<const Endpoint*>(nullptr));
  for (const SendRequest& request : std::exchange(endpoint.waiting, {})) {
    ++counting_.send_errors;
    sink_(SendDoneEvent{
        request.header.name, request.header.unit, ucx_error("send", UCS_ERR_CANCELED), 0});
  }
  endpoint.slots.reset();
  endpoint.maps_slots = false;
}

// Receiving.

void UcxTransport::slot_unit_arrived(std::span<const std::byte> message) {
  if (message.size() != kUnitHeaderBytes + kUseBytes) {
    ++counting_.bad_headers;
    return;
  }
  const auto header = decode_unit_header(message.data(), kUnitHeaderBytes);
  const SlotUse use = use_at(message.data() + kUnitHeaderBytes);
  Endpoint* endpoint = endpoint_of(use.from);
  if (endpoint == nullptr || use.slot >= kSlotCount) {
    ++counting_.bad_headers;
    return;
  }
  // Whatever becomes of the unit, its slot is answered for: the sender waits for nothing else.
  Landing landing;
  if (!header.ok() || header->payload_bytes() > kSlotBytes) {
    ++counting_.bad_headers;
  } else if (admit(*header, landing)) {
    if (endpoint->slots != nullptr) {
      landed(landing, scatter_crc(memory_, landing, endpoint->slots->slot(use.slot)));
    } else {
      receive_failed(landing);
    }
  }
  std::vector<std::byte> answer;
  append(answer, {.from = own_crc_, .slot = use.slot, .serial = use.serial});
  send_note(*endpoint, kSlotDoneId, std::move(answer));
}

}  // namespace tandem::transfer
