// UcxTransport: peers on the same machine. UCX carries the headers, the answers and the news that a
// peer is lost; the payload is in memory of the sender that the peer maps for reading.
#include "common/base/failpoint.h"
#include "common/transfer/short_message.h"
#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <cstring>

namespace tandem::transfer {

namespace {

constexpr std::size_t kEarlyOffersMax = 256;
/// Few enough that the sender hears of them while it still has units to send.
constexpr std::size_t kAnswersTogether = 2;

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
  TANDEM_TRY(handler(kPoolUnitId, TANDEM_NOTE(pool_unit_arrived)));
  TANDEM_TRY(handler(kDoneId, TANDEM_NOTE(done_arrived)));
  TANDEM_TRY(handler(kOfferId, TANDEM_NOTE(offer_arrived)));
  return handler(kAcceptId, TANDEM_NOTE(accept_arrived));
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
  note.life = endpoint.life;
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

void UcxTransport::offer_memory(Endpoint& endpoint) {
  if (!may_share_) return;
  const auto offer = [&](MemoryKind kind, const MemoryKey& key) {
    const MemoryOfferBytes bytes = encode({.kind = kind, .from = own_crc_, .key = key});
    send_note(endpoint, kOfferId, {bytes.begin(), bytes.end()});
  };
  if (slots_.shareable()) offer(MemoryKind::kSlots, slots_.key());
  if (memory_.shared != nullptr) offer(MemoryKind::kPool, memory_.shared->key());
  for (const MemoryKind kind : {MemoryKind::kSlots, MemoryKind::kPool}) {
    const auto early = early_offers_.find({endpoint.address_crc, kind});
    if (early != early_offers_.end()) accept_memory(endpoint, early->second);
  }
}

void UcxTransport::offer_arrived(std::span<const std::byte> message) {
  const std::optional<MemoryOffer> offer = decode_memory_offer(message);
  if (!offer || !may_share_) return;
  // Kept also when it is accepted now: the endpoint may be about to be replaced, and the peer
  // offers once. Those of peers that are gone are not worth keeping.
  const std::pair key(offer->from, offer->kind);
  if (early_offers_.size() >= kEarlyOffersMax && !early_offers_.contains(key))
    early_offers_.clear();
  early_offers_[key] = *offer;
  if (Endpoint* endpoint = endpoint_of(offer->from); endpoint != nullptr)
    accept_memory(*endpoint, *offer);
}

/// Peers on other machines, or in containers of their own, fail here: they keep to the network.
void UcxTransport::accept_memory(Endpoint& endpoint, const MemoryOffer& offer) {
  if (offer.kind == MemoryKind::kSlots) {
    auto opened = PeerSlots::open(offer.key);
    if (!opened.ok()) return;
    endpoint.slots = std::move(opened).value();
  } else {
    auto opened = PeerMemory::open(offer.key, kKvPoolName);
    if (!opened.ok()) return;
    if (endpoint.pool) unmapper_.take(std::move(*endpoint.pool));
    endpoint.pool = std::move(opened).value();
  }
  MemoryOffer accepted = offer;
  accepted.from = own_crc_;
  const MemoryOfferBytes bytes = encode(accepted);
  send_note(endpoint, kAcceptId, {bytes.begin(), bytes.end()});
}

void UcxTransport::accept_arrived(std::span<const std::byte> message) {
  const std::optional<MemoryOffer> accepted = decode_memory_offer(message);
  if (!accepted || !may_share_) return;
  Endpoint* endpoint = endpoint_of(accepted->from);
  if (endpoint == nullptr) return;
  const bool was_local = endpoint->maps_slots || endpoint->maps_pool;
  if (accepted->kind == MemoryKind::kSlots) {
    endpoint->maps_slots |= slots_.shareable() && accepted->key == slots_.key();
  } else {
    endpoint->maps_pool |= memory_.shared != nullptr && accepted->key == memory_.shared->key();
  }
  if (!was_local && (endpoint->maps_slots || endpoint->maps_pool))
    sink_(PeerIsLocalEvent{endpoint->peer});
}

// Lending.

UcxTransport::Lent UcxTransport::lend(Endpoint& endpoint, const UnitHeader& header) {
  return {.endpoint = &endpoint,
          .serial = ++next_serial_,
          .name = header.name,
          .unit = header.unit,
          .crc = header.payload_crc,
          .bytes = header.payload_bytes()};
}

/// The header's bytes: what says where the unit is follows them.
std::vector<std::byte> UcxTransport::unit_message(UnitHeader header) {
  // Tests: a unit that is damaged on its way looks like one whose CRC does not fit.
  if (!failpoint::hit("transfer.corrupt").ok()) header.payload_crc ^= 1U;
  const UnitHeaderBytes bytes = encode(header);
  return {bytes.begin(), bytes.end()};
}

void UcxTransport::lent_ended(const Lent& lent, ucs_status_t status) {
  SendDoneEvent event{lent.name, lent.unit, ok_status(), lent.crc};
  if (status == UCS_OK) {
    ++counting_.sent_units;
    counting_.sent_bytes += lent.bytes;
  } else {
    ++counting_.send_errors;
    event.status = ucx_error("send", status);
  }
  sink_(std::move(event));
}

/// What the peer of a lost endpoint has not answered ends with an error; what waits too.
/// The peer may still read such bytes while they are written to again: the CRC tells it.
void UcxTransport::drop_lent(Endpoint& endpoint) {
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    if (in_slot_[slot].endpoint == &endpoint) slot_send_ended(slot, UCS_ERR_CANCELED);
  // The next endpoint may lie at this address; what is still sent over the network frees its slot.
  std::replace(slot_user_.begin(),
               slot_user_.end(),
               static_cast<const Endpoint*>(&endpoint),
               static_cast<const Endpoint*>(nullptr));
  for (auto it = in_pool_.begin(); it != in_pool_.end();) {
    const auto current = it++;
    if (current->second.endpoint == &endpoint) pool_send_ended(current->first, UCS_ERR_CANCELED);
  }
  for (const SendRequest& request : std::exchange(endpoint.waiting, {})) {
    ++counting_.send_errors;
    sink_(SendDoneEvent{
        request.header.name, request.header.unit, ucx_error("send", UCS_ERR_CANCELED), 0});
  }
  endpoint.slots.reset();
  if (endpoint.pool) unmapper_.take(std::move(*endpoint.pool));
  endpoint.pool.reset();
  endpoint.maps_slots = false;
  endpoint.maps_pool = false;
}

/// A unit of the peer was read, or was not wanted. Answers are sent together: each message is a
/// system call on both sides.
void UcxTransport::answer(Endpoint& endpoint, std::uint32_t place, std::uint32_t serial) {
  append(endpoint.answers, LentUnit{.from = own_crc_, .place = place, .serial = serial});
  // A peer that knows no pools reads one answer of a message.
  if (place != kInPool || endpoint.answers.size() >= kAnswersTogether * kLentUnitBytes)
    send_answers(endpoint);
}

void UcxTransport::send_answers(Endpoint& endpoint) {
  if (endpoint.answers.empty()) return;
  send_note(endpoint, kDoneId, std::exchange(endpoint.answers, {}));
}

void UcxTransport::done_arrived(std::span<const std::byte> message) {
  if (message.size() % kLentUnitBytes != 0) return;
  for (; !message.empty(); message = message.subspan(kLentUnitBytes))
    unit_done(lent_unit_at(message.data()));
}

void UcxTransport::unit_done(const LentUnit& unit) {
  const auto answered = [&](const Lent& lent) {
    return lent.endpoint != nullptr && lent.serial == unit.serial &&
           lent.endpoint->address_crc == unit.from;
  };
  if (unit.place == kInPool) {
    const auto found = in_pool_.find(unit.serial);
    if (found != in_pool_.end() && answered(found->second)) pool_send_ended(unit.serial, UCS_OK);
  } else if (unit.place < kSlotCount && answered(in_slot_[unit.place])) {
    slot_send_ended(unit.place, UCS_OK);
  }
}

}  // namespace tandem::transfer
