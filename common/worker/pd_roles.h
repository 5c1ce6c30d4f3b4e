// The two halves of a disaggregated pair, composed: engine, hand-off, pair streams and KV
// transport.
#pragma once

#include "common/base/status.h"
#include "common/engine/engine.h"
#include "common/handoff/options.h"
#include "common/transfer/transport.h"
#include "common/worker/engine_loop.h"
#include "common/worker/pair_hub.h"
#include "common/worker/role.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tandem::worker {

struct PdOptions {
  handoff::Role role = handoff::Role::kPrefill;
  std::string instance;  ///< stable over restarts: host:port
  std::uint64_t incarnation = 0;
  handoff::LayoutDescriptor layout;
  std::uint32_t grant_window_pages = 64;
  std::string transfer_backend = {};
  std::string authorization = {};  ///< for the pair streams that it opens
  Duration tick_interval = milliseconds(500);
  /// A peer that has not ticked for so long is lost,
  Duration peer_lost_after = milliseconds(2500);
  /// and so is one whose engine has finished no layer and no turn for so long.
  Duration peer_stuck_after = seconds(10);
  /// How long two full pools may wait for each other before a prompt gives way.
  Duration give_way_after = seconds(1);
  /// Deadline of a transfer whose request has none.
  Duration transfer_deadline = seconds(300);
};

/// A Role with the services that it needs on the wire. Engine thread unless said otherwise.
class PdRole : public Role {
 public:
  /// The handler of the pair service (prefill) or of the streams that it opens itself (decode).
  [[nodiscard]] virtual std::shared_ptr<PairHub> hub() const = 0;
  /// `answer` gets one JSON object for /get_server_info and logs: transfers, links, drops. It runs
  /// on another thread, maybe never when the worker stops. False: cannot be asked now. Any thread.
  [[nodiscard]] virtual bool ask_stats(std::function<void(std::string)> answer) = 0;
  /// Ends the links.
  virtual void close_links() = 0;
  /// Ends the data path. After it no event comes any more. When the engine thread has ended.
  virtual void shut_down() = 0;
};

/// Pages of the engine's pool as the transport sees them.
transfer::PageMemory page_memory(const engine::Engine& engine,
                                 const handoff::LayoutDescriptor& layout);

/// Engine and loop are borrowed. The transport is made by `make_transport`, with the role's sink.
using MakeTransport = std::function<Result<std::unique_ptr<transfer::KvTransport>>(
    transfer::PageMemory, transfer::EventSink)>;

Result<std::unique_ptr<PdRole>> make_prefill_role(const PdOptions& options,
                                                  engine::Engine* engine,
                                                  EngineLoop* loop,
                                                  const MakeTransport& make_transport);
Result<std::unique_ptr<PdRole>> make_decode_role(const PdOptions& options,
                                                 engine::Engine* engine,
                                                 EngineLoop* loop,
                                                 const MakeTransport& make_transport);

namespace internal {

/// What both roles do alike.
handoff::SideOptions side_options(const PdOptions& options);
handoff::LinkOptions link_options(const PdOptions& options, std::string data_address);
std::string side_stats_json(const handoff::SideStats& stats,
                            const transfer::TransportStats& transport,
                            std::size_t linked,
                            std::size_t active);

}  // namespace internal

}  // namespace tandem::worker
