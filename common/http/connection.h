// One accepted connection: reads requests, hands them to the handler one at a time, writes what the
// handler's ResponseWriter queues. Private to room http.
#pragma once

#include "common/async/io_pool.h"
#include "common/http/server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace tandem::http {

class Connection;
class Exchange;

using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;
using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

/// Connections for which somebody outside has left tasks. One wake-up of a pool thread serves all
/// of them: a step of an engine brings a token for each of many streams.
///
/// An object of its own, which holds nothing of the server's: whoever leaves a task may be the last
/// to hold it.
class ReadyQueue : public std::enable_shared_from_this<ReadyQueue> {
 public:
  explicit ReadyQueue(boost::asio::io_context::executor_type executor)
      : executor_(std::move(executor)) {}

  /// Any thread. Keeps no reference in the caller's hands.
  void add(std::shared_ptr<Connection>&& connection);
  /// Lets go of all that wait.
  void clear();

 private:
  void run();

  boost::asio::io_context::executor_type executor_;
  // Guards the members below, between threads of a Generator and those of the pool.
  std::mutex mutex_;
  std::vector<std::shared_ptr<Connection>> waiting_;
  bool posted_ = false;
};

/// What all connections of a server share. Outlives each of them (shared by them and the server).
struct ServerCore {
  explicit ServerCore(boost::asio::io_context::executor_type executor)
      : ready(std::make_shared<ReadyQueue>(std::move(executor))) {}

  std::shared_ptr<ReadyQueue> ready;
  ServerOptions options;
  Handler handler;
  std::atomic<bool> draining{false};

  /// Runs `task` on a thread for large requests. False, and `task` is untouched, while the server
  /// ends. Any thread.
  bool run_large(std::function<void()>&& task);

  // Guards `connections` and `large`, which strands of all connections and the server's owner
  // change.
  std::mutex mutex;
  std::unique_ptr<async::IoPool> large;  ///< taken out, and ended, by the server's owner
  std::condition_variable empty;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> connections;

  [[nodiscard]] std::string error_body(int status, std::string_view message) const;
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<ServerCore> core, Socket socket, std::string remote_address);
  ~Connection();

  /// Any thread.
  void start();
  /// Closes when idle; else the current response is the last one. Any thread.
  void drain();
  /// Any thread.
  void close_now();
  /// Once the pool has stopped: what was left for it goes, and what comes is dropped.
  void discard_tasks();

 private:
  friend class Exchange;
  friend class ReadyQueue;

  enum class Phase {
    kPeek,
    kHead,
    kBody,
    kHandling,
    kLinger,
    kClosed
  };

  // On the strand.
  void begin();
  void peek();
  void hand_over();
  void read();
  void on_read(std::size_t bytes);
  void process();
  bool process_head();
  bool process_body();
  void dispatch();
  [[gnu::cold]] void refuse(int status, std::string_view message);
  [[gnu::cold]] void respond(Response response);
  void on_response_done(bool closes);
  [[gnu::cold]] void linger();
  void flush();
  void wait_to_write();
  void write_more(const boost::system::error_code& error, std::size_t bytes);
  void on_written();
  [[nodiscard]] bool answer_is_complete();
  [[gnu::cold]] void disconnected();
  [[gnu::cold]] void cut_off(std::string_view why);
  [[gnu::cold]] void close();
  void arm(Duration timeout);

  void disarm() { deadline_at_.reset(); }

  void wait_for_deadline();
  /// Bytes that the socket took and the peer did not yet.
  std::size_t bytes_in_socket();
  void arm_write();
  void wait_for_write_deadline();
  void on_deadline();

  void run_tasks();

  // Any thread; called with out_mutex_ held.
  void schedule_flush();

  std::shared_ptr<ServerCore> core_;
  std::shared_ptr<ReadyQueue> ready_;
  Socket socket_;
  std::string remote_address_;
  boost::asio::steady_timer deadline_;
  boost::asio::steady_timer write_deadline_;
  // Deadlines move with every request, timers hardly ever: one that fires early looks again.
  std::optional<std::chrono::steady_clock::time_point> deadline_at_;
  std::chrono::steady_clock::time_point write_deadline_at_;
  std::size_t bytes_in_socket_ = 0;  ///< when the write deadline was set
  bool deadline_pending_ = false;
  bool write_deadline_pending_ = false;

  Phase phase_ = Phase::kPeek;
  bool reading_ = false;
  bool peer_closed_ = false;
  std::array<char, 16 * 1024> chunk_{};
  std::string in_;
  std::size_t head_scanned_ = 0;
  std::size_t lingered_bytes_ = 0;
  Request request_;
  Framing framing_;
  std::unique_ptr<ChunkedDecoder> chunked_;
  std::weak_ptr<Exchange> exchange_;

  // Guards the members below: the handler's threads append, the strand takes. A channel of values
  // would cost one post per write and could not put what is queued meanwhile into one system call.
  std::mutex out_mutex_;
  std::string pending_;
  std::size_t inflight_bytes_ = 0;
  bool flush_scheduled_ = false;
  bool response_complete_ = false;  ///< all bytes of the current response are in pending_ or sent
  bool close_after_ = false;        ///< the connection ends with the current response
  bool abandon_ = false;            ///< nothing more can be sent
  bool overflow_ = false;           ///< the reader is too slow
  std::function<void()> on_drained_;
  std::vector<std::function<void()>> tasks_;  ///< of post(), in order
  bool tasks_scheduled_ = false;              ///< they are on their way to the strand
  bool running_tasks_ = false;                ///< a flush follows when they are done
  bool tasks_dropped_ = false;

  // The strand's own: bytes of the write under way.
  std::string inflight_;
  std::size_t written_ = 0;
  bool writing_ = false;
};

/// The ResponseWriter of one request.
class Exchange final : public ResponseWriter {
 public:
  Exchange(std::shared_ptr<Connection> connection, bool head_only, bool chunked, bool keep_alive);
  ~Exchange() override;

  void send(int status, Headers headers, std::string body) override;
  void start_stream(int status, Headers headers) override;
  bool write(std::string_view bytes) override;
  void on_drained(std::function<void()> callback) override;
  void end(std::string_view last) override;
  void fail(std::string_view last) override;
  void on_disconnect(std::function<void()> callback) override;
  void post(std::function<void()> task) override;
  [[nodiscard]] bool is_on_strand() const override;

  /// The client has gone before the response was complete. On the strand.
  void client_gone();

 private:
  enum class State {
    kFresh,
    kStreaming,
    kDone
  };

  void append_chunk(std::string_view bytes);
  void append_head(int status, const Headers& headers, std::optional<std::size_t> length);
  void finish();

  std::shared_ptr<Connection> connection_;
  const bool head_only_;
  const bool chunked_;
  const bool keep_alive_;

  // The connection's out_mutex_ guards these too.
  State state_ = State::kFresh;
  bool gone_ = false;
  std::function<void()> on_disconnect_;
};

}  // namespace tandem::http
