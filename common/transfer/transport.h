// KvTransport: moves KV units from the pages of one process into pages that the receiver chooses.
#pragma once

#include "common/base/ids.h"
#include "common/base/shared_memory.h"
#include "common/base/status.h"
#include "common/base/transfer_name.h"
#include "common/transfer/landing_table.h"
#include "common/transfer/unit_header.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace tandem::transfer {

/// The page pool of this process. Borrowed: it must outlive the transport.
struct PageMemory {
  std::byte* base = nullptr;
  std::uint64_t stride_bytes = 0;
  std::uint32_t page_count = 0;
  /// As in LandingLimits; the last one is page_bytes.
  std::vector<std::uint64_t> part_offsets;
  /// Where the pages are memory of the name kKvPoolName that peers on this machine may map for
  /// reading: they then read units where they lie. Borrowed; null when they are not.
  const SharedMemory* shared = nullptr;

  [[nodiscard]] std::byte* page(std::uint32_t index) const { return base + index * stride_bytes; }
};

// Events: to the sink, on the progress thread.

/// A unit is in its pages. With a wrong CRC its pages hold no usable bytes.
struct UnitLandedEvent {
  UnitHeader header;
  bool crc_ok = false;
};

/// No byte of that name is in flight and none will land.
struct LandingClosedEvent {
  TransferName name;
};

/// A send has ended, well or not; exactly one per send(). Its source bytes are free: the system may
/// still read them where they lie (splice_sends.h), and if they change before the peer has the
/// unit, it does not fit its CRC there.
struct SendDoneEvent {
  TransferName name;
  std::uint32_t unit = 0;
  Status status;
  std::uint32_t crc = 0;  ///< of the payload
};

/// The data path to a peer has failed and is closed; connect() again with a new incarnation.
struct PeerDataErrorEvent {
  std::uint64_t peer = 0;
  Status status;
};

/// connect() has made the data path; what it runs over is for the log.
struct PeerConnectedEvent {
  std::uint64_t peer = 0;
  std::string transports;  ///< "posix/memory cma/memory", "tcp/eth0", ...
};

/// A peer on this machine has mapped memory of ours: from here on units do not go over the network.
/// Once per connect().
struct PeerIsLocalEvent {
  std::uint64_t peer = 0;
};

/// A peer on this machine is reached over TCP, which takes pages from where they lie: those that
/// lie apart, too, where they are long (kListPartBytes) and a unit of them is one piece
/// (kTcpPieceBytes). Once per connect(), with the first large send that did not have to wait.
struct PeerIsNearEvent {
  std::uint64_t peer = 0;
};

using TransportEvent = std::variant<UnitLandedEvent,
                                    LandingClosedEvent,
                                    SendDoneEvent,
                                    PeerDataErrorEvent,
                                    PeerConnectedEvent,
                                    PeerIsLocalEvent,
                                    PeerIsNearEvent>;
/// Must not block and must not call back into the transport's destructor.
using EventSink = std::function<void(TransportEvent&&)>;

/// What UCX sends over TCP at once: a longer unit it puts together at the receiver, a copy.
inline constexpr std::size_t kTcpPieceBytes = std::size_t{512} << 10U;
/// A part of a list that is worth taking from where it lies.
inline constexpr std::size_t kListPartBytes = std::size_t{32} << 10U;
/// Parts of a list and our header, of which UCX makes one piece.
inline constexpr std::size_t kTcpListMax = 16;
/// At most so many bytes of a piece are headers, UCX's and ours.
inline constexpr std::size_t kTcpPieceHeadersMax = 1024;

struct SendRequest {
  std::uint64_t peer = 0;
  /// payload_crc is filled in by the transport.
  UnitHeader header;
  std::vector<std::uint32_t> source_pages;  ///< header.page_count of them
};

struct TransportStats {
  std::uint64_t sent_units = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t sent_in_slots = 0;   ///< of sent_units: copied to memory that the peer maps
  std::uint64_t sent_from_pool = 0;  ///< of sent_units: read by the peer where they lay
  std::uint64_t spliced_bytes = 0;   ///< that TCP took from where they lay
  std::uint64_t send_errors = 0;
  std::uint64_t landed_units = 0;
  std::uint64_t landed_bytes = 0;
  std::uint64_t bad_crc = 0;
  std::uint64_t receive_errors = 0;
  std::uint64_t bad_headers = 0;
  std::uint64_t dropped_stale = 0;
  std::uint64_t dropped_out_of_range = 0;
  std::uint64_t dropped_duplicate = 0;
  std::uint64_t lent_units = 0;        ///< now: that peers read in the pool
  std::uint64_t landings_open = 0;     ///< now
  std::uint64_t landings_closing = 0;  ///< now
};

/// Commands may come from any thread; they return at once and are carried out in order by one
/// progress thread, which alone owns the landing table. Destruction joins that thread; sends that
/// are still in flight end with an error first.
class KvTransport {
 public:
  virtual ~KvTransport() = default;

  /// What a peer needs for connect(); opaque bytes.
  [[nodiscard]] virtual std::string address() const = 0;
  /// "ucx 1.13.1: self posix cma tcp (eth0)": for the first log lines.
  [[nodiscard]] virtual std::string description() const = 0;

  /// Both sides connect to each other, under the peer's incarnation. A failure to connect comes as
  /// PeerDataErrorEvent.
  virtual void connect(std::uint64_t peer, std::string address) = 0;
  /// Sends in flight end within about a second, with an error if the peer has not taken them by
  /// then; nothing of the peer lands in landings that are closed afterwards.
  virtual void disconnect(std::uint64_t peer) = 0;

  virtual void open_landing(const TransferName& name,
                            std::uint32_t first_page,
                            std::vector<std::uint32_t> pages) = 0;
  virtual void close_landing(const TransferName& name) = 0;
  virtual void send(SendRequest request) = 0;

  [[nodiscard]] virtual TransportStats stats() const = 0;
};

/// Transports of one process that copy to each other: tests and stand-alone pairs. An address is
/// valid while its transport lives.
Result<std::unique_ptr<KvTransport>> make_inprocess_transport(PageMemory memory, EventSink sink);

struct UcxOptions {
  /// Spin this long for the next event before sleeping.
  Duration spin = microseconds(50);
  /// --disaggregation-ib-device: UCX_NET_DEVICES; empty leaves it to UCX and its environment.
  std::string net_devices = {};
  /// Units at least this long use rendezvous (0: UCX's own choice).
  std::uint64_t rendezvous_bytes = 0;
  /// The process ends soon after the transport: what UCX 1.13 may stumble over when it is taken
  /// down after a peer was lost is left to that end, which then comes as soon as exit() has run
  /// what was registered later.
  bool ends_with_process = false;
  /// "/proc/stat": memory for open pages is taken ahead only while that file says that a processor
  /// is idle (Prefault, IdleCpu). Empty: always.
  std::string idle_from = {};
};

/// Over UCX 1.13 or later. unavailable with UCX's own words when it cannot start.
Result<std::unique_ptr<KvTransport>> make_ucx_transport(PageMemory memory,
                                                        EventSink sink,
                                                        const UcxOptions& options);

/// Whether peers on this machine may map each other's memory: false when the user's UCX_TLS leaves
/// out every shared memory transport. A pool then needs no shared memory.
bool may_share_memory();

/// Sets the UCX_* variables that keep UCX from installing signal handlers, patching libc's memory
/// functions and logging, each unless the user has set it, and the sizes over TCP on which peers
/// have to agree. Called by make_ucx_transport, before UCX is loaded; setenv is not safe beside
/// other threads, so programs call it first thing in main.
void tame_ucx();

}  // namespace tandem::transfer
