#include "bench/serve/load.h"

#include "common/base/clock.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

namespace tandem::bench {

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using Endpoints = tcp::resolver::results_type;

double now_s() {
  return static_cast<double>(steady_clock().now().ns) * 1e-9;
}

std::chrono::nanoseconds to_chrono(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

std::string head_of(const Options& options) {
  const bool v6 = options.host.find(':') != std::string::npos;
  std::string head = "POST " + options.path_prefix +
                     (options.endpoint.empty() ? route_of(options.api) : options.endpoint) +
                     " HTTP/1.1\r\nhost: " + (v6 ? "[" + options.host + "]" : options.host) + ":" +
                     std::to_string(options.port) + "\r\ncontent-type: application/json\r\n";
  for (const auto& [name, value] : options.headers)
    head.append(name).append(": ").append(value).append("\r\n");
  return head;
}

class Run;

/// One request from its sending to its outcome.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(Run& run, std::size_t index);
  void start(std::unique_ptr<tcp::socket> kept);

 private:
  void connect();
  void send();
  void read();
  void on_read(const error_code& error, std::size_t bytes);
  /// A kept connection that the server has closed meanwhile: once more, on a fresh one.
  bool retry();
  void end(Outcome outcome);
  void fail(const std::string& why);

  Run& run_;
  std::size_t index_;
  double started_s_;
  bool reused_ = false;
  bool over_ = false;
  bool answered_ = false;
  std::unique_ptr<tcp::socket> socket_;
  boost::asio::steady_timer deadline_;
  std::string message_;
  std::optional<AnswerReader> reader_;
  std::array<char, 64 * 1024> chunk_{};
};

class Run {
 public:
  Run(const Options& options,
      const std::vector<std::string>& bodies,
      const std::vector<double>& due_s)
      : options_(options),
        bodies_(bodies),
        due_s_(due_s),
        head_(head_of(options)),
        timer_(context_),
        limit_(options.max_concurrency.value_or(std::numeric_limits<std::size_t>::max())) {
    result_.outcomes.resize(bodies.size());
  }

  Result<LoadResult> go() {
    tcp::resolver resolver(context_);
    error_code error;
    endpoints_ = resolver.resolve(options_.host, std::to_string(options_.port), error);
    if (error) return unavailable("cannot resolve " + options_.host + ": " + error.message());
    began_s_ = now_s();
    launch();
    context_.run();
    result_.duration_s = ended_s_ - began_s_;
    return std::move(result_);
  }

  void launch() {
    while (next_ < bodies_.size() && running_ < limit_) {
      const double wait = began_s_ + due_s_[next_] - now_s();
      if (wait > 0) {
        timer_.expires_after(to_chrono(wait));
        timer_.async_wait([this](const error_code& error) {
          if (!error) launch();
        });
        return;
      }
      std::unique_ptr<tcp::socket> kept;
      if (!idle_.empty()) {
        kept = std::move(idle_.back());
        idle_.pop_back();
      }
      ++running_;
      std::make_shared<Call>(*this, next_++)->start(std::move(kept));
    }
  }

  void done(std::size_t index, Outcome outcome, std::unique_ptr<tcp::socket> reusable) {
    result_.outcomes[index] = std::move(outcome);
    if (reusable) idle_.push_back(std::move(reusable));
    ended_s_ = now_s();
    --running_;
    launch();
  }

 private:
  friend class Call;

  const Options& options_;
  const std::vector<std::string>& bodies_;
  const std::vector<double>& due_s_;
  const std::string head_;
  boost::asio::io_context context_{1};
  Endpoints endpoints_;
  boost::asio::steady_timer timer_;
  std::size_t limit_;
  std::size_t next_ = 0;
  std::size_t running_ = 0;
  double began_s_ = 0;
  double ended_s_ = 0;
  std::vector<std::unique_ptr<tcp::socket>> idle_;
  LoadResult result_;
};

Call::Call(Run& run, std::size_t index)
    : run_(run), index_(index), started_s_(now_s()), deadline_(run.context_) {}

void Call::start(std::unique_ptr<tcp::socket> kept) {
  const std::string& body = run_.bodies_[index_];
  message_ = run_.head_;
  if (const std::string& prefix = run_.options_.request_id_prefix; !prefix.empty())
    message_ += "x-request-id: " + prefix + std::to_string(index_) + "\r\n";
  message_ += "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  deadline_.expires_after(to_chrono(run_.options_.timeout_s));
  deadline_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) self->fail("no answer within --timeout");
  });
  socket_ = std::move(kept);
  reused_ = socket_ != nullptr;
  reused_ ? send() : connect();
}

void Call::connect() {
  socket_ = std::make_unique<tcp::socket>(run_.context_);
  boost::asio::async_connect(
      *socket_, run_.endpoints_, [self = shared_from_this()](error_code error, const auto&) {
        if (self->over_) return;
        if (error) return self->fail("cannot connect: " + error.message());
        self->socket_->set_option(tcp::no_delay(true), error);
        self->send();
      });
}

void Call::send() {
  reader_.emplace(run_.options_.api, run_.options_.stream, started_s_);
  boost::asio::async_write(
      *socket_, boost::asio::buffer(message_), [self = shared_from_this()](error_code error, auto) {
        if (self->over_) return;
        if (error && !self->retry()) return self->fail("cannot send: " + error.message());
        if (!error) self->read();
      });
}

void Call::read() {
  socket_->async_read_some(boost::asio::buffer(chunk_),
                           [self = shared_from_this()](error_code error, std::size_t bytes) {
                             if (!self->over_) self->on_read(error, bytes);
                           });
}

void Call::on_read(const error_code& error, std::size_t bytes) {
  if (error) {
    if (!answered_ && retry()) return;
    reader_->end_of_input(now_s());
  } else {
    answered_ = true;
    reader_->feed({chunk_.data(), bytes}, now_s());
  }
  if (!reader_->done()) return read();
  if (error || !reader_->keep_alive()) socket_.reset();
  end(reader_->outcome());
}

bool Call::retry() {
  if (!reused_) return false;
  reused_ = false;
  connect();
  return true;
}

void Call::end(Outcome outcome) {
  over_ = true;
  deadline_.cancel();
  run_.done(index_, std::move(outcome), std::move(socket_));
}

void Call::fail(const std::string& why) {
  if (over_) return;
  Outcome outcome;
  outcome.error = why;
  error_code ignored;
  if (socket_) socket_->close(ignored);
  socket_.reset();
  end(std::move(outcome));
}

}  // namespace

Result<LoadResult> run_load(const Options& options,
                            const std::vector<std::string>& bodies,
                            const std::vector<double>& due_s) {
  return Run(options, bodies, due_s).go();
}

}  // namespace tandem::bench
