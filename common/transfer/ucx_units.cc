// UcxTransport: sending units, and letting those land that may.
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/transfer/ucx_transport.h"

#include <cstring>

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

}  // namespace

void UcxTransport::post(Endpoint& endpoint, SendRequest& request) {
  UnitHeader& header = request.header;
  sends_.emplace_back();
  Send& send = sends_.back();
  send.owner = this;
  send.self = std::prev(sends_.end());
  send.name = header.name;
  send.unit = header.unit;
  send.bytes = header.payload_bytes();
  header.payload_crc = crc_of_pages(memory_, header, request.source_pages);
  send.crc = header.payload_crc;
  // Tests: a unit that is damaged on its way looks like one whose CRC does not fit.
  if (!failpoint::hit("transfer.corrupt").ok()) header.payload_crc ^= 1U;
  send.header = encode(header);
  send.iov = iov_of(runs_of(memory_, header, request.source_pages));
  const BufferArgs args = describe(send.iov);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
  param.cb.send = &UcxTransport::on_sent;
  param.user_data = &send;
  param.datatype = args.datatype;
  ucs_status_ptr_t posted = ucp_am_send_nbx(endpoint.ep,
                                            kUnitAmId,
                                            send.header.data(),
                                            send.header.size(),
                                            args.buffer,
                                            args.count,
                                            &param);
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
  SendDoneEvent event{send.name, send.unit, ok_status(), send.crc};
  if (status == UCS_OK) {
    ++counting_.sent_units;
    counting_.sent_bytes += send.bytes;
  } else {
    ++counting_.send_errors;
    event.status = ucx_error("send", status);
  }
  sends_.erase(send.self);
  sink_(std::move(event));
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

/// UCS_OK without a receive discards the unit: no byte of it goes anywhere.
ucs_status_t UcxTransport::unit_arrived(const UnitHeader& header,
                                        void* data,
                                        std::size_t length,
                                        bool rendezvous) {
  if (!failpoint::hit("transfer.drop_unit").ok()) return UCS_OK;
  Landing landing;
  LandingVerdict verdict = table_.begin(header, &landing);
  if (verdict == LandingVerdict::kStaleName || verdict == LandingVerdict::kOutOfRange) {
    // The pages may have been opened, and granted, after this thread last looked at its commands.
    run_landing_commands();
    verdict = table_.begin(header, &landing);
  }
  if (verdict != LandingVerdict::kLand) {
    count_drop(counting_, verdict);
    return UCS_OK;
  }
  if (!rendezvous) {
    scatter(memory_, landing, static_cast<const std::byte*>(data));
    landed(landing, UCS_OK);
    return UCS_OK;
  }
  receives_.emplace_back();
  Receive& receive = receives_.back();
  receive.owner = this;
  receive.self = std::prev(receives_.end());
  receive.iov = iov_of(runs_of(memory_, header, landing.pages));
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
  self->receives_.erase(receive->self);
  if (request != nullptr) ucp_request_free(request);
  self->landed(landing, status);
}

void UcxTransport::landed(const Landing& landing, ucs_status_t status) {
  bool crc_ok = false;
  if (status == UCS_OK) {
    crc_ok = crc_of_pages(memory_, landing.header, landing.pages) == landing.header.payload_crc;
    count_landed(counting_, landing.header, crc_ok);
  } else {
    ++counting_.receive_errors;
  }
  // Bytes that did not all come are as good as damaged ones: the peer, if it lives, is asked again.
  sink_(UnitLandedEvent{landing.header, crc_ok});
  if (table_.finish(landing, crc_ok)) sink_(LandingClosedEvent{landing.name});
}

}  // namespace tandem::transfer
