// HTTP/1.1 server: one port for HTTP and, when asked, for connections that open with the HTTP/2
// preface (gRPC), which are handed over untouched.
#pragma once

#include "common/async/io_pool.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/http/message.h"
#include "common/http/parser.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::http {

/// Writes the response of one request. Any thread; calls of one response must not overlap. Either
/// send() once, or start_stream(), write()*, end(). Calls after the end, or after the client has
/// gone, do nothing. Destroyed without a response: 500 is sent; in mid-stream: the connection is
/// closed without the terminator, so that the client sees the cut.
class ResponseWriter {
 public:
  ResponseWriter() = default;
  virtual ~ResponseWriter() = default;
  ResponseWriter(const ResponseWriter&) = delete;
  ResponseWriter& operator=(const ResponseWriter&) = delete;

  /// The whole response. content-length, date and connection are added.
  virtual void send(int status, Headers headers, std::string body) = 0;

  /// Begins a response of unknown length (chunked; for HTTP/1.0 ended by closing).
  virtual void start_stream(int status, Headers headers) = 0;
  /// Sends bytes. Everything queued while a write is under way leaves in one system call. False
  /// when more than ServerOptions::write_ahead_bytes wait for a slow reader: what can wait should
  /// come after on_drained(). Bytes that come though more than write_buffer_bytes wait already
  /// close the connection.
  virtual bool write(std::string_view bytes) = 0;
  /// `callback` runs at most once, as a post()ed task does, when nothing of the stream waits for
  /// the reader any more; it is dropped with the stream. One at a time: a later one replaces it.
  virtual void on_drained(std::function<void()> callback) = 0;
  /// Ends the stream; `last` and the terminator leave in the same write.
  virtual void end(std::string_view last = {}) = 0;
  /// Closes the connection without a terminator: the response is broken and the client must see it.
  /// `last` is still sent.
  virtual void fail(std::string_view last = {}) = 0;

  /// `callback` runs at most once, on an I/O thread, when the client goes away (FIN or RST), reads
  /// too slowly, or the server stops, before the response is complete. At once (but never inside
  /// this call) when that has happened already.
  virtual void on_disconnect(std::function<void()> callback) = 0;

  /// Runs `task` on the strand of the connection, in the order posted and never beside
  /// on_disconnect's callback or another task of the same connection; also after the client has
  /// gone. Any thread; never runs it inside the call. The task may hold the last reference to
  /// this writer: nothing of it is touched once the task is handed over.
  virtual void post(std::function<void()> task) = 0;

  /// Whether this thread is on that strand now. A handler is, unless its request is a large one
  /// (ServerOptions::large_body_bytes).
  [[nodiscard]] virtual bool is_on_strand() const = 0;
};

using Handler = std::function<void(Request&&, std::shared_ptr<ResponseWriter>)>;

struct ServerOptions {
  Limits limits;
  std::size_t max_connections = 4096;
  std::size_t write_ahead_bytes = 64 * 1024;
  std::size_t write_buffer_bytes = 4 * 1024 * 1024;
  /// A request with a longer body is handled on threads of its own (made when the first one comes),
  /// so that what it takes, the tokens of megabytes of text say, holds up no other connection and
  /// nothing else that runs on the pool.
  std::size_t large_body_bytes = 64 * 1024;
  int large_threads = 1;
  Duration header_timeout = seconds(10);  ///< from the first byte of a request to its empty line
  Duration body_timeout = seconds(60);
  Duration idle_timeout = seconds(75);   ///< between requests, and before the first byte
  Duration write_timeout = seconds(30);  ///< without any progress of a write
  /// Looks at a request before its body is read; a response refuses it (401, 404, ...). I/O thread.
  std::function<std::optional<Response>(const Request&)> admit;
  /// Body of responses that this room makes itself (parse errors); default error_json().
  std::function<std::string(int status, std::string_view message)> error_body;
  /// Takes ownership of a connected, non-blocking socket whose peer began with the HTTP/2 preface;
  /// nothing has been read from it. Without it such connections get 505. I/O thread.
  std::function<void(int fd)> on_http2;
  /// The flag that a complaint about the address names.
  std::string port_flag = "--port";
};

class Server {
 public:
  /// `pool` must outlive the server. `handler` runs on the strands of connections, or on threads of
  /// large requests (ResponseWriter::is_on_strand), concurrently for different connections, one
  /// request at a time for one connection.
  Server(async::IoPool& pool, ServerOptions options, Handler handler);
  /// stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Binds and accepts. `port` 0 lets the system choose. Returns the port. Errors name the flag and
  /// the address: already_exists (in use), permission_denied, invalid_argument (no such address).
  Result<std::uint16_t> listen(const std::string& host, std::uint16_t port);

  /// Stops accepting, closes idle connections, lets running responses end (with `connection:
  /// close`) until `timeout`, then closes the rest. Waits; not from an I/O thread.
  void drain(Duration timeout);
  /// drain() without patience.
  void stop();

  /// Open connections, those given to on_http2 not counted.
  [[nodiscard]] std::size_t connection_count() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace tandem::http
