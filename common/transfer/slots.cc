#include "common/transfer/slots.h"

#include "common/base/crc32c.h"
#include "common/transfer/short_message.h"
#include "common/transfer/transport.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

namespace tandem::transfer {

namespace {

constexpr std::size_t kMemoryBytes = kSlotCount * kSlotBytes;
constexpr std::size_t kMarkBytes = 4;

std::string_view mark_of(MemoryKind kind) {
  return kind == MemoryKind::kSlots ? "TKS1" : "TKP1";
}

}  // namespace

MemoryOfferBytes encode(const MemoryOffer& offer) {
  std::vector<std::byte> text;
  for (const char c : mark_of(offer.kind))
    text.push_back(static_cast<std::byte>(c));
  append(text, offer.from);
  append(text, offer.key.pid);
  append(text, offer.key.fd);
  text.insert(text.end(), offer.key.token.begin(), offer.key.token.end());
  append(text, crc32c(text.data(), text.size()));
  MemoryOfferBytes bytes{};
  std::copy(text.begin(), text.end(), bytes.begin());
  return bytes;
}

std::optional<MemoryOffer> decode_memory_offer(std::span<const std::byte> bytes) {
  constexpr std::size_t kCrcAt = kMemoryOfferBytes - 4;
  if (bytes.size() != kMemoryOfferBytes ||
      number_at<std::uint32_t>(bytes.data() + kCrcAt) != crc32c(bytes.data(), kCrcAt))
    return std::nullopt;
  for (const MemoryKind kind : {MemoryKind::kSlots, MemoryKind::kPool}) {
    if (std::memcmp(bytes.data(), mark_of(kind).data(), kMarkBytes) != 0) continue;
    MemoryOffer offer{.kind = kind, .from = number_at<std::uint32_t>(bytes.data() + 4), .key = {}};
    offer.key.pid = number_at<std::uint32_t>(bytes.data() + 8);
    offer.key.fd = number_at<std::uint32_t>(bytes.data() + 12);
    std::memcpy(offer.key.token.data(), bytes.data() + 16, kMemoryTokenBytes);
    return offer;
  }
  return std::nullopt;
}

SlotMemory::~SlotMemory() {
  if (base_ != nullptr && !shared_) ::munmap(base_, kMemoryBytes);
}

Status SlotMemory::create() {
  // Refused where a sandbox or vm.memfd_noexec says so: then the slots are this process's alone.
  if (auto made = SharedMemory::create(kSlotsName, kMemoryBytes); made.ok()) {
    shared_ = std::move(made).value();
    base_ = shared_->base();
  } else {
    void* base =
        ::mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return unavailable(std::string("slots: mmap: ") + std::strerror(errno));
    base_ = static_cast<std::byte*>(base);
  }
  // Where the system gives them; without them only the first use of a page is slower.
  (void)::madvise(base_, kMemoryBytes, MADV_HUGEPAGE);
  for (std::uint32_t i = kSlotCount; i > 0; --i)
    free_.push_back(i - 1);
  return {};
}

std::optional<std::uint32_t> SlotMemory::take() {
  if (free_.empty()) return std::nullopt;
  const std::uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

Result<PeerSlots> PeerSlots::open(const MemoryKey& key) {
  TANDEM_TRY(PeerMemory memory, PeerMemory::open(key, kSlotsName));
  if (memory.bytes() != kMemoryBytes)
    return unavailable("slots: a peer's memory has " + std::to_string(memory.bytes()) +
                       " bytes, expected " + std::to_string(kMemoryBytes));
  return PeerSlots(std::move(memory));
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

bool may_share_memory() {
  return slots_allowed(std::getenv("UCX_TLS"));
}

}  // namespace tandem::transfer
