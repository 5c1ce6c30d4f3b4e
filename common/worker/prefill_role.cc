// The prefill role: computes prompts, sends their KV chunk by chunk, says the first token.
#include "common/base/clock.h"
#include "common/handoff/prefill_side.h"
#include "common/kv/block_pool.h"
#include "common/obs/log.h"
#include "common/worker/pd_roles.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace tandem::worker {
namespace {

class PrefillRole final : public PdRole, private engine::PrefillObserver {
 public:
  PrefillRole(const PdOptions& options, engine::Engine* engine, EngineLoop* loop)
      : options_(options), engine_(engine), loop_(loop), side_(internal::side_options(options)) {}

  Status start(const MakeTransport& make_transport) {
    auto sink = [this](transfer::TransportEvent&& event) {
      loop_->post([this, event = std::move(event)] { on_transport(event); });
    };
    TANDEM_TRY(transport_, make_transport(page_memory(*engine_, options_.layout), std::move(sink)));
    hub_ = std::make_shared<PairHub>(internal::link_options(options_, transport_->address()),
                                     loop_,
                                     hub_events(),
                                     options_.authorization);
    return {};
  }

  Status submit(rpc::Submission submission, core::EventSink sink) override {
    const auto& split = submission.disaggregation;
    if (!split || split->role != rpc::Role::kPrefill) {
      return failed_precondition(
          "this worker runs with --disaggregation-mode prefill and computes prompts for a decode "
          "worker only; send "
          "requests to the router");
    }
    const core::RequestId id = submission.request.id;
    const Time now = steady_clock().now();
    const handoff::SendKey key{split->room, submission.attempt};
    const handoff::StartSend start{
        .key = key,
        .decode_incarnation = split->decode_incarnation,
        .prompt_tokens = static_cast<std::uint32_t>(submission.request.input_ids.size() +
                                                    submission.request.resumed_output_ids.size()),
        .deadline = submission.request.deadline.value_or(now + options_.transfer_deadline)};
    if (by_key_.contains(key))
      return already_exists("a prompt of this room and attempt is being computed");
    TANDEM_TRY(engine_->submit_prefill(std::move(submission.request), this));
    outgoing_[id] = {.key = key, .sink = std::move(sink), .number = ++submitted_count_};
    by_key_[key] = id;
    feed(start);
    return {};
  }

  void abort(core::RequestId id, const Status& why) override {
    const auto found = outgoing_.find(id);
    if (found != outgoing_.end()) feed(handoff::CancelSend{found->second.key, why});
  }

  void abort_all(const Status& why) override {
    std::vector<handoff::SendKey> keys;
    for (const auto& [key, id] : by_key_)
      keys.push_back(key);
    for (const auto& key : keys)
      feed(handoff::CancelSend{key, why});
  }

  void before_step(Time now) override {
    hub_->before_step(now);
    if (const auto deadline = side_.next_deadline(); deadline && *deadline <= now)
      feed(handoff::TimePassed{});
    if (outgoing_.size() > 1 && now >= next_look_) {
      next_look_ = now + kLookInterval;
      give_way(now);
    }
  }

  /// The engine may not be called from inside its step, so what its observer heard is acted on
  /// here.
  void after_step(Time /*now*/) override {
    for (auto& event : std::exchange(heard_, {}))
      feed(event);
  }

  [[nodiscard]] std::optional<Time> next_deadline() const override {
    std::optional<Time> next = side_.next_deadline();
    const auto sooner = [&next](Time time) { next = next ? std::min(*next, time) : time; };
    if (const auto link = hub_->next_deadline()) sooner(*link);
    if (outgoing_.size() > 1) sooner(next_look_);
    return next;
  }

  [[nodiscard]] std::shared_ptr<PairHub> hub() const override { return hub_; }

  [[nodiscard]] std::string stats_json() const override {
    return internal::side_stats_json(
        side_.stats(), transport_->stats(), hub_->linked().size(), side_.active_count());
  }

  void shut_down() override {
    hub_->close_all();
    transport_.reset();
  }

 private:
  struct Outgoing {
    handoff::SendKey key;
    core::EventSink sink;
    std::uint64_t number = 0;  // order of arrival
    bool started = false;      // has pages, some computed
    bool said = false;         // first token or end
  };

  static constexpr Duration kLookInterval = milliseconds(200);

  /// Two pools can wait for each other: decode keeps room for a prompt that finds none here, while
  /// computed prompts that decode has no room for fill this pool. (Requests of two routers, or lpm
  /// scheduling, reach the two workers in different orders.) When that has lasted, the youngest
  /// such prompt gives its pages back; decode hears why when it asks for it, and the router tries
  /// again.
  void give_way(Time now) {
    Outgoing* youngest = nullptr;
    bool starving = false;
    for (auto& [id, outgoing] : outgoing_) {
      const bool granted = side_.has_grant(outgoing.key);
      // Something moves: a prompt is being computed, or its pages are on their way.
      if (outgoing.started && (!outgoing.said || granted)) {
        stuck_since_.reset();
        return;
      }
      starving = starving || (granted && !outgoing.started);
      if (outgoing.said && (youngest == nullptr || outgoing.number > youngest->number))
        youngest = &outgoing;
    }
    if (!starving || youngest == nullptr) {
      stuck_since_.reset();
      return;
    }
    if (!stuck_since_) stuck_since_ = now;
    if (now - *stuck_since_ < options_.give_way_after) return;
    stuck_since_.reset();
    obs::info("prompt_gave_way", {{"room", youngest->key.request_id}});
    feed(handoff::CancelSend{
        youngest->key,
        unavailable("the prefill worker needed the pages of this prompt for one that the decode "
                    "worker had room for")});
  }

  PairHubEvents hub_events() {
    return {.on_linked =
                [this](std::uint64_t peer, const std::string& data_address) {
                  transport_->connect(peer, data_address);
                  feed(handoff::PeerLinked{peer});
                },
            .on_lost =
                [this](std::uint64_t peer, const Status& why) {
                  if (transport_) transport_->disconnect(peer);
                  feed(handoff::PeerLost{peer, why});
                },
            .on_unreachable = [](std::uint64_t, const Status&) {},
            .on_message =
                [this](std::uint64_t peer, PairValue&& value) {
                  if (auto* message = std::get_if<handoff::DecodeToPrefill>(&value)) {
                    feed(handoff::FromDecode{peer, std::move(*message)});
                  }
                }};
  }

  void chunk_ready(core::RequestId request,
                   std::int32_t first_page_index,
                   std::span<const kv::PageId> pages,
                   std::int32_t /*tokens_ready*/) override {
    Outgoing& outgoing = outgoing_.at(request);
    outgoing.started = true;
    handoff::ChunkReady chunk{.key = outgoing.key,
                              .first_page = static_cast<std::uint32_t>(first_page_index),
                              .source_pages = {}};
    for (const kv::PageId page : pages)
      chunk.source_pages.push_back(static_cast<std::uint32_t>(page.value));
    heard_.emplace_back(std::move(chunk));
  }

  void first_token(core::TokenEvent&& event) override {
    Outgoing& outgoing = outgoing_.at(event.request);
    outgoing.started = outgoing.said = true;
    if (event.finish) {
      // The output ends here: decode is told by the router, and quietly by the cancel.
      heard_.emplace_back(
          handoff::CancelSend{outgoing.key, cancelled("the output ended with the first token")});
    } else {
      CommitState state{.cached_tokens = event.cached_tokens, .timings = event.timings};
      heard_.emplace_back(handoff::FirstToken{
          outgoing.key, {.first_token = event.tokens.front(), .state = write_commit_state(state)}});
    }
    outgoing.sink(std::move(event));
  }

  void ended(core::RequestId request, const Status& why) override {
    heard_.emplace_back(handoff::CancelSend{outgoing_.at(request).key, why});
  }

  void on_transport(const transfer::TransportEvent& event) {
    if (!transport_) return;
    if (const auto* done = std::get_if<transfer::SendDoneEvent>(&event)) {
      feed(handoff::SendDone{done->name, done->unit, done->status.ok(), done->crc});
    } else if (const auto* error = std::get_if<transfer::PeerDataErrorEvent>(&event)) {
      hub_->data_path_failed(error->peer, error->status);
    }
  }

  void feed(const handoff::PrefillEvent& event) {
    std::vector<handoff::PrefillAction> actions;
    side_.on(event, steady_clock().now(), actions);
    for (handoff::PrefillAction& action : actions)
      apply(action);
  }

  void apply(handoff::PrefillAction& action) {
    if (auto* unit = std::get_if<handoff::SendUnit>(&action)) {
      send(*unit);
    } else if (auto* message = std::get_if<handoff::ToDecode>(&action)) {
      hub_->send(message->peer, message->message);
    } else if (auto* refused = std::get_if<handoff::SendRefused>(&action)) {
      end(refused->key, refused->status);
    } else if (auto* release = std::get_if<handoff::ReleaseSource>(&action)) {
      end(release->key, release->status);
    }
  }

  void send(handoff::SendUnit& unit) {
    transfer::SendRequest request;
    request.peer = unit.peer;
    request.header.name = unit.name;
    request.header.unit = unit.range.unit;
    request.header.first_page = unit.range.first_page;
    request.header.page_count = unit.range.page_count;
    request.header.first_part = unit.range.first_part;
    request.header.part_count = unit.range.part_count;
    request.header.page_offset = static_cast<std::uint32_t>(unit.byte_range.offset);
    request.header.page_length = static_cast<std::uint32_t>(unit.byte_range.length);
    request.source_pages = std::move(unit.source_pages);
    transport_->send(std::move(request));
  }

  void end(const handoff::SendKey& key, const Status& status) {
    const auto named = by_key_.find(key);
    if (named == by_key_.end()) return;
    const core::RequestId id = named->second;
    by_key_.erase(named);
    Outgoing outgoing = std::move(outgoing_.at(id));
    outgoing_.erase(id);
    engine_->release_prefill(id);
    if (status.ok()) return;
    obs::debug("prefill_ended", {{"request", core::to_string(id)}, {"reason", status.message()}});
    if (!outgoing.said) outgoing.sink(core::aborted_event(id, status));
  }

  PdOptions options_;
  engine::Engine* engine_;
  EngineLoop* loop_;
  handoff::PrefillSide side_;
  std::unique_ptr<transfer::KvTransport> transport_;
  std::shared_ptr<PairHub> hub_;
  std::map<core::RequestId, Outgoing> outgoing_;
  std::map<handoff::SendKey, core::RequestId> by_key_;
  std::vector<handoff::PrefillEvent> heard_;
  std::uint64_t submitted_count_ = 0;
  Time next_look_;
  std::optional<Time> stuck_since_;
};

}  // namespace

Result<std::unique_ptr<PdRole>> make_prefill_role(const PdOptions& options,
                                                  engine::Engine* engine,
                                                  EngineLoop* loop,
                                                  const MakeTransport& make_transport) {
  auto role = std::make_unique<PrefillRole>(options, engine, loop);
  TANDEM_TRY(role->start(make_transport));
  return std::unique_ptr<PdRole>(std::move(role));
}

}  // namespace tandem::worker
