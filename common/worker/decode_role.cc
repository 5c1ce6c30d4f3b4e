// The decode role: reserves room, receives KV, goes on from the second token.
#include "common/base/clock.h"
#include "common/handoff/decode_side.h"
#include "common/kv/block_pool.h"
#include "common/obs/log.h"
#include "common/worker/pd_roles.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace tandem::worker {
namespace {

class DecodeRole final : public PdRole {
 public:
  DecodeRole(const PdOptions& options, engine::Engine* engine, EngineLoop* loop)
      : options_(options), engine_(engine), loop_(loop), side_(internal::side_options(options)) {}

  Status start(const MakeTransport& make_transport) {
    auto sink = [this](transfer::TransportEvent&& event) {
      loop_->post([this, event = std::move(event)] { on_transport(event); });
    };
    TANDEM_TRY(transport_, make_transport(page_memory(*engine_, options_.layout), std::move(sink)));
    hub_ = std::make_shared<PairHub>(
        internal::link_options(options_, transport_->address()),
        *loop_,
        [loop = loop_] { return loop->progress(); },
        hub_events(),
        options_.authorization);
    return {};
  }

  Status submit(rpc::Submission submission, core::EventSink sink) override {
    const auto& split = submission.disaggregation;
    if (!split || split->role != rpc::Role::kDecode) {
      return failed_precondition(
          "this worker runs with --disaggregation-mode decode and takes prompts from a prefill "
          "worker only; send "
          "requests to the router");
    }
    const core::RequestId id = submission.request.id;
    if (incoming_.contains(id))
      return already_exists("request " + core::to_string(id) + " is here already");
    const Time now = steady_clock().now();
    Incoming incoming;
    incoming.hint.incarnation = split->peer_incarnation;
    incoming.hint.grpc_address = split->peer_grpc_address;
    if (!split->bootstrap_host.empty() && split->bootstrap_port != 0) {
      incoming.hint.bootstrap_address =
          split->bootstrap_host + ":" + std::to_string(split->bootstrap_port);
    }
    incoming.attempt = submission.attempt;
    incoming.deadline = submission.request.deadline.value_or(now + options_.transfer_deadline);
    incoming.request = std::move(submission.request);
    incoming.sink = std::move(sink);
    const PeerHint hint = incoming.hint;
    incoming_.emplace(id, std::move(incoming));
    waiting_.push_back(id);
    hub_->ensure(hint);
    return {};
  }

  void abort(core::RequestId id, const Status& why) override {
    const auto found = incoming_.find(id);
    if (found == incoming_.end()) return;
    switch (found->second.phase) {
      case Phase::kWaiting:
        finish(id, why);
        break;
      case Phase::kReceiving:
        feed(handoff::CancelReceive{id.value, found->second.attempt, why});
        break;
      case Phase::kRunning:
        engine_->abort(id, why);
        incoming_.erase(id);
        break;
    }
  }

  void abort_all(const Status& why) override {
    std::vector<core::RequestId> ids;
    for (const auto& [id, incoming] : incoming_)
      ids.push_back(id);
    for (const core::RequestId id : ids)
      abort(id, why);
  }

  void before_step(Time now) override {
    hub_->before_step(now);
    if (const auto deadline = side_.next_deadline(); deadline && *deadline <= now)
      feed(handoff::TimePassed{});
    expire(now);
    admit();
  }

  void after_step(Time /*now*/) override {
    for (const core::RequestId id : std::exchange(finished_, {}))
      incoming_.erase(id);
  }

  [[nodiscard]] std::optional<Time> next_deadline() const override {
    const auto side = side_.next_deadline();
    const auto link = hub_->next_deadline();
    if (side && link) return std::min(*side, *link);
    return side ? side : link;
  }

  [[nodiscard]] std::size_t waiting_count() const override {
    return waiting_.size() + side_.active_count();
  }

  [[nodiscard]] std::shared_ptr<PairHub> hub() const override { return hub_; }

  bool ask_stats(std::function<void(std::string)> answer) override {
    return loop_->try_post([this, answer = std::move(answer)] {
      answer(internal::side_stats_json(
          side_.stats(), transport_->stats(), hub_->linked().size(), side_.active_count()));
    });
  }

  void close_links() override { hub_->close_all(); }

  void shut_down() override {
    hub_->close_all();
    transport_.reset();
  }

 private:
  enum class Phase : std::uint8_t {
    kWaiting,
    kReceiving,
    kRunning
  };

  struct Incoming {
    Phase phase = Phase::kWaiting;
    core::Request request;
    core::EventSink sink;
    PeerHint hint;
    std::uint32_t attempt = 0;
    Time deadline;
    Time receive_began;
    std::int64_t grant_count = 0;
  };

  PairHubEvents hub_events() {
    return {
        .on_linked =
            [this](std::uint64_t peer, const std::string& data_address) {
              transport_->connect(peer, data_address);
              feed(handoff::PeerLinked{peer});
            },
        .on_lost =
            [this](std::uint64_t peer, const Status& why) {
              if (transport_) transport_->disconnect(peer);
              feed(handoff::PeerLost{peer, unavailable("prefill worker lost: " + why.message())});
              fail_waiting(peer, unavailable("prefill worker lost: " + why.message()));
            },
        .on_unreachable = [this](std::uint64_t peer,
                                 const Status& why) { fail_waiting(peer, why); },
        .on_message =
            [this](std::uint64_t peer, PairValue&& value) {
              if (auto* message = std::get_if<handoff::PrefillToDecode>(&value))
                on_prefill(peer, *message);
            }};
  }

  void on_prefill(std::uint64_t peer, const handoff::PrefillToDecode& message) {
    // Prefill cancels with kCancelled when the router ended the request or its output ended with
    // the first token: the router knows, so decode gives up its pages and says nothing.
    if (const auto* cancel = std::get_if<handoff::CancelMessage>(&message);
        cancel != nullptr && cancel->code == Code::kCancelled) {
      const auto found = incoming_.find({cancel->name.request_id});
      if (found != incoming_.end() && found->second.phase == Phase::kReceiving)
        found->second.sink = nullptr;
    }
    feed(handoff::FromPrefill{peer, message});
  }

  void fail_waiting(std::uint64_t peer, const Status& why) {
    std::vector<core::RequestId> ids;
    for (const core::RequestId id : waiting_) {
      if (incoming_.at(id).hint.incarnation == peer) ids.push_back(id);
    }
    for (const core::RequestId id : ids)
      finish(id, why);
  }

  void expire(Time now) {
    std::vector<core::RequestId> late;
    for (const core::RequestId id : waiting_) {
      if (incoming_.at(id).deadline <= now) late.push_back(id);
    }
    for (const core::RequestId id : late) {
      finish(id, deadline_exceeded("the request's deadline passed before decode had room for it"));
    }
  }

  /// Starts transfers, in order of arrival, as far as links and pages allow.
  void admit() {
    const std::vector<core::RequestId> order(waiting_.begin(), waiting_.end());
    for (const core::RequestId id : order) {
      const auto found = incoming_.find(id);
      if (found == incoming_.end()) continue;  // a link that broke meanwhile took it along
      Incoming& incoming = found->second;
      if (!hub_->is_linked(incoming.hint.incarnation)) {
        const PeerHint hint = incoming.hint;  // the request may end inside
        hub_->ensure(hint);
        continue;
      }
      const auto reservation = engine_->reserve(incoming.request);
      if (!reservation.ok()) {
        if (reservation.status().code() == Code::kResourceExhausted) return;
        finish(id, reservation.status());
        continue;
      }
      std::erase(waiting_, id);
      if (reservation->nothing_to_decode) {
        // Prefill tells the router how the request ended, sooner or later than decode looks at it.
        incoming_.erase(found);
        continue;
      }
      incoming.phase = Phase::kReceiving;
      incoming.receive_began = steady_clock().now();
      feed(handoff::StartReceive{
          .request_id = id.value,
          .attempt = incoming.attempt,
          .prefill_incarnation = incoming.hint.incarnation,
          .prompt_tokens = static_cast<std::uint32_t>(incoming.request.input_ids.size() +
                                                      incoming.request.resumed_output_ids.size()),
          .start_token = static_cast<std::uint32_t>(reservation->matched_tokens),
          .deadline = incoming.deadline});
    }
  }

  void on_transport(const transfer::TransportEvent& event) {
    if (!transport_) return;
    if (const auto* landed = std::get_if<transfer::UnitLandedEvent>(&event)) {
      const transfer::UnitHeader& header = landed->header;
      feed(handoff::UnitLanded{.name = header.name,
                               .range = {.unit = header.unit,
                                         .first_page = header.first_page,
                                         .page_count = header.page_count,
                                         .first_part = header.first_part,
                                         .part_count = header.part_count},
                               .crc = header.payload_crc,
                               .crc_ok = landed->crc_ok});
    } else if (const auto* closed = std::get_if<transfer::LandingClosedEvent>(&event)) {
      feed(handoff::LandingClosed{closed->name});
    } else if (const auto* error = std::get_if<transfer::PeerDataErrorEvent>(&event)) {
      hub_->data_path_failed(error->peer, error->status);
    }
  }

  void feed(const handoff::DecodeEvent& event) {
    std::vector<handoff::DecodeAction> actions;
    side_.on(event, steady_clock().now(), actions);
    for (handoff::DecodeAction& action : actions)
      apply(action);
  }

  void apply(handoff::DecodeAction& action) {
    if (auto* refused = std::get_if<handoff::ReceiveRefused>(&action)) {
      engine_->cancel_reservation({refused->request_id}, 0);
      finish({refused->request_id}, refused->status);
    } else if (auto* need = std::get_if<handoff::NeedPages>(&action)) {
      give_pages(*need);
    } else if (auto* deliver_now = std::get_if<handoff::Deliver>(&action)) {
      deliver(*deliver_now);
    } else if (auto* release = std::get_if<handoff::Release>(&action)) {
      engine_->cancel_reservation({release->name.request_id},
                                  static_cast<std::int32_t>(release->verified_tokens));
      finish({release->name.request_id}, release->reason);
    } else if (auto* open = std::get_if<handoff::OpenLanding>(&action)) {
      transport_->open_landing(open->name, open->first_page, std::move(open->pages));
    } else if (auto* close = std::get_if<handoff::CloseLanding>(&action)) {
      transport_->close_landing(close->name);
    } else if (auto* message = std::get_if<handoff::ToPrefill>(&action)) {
      count_grant(*message);
      hub_->send(message->peer, message->message);
    }
    // ReceiveStarted needs nothing here. PagesNotNeeded and ReturnPages: the pages belong to the
    // reservation, which ends as a whole.
  }

  void count_grant(const handoff::ToPrefill& message) {
    const auto* grant = std::get_if<handoff::GrantMessage>(&message.message);
    if (grant == nullptr) return;
    const auto found = incoming_.find(core::RequestId{grant->name.request_id});
    if (found != incoming_.end()) ++found->second.grant_count;
  }

  void give_pages(const handoff::NeedPages& need) {
    const core::RequestId id{need.name.request_id};
    const auto pages = engine_->take_pages(id, static_cast<std::int32_t>(need.page_count));
    if (!pages.ok()) {
      feed(handoff::CancelReceive{id.value, need.name.attempt, pages.status()});
      return;
    }
    handoff::PagesAvailable available{.name = need.name, .pages = {}};
    for (const kv::PageId page : *pages)
      available.pages.push_back(static_cast<std::uint32_t>(page.value));
    feed(available);
  }

  void deliver(const handoff::Deliver& done) {
    const core::RequestId id{done.name.request_id};
    Incoming& incoming = incoming_.at(id);
    auto state = read_commit_state(done.payload.state);
    if (!state.ok()) {
      engine_->cancel_reservation(id, 0);
      finish(id, state.status());
      return;
    }
    engine::AdoptState adopt{.first_token = done.payload.first_token,
                             .cached_tokens = state->cached_tokens,
                             .timings = state->timings};
    adopt.timings.kv_transfer = steady_clock().now() - incoming.receive_began;
    adopt.timings.kv_transfer_bytes = static_cast<std::int64_t>(done.pages.size()) *
                                      static_cast<std::int64_t>(options_.layout.page_bytes);
    obs::debug("kv_transfer_done",
               {{"request", core::to_string(id)},
                {"pages", done.pages.size()},
                {"grants", incoming.grant_count},
                {"bytes", adopt.timings.kv_transfer_bytes},
                {"ms", static_cast<double>(adopt.timings.kv_transfer.ns) * 1e-6}});
    incoming.phase = Phase::kRunning;
    auto sink = [this, id, to = incoming.sink](core::TokenEvent&& event) {
      if (event.finish) finished_.push_back(id);
      if (to) to(std::move(event));
    };
    if (const Status status = engine_->adopt(id, adopt, std::move(sink)); !status.ok()) {
      engine_->cancel_reservation(id, 0);
      finish(id, status);
    }
  }

  /// Forgets a request that does not run in the engine, and says why.
  void finish(core::RequestId id, const Status& why) {
    const auto found = incoming_.find(id);
    if (found == incoming_.end()) return;
    const core::EventSink sink = std::move(found->second.sink);
    std::erase(waiting_, id);
    incoming_.erase(found);
    if (sink) sink(core::aborted_event(id, why));
  }

  PdOptions options_;
  engine::Engine* engine_;
  EngineLoop* loop_;
  handoff::DecodeSide side_;
  std::unique_ptr<transfer::KvTransport> transport_;
  std::shared_ptr<PairHub> hub_;
  std::map<core::RequestId, Incoming> incoming_;
  std::deque<core::RequestId> waiting_;
  std::vector<core::RequestId> finished_;
};

}  // namespace

Result<std::unique_ptr<PdRole>> make_decode_role(const PdOptions& options,
                                                 engine::Engine* engine,
                                                 EngineLoop* loop,
                                                 const MakeTransport& make_transport) {
  auto role = std::make_unique<DecodeRole>(options, engine, loop);
  TANDEM_TRY(role->start(make_transport));
  return std::unique_ptr<PdRole>(std::move(role));
}

}  // namespace tandem::worker
