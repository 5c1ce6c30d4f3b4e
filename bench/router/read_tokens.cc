#include "bench/router/read_tokens.h"

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>

namespace tandem::bench {

ReadTokens::ReadTokens() : fd_(::memfd_create("read-tokens", 0)) {
  if (fd_ < 0 || ::ftruncate(fd_, sizeof(Counts)) != 0)
    throw std::runtime_error("no memory to share with the fake workers");
  map();
}

ReadTokens::ReadTokens(int fd) : fd_(fd) {
  map();
}

ReadTokens::~ReadTokens() {
  ::munmap(counts_, sizeof(Counts));
  ::close(fd_);
}

void ReadTokens::map() {
  void* memory = ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("the shared memory cannot be mapped");
  // Zeros, which is what these atomics are at first.
  counts_ = static_cast<Counts*>(memory);
}

}  // namespace tandem::bench
