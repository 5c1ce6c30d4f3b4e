#include "common/transfer/slots.h"

#include "common/base/crc32c.h"
#include "common/base/random.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tandem::transfer {

namespace {

constexpr std::size_t kTokenAt = kSlotCount * kSlotBytes;
constexpr std::size_t kMemoryBytes = kTokenAt + 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
/// MFD_NOEXEC_SEAL: without it vm.memfd_noexec = 2 refuses the file.
constexpr unsigned kNoExecSeal = 0x8;
constexpr std::string_view kMark = "TKS1";
constexpr const char* kName = "tandem-kv-slots";
constexpr std::string_view kLinkName = "/memfd:tandem-kv-slots";

Status failed(const char* what) {
  return unavailable(std::string("slots: ") + what + ": " + std::strerror(errno));
}

void put_u32(std::byte* at, std::uint32_t value) {
  for (unsigned i = 0; i < 4; ++i)
    at[i] = static_cast<std::byte>((value >> (8 * i)) & 0xFFU);
}

std::uint32_t get_u32(const std::byte* at) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i)
    value |= std::to_integer<std::uint32_t>(at[i]) << (8 * i);
  return value;
}

/// Closes a descriptor at the end of a scope.
struct Descriptor {
  explicit Descriptor(int value) : fd(value) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }

  int fd;
};

/// An unnamed file for the slots that can neither shrink nor grow; -1 where there is none.
int sealed_file() {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Descriptor file(::memfd_create(kName, kFlags | kNoExecSeal));
  // Linux before 6.3 does not know the flag.
  if (file.fd < 0 && errno == EINVAL) file.fd = ::memfd_create(kName, kFlags);
  if (file.fd < 0 || ::ftruncate(file.fd, kMemoryBytes) != 0 ||
      ::fcntl(file.fd, F_ADD_SEALS, kSeals) != 0)
    return -1;
  return std::exchange(file.fd, -1);
}

}  // namespace

SlotOfferBytes encode(const SlotOffer& offer) {
  SlotOfferBytes bytes{};
  std::memcpy(bytes.data(), kMark.data(), kMark.size());
  put_u32(bytes.data() + 4, offer.from);
  put_u32(bytes.data() + 8, offer.pid);
  put_u32(bytes.data() + 12, offer.fd);
  std::memcpy(bytes.data() + 16, offer.token.data(), kSlotTokenBytes);
  put_u32(bytes.data() + kSlotOfferBytes - 4, crc32c(bytes.data(), kSlotOfferBytes - 4));
  return bytes;
}

std::optional<SlotOffer> decode_slot_offer(std::span<const std::byte> bytes) {
  if (bytes.size() != kSlotOfferBytes ||
      std::memcmp(bytes.data(), kMark.data(), kMark.size()) != 0 ||
      get_u32(bytes.data() + kSlotOfferBytes - 4) != crc32c(bytes.data(), kSlotOfferBytes - 4))
    return std::nullopt;
  SlotOffer offer;
  offer.from = get_u32(bytes.data() + 4);
  offer.pid = get_u32(bytes.data() + 8);
  offer.fd = get_u32(bytes.data() + 12);
  std::memcpy(offer.token.data(), bytes.data() + 16, kSlotTokenBytes);
  return offer;
}

SlotMemory::~SlotMemory() {
  if (base_ != nullptr) ::munmap(base_, kMemoryBytes);
  if (fd_ >= 0) ::close(fd_);
}

Status SlotMemory::create() {
  void* base = MAP_FAILED;
  {
    // Refused where a sandbox or vm.memfd_noexec says so: then the slots are this process's alone.
    Descriptor file(sealed_file());
    if (file.fd >= 0)
      base = ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (base != MAP_FAILED) fd_ = std::exchange(file.fd, -1);
  }
  if (base == MAP_FAILED)
    base =
        ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return failed("mmap");
  base_ = static_cast<std::byte*>(base);
  // Where the system gives them; without them only the first use of a page is slower.
  (void)::madvise(base_, kTokenAt, MADV_HUGEPAGE);
  for (std::size_t i = 0; i < kSlotTokenBytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t part = system_random();
    std::memcpy(token_.data() + i, &part, sizeof part);
  }
  std::memcpy(base_ + kTokenAt, token_.data(), kSlotTokenBytes);
  for (std::uint32_t i = kSlotCount; i > 0; --i)
    free_.push_back(i - 1);
  return {};
}

SlotOffer SlotMemory::offer(std::uint32_t from) const {
  return {.from = from,
          .pid = static_cast<std::uint32_t>(::getpid()),
          .fd = static_cast<std::uint32_t>(fd_),
          .token = token_};
}

std::optional<std::uint32_t> SlotMemory::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

Result<std::unique_ptr<PeerSlots>> PeerSlots::open(const SlotOffer& offer) {
  const std::string path = "/proc/" + std::to_string(offer.pid) + "/fd/" + std::to_string(offer.fd);
  // In another PID namespace that process is a stranger: what it has there is not even opened.
  std::array<char, 64> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length < 0) return failed(path.c_str());
  if (!std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(kLinkName))
    return unavailable("slots: " + path + " is not a peer's slots");
  // Should it be something else by now, a pipe for one, opening it neither blocks nor does
  // anything.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd < 0) return failed(path.c_str());
  // Sealed: it cannot become shorter while it is read here, which would be a SIGBUS.
  const int seals = ::fcntl(file.fd, F_GET_SEALS);

  struct stat status {};

  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.fd, &status) != 0 ||
      status.st_size != static_cast<off_t>(kMemoryBytes))
    return unavailable("slots: " + path + " is not a peer's slots");
  void* base = ::mmap(nullptr, kMemoryBytes, PROT_READ, MAP_SHARED, file.fd, 0);
  if (base == MAP_FAILED) return failed("mmap");
  auto slots = std::make_unique<PeerSlots>(static_cast<const std::byte*>(base));
  if (std::memcmp(slots->base_ + kTokenAt, offer.token.data(), kSlotTokenBytes) != 0)
    return unavailable("slots: " + path + " belongs to another process");
  return slots;
}

PeerSlots::~PeerSlots() {
  ::munmap(const_cast<std::byte*>(base_), kMemoryBytes);
}

bool slots_allowed(const char* ucx_tls) {
  if (ucx_tls == nullptr) return true;
  const std::string_view chosen = ucx_tls;
  for (const std::string_view name :
       {"all", "shm", "sm", "mm", "posix", "sysv", "cma", "knem", "xpmem"}) {
    for (std::size_t at = chosen.find(name); at != std::string_view::npos;
         at = chosen.find(name, at + 1)) {
      const std::size_t end = at + name.size();
      const bool whole = (at == 0 || chosen[at - 1] == ',' || chosen[at - 1] == '^') &&
                         (end == chosen.size() || chosen[end] == ',' || chosen[end] == ':');
      if (whole) return !chosen.starts_with('^');
    }
  }
  return chosen.starts_with('^');
}

}  // namespace tandem::transfer
