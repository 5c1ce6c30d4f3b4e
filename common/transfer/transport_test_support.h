// A process's half of a transfer, for tests: memory with known contents and a transport.
#pragma once

#include "common/base/check.h"
#include "common/transfer/transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace tandem::transfer::testing {

enum class BackEnd {
  kInProcess,
  kUcx,      ///< on one machine through slots
  kUcxPool,  ///< on one machine from pool to pool
  kUcxTcp
};

struct Node {
  struct Options {
    BackEnd back_end = BackEnd::kUcx;
    std::uint32_t pages = 16;
    std::uint64_t page_bytes = 4096;
    std::uint32_t parts = 1;
    unsigned char fill = 0;
    std::uint64_t rendezvous_bytes = 0;
    bool ends_with_process = false;
    std::string idle_from = {};
    /// Tests of lies: what the transport is told of the memory.
    std::function<void(PageMemory&)> tell = {};
  };

  explicit Node(const Options& options) {
    const std::size_t size = options.pages * options.page_bytes;
    if (options.back_end == BackEnd::kUcxPool) {
      auto made = SharedMemory::create(kKvPoolName, size);
      TANDEM_CHECK(made.ok(), made.status().message());
      shared = std::move(made).value();
      memory.shared = &*shared;
      bytes = {shared->base(), size};
    } else {
      own.resize(size);
      bytes = own;
    }
    std::fill(bytes.begin(), bytes.end(), std::byte{options.fill});
    memory.base = bytes.data();
    memory.stride_bytes = options.page_bytes;
    memory.page_count = options.pages;
    for (std::uint32_t p = 0; p <= options.parts; ++p)
      memory.part_offsets.push_back(options.page_bytes * p / options.parts);
    if (options.tell) options.tell(memory);
    const auto sink = [this](TransportEvent&& event) {
      const std::lock_guard lock(mutex);
      events.push_back(std::move(event));
      changed.notify_all();
    };
    if (options.back_end == BackEnd::kUcxTcp) ::setenv("UCX_TLS", "tcp,self", 1);
    auto made = options.back_end == BackEnd::kInProcess
                    ? make_inprocess_transport(memory, sink)
                    : make_ucx_transport(memory,
                                         sink,
                                         {.rendezvous_bytes = options.rendezvous_bytes,
                                          .ends_with_process = options.ends_with_process,
                                          .idle_from = options.idle_from});
    if (options.back_end == BackEnd::kUcxTcp) ::unsetenv("UCX_TLS");
    TANDEM_CHECK(made.ok(), made.status().message());
    transport = std::move(made).value();
  }

  ~Node() { transport.reset(); }

  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// The next event of this kind; others before it are kept. Nothing within `ms`: nullopt.
  template <class Event>
  std::optional<Event> next(int ms = 20'000) {
    std::unique_lock lock(mutex);
    std::optional<Event> found;
    changed.wait_for(lock, std::chrono::milliseconds(ms), [&] {
      for (auto it = events.begin(); it != events.end(); ++it) {
        if (auto* event = std::get_if<Event>(&*it)) {
          found = std::move(*event);
          events.erase(it);
          return true;
        }
      }
      return false;
    });
    return found;
  }

  template <class Event>
  std::size_t count() {
    const std::lock_guard lock(mutex);
    std::size_t n = 0;
    for (const TransportEvent& event : events)
      n += std::holds_alternative<Event>(event) ? 1 : 0;
    return n;
  }

  std::vector<std::byte> own;
  std::optional<SharedMemory> shared;
  std::span<std::byte> bytes;
  PageMemory memory;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<TransportEvent> events;
  std::unique_ptr<KvTransport> transport;
};

/// Byte i of prompt page `page`.
inline std::byte content(std::uint32_t page, std::uint64_t i) {
  return static_cast<std::byte>((page * 131U + i * 7U + (i >> 8U)) & 0xFFU);
}

inline void fill_page(const PageMemory& memory, std::uint32_t at, std::uint32_t page) {
  for (std::uint64_t i = 0; i < memory.part_offsets.back(); ++i)
    memory.page(at)[i] = content(page, i);
}

inline TransferName test_name(std::uint32_t generation = 1) {
  return {.request_id = 42,
          .attempt = 0,
          .decode_incarnation = 77,
          .slot = 3,
          .generation = generation};
}

inline UnitHeader unit_header(const PageMemory& memory,
                              std::uint32_t unit,
                              std::uint32_t first_page,
                              std::uint32_t page_count,
                              std::uint32_t generation = 1) {
  return {.name = test_name(generation),
          .unit = unit,
          .first_page = first_page,
          .page_count = page_count,
          .page_offset = 0,
          .page_length = static_cast<std::uint32_t>(memory.part_offsets.back()),
          .first_part = 0,
          .part_count = static_cast<std::uint16_t>(memory.part_offsets.size() - 1),
          .payload_crc = 0};
}

}  // namespace tandem::transfer::testing
