#include "common/transfer/unmapper.h"

#include <system_error>
#include <utility>

namespace tandem::transfer {

Unmapper::~Unmapper() {
  for (Running& each : running_)
    each.thread.join();
}

void Unmapper::take(PeerMemory&& memory) {
  std::erase_if(running_, [](Running& each) {
    if (!each.done->load()) return false;
    each.thread.join();
    return true;
  });
  const auto done = std::make_shared<std::atomic<bool>>(false);
  try {
    running_.push_back({std::thread([done, held = std::move(memory)]() mutable {
                          { const PeerMemory gone(std::move(held)); }
                          done->store(true);
                        }),
                        done});
  } catch (const std::system_error&) {
    // No thread to be had: the memory went with the function, here.
  }
}

}  // namespace tandem::transfer
