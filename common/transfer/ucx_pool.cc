// UcxTransport: units that a peer on the same machine reads where they lie. The payload is copied
// once, by the receiver, which computes its CRC in the same pass; the sender reads it for its own.
// The pages stay as they are until the answer, which is the end of the send.
#include "common/transfer/short_message.h"
#include "common/transfer/ucx_transport.h"

#include <algorithm>

namespace tandem::transfer {

namespace {

constexpr std::size_t kHeadBytes = kUnitHeaderBytes + kLentUnitBytes;
/// More pieces are put together in a slot: the message would be longer than its use.
constexpr std::size_t kRunsMax = 256;

}  // namespace

std::size_t UcxTransport::pool_runs_in(std::size_t header_bytes_max) {
  if (header_bytes_max < kHeadBytes) return 0;
  return std::min(kRunsMax, (header_bytes_max - kHeadBytes) / kPoolRunBytes);
}

void UcxTransport::post_from_pool(Endpoint& endpoint,
                                  SendRequest& request,
                                  std::span<const MemoryRun> runs) {
  UnitHeader& header = request.header;
  header.payload_crc = crc_of_runs(runs, /*demote=*/false);
  const Lent lent = lend(endpoint, header);
  std::vector<std::byte> message = unit_message(header);
  append(message, LentUnit{.from = own_crc_, .place = kInPool, .serial = lent.serial});
  for (const MemoryRun& run : runs) {
    append(message,
           PoolRun{.offset = static_cast<std::uint64_t>(run.begin - memory_.shared->base()),
                   .bytes = static_cast<std::uint32_t>(run.bytes)});
  }
  in_pool_.emplace(lent.serial, lent);
  const ucs_status_t status = send_note(endpoint, kPoolUnitId, std::move(message));
  if (UCS_STATUS_IS_ERR(status)) pool_send_ended(lent.serial, status);
}

void UcxTransport::pool_send_ended(std::uint32_t serial, ucs_status_t status) {
  const auto found = in_pool_.find(serial);
  const Lent ended = found->second;
  in_pool_.erase(found);
  if (status == UCS_OK) ++counting_.sent_from_pool;
  lent_ended(ended, status);
}

void UcxTransport::pool_unit_arrived(std::span<const std::byte> message) {
  if (message.size() < kHeadBytes || (message.size() - kHeadBytes) % kPoolRunBytes != 0) {
    ++counting_.bad_headers;
    return;
  }
  const auto header = decode_unit_header(message.data(), kUnitHeaderBytes);
  const LentUnit unit = lent_unit_at(message.data() + kUnitHeaderBytes);
  Endpoint* endpoint = endpoint_of(unit.from);
  if (endpoint == nullptr) {
    ++counting_.bad_headers;
    return;
  }
  // Whatever becomes of the unit, it is answered for: the sender waits for nothing else.
  std::vector<SourceRun> source;
  if (header.ok() && endpoint->pool)
    source = runs_in({endpoint->pool->base(), endpoint->pool->bytes()},
                     message.subspan(kHeadBytes),
                     header->payload_bytes());
  Landing landing;
  if (!header.ok() || (endpoint->pool && source.empty())) {
    ++counting_.bad_headers;
  } else if (admit(*header, landing)) {
    if (endpoint->pool) {
      landed(landing, copy_crc(source, runs_of(memory_, landing.header, landing.pages)));
    } else {
      receive_failed(landing);
    }
  }
  answer(*endpoint, kInPool, unit.serial);
}

}  // namespace tandem::transfer
