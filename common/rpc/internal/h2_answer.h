// The end of an H2Stream that answers, for callers that begin with kSessionMark; everybody else's
// connections are gRPC's own server's. gRPC's server hands each message from the thread that reads
// to one that calls back, and each answer on to one that writes; here the pool's thread that reads
// a request hands it on, and a step is written by the thread that made it, unless steps come so
// fast that they had better go together.
#pragma once

#include "common/rpc/internal/h2_stream.h"
#include "common/rpc/internal/outbox.h"
#include "common/rpc/internal/stream.h"

#include <boost/asio/post.hpp>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace tandem::rpc::internal {

/// Of stream sockets.
bool is_tcp(int fd);
/// Whether what can be read of `fd` now begins as kSessionMark says. Reads nothing.
bool begins_with_session_mark(int fd);

class H2Answer;

/// The answers of one service that are under way: holds them, bounds them, ends them.
class AnswerSet {
 public:
  explicit AnswerSet(std::size_t count_max) : count_max_(count_max) {}

  /// False: too many, or the set was ended.
  bool add(const std::shared_ptr<H2Answer>& answer);
  void remove(const std::shared_ptr<H2Answer>& answer);
  /// No new ones; lets go of connections without a call, waits `grace` for the rest, cancels it,
  /// and waits until it is gone, for five seconds if the pool has no threads any more. Not on a
  /// thread of the pool.
  void end_all(Duration grace);

 private:
  const std::size_t count_max_;
  // Guards a small set between the pool's threads and whoever ends it.
  std::mutex mutex_;
  std::condition_variable removed_;
  bool ended_ = false;
  std::unordered_set<std::shared_ptr<H2Answer>> answers_;
};

/// One connection and its one call, without the types of its messages.
class H2Answer : public H2Stream {
 public:
  /// `path`: of the only method there is.
  H2Answer(const Limits& limits, std::string path, async::IoPool& pool);

  /// Takes over a connected TCP socket of which nothing was read. Once.
  void start(int fd);
  /// Ends a connection on which nobody has called. Any thread.
  void leave_if_idle();

 protected:
  // On the strand.
  /// Somebody calls. An error is the call's end, and its answer.
  virtual Status on_call(std::string_view authorization) = 0;
  /// The caller has nothing more to say.
  virtual void on_half_close() = 0;

  /// Ends the call with `status`, behind what was sent; where the caller may never take that, not
  /// for long. Any thread.
  void finish(const Status& status, bool for_long);

  /// Whether all of the answer went out, its status too.
  [[nodiscard]] bool is_finished() const { return all_sent_; }

  // Who overrides these calls them.
  void on_all_sent() override;
  void on_end(const Status& status) override;

 private:
  void before_messages() override;
  void after_messages() override;
  Status begin() override;
  void on_header(std::int32_t stream, std::string_view name, std::string_view value) override;
  void on_frame(const nghttp2_frame& frame) override;
  void on_stream_closed(std::int32_t stream, std::uint32_t error) override;
  void on_last_data(std::uint32_t* flags) override;

  void answer();
  void end_within(Duration time);
  [[nodiscard]] Status check_call() const;

  const std::string path_;

  // The strand's own; the headers are read with mutex_ held, on it.
  Timer patience_;
  std::string method_;
  std::string called_path_;
  std::string content_type_;
  std::string authorization_;
  bool called_ = false;    // the call's headers are there
  bool answered_ = false;  // on_call() was asked
  bool half_closed_ = false;
  bool half_close_told_ = false;
  bool all_sent_ = false;
  bool hurried_ = false;  // what patience_ waits for is the end of the connection

  // Guarded by mutex_.
  bool begun_ = false;           // the answer's headers are on their way
  std::optional<Status> final_;  // once finish() was called
};

/// A call of In messages that StreamPeer answers with Out.
///
/// The set holds it until nothing more can be sent and the peer's outbox has started its last
/// operation, whichever comes last (outbox.h); then the peer hears ended().
template <class In, class Out>
class H2Bidi final : public H2Answer, public StreamOps<Out> {
 public:
  using Peer = StreamPeer<In, Out>;
  /// Who answers, or why nobody does.
  using Open = std::function<Result<std::shared_ptr<Peer>>(std::string_view authorization)>;

  H2Bidi(const Limits& limits,
         std::string path,
         async::IoPool& pool,
         Open open,
         std::shared_ptr<AnswerSet> set)
      : H2Answer(limits, std::move(path), pool), open_(std::move(open)), set_(std::move(set)) {}

  // StreamOps. Any thread.
  void start_write(const Out* message) override {
    writing_.store(true);
    const bool sent = this->send(*message).ok();
    if ((!sent || this->has_room()) && writing_.exchange(false)) peer_->outbox().write_done(sent);
  }

  void start_finish(const Status& status, bool broken) override {
    // What was being written then, if anything, was cut off by cancel_now().
    this->finish(status, /*for_long=*/!broken);
    one_of_two_is_over();
  }

  void cancel_now(bool writing) override {
    // With nothing in flight start_finish comes at once, and its status reaches the caller.
    if (writing) this->cancel(cancelled("the stream was cancelled"));
  }

 private:
  Status on_call(std::string_view authorization) override {
    TANDEM_TRY(peer_, open_(authorization));
    peer_->outbox().attach(this);
    // It may have been closed before.
    peer_->outbox().credit(0);
    return {};
  }

  Status on_message(std::string_view bytes) override {
    if (!peer_) return {};  // refused
    if (!in_.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
      return internal_error("session: a message that cannot be read");
    peer_->received(std::move(in_));
    in_.Clear();
    return {};
  }

  void on_half_close() override {
    if (peer_) peer_->outbox().close(ok_status());
  }

  /// Nothing more is read, so the connection ends for its silence, if not before.
  void on_wrong_message(const Status& why) override {
    peer_ ? peer_->outbox().close(why) : this->cancel(why);
  }

  void on_room() override {
    if (writing_.exchange(false)) peer_->outbox().write_done(true);
  }

  void on_all_sent() override {
    H2Answer::on_all_sent();
    on_over();
  }

  void on_end(const Status& status) override {
    H2Answer::on_end(status);
    on_over();
  }

  /// Nothing of the call goes out any more. The connection may still wait for the caller to close.
  void on_over() {
    if (std::exchange(over_, true)) return;
    if (!peer_) return gone();
    peer_->outbox().broken();
    if (writing_.exchange(false)) peer_->outbox().write_done(false);
    one_of_two_is_over();
  }

  void one_of_two_is_over() {
    const auto self = this->shared_from_this();
    if (left_.fetch_sub(1) != 1) return;
    boost::asio::post(this->strand_, [self, this] {
      const std::optional<Status> local = peer_->outbox().detach();
      const Status remote =
          this->is_finished() ? Status() : cancelled("the peer ended or lost the stream");
      const std::shared_ptr<Peer> peer = std::move(peer_);
      peer->ended(final_status(local, remote));
      gone();
    });
  }

  void gone() { set_->remove(this->template share<H2Answer>(this)); }

  const Open open_;
  const std::shared_ptr<AnswerSet> set_;
  std::shared_ptr<Peer> peer_;  // from on_call() until it has ended
  bool over_ = false;           // the strand's own
  std::atomic<bool> writing_{false};
  std::atomic<int> left_{2};
  In in_;
};

}  // namespace tandem::rpc::internal
