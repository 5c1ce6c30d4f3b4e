// UcxTransport: endpoints and the landing table's commands.
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/transfer/ucx_transport.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tandem::transfer {

namespace {

constexpr std::string_view kAddressMark = "TKA1";
constexpr std::size_t kAddressHead = 8;
/// A peer that reads takes what is under way within milliseconds.
constexpr Duration kLeaveWithin = seconds(1);

/// Whether each of "tcp/lo.0 tcp/eth0.1" begins so.
bool only_tcp(std::string_view lanes) {
  while (!lanes.empty()) {
    if (!lanes.starts_with("tcp/")) return false;
    const std::size_t space = lanes.find(' ');
    lanes.remove_prefix(space == std::string_view::npos ? lanes.size() : space + 1);
  }
  return true;
}

}  // namespace

std::string wrap_address(std::string_view ucx_address) {
  std::string wrapped(kAddressMark);
  const std::uint32_t crc = crc32c(ucx_address.data(), ucx_address.size());
  for (unsigned i = 0; i < 4; ++i)
    wrapped.push_back(static_cast<char>((crc >> (8 * i)) & 0xFFU));
  return wrapped.append(ucx_address);
}

std::string_view unwrap_address(std::string_view wrapped) {
  if (wrapped.size() <= kAddressHead || !wrapped.starts_with(kAddressMark)) return {};
  const std::string_view address = wrapped.substr(kAddressHead);
  return wrap_address(address) == wrapped ? address : std::string_view{};
}

void UcxTransport::handle(Connect& command) {
  if (const auto old = peers_.find(command.peer); old != peers_.end()) {
    leave(*old->second, kLeaveWithin);  // which may be gone from here
    peers_.erase(old);
  }
  const std::string_view address = unwrap_address(command.address);
  Endpoint& endpoint = endpoints_.emplace_back();
  endpoint.owner = this;
  endpoint.self = std::prev(endpoints_.end());
  endpoint.peer = command.peer;
  endpoint.life = ++next_life_;
  endpoint.address_crc = crc32c(command.address.data(), command.address.size());
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxTransport::on_endpoint_error;
  params.err_handler.arg = &endpoint;
  ucs_status_t status = UCS_ERR_INVALID_ADDR;
  if (!address.empty()) status = ucp_ep_create(worker_, &params, &endpoint.ep);
  if (status != UCS_OK) {
    endpoints_.pop_back();
    sink_(PeerDataErrorEvent{command.peer, ucx_error("ucp_ep_create", status)});
    return;
  }
  ucp_request_param_t flush{};
  ucs_status_ptr_t wiring = ucp_ep_flush_nbx(endpoint.ep, &flush);
  if (UCS_PTR_IS_PTR(wiring)) endpoint.wiring = wiring;
  unclean_ |= UCS_PTR_IS_ERR(wiring);
  peers_[command.peer] = &endpoint;
  offer_memory(endpoint);
  const std::string lanes = lanes_of(endpoint.ep);
  // A user, or an option, that asks for rendezvous has it.
  endpoint.only_tcp = !lanes.empty() && only_tcp(lanes) && options_.rendezvous_bytes == 0 &&
                      std::getenv("UCX_RNDV_THRESH") == nullptr;
  sink_(PeerConnectedEvent{command.peer, lanes});
}

void UcxTransport::handle(Disconnect& command) {
  const auto found = peers_.find(command.peer);
  if (found == peers_.end()) return;
  disturbed_ = true;
  leave(*found->second, kLeaveWithin);  // which may be gone from here
  peers_.erase(found);
}

void UcxTransport::handle(Open& command) {
  table_.open(command.name, command.first_page, command.pages);
  prefault_.open(command.name, command.pages);
}

void UcxTransport::handle(Close& command) {
  prefault_.close(command.name);
  if (table_.close(command.name)) sink_(LandingClosedEvent{command.name});
}

void UcxTransport::handle(SendRequest& request) {
  const auto found = peers_.find(request.peer);
  if (found == peers_.end() || found->second->failure != UCS_OK) {
    ++counting_.send_errors;
    sink_(SendDoneEvent{
        request.header.name, request.header.unit, unavailable("peer is not connected"), 0});
    return;
  }
  Endpoint& endpoint = *found->second;
  // Not before those of this peer that wait already.
  if (!endpoint.waiting.empty() || !post(endpoint, request))
    endpoint.waiting.push_back(std::move(request));
}

/// Nothing is sent to the peer from here on, and what is under way is let out before the endpoint
/// is closed. UCX (1.13; the first also in later ones) must not be made to close an endpoint in the
/// middle of it, unless it has noticed itself that the connection is broken:
/// - uct_tcp_iface_handle_events() reads from a socket and then writes to it, also when what it has
///   read is the peer's farewell, at which uct_tcp_cm_handle_conn_fin() frees a connection whose
///   own side was closed before. It only writes where the socket was too full for something.
/// - uct_tcp_ep_purge() cuts off the message that is half written, and the farewell that follows it
///   is the peer's to read as the rest.
/// - ucp_request_send_state_ff() aborts the process (ucp_request.c:684) when a wire-up message of
///   UCX's own still waits for TCP.
void UcxTransport::leave(Endpoint& endpoint, Duration within) {
  drop_lent(endpoint);
  endpoint.leaving = true;
  endpoint.leave_by = steady_clock().now() + within;
  if (endpoint.failure == UCS_OK) {
    ucp_request_param_t param{};
    ucs_status_ptr_t flush = ucp_ep_flush_nbx(endpoint.ep, &param);
    if (UCS_PTR_IS_PTR(flush)) endpoint.flush = flush;
  }
  if (may_close(endpoint)) close_endpoint(endpoint);
}

/// A flush over TCP ends with an answer of the peer's. One that gives none, because it is stopped,
/// must not keep the pages that it was sending to: with nothing of ours on the way to it the socket
/// is not full. Otherwise the endpoint stays until the peer reads on or is gone.
bool UcxTransport::may_close(Endpoint& endpoint) {
  if (endpoint.failure != UCS_OK) return true;
  if (!wiring_ended(endpoint)) return false;
  if (has_ended(endpoint.flush)) return true;
  const auto own = [&](const auto& message) { return message.life == endpoint.life; };
  return steady_clock().now() >= endpoint.leave_by &&
         std::none_of(sends_.begin(), sends_.end(), own) &&
         std::none_of(notes_.begin(), notes_.end(), own);
}

/// By force: what is in flight ends now, with an error, and the endpoint is never used again.
void UcxTransport::close_endpoint(Endpoint& endpoint) {
  drop_lent(endpoint);
  unclean_ |= !wiring_ended(endpoint);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint.ep, &param);
  endpoint.ep = nullptr;
  if (UCS_PTR_IS_PTR(request)) endpoint.close_request = request;
  const bool quiet = wiring_ended(endpoint) && has_ended(endpoint.flush);
  if (quiet && has_ended(endpoint.close_request)) endpoints_.erase(endpoint.self);
}

/// The lanes stand, or never will: then UCX may hold wire-up messages that never leave.
bool UcxTransport::wiring_ended(Endpoint& endpoint) {
  if (endpoint.wiring == nullptr) return true;
  const ucs_status_t status = ucp_request_check_status(endpoint.wiring);
  if (status == UCS_INPROGRESS) return false;
  unclean_ |= status != UCS_OK;
  return has_ended(endpoint.wiring);
}

/// True when there is no such request (any more); frees one that has ended.
bool UcxTransport::has_ended(void*& request) {
  if (request == nullptr) return true;
  if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
  ucp_request_free(request);
  request = nullptr;
  return true;
}

void UcxTransport::on_endpoint_error(void* argument, ucp_ep_h /*ep*/, ucs_status_t status) {
  auto* endpoint = static_cast<Endpoint*>(argument);
  if (endpoint->failure != UCS_OK) return;
  endpoint->failure = status;
  endpoint->owner->any_failed_ = true;
}

/// Closes endpoints that may be, and forgets those whose close has finished: UCX does not name them
/// any more.
void UcxTransport::reap_closed() {
  for (auto it = endpoints_.begin(); it != endpoints_.end();) {
    const auto current = it++;
    const bool wired = wiring_ended(*current);
    if (current->ep == nullptr) {
      if (wired && has_ended(current->flush) && has_ended(current->close_request))
        endpoints_.erase(current);
    } else if (current->leaving && may_close(*current)) {
      close_endpoint(*current);
    } else if (current->leaving && steady_clock().now() >= current->leave_by) {
      for (Send& send : sends_)
        if (send.life == current->life) report_lost(send, ucx_error("send", UCS_ERR_CANCELED));
    }
  }
}

/// Outside UCX's callbacks: closes what has failed and frees finished close requests.
void UcxTransport::reap_failed() {
  reap_closed();
  if (!any_failed_) return;
  any_failed_ = false;
  disturbed_ = true;
  for (auto it = peers_.begin(); it != peers_.end();) {
    Endpoint& endpoint = *it->second;
    if (endpoint.failure == UCS_OK) {
      ++it;
      continue;
    }
    const PeerDataErrorEvent event{endpoint.peer, ucx_error("data path", endpoint.failure)};
    it = peers_.erase(it);
    close_endpoint(endpoint);  // `endpoint` may be gone from here
    sink_(TransportEvent(event));
  }
}

std::string UcxTransport::lanes_of(ucp_ep_h ep) {
  char* text = nullptr;
  std::size_t size = 0;
  FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_ep_print_info(ep, stream);
  std::fclose(stream);
  const std::string all(text, size);
  std::free(text);  // NOLINT(cppcoreguidelines-no-malloc): open_memstream says so
  std::string lanes;
  // "#   lane[0]:  2:posix/memory.0 md[2] -> ..."
  for (std::size_t at = all.find("lane["); at != std::string::npos;
       at = all.find("lane[", at + 1)) {
    std::size_t begin = all.find(": ", at);
    if (begin == std::string::npos) break;
    begin = all.find(':', begin + 1);
    const std::size_t end = all.find_first_of(" \n", begin);
    if (begin == std::string::npos || end == std::string::npos) break;
    lanes += (lanes.empty() ? "" : " ") + all.substr(begin + 1, end - begin - 1);
  }
  return lanes;
}

}  // namespace tandem::transfer
