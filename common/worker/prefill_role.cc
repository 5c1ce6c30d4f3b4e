// The prefill role: computes prompts, tells the hand-off of their pages, says the first token.
#include "common/base/clock.h"
#include "common/kv/block_pool.h"
#include "common/obs/log.h"
#include "common/worker/prefill_handoff.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace tandem::worker {
namespace {

class PrefillRole final : public PdRole, private engine::PrefillObserver {
 public:
  PrefillRole(const PdOptions& options, engine::Engine* engine, EngineLoop* loop)
      : options_(options),
        engine_(engine),
        loop_(loop),
        handoff_(
            options,
            &handoff_loop_,
            [loop] { return loop->progress(); },
            [this](std::vector<EndedSend>&& ended) { note_ended(std::move(ended)); }),
        handoff_loop_("handoff") {}

  Status start(const MakeTransport& make_transport) {
    TANDEM_TRY(handoff_.start(page_memory(*engine_, options_.layout), make_transport));
    handoff_loop_.add_client(&handoff_);
    handoff_loop_.start();
    return {};
  }

  Status submit(rpc::Submission submission, core::EventSink sink) override {
    release_ended();
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
    tell({start});
    return {};
  }

  void abort(core::RequestId id, const Status& why) override {
    const auto found = outgoing_.find(id);
    if (found != outgoing_.end()) cancel({found->second.key}, why);
  }

  void abort_all(const Status& why) override {
    std::vector<handoff::SendKey> keys;
    for (const auto& [key, id] : by_key_)
      keys.push_back(key);
    cancel(keys, why);
  }

  void before_step(Time now) override {
    release_ended();
    if (outgoing_.size() > 1 && now >= next_look_) {
      next_look_ = now + kLookInterval;
      give_way(now);
    }
  }

  void after_step(Time /*now*/) override {
    if (!heard_.empty()) tell(std::exchange(heard_, {}));
  }

  [[nodiscard]] std::optional<Time> next_deadline() const override {
    if (outgoing_.size() > 1) return next_look_;
    return std::nullopt;
  }

  [[nodiscard]] std::shared_ptr<PairHub> hub() const override { return handoff_.hub(); }

  bool ask_stats(std::function<void(std::string)> answer) override {
    return handoff_loop_.try_post(
        [this, answer = std::move(answer)] { answer(handoff_.stats_json()); });
  }

  void close_links() override {
    handoff_loop_.call([this] { handoff_.hub()->close_all(); });
  }

  void shut_down() override {
    handoff_loop_.stop();
    handoff_.shut_down();
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

  void tell(std::vector<handoff::PrefillEvent> events) {
    handoff_loop_.post([this, events = std::move(events)] {
      for (const handoff::PrefillEvent& event : events)
        handoff_.feed(event);
    });
  }

  /// Waits until the hand-off knows: what has nothing in flight has ended when this returns, and
  /// may come again at once.
  void cancel(const std::vector<handoff::SendKey>& keys, const Status& why) {
    if (keys.empty()) return;
    handoff_loop_.call([&] {
      for (const handoff::SendKey& key : keys)
        handoff_.feed(handoff::CancelSend{key, why});
    });
    release_ended();
  }

  /// Hand-off thread. Not through the inbox, whose tasks would come behind the ones that are there
  /// already, and which may be full.
  void note_ended(std::vector<EndedSend>&& ended) {
    {
      const std::lock_guard lock(ended_mutex_);
      ended_.insert(ended_.end(),
                    std::make_move_iterator(ended.begin()),
                    std::make_move_iterator(ended.end()));
    }
    loop_->inbox()->wake();
  }

  void release_ended() {
    std::vector<EndedSend> ended;
    {
      const std::lock_guard lock(ended_mutex_);
      ended.swap(ended_);
    }
    for (const EndedSend& send : ended)
      end(send.key, send.status);
  }

  /// Two pools can wait for each other: decode keeps room for a prompt that finds none here, while
  /// computed prompts that decode has no room for fill this pool. (Requests of two routers, or lpm
  /// scheduling, reach the two workers in different orders.) When that has lasted, the youngest
  /// such prompt gives its pages back; decode hears why when it asks for it, and the router tries
  /// again.
  void give_way(Time now) {
    const auto any = [this](auto is) {
      return std::ranges::any_of(outgoing_, [&](const auto& each) { return is(each.second); });
    };
    const bool computing = any([](const Outgoing& o) { return o.started && !o.said; });
    // Nobody to give way to, or nobody who could: the hand-off need not be asked.
    if (computing || !any([](const Outgoing& o) { return o.said; }) ||
        !any([](const Outgoing& o) { return !o.started; })) {
      stuck_since_.reset();
      return;
    }
    std::set<handoff::SendKey> granted;
    handoff_loop_.call([&] {
      for (const auto& [id, outgoing] : outgoing_) {
        if (handoff_.has_grant(outgoing.key)) granted.insert(outgoing.key);
      }
    });
    Outgoing* youngest = nullptr;
    bool starving = false;
    for (auto& [id, outgoing] : outgoing_) {
      const bool has_grant = granted.contains(outgoing.key);
      // Something moves: pages of a computed prompt are on their way.
      if (outgoing.started && has_grant) {
        stuck_since_.reset();
        return;
      }
      starving = starving || (has_grant && !outgoing.started);
      if (outgoing.said && (youngest == nullptr || outgoing.number > youngest->number))
        youngest = &outgoing;
    }
    if (!starving) {
      stuck_since_.reset();
      return;
    }
    if (!stuck_since_) stuck_since_ = now;
    if (now - *stuck_since_ < options_.give_way_after) return;
    stuck_since_.reset();
    obs::info("prompt_gave_way", {{"room", youngest->key.request_id}});
    cancel({youngest->key},
           unavailable("the prefill worker needed the pages of this prompt for one that the decode "
                       "worker had room for"));
  }

  // The engine's observer: inside its step, which may not be called back then. after_step() tells
  // the hand-off.

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
      // The output ends here: decode is told by the router, and quietly by the cancel. It needs
      // none of what this step has computed.
      std::erase_if(heard_, [&](const handoff::PrefillEvent& heard) {
        const auto* chunk = std::get_if<handoff::ChunkReady>(&heard);
        return chunk != nullptr && chunk->key == outgoing.key;
      });
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
  std::map<core::RequestId, Outgoing> outgoing_;
  std::map<handoff::SendKey, core::RequestId> by_key_;
  std::vector<handoff::PrefillEvent> heard_;
  std::uint64_t submitted_count_ = 0;
  Time next_look_;
  std::optional<Time> stuck_since_;
  // Guards ended_ between the hand-off's thread, which fills it, and the engine's.
  std::mutex ended_mutex_;
  std::vector<EndedSend> ended_;
  PrefillHandoff handoff_;
  TaskLoop handoff_loop_;  // last: its thread uses the rest
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
