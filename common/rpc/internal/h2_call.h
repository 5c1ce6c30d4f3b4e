// One gRPC call on one HTTP/2 connection of its own, read on the threads of an I/O pool and written
// by whoever sends. For the session streams, which carry every request and every token: gRPC's own
// client would hand each message from thread to thread.
//
// HTTP/2 is libnghttp2's; on top of it is "gRPC over HTTP2" of gRPC's documents, for unchanged gRPC
// servers: no TLS, no compression, no server push.
#pragma once

#include "common/async/io_pool.h"
#include "common/base/status.h"
#include "common/rpc/session_client.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

struct nghttp2_session;

namespace google::protobuf {
class MessageLite;
}

namespace tandem::rpc::internal {

class H2Call;

/// Callbacks come on the pool's threads, one at a time; the next message is read when a callback
/// has returned.
class H2CallHandler {
 public:
  virtual ~H2CallHandler() = default;
  /// One message, valid during the call. An error ends the call with it.
  virtual Status on_message(H2Call& call, std::string_view bytes) = 0;
  /// Last, exactly once, unless the pool stops before.
  virtual void on_ended(const Status& status) = 0;
};

/// Methods: any thread, none waits. Held by its user and by what it waits for; the pool outlives
/// it.
class H2Call : public std::enable_shared_from_this<H2Call> {
 public:
  /// A call of `path` ("/package.Service/Method") that waits for start(); what is sent before is
  /// sent first. kInvalidArgument: the address.
  static Result<std::shared_ptr<H2Call>> make(const ClientOptions& options,
                                              std::string path,
                                              async::IoPool& pool,
                                              std::shared_ptr<H2CallHandler> handler);

  /// For make().
  H2Call(const ClientOptions& options,
         std::string path,
         async::IoPool& pool,
         std::shared_ptr<H2CallHandler> handler);

  /// Connects. Once.
  void start();
  /// In order. kUnavailable: the call is over or being ended; kResourceExhausted: the peer reads
  /// too slowly, and the call ends with that.
  Status send(const google::protobuf::MessageLite& message);
  /// The bytes of a message.
  Status send(std::string_view message);
  /// Says that nothing more comes, after what waits. The call ends when the peer says so.
  void finish();
  /// Ends the call now. The first reason given is the one that counts.
  void cancel(const Status& why);

 private:
  using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;
  using Resolver = boost::asio::ip::basic_resolver<boost::asio::ip::tcp, Strand>;
  using Timer =
      boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                        boost::asio::wait_traits<std::chrono::steady_clock>,
                                        Strand>;

  struct Callbacks;

  struct FreeSession {
    void operator()(nghttp2_session* session) const;
  };

  // On the strand.
  void connect();
  void connect_to(const Resolver::results_type& endpoints);
  void on_connected();
  void wait_for_greeting();
  void keep_alive();
  void read();
  void on_read(std::size_t bytes);
  Status take_messages();
  void wait_to_write();
  void end(const Status& remote);

  // With mutex_ held.
  Result<char*> make_room(std::size_t bytes);
  void on_queued();
  Status begin();
  Status take_bytes(std::size_t bytes);
  [[nodiscard]] Status status_of_headers() const;
  bool pull();
  void write();
  void write_soon();
  Status refuse_slow_peer(std::size_t bytes);

  const ClientOptions options_;
  const std::string path_;
  const Strand strand_;

  // The strand's own.
  std::string authority_;
  std::string host_;
  std::string port_;
  Resolver resolver_;
  Timer greeting_;
  Timer keepalive_;
  std::shared_ptr<H2CallHandler> handler_;
  std::unique_ptr<std::array<char, 64 << 10>> in_;
  bool greeted_ = false;
  int silent_ticks_ = 0;  // of keepalive_, since something was read

  // Nothing that is read matters any more.
  std::atomic<bool> stopped_{false};

  // Guards the members below and writing to the socket: senders are many, and handing what they
  // send to another thread would cost a wake-up each.
  std::mutex mutex_;
  Socket socket_;         // the descriptor is closed with the lock held; all else is the strand's
  bool open_ = false;     // connected, and the call's header is on its way
  bool waiting_ = false;  // for room in the socket
  bool put_off_ = false;  // a pool thread writes in a moment
  Time write_by_;         // while put_off_: then whoever sends does not wait for that thread
  int lone_writes_ = 0;   // in a row: put off, and nothing came along
  bool closing_ = false;  // nothing more may be sent
  bool ended_ = false;
  bool finish_wanted_ = false;
  std::optional<Status> local_;
  std::optional<Status> remote_;                           // what the peer ended the call with
  std::unique_ptr<nghttp2_session, FreeSession> session_;  // from begin() on
  std::int32_t stream_ = 0;
  std::string outbox_;  // messages, of which the first outbox_done_ bytes are in frames
  std::size_t outbox_done_ = 0;
  bool asleep_ = false;  // the session found the outbox empty, and has to be told when it is not
  std::string out_;      // whole frames, of which the first out_done_ bytes are gone
  std::size_t out_done_ = 0;
  std::string arrived_;  // messages from the peer: while it is read, only the strand's
  std::string wrong_;    // what is wrong with the peer's HTTP/2
  std::optional<int> http_status_;
  std::optional<int> grpc_status_;
  std::string grpc_message_;
};

}  // namespace tandem::rpc::internal
