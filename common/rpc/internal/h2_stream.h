// One gRPC call on one HTTP/2 connection of its own, whichever end of it: read on the threads of an
// I/O pool and written by whoever sends. For the session streams, which carry every request and
// every token: gRPC's own ends hand each message from thread to thread.
//
// HTTP/2 is libnghttp2's; on top of it is "gRPC over HTTP2" of gRPC's documents: no TLS, no
// compression, no server push. h2_call.h is the end that calls, h2_answer.h the one that answers.
#pragma once

#include "common/async/io_pool.h"
#include "common/base/clock.h"
#include "common/base/status.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <nghttp2/nghttp2.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace google::protobuf {
class MessageLite;
}

namespace tandem::rpc::internal {

/// The first of a caller's settings, by which a server of ours knows a session before it has read
/// anything of it (h2_answer.h). Servers ignore settings that they do not know (RFC 9113, 6.5.2);
/// the number is one of those for experiments (RFC 7540, 11.3).
inline constexpr nghttp2_settings_entry kSessionMark = {0xF54B, 1};

/// Methods: any thread, none waits. Held by its user and by what it waits for; the pool outlives
/// it.
class H2Stream : public std::enable_shared_from_this<H2Stream> {
 public:
  struct Limits {
    std::size_t message_bytes_max = 0;
    std::size_t queued_bytes_max = 0;
    Duration keepalive;  ///< a peer that is silent for three of these is gone
  };

  /// `peer`: what the other end is called in messages ("the worker").
  H2Stream(const Limits& limits, std::string peer, async::IoPool& pool);
  virtual ~H2Stream() = default;
  H2Stream(const H2Stream&) = delete;
  H2Stream& operator=(const H2Stream&) = delete;

  /// In order. kUnavailable: the call is over or being ended; kResourceExhausted: the peer reads
  /// too slowly, and the call ends with that.
  Status send(const google::protobuf::MessageLite& message);
  /// The bytes of a message.
  Status send(std::string_view message);
  /// Ends the call now. The first reason given is the one that counts.
  void cancel(const Status& why);
  /// Whether little waits to be written. If not, on_room() comes when it does.
  bool has_room();

 protected:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;
  using Timer =
      boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                        boost::asio::wait_traits<std::chrono::steady_clock>,
                                        Strand>;

  // On the strand, one at a time.
  /// Something was read; the messages in it come next.
  virtual void before_messages() {}

  /// A message, valid during the call; the next one is read when this returns. An error is for
  /// on_wrong_message().
  virtual Status on_message(std::string_view bytes) = 0;

  /// They are taken, and reading goes on.
  virtual void after_messages() {}

  /// Nothing more is read.
  virtual void on_wrong_message(const Status& why) = 0;

  /// See has_room().
  virtual void on_room() {}

  /// The last bytes of the answering end are in the socket.
  virtual void on_all_sent() {}

  /// Last, once, unless the pool stops before.
  virtual void on_end(const Status& status) = 0;

  // Of the session, so with mutex_ held.
  /// What opens the connection, to be written.
  virtual Status begin() = 0;
  virtual void on_header(std::int32_t stream, std::string_view name, std::string_view value) = 0;
  virtual void on_frame(const nghttp2_frame& frame) = 0;
  virtual void on_stream_closed(std::int32_t stream, std::uint32_t error) = 0;
  /// Everything that was sent is in frames, and finish_sending() was called: what comes last.
  virtual void on_last_data(std::uint32_t* flags) = 0;

  /// For what outlives a method of `stream`, of its own type.
  template <class Stream>
  static std::shared_ptr<Stream> share(Stream* stream) {
    return std::static_pointer_cast<Stream>(stream->shared_from_this());
  }

  // On the strand.
  /// The socket is connected.
  void run();
  /// Ends the call, once; what the peer said counts only where nothing was said here before.
  void end(const Status& remote);

  // With mutex_ held.
  /// `answers`: the end that is called. `settings` go before those that both ends have.
  Status make_session(bool answers, std::vector<nghttp2_settings_entry> settings);
  /// A call's body: what send() takes.
  static nghttp2_data_provider body();
  static nghttp2_nv field(std::string_view name, std::string_view value);
  /// Whatever the socket takes now.
  void write();
  /// Nothing more may be sent; on_last_data comes behind what waits.
  void finish_sending();

  const Limits limits_;
  const std::string peer_;
  const Strand strand_;

  // The strand's own.
  std::string where_;  ///< the peer's address where it is known, for messages
  bool greeted_ = false;
  Timer keepalive_;

  // Nothing that is read matters any more.
  std::atomic<bool> stopped_{false};

  // Guards the members below and writing to the socket: senders are many, and handing what they
  // send to another thread would cost a wake-up each.
  std::mutex mutex_;
  Socket socket_;         // the descriptor is closed with the lock held; all else is the strand's
  bool closing_ = false;  // nothing more may be sent
  std::int32_t stream_ = 0;
  std::optional<Status> remote_;  // what the peer ended the call with
  std::string wrong_;             // what is wrong with the peer's HTTP/2

  bool ended_ = false;
  bool last_sent_ = false;  // the answering end's last frame is made

  struct FreeSession {
    void operator()(nghttp2_session* session) const { nghttp2_session_del(session); }
  };

  std::unique_ptr<nghttp2_session, FreeSession> session_;  // from begin() on

 private:
  struct Callbacks;

  /// Little, for has_room().
  static constexpr std::size_t kAheadMax = 64U << 10U;

  // On the strand.
  void keep_alive();
  void read();
  void on_read(std::size_t bytes);
  Status take_messages();
  void wait_to_write();

  // With mutex_ held.
  /// Messages that are not in the socket yet.
  [[nodiscard]] std::size_t held_bytes() const {
    return outbox_.size() - outbox_done_ + out_.size() - out_done_;
  }

  Result<char*> make_room(std::size_t bytes);
  void on_queued();
  Status take_bytes(std::size_t bytes);
  bool pull();
  void write_soon();
  void write_by_pool(Time now);
  [[nodiscard]] bool may_wait(Time now) const;
  Status refuse_slow_peer(std::size_t bytes);

  // The strand's own.
  std::unique_ptr<std::array<char, 64 << 10>> in_;
  int silent_ticks_ = 0;  // of keepalive_, since something was read

  // Guarded by mutex_.
  bool open_ = false;         // connected, and what opens the connection is on its way
  bool waiting_ = false;      // for room in the socket
  bool put_off_ = false;      // a pool thread writes in a moment
  bool pool_writes_ = false;  // the same, for write_by_pool()
  Time wrote_at_;             // when a message was written last
  Time write_by_;             // while either: then whoever sends does not wait for that thread
  int lone_writes_ = 0;       // in a row: put off, and nothing came along
  bool answers_ = false;
  bool finish_wanted_ = false;
  bool room_wanted_ = false;
  std::optional<Status> local_;
  std::string outbox_;  // messages, of which the first outbox_done_ bytes are in frames
  std::size_t outbox_done_ = 0;
  bool asleep_ = false;  // the session found the outbox empty, and has to be told when it is not
  std::string out_;      // whole frames, of which the first out_done_ bytes are gone
  std::size_t out_done_ = 0;
  std::string arrived_;  // messages from the peer: while it is read, only the strand's
};

}  // namespace tandem::rpc::internal
