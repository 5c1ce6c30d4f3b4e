#include "common/async/io_pool.h"

#include "common/base/check.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <pthread.h>

#include <exception>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tandem::async {

struct IoPool::State {
  explicit State(int thread_count) : context(thread_count), guard(context.get_executor()) {}

  boost::asio::io_context context;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard;
  std::vector<std::thread> threads;
};

namespace {

// Handlers of this project do not throw; one that does has broken an invariant.
void run(boost::asio::io_context& context) {
  try {
    context.run();
  } catch (const std::exception& error) {
    TANDEM_CHECK(false, std::string_view(error.what()));
  }
}

}  // namespace

IoPool::IoPool(int thread_count, const std::string& name)
    : state_(std::make_unique<State>(thread_count)) {
  TANDEM_CHECK(thread_count > 0, "IoPool needs at least one thread");
  state_->threads.reserve(static_cast<std::size_t>(thread_count));
  for (int i = 0; i < thread_count; ++i) {
    state_->threads.emplace_back([this] { run(state_->context); });
    const std::string thread_name = name.substr(0, 11) + "-" + std::to_string(i);
    pthread_setname_np(state_->threads.back().native_handle(), thread_name.c_str());
  }
}

IoPool::~IoPool() {
  stop();
}

void IoPool::post(std::function<void()> task) {
  boost::asio::post(state_->context, std::move(task));
}

void IoPool::stop() {
  state_->guard.reset();
  state_->context.stop();
  for (std::thread& thread : state_->threads) {
    TANDEM_CHECK(thread.get_id() != std::this_thread::get_id(), "IoPool stopped from its thread");
    if (thread.joinable()) thread.join();
  }
  state_->threads.clear();
}

boost::asio::io_context& IoPool::context() {
  return state_->context;
}

}  // namespace tandem::async
