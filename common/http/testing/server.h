// For tests only: a server on a port of the system's choice, and a handler that keeps its writers.
#pragma once

#include "common/async/io_pool.h"
#include "common/http/server.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tandem::http {

// A server on a port of the system's choice, with the handler under test.
struct Fixture {
  explicit Fixture(Handler handler, ServerOptions options = {})
      : server(pool, std::move(options), std::move(handler)) {
    port = server.listen("127.0.0.1", 0).value();
  }

  async::IoPool pool{2};
  Server server;
  std::uint16_t port = 0;
};

inline void echo(Request&& request, const std::shared_ptr<ResponseWriter>& writer) {
  writer->send(200, {{"x-path", request.path}}, request.method + " " + request.body);
}

// Keeps writers so that the test decides when and from where they answer.
struct Held {
  Handler handler() {
    return [this](Request&& request, std::shared_ptr<ResponseWriter> writer) {
      const std::lock_guard lock(mutex);
      paths.push_back(request.path);
      writers.push_back(std::move(writer));
      count.fetch_add(1);
      count.notify_all();
    };
  }

  std::shared_ptr<ResponseWriter> take(int index) {
    for (int now = count.load(); now <= index; now = count.load())
      count.wait(now);
    const std::lock_guard lock(mutex);
    return std::move(writers[static_cast<std::size_t>(index)]);
  }

  std::mutex mutex;
  std::vector<std::string> paths;
  std::vector<std::shared_ptr<ResponseWriter>> writers;
  std::atomic<int> count{0};
};

}  // namespace tandem::http
