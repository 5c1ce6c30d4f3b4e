#include "common/async/strand.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include <chrono>
#include <cstdint>
#include <utility>

namespace tandem::async {

using AsioStrand = boost::asio::strand<boost::asio::io_context::executor_type>;

struct Strand::State {
  explicit State(IoPool& pool) : strand(boost::asio::make_strand(pool.context())) {}

  AsioStrand strand;
};

Strand::Strand(IoPool& pool) : state_(std::make_shared<State>(pool)) {}

void Strand::post(std::function<void()> task) const {
  boost::asio::post(state_->strand, std::move(task));
}

bool Strand::running_here() const {
  return state_->strand.running_in_this_thread();
}

struct Timer::State {
  explicit State(const AsioStrand& executor) : timer(executor) {}

  boost::asio::steady_timer timer;
  std::uint64_t generation = 0;  // An expiry that was queued before a cancel finds it changed.
};

Timer::Timer(const Strand& strand) : state_(std::make_shared<State>(strand.state_->strand)) {}

Timer::~Timer() {
  cancel();
}

void Timer::start(Duration delay, std::function<void()> task) {
  state_->timer.expires_after(std::chrono::nanoseconds(delay.ns < 0 ? 0 : delay.ns));
  const std::uint64_t generation = ++state_->generation;
  state_->timer.async_wait(
      [state = state_, generation, task = std::move(task)](boost::system::error_code error) {
        if (!error && state->generation == generation) task();
      });
}

void Timer::cancel() {
  ++state_->generation;
  state_->timer.cancel();
}

}  // namespace tandem::async
