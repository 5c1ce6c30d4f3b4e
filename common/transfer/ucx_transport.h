// The UCX back end (private to the room).
#pragma once

#include "common/transfer/command_queue.h"
#include "common/transfer/idle_cpu.h"
#include "common/transfer/prefault.h"
#include "common/transfer/short_message.h"
#include "common/transfer/slots.h"
#include "common/transfer/transport.h"
#include "common/transfer/ucx_sends.h"
#include "common/transfer/unit_copy.h"
#include "common/transfer/unmapper.h"

#include <ucp/api/ucp.h>

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

namespace tandem::transfer {

class UcxTransport final : public KvTransport {
 public:
  UcxTransport(PageMemory memory, EventSink sink, const UcxOptions& options);
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;
  ~UcxTransport() override;

  /// Context, worker, handler, thread; called once.
  Status start();

  [[nodiscard]] std::string address() const override { return address_; }

  [[nodiscard]] std::string description() const override { return description_; }

  void connect(std::uint64_t peer, std::string address) override;
  void disconnect(std::uint64_t peer) override;
  void open_landing(const TransferName& name,
                    std::uint32_t first_page,
                    std::vector<std::uint32_t> pages) override;
  void close_landing(const TransferName& name) override;
  void send(SendRequest request) override;
  [[nodiscard]] TransportStats stats() const override;

 private:
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

  using Command = std::variant<Connect, Disconnect, Open, Close, SendRequest>;

  /// One life of the data path to a peer. Its address is UCX's handle in callbacks.
  struct Endpoint {
    UcxTransport* owner = nullptr;
    std::uint64_t peer = 0;
    std::uint64_t life = 0;  ///< no other's, ever: by it messages in flight remember theirs
    ucp_ep_h ep = nullptr;
    ucs_status_t failure = UCS_OK;  ///< set by UCX's error callback
    std::list<Endpoint>::iterator self;
    void* wiring = nullptr;         ///< a flush that ends when the lanes stand (or have failed)
    bool leaving = false;           ///< not in peers_ any more, and not yet closed
    void* flush = nullptr;          ///< while leaving: ends when nothing of ours is under way
    Time leave_by;                  ///< then sends that have not ended are reported as lost
    void* close_request = nullptr;  ///< while a forced close is going on
    std::uint32_t address_crc = 0;  ///< of the peer's address: how its short messages name it
    bool maps_slots = false;        ///< the peer reads our slots
    bool maps_pool = false;         ///< and our pages
    bool only_tcp = false;  ///< UCX reaches the peer over nothing else, and may send units whole
    bool near = false;      ///< only_tcp, which takes pages from where they lie
    std::optional<PeerSlots> slots;   ///< the peer's, once it has offered them
    std::optional<PeerMemory> pool;   ///< the same
    std::vector<std::byte> answers;   ///< to it, not yet sent
    std::deque<SendRequest> waiting;  ///< until a unit of this peer gives its slot back
  };

  /// A send in flight; owns what UCX reads until it has ended.
  struct Send {
    UcxTransport* owner = nullptr;
    std::list<Send>::iterator self;
    std::uint64_t life = 0;  ///< its endpoint's
    bool reported = false;   ///< its end, with an error: UCX has not let go of it yet
    TransferName name;
    std::uint32_t unit = 0;
    std::uint32_t crc = 0;
    std::uint64_t bytes = 0;
    UnitHeaderBytes header{};
    std::vector<ucp_dt_iov_t> iov;
    std::optional<std::uint32_t> slot;  ///< the payload, put together
  };

  /// A unit in memory that the peer maps, until the peer says that it is done.
  struct Lent {
    Endpoint* endpoint = nullptr;  ///< null: the slot is free, or its bytes go over the network
    std::uint32_t serial = 0;
    TransferName name;
    std::uint32_t unit = 0;
    std::uint32_t crc = 0;
    std::uint64_t bytes = 0;
  };

  /// A short message in flight.
  struct Note {
    UcxTransport* owner = nullptr;
    std::list<Note>::iterator self;
    std::uint64_t life = 0;  ///< its endpoint's
    std::vector<std::byte> bytes;
  };

  /// A rendezvous receive in flight.
  struct Receive {
    UcxTransport* owner = nullptr;
    std::list<Receive>::iterator self;
    Landing landing;
    std::vector<ucp_dt_iov_t> iov;
    std::optional<std::uint32_t> slot;  ///< where it arrives in one piece
  };

  // Set-up (ucx_transport.cc).
  Status make_context();
  Status make_worker();
  void run();
  void wait_for_work();
  /// Uses spare time for prefault_; how long the thread may sleep then.
  Duration use_spare_time();
  void run_commands();
  void run_landing_commands();
  void run_until_quiet();
  void publish_stats();

  // Endpoints (ucx_endpoint.cc).
  void handle(Connect& command);
  void handle(Disconnect& command);
  void handle(Open& command);
  void handle(Close& command);
  void handle(SendRequest& request);
  void leave(Endpoint& endpoint, Duration within);
  bool may_close(Endpoint& endpoint);
  void close_endpoint(Endpoint& endpoint);
  void report_lost(Send& send, const Status& status);
  static bool has_ended(void*& request);
  bool wiring_ended(Endpoint& endpoint);
  void reap_failed();
  void reap_closed();
  static void on_endpoint_error(void* argument, ucp_ep_h ep, ucs_status_t status);
  [[nodiscard]] static std::string lanes_of(ucp_ep_h ep);

  // Units (ucx_units.cc).
  /// False: nothing was done, the unit has to wait for one of the peer's own.
  [[nodiscard]] bool post(Endpoint& endpoint, SendRequest& request);
  [[nodiscard]] bool is_spliced_to(const Endpoint& endpoint) const;
  void post_network(Endpoint& endpoint,
                    SendRequest& request,
                    const std::vector<MemoryRun>& runs,
                    std::optional<std::uint32_t> slot,
                    bool as_list);
  void send_ended(Send& send, ucs_status_t status);
  static void on_sent(void* request, ucs_status_t status, void* user_data);
  static ucs_status_t on_unit(void* argument,
                              const void* header,
                              std::size_t header_length,
                              void* data,
                              std::size_t length,
                              const ucp_am_recv_param_t* param);
  ucs_status_t unit_arrived(const UnitHeader& header,
                            void* data,
                            std::size_t length,
                            bool rendezvous);
  static void on_received(void* request, ucs_status_t status, std::size_t length, void* user_data);
  bool admit(const UnitHeader& header, Landing& landing);
  void landed(const Landing& landing, std::uint32_t crc);
  void receive_failed(const Landing& landing);
  void finish_landing(const Landing& landing, bool crc_ok);

  // Peers on the same machine (ucx_local.cc).
  void offer_memory(Endpoint& endpoint);
  void accept_memory(Endpoint& endpoint, const MemoryOffer& offer);
  Lent lend(Endpoint& endpoint, const UnitHeader& header);
  static std::vector<std::byte> unit_message(UnitHeader header);
  void lent_ended(const Lent& lent, ucs_status_t status);
  void drop_lent(Endpoint& endpoint);
  void done_arrived(std::span<const std::byte> message);
  void unit_done(const LentUnit& unit);
  void answer(Endpoint& endpoint, std::uint32_t place, std::uint32_t serial);
  void send_answers(Endpoint& endpoint);
  /// An error: nothing was sent. What fails later is lost with the endpoint, which UCX reports.
  ucs_status_t send_note(Endpoint& endpoint, unsigned id, std::vector<std::byte> bytes);
  static void on_note_sent(void* request, ucs_status_t status, void* user_data);
  Endpoint* endpoint_of(std::uint32_t address_crc);
  void offer_arrived(std::span<const std::byte> message);
  void accept_arrived(std::span<const std::byte> message);
  Status handle_notes();

  // Slots (ucx_slots.cc).
  std::optional<std::uint32_t> take_network_slot();
  void post_in_slot(Endpoint& endpoint, SendRequest& request, std::uint32_t slot);
  void send_waiting();
  void slot_send_ended(std::uint32_t slot, ucs_status_t status);
  void free_slot(std::uint32_t slot);
  void slot_unit_arrived(std::span<const std::byte> message);

  // Units that the peer reads where they lie (ucx_pool.cc).
  void post_from_pool(Endpoint& endpoint, SendRequest& request, std::span<const MemoryRun> runs);
  /// Parts of a unit that fit into a message header of so many bytes.
  [[nodiscard]] static std::size_t pool_runs_in(std::size_t header_bytes_max);
  void pool_send_ended(std::uint32_t serial, ucs_status_t status);
  void pool_unit_arrived(std::span<const std::byte> message);

  PageMemory memory_;
  EventSink sink_;
  UcxOptions options_;
  std::string address_;
  std::string description_;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int worker_fd_ = -1;
  CommandQueue<Command> commands_;
  std::atomic<bool> stop_{false};
  std::thread thread_;

  // The progress thread's alone from here.
  std::vector<Command> staged_;  ///< taken from commands_, not yet carried out
  LandingTable table_;
  Prefault prefault_;
  IdleCpu idle_cpu_;
  Time prefault_from_;               ///< not before: the thread, or its core, has better to do
  std::uint64_t landed_before_ = 0;  ///< units, when prefault_ was last thought of
  std::map<std::uint64_t, Endpoint*> peers_;
  /// An endpoint failed or was closed before its lanes stood.
  bool unclean_ = false;
  bool disturbed_ = false;         ///< a peer was disconnected or lost
  std::list<Endpoint> endpoints_;  ///< those in peers_, those that leave or are being closed
  std::uint64_t next_life_ = 0;
  bool any_failed_ = false;
  ScopedUcxSends* ucx_sends_ = nullptr;  ///< of the thread
  std::list<Send> sends_;
  std::list<Receive> receives_;
  std::list<Note> notes_;
  std::uint32_t own_crc_ = 0;  ///< of address_
  bool may_share_ = false;     ///< with peers that can map our memory, and we theirs
  SlotMemory slots_;
  std::array<Lent, kSlotCount> in_slot_;
  std::map<std::uint32_t, Lent> in_pool_;  ///< by serial
  /// Whose unit is sent from each slot, in it or over the network; null also when that peer is
  /// gone.
  std::array<const Endpoint*, kSlotCount> slot_user_{};
  std::uint32_t next_serial_ = 0;
  Unmapper unmapper_;
  std::size_t pool_runs_max_ = 0;  ///< of a unit that a peer reads where it lies
  /// By address, also of peers that have connected before we did. A transport's never change.
  std::map<std::pair<std::uint32_t, MemoryKind>, MemoryOffer> early_offers_;
  TransportStats counting_;
  // Guards the copy of the counters that other threads read.
  mutable std::mutex stats_mutex_;
  TransportStats stats_;
};

/// UCX's address with a mark and a CRC before it: UCX trusts the bytes that it is given.
std::string wrap_address(std::string_view ucx_address);
/// The reverse; empty when the bytes are not such an address.
std::string_view unwrap_address(std::string_view wrapped);

/// unavailable("what: UCX's words").
Status ucx_error(const std::string& what, ucs_status_t status);

}  // namespace tandem::transfer
