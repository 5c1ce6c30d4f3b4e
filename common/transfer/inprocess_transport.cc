// The in-process back end: one progress thread per transport, units are copied between their
// queues.
#include "common/base/crc32c.h"
#include "common/base/failpoint.h"
#include "common/base/random.h"
#include "common/transfer/command_queue.h"
#include "common/transfer/transport.h"
#include "common/transfer/unit_copy.h"

#include <poll.h>

#include <map>
#include <mutex>
#include <thread>

namespace tandem::transfer {

namespace {

struct Connect {
  std::uint64_t peer;
  std::string address;
};

struct Disconnect {
  std::uint64_t peer;
};

struct Open {
  TransferName name;
  std::uint32_t first_page;
  std::vector<std::uint32_t> pages;
};

struct Close {
  TransferName name;
};

struct Arrival {
  UnitHeaderBytes header;
  std::vector<std::byte> payload;
};

struct Stop {};

using Command = std::variant<Connect, Disconnect, Open, Close, SendRequest, Arrival, Stop>;
using Queue = CommandQueue<Command>;

/// Who is there. The mutex guards the map alone; it is touched at construction, connect and end.
struct Directory {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Queue>> queues;
};

Directory& directory() {
  static Directory it;
  return it;
}

class InProcessTransport final : public KvTransport {
 public:
  InProcessTransport(PageMemory memory, EventSink sink)
      : memory_(std::move(memory)),
        sink_(std::move(sink)),
        table_(LandingLimits{.pool_pages = memory_.page_count,
                             .part_offsets = memory_.part_offsets,
                             .planted_skip_generation_check = false}),
        queue_(std::make_shared<Queue>()),
        address_("inprocess:" + std::to_string(system_random())) {
    const std::lock_guard lock(directory().mutex);
    directory().queues[address_] = queue_;
    thread_ = std::thread([this] { run(); });
  }

  InProcessTransport(const InProcessTransport&) = delete;
  InProcessTransport& operator=(const InProcessTransport&) = delete;

  ~InProcessTransport() override {
    {
      const std::lock_guard lock(directory().mutex);
      directory().queues.erase(address_);
    }
    queue_->push(Stop{});
    thread_.join();
  }

  [[nodiscard]] std::string address() const override { return address_; }

  [[nodiscard]] std::string description() const override { return "in-process copies"; }

  void connect(std::uint64_t peer, std::string address) override {
    queue_->push(Connect{peer, std::move(address)});
  }

  void disconnect(std::uint64_t peer) override { queue_->push(Disconnect{peer}); }

  void open_landing(const TransferName& name,
                    std::uint32_t first_page,
                    std::vector<std::uint32_t> pages) override {
    queue_->push(Open{name, first_page, std::move(pages)});
  }

  void close_landing(const TransferName& name) override { queue_->push(Close{name}); }

  void send(SendRequest request) override { queue_->push(std::move(request)); }

  [[nodiscard]] TransportStats stats() const override {
    const std::lock_guard lock(stats_mutex_);
    return stats_;
  }

 private:
  void run() {
    for (;;) {
      pollfd waiting{.fd = queue_->fd(), .events = POLLIN, .revents = 0};
      ::poll(&waiting, 1, -1);
      for (Command& command : queue_->take()) {
        if (std::holds_alternative<Stop>(command)) return;
        std::visit([this](auto& c) { handle(c); }, command);
      }
      const std::lock_guard lock(stats_mutex_);
      counting_.landings_open = table_.open_count();
      counting_.landings_closing = table_.closing_count();
      stats_ = counting_;
    }
  }

  void handle(Connect& c) {
    std::shared_ptr<Queue> peer;
    {
      const std::lock_guard lock(directory().mutex);
      const auto found = directory().queues.find(c.address);
      if (found != directory().queues.end()) peer = found->second.lock();
    }
    if (!peer) {
      sink_(PeerDataErrorEvent{c.peer, unavailable("no transport at " + c.address)});
      return;
    }
    peers_[c.peer] = peer;
    sink_(PeerConnectedEvent{c.peer, "copy"});
  }

  void handle(Disconnect& c) { peers_.erase(c.peer); }

  void handle(Open& c) { table_.open(c.name, c.first_page, c.pages); }

  void handle(Close& c) {
    // A unit lands within one step of this thread: none can be in flight here.
    TANDEM_CHECK(table_.close(c.name), "an in-process landing is never in flight");
    sink_(LandingClosedEvent{c.name});
  }

  void handle(SendRequest& r) {
    const auto found = peers_.find(r.peer);
    const std::shared_ptr<Queue> peer = found == peers_.end() ? nullptr : found->second.lock();
    if (!peer) {
      ++counting_.send_errors;
      sink_(SendDoneEvent{r.header.name, r.header.unit, unavailable("peer is not connected"), 0});
      return;
    }
    Arrival arrival;
    arrival.payload.resize(static_cast<std::size_t>(r.header.payload_bytes()));
    gather(memory_, r.header, r.source_pages, arrival.payload.data());
    r.header.payload_crc = crc32c(arrival.payload.data(), arrival.payload.size());
    const std::uint32_t crc = r.header.payload_crc;
    if (!failpoint::hit("transfer.corrupt").ok()) arrival.payload[0] ^= std::byte{1};
    arrival.header = encode(r.header);
    ++counting_.sent_units;
    counting_.sent_bytes += arrival.payload.size();
    peer->push(std::move(arrival));
    sink_(SendDoneEvent{r.header.name, r.header.unit, ok_status(), crc});
  }

  void handle(Arrival& a) {
    const auto header = decode_unit_header(a.header.data(), a.header.size());
    if (!header.ok() || header->payload_bytes() != a.payload.size()) {
      ++counting_.bad_headers;
      return;
    }
    Landing landing;
    const LandingVerdict verdict = table_.begin(*header, &landing);
    if (verdict != LandingVerdict::kLand) {
      count_drop(counting_, verdict);
      return;
    }
    scatter(memory_, landing, a.payload.data());
    const bool ok = crc_of_pages(memory_, *header, landing.pages) == header->payload_crc;
    count_landed(counting_, *header, ok);
    table_.finish(landing, ok);
    sink_(UnitLandedEvent{*header, ok});
  }

  void handle(Stop& /*command*/) {}

  PageMemory memory_;
  EventSink sink_;
  LandingTable table_;
  std::shared_ptr<Queue> queue_;
  std::string address_;
  std::map<std::uint64_t, std::weak_ptr<Queue>> peers_;
  TransportStats counting_;  ///< the progress thread's
  // Guards the copy of the counters that other threads read; taken once per round.
  mutable std::mutex stats_mutex_;
  TransportStats stats_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<KvTransport>> make_inprocess_transport(PageMemory memory, EventSink sink) {
  return std::unique_ptr<KvTransport>(
      std::make_unique<InProcessTransport>(std::move(memory), std::move(sink)));
}

}  // namespace tandem::transfer
