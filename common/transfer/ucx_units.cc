// UcxTransport: sending units, and letting those land that may.
#include "common/base/failpoint.h"
#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tandem::transfer {

namespace {

constexpr unsigned kUnitAmId = 1;

/// How UCX is told where the bytes are: one run as a plain buffer, several as a list.
struct BufferArgs {
  const void* buffer = nullptr;
  std::size_t count = 0;
  ucp_datatype_t datatype = ucp_dt_make_contig(1);
};

BufferArgs describe(const std::vector<ucp_dt_iov_t>& iov) {
  if (iov.size() == 1) return {iov[0].buffer, iov[0].length, ucp_dt_make_contig(1)};
  return {iov.data(), iov.size(), UCP_DATATYPE_IOV};
}

std::vector<ucp_dt_iov_t> iov_of(const std::vector<MemoryRun>& runs) {
  std::vector<ucp_dt_iov_t> iov;
  iov.reserve(runs.size());
  for (const MemoryRun& run : runs)
    iov.push_back({run.begin, run.bytes});
  return iov;
}

// Of such parts a piece has no more, our header included.
static_assert((kTcpPieceBytes - kTcpPieceHeadersMax) / kListPartBytes + 1 <= kTcpListMax);

/// Each page or run of pages is worth taking from where it lies, and UCX sends the list as one
/// piece.
bool goes_as_list(const std::vector<MemoryRun>& runs, std::uint64_t bytes) {
  return bytes + kTcpPieceHeadersMax <= kTcpPieceBytes &&
         std::ranges::all_of(runs,
                             [](const MemoryRun& run) { return run.bytes >= kListPartBytes; });
}

}  // namespace

/// Read by the peer where it lies, when it maps our pages. Through a slot when it maps only those,
/// or when pages that lie apart would be copied as a list: UCX
/// sends those in many small pieces over TCP. A peer that gives no slot back, because it is
/// stopped, delays nobody but itself: it has at most half of them, and who finds none free, and has
/// none to wait for, goes without.
bool UcxTransport::post(Endpoint& endpoint, SendRequest& request) {
  const std::vector<MemoryRun> runs = runs_of(memory_, request.header, request.source_pages);
  if (endpoint.maps_pool && runs.size() <= pool_runs_max_) {
    post_from_pool(endpoint, request, runs);
    return true;
  }
  const bool fits = request.header.payload_bytes() <= kSlotBytes;
  const bool apart = runs.size() > 1;
  const bool as_list = !endpoint.maps_slots && is_spliced_to(endpoint) &&
                       goes_as_list(runs, request.header.payload_bytes());
  if (!fits || as_list || (!endpoint.maps_slots && !apart)) {
    post_network(endpoint, request, runs, std::nullopt, as_list);
    return true;
  }
  const auto own = std::count(slot_user_.begin(), slot_user_.end(), &endpoint);
  if (own >= kSlotCount / 2) return false;
  const std::optional<std::uint32_t> slot =
      endpoint.maps_slots ? slots_.take() : take_network_slot();
  if (!slot && own > 0) return false;
  if (slot) slot_user_[*slot] = &endpoint;
  if (slot && endpoint.maps_slots) {
    post_in_slot(endpoint, request, *slot);
  } else {
    post_network(endpoint, request, runs, slot, false);
  }
  return true;
}

/// Whether large sends to the peer, in one piece, stay where they are until it reads them.
bool UcxTransport::is_spliced_to(const Endpoint& endpoint) const {
  return endpoint.near && ucx_sends_->splices();
}

/// As an active message; its bytes from the pages, whose `runs` they are, or put together in the
/// slot.
void UcxTransport::post_network(Endpoint& endpoint,
                                SendRequest& request,
                                const std::vector<MemoryRun>& runs,
                                std::optional<std::uint32_t> slot,
                                bool as_list) {
  UnitHeader& header = request.header;
  sends_.emplace_back();
  Send& send = sends_.back();
  send.owner = this;
  send.self = std::prev(sends_.end());
  send.life = endpoint.life;
  send.name = header.name;
  send.unit = header.unit;
  send.bytes = header.payload_bytes();
  send.slot = slot;
  const bool one_piece = as_list || slot || runs.size() == 1;
  if (slot) {
    header.payload_crc = gather_crc(memory_, header, request.source_pages, slots_.slot(*slot));
    send.iov = {{slots_.slot(*slot), header.payload_bytes()}};
  } else {
    // Taken from where they lie they are read next on the peer's core.
    const bool demote =
        one_piece && send.bytes >= ScopedUcxSends::kLargeBytes && is_spliced_to(endpoint);
    header.payload_crc = crc_of_runs(runs, demote);
    send.iov = iov_of(runs);
  }
  send.crc = header.payload_crc;
  // Tests: a unit that is damaged on its way looks like one whose CRC does not fit.
  if (!failpoint::hit("transfer.corrupt").ok()) header.payload_crc ^= 1U;
  send.header = encode(header);
  const BufferArgs args = describe(send.iov);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.send = &UcxTransport::on_sent;
  param.user_data = &send;
  param.datatype = args.datatype;
  if (endpoint.only_tcp && one_piece) {
    // Over a byte stream a rendezvous only adds a round trip and smaller pieces.
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  const std::uint64_t near_sends = ucx_sends_->near_sends();
  ucs_status_ptr_t posted = ucp_am_send_nbx(endpoint.ep,
                                            kUnitAmId,
                                            send.header.data(),
                                            send.header.size(),
                                            args.buffer,
                                            args.count,
                                            &param);
  // What was sent meanwhile went to this peer.
  if (endpoint.only_tcp && ucx_sends_->near_sends() != near_sends &&
      !std::exchange(endpoint.near, true)) {
    sink_(PeerIsNearEvent{endpoint.peer});
  }
  if (posted == nullptr) {
    send_ended(send, UCS_OK);
  } else if (UCS_PTR_IS_ERR(posted)) {
    send_ended(send, UCS_PTR_STATUS(posted));
  }
}

void UcxTransport::on_sent(void* request, ucs_status_t status, void* user_data) {
  auto* send = static_cast<Send*>(user_data);
  send->owner->send_ended(*send, status);
  ucp_request_free(request);
}

void UcxTransport::send_ended(Send& send, ucs_status_t status) {
  std::optional<SendDoneEvent> event;
  if (status == UCS_OK && !send.reported) {
    ++counting_.sent_units;
    counting_.sent_bytes += send.bytes;
    event = {send.name, send.unit, ok_status(), send.crc};
  } else {
    report_lost(send, ucx_error("send", status));
  }
  if (send.slot) free_slot(*send.slot);
  sends_.erase(send.self);
  if (event) sink_(std::move(*event));
}

/// UCX may not have let go of it. What it reads of the pages from here on, while they are written
/// to again, does not fit the CRC; a slot is not free before.
void UcxTransport::report_lost(Send& send, const Status& status) {
  if (std::exchange(send.reported, true)) return;
  ++counting_.send_errors;
  sink_(SendDoneEvent{send.name, send.unit, status, send.crc});
}

ucs_status_t UcxTransport::on_unit(void* argument,
                                   const void* header,
                                   std::size_t header_length,
                                   void* data,
                                   std::size_t length,
                                   const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxTransport*>(argument);
  const auto decoded = decode_unit_header(header, header_length);
  if (!decoded.ok() || decoded->payload_bytes() != length) {
    ++self->counting_.bad_headers;
    return UCS_OK;
  }
  return self->unit_arrived(
      *decoded, data, length, (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

/// Whether the unit may land, and where; counts it otherwise.
bool UcxTransport::admit(const UnitHeader& header, Landing& landing) {
  if (!failpoint::hit("transfer.drop_unit").ok()) return false;
  LandingVerdict verdict = table_.begin(header, &landing);
  if (verdict == LandingVerdict::kStaleName || verdict == LandingVerdict::kOutOfRange) {
    // The pages may have been opened, and granted, after this thread last looked at its commands.
    run_landing_commands();
    verdict = table_.begin(header, &landing);
  }
  if (verdict == LandingVerdict::kLand) return true;
  count_drop(counting_, verdict);
  return false;
}

/// UCS_OK without a receive discards the unit: no byte of it goes anywhere.
ucs_status_t UcxTransport::unit_arrived(const UnitHeader& header,
                                        void* data,
                                        std::size_t length,
                                        bool rendezvous) {
  Landing landing;
  if (!admit(header, landing)) return UCS_OK;
  if (!rendezvous) {
    landed(landing, scatter_crc(memory_, landing, static_cast<const std::byte*>(data)));
    return UCS_OK;
  }
  receives_.emplace_back();
  Receive& receive = receives_.back();
  receive.owner = this;
  receive.self = std::prev(receives_.end());
  receive.iov = iov_of(runs_of(memory_, header, landing.pages));
  // In one piece, if there is room: UCX receives lists in many small pieces over TCP.
  if (receive.iov.size() > 1 && length <= kSlotBytes) receive.slot = take_network_slot();
  if (receive.slot) receive.iov = {{slots_.slot(*receive.slot), length}};
  receive.landing = std::move(landing);
  const BufferArgs args = describe(receive.iov);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv_am = &UcxTransport::on_received;
  param.user_data = &receive;
  param.datatype = args.datatype;
  ucs_status_ptr_t posted =
      ucp_am_recv_data_nbx(worker_, data, const_cast<void*>(args.buffer), args.count, &param);
  if (UCS_PTR_IS_ERR(posted)) {
    on_received(nullptr, UCS_PTR_STATUS(posted), length, &receive);
    return UCS_OK;
  }
  return UCS_INPROGRESS;
}

void UcxTransport::on_received(void* request,
                               ucs_status_t status,
                               std::size_t /*length*/,
                               void* user_data) {
  auto* receive = static_cast<Receive*>(user_data);
  UcxTransport* self = receive->owner;
  const Landing landing = std::move(receive->landing);
  const std::optional<std::uint32_t> slot = receive->slot;
  self->receives_.erase(receive->self);
  if (request != nullptr) ucp_request_free(request);
  if (status != UCS_OK) {
    self->receive_failed(landing);
  } else if (slot) {
    self->landed(landing, scatter_crc(self->memory_, landing, self->slots_.slot(*slot)));
  } else {
    self->landed(landing, crc_of_pages(self->memory_, landing.header, landing.pages));
  }
  if (slot) self->free_slot(*slot);
}

void UcxTransport::landed(const Landing& landing, std::uint32_t crc) {
  const bool crc_ok = crc == landing.header.payload_crc;
  count_landed(counting_, landing.header, crc_ok);
  finish_landing(landing, crc_ok);
}

/// Bytes that did not all come are as good as damaged ones: the peer, if it lives, is asked again.
void UcxTransport::receive_failed(const Landing& landing) {
  ++counting_.receive_errors;
  finish_landing(landing, false);
}

void UcxTransport::finish_landing(const Landing& landing, bool crc_ok) {
  sink_(UnitLandedEvent{landing.header, crc_ok});
  if (table_.finish(landing, crc_ok)) sink_(LandingClosedEvent{landing.name});
}

}  // namespace tandem::transfer
