// How fast KV pages move between two processes over UCX, beside what memory can copy.
//
//   transfer_bench [--mib 64] [--page-kib 64] [--unit-kib N] [--in-flight 32] [--rounds 5]
//   [--scattered] [--private-pool] [--pin CPU,CPU] [--receiver-netns NAME] [--no-perftest]
//
// The pools are as a prefill and a decode worker have them; --private-pool lets nobody read the
// sender's, as where there is no shared memory. --pin keeps sender and receiver on a core each.
// --receiver-netns moves the receiver into a network namespace (as root); start the program in
// another one with `ip netns exec`.
//
// Forks a receiver, moves --mib of KV in units of at most --unit-kib (unless it is given: as long
// as prefill makes them, of neighbours or of scattered pages), and prints one JSON line: GB/s of
// each round's best, of memcpy and of CRC32C in the same process and run, and of ucx_perftest
// (ucp_am_bw) when it is installed.
#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/base/shared_memory.h"
#include "common/handoff/options.h"
#include "common/transfer/transport.h"

#include <nlohmann/json.hpp>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <numeric>
#include <optional>

namespace {

using namespace tandem;            // NOLINT: a program
using namespace tandem::transfer;  // NOLINT

constexpr std::uint64_t kSender = 1;
constexpr std::uint64_t kReceiver = 2;

struct Options {
  std::uint64_t mib = 64;
  std::uint64_t page_kib = 64;
  std::uint64_t unit_kib = 0;
  std::uint64_t in_flight = handoff::SideOptions{}.units_in_flight_per_transfer;
  std::uint64_t rounds = 5;
  bool scattered = false;
  bool private_pool = false;
  bool perftest = true;
  int sender_cpu = -1;
  int receiver_cpu = -1;
  std::string receiver_netns;
  int receiver_fd = -1;  ///< of a receiver that was started in a namespace
};

void pin_to(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) == 0) return;
  std::cerr << "cannot pin to core " << cpu << "\n";
  std::exit(1);
}

/// Runs this program as receiver inside a network namespace. `ip` also shows it that namespace's
/// /sys, where UCX looks for its devices.
[[noreturn]] void receive_in_netns(const std::string& name, int fd, int argc, char** argv) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<std::string> words = {"ip", "netns", "exec", name, self};
  words.insert(words.end(), argv + 1, argv + argc);
  words.insert(words.end(), {"--receiver-fd", std::to_string(fd)});
  std::vector<char*> pointers;
  for (std::string& word : words)
    pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp("ip", pointers.data());
  std::cerr << "cannot run ip\n";
  ::_exit(1);
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TransferName name_of_round(std::uint64_t round) {
  return {.request_id = round + 1,
          .attempt = 0,
          .decode_incarnation = kReceiver,
          .slot = 0,
          .generation = static_cast<std::uint32_t>(round + 1)};
}

/// Pages as engine::KvArena has them: SharedMemory, or huge ones where the system gives them.
class Pool {
 public:
  Pool(std::size_t bytes, bool shared) : bytes_(bytes) {
    if (shared) {
      if (auto made = SharedMemory::create(kKvPoolName, bytes); made.ok()) {
        shared_ = std::move(made).value();
        base_ = shared_->base();
      }
    }
    if (base_ == nullptr) {
      void* base =
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (base == MAP_FAILED) std::exit(1);
      base_ = static_cast<std::byte*>(base);
    }
    (void)::madvise(base_, bytes, MADV_HUGEPAGE);
    std::fill_n(base_, bytes, std::byte{1});
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    if (!shared_) ::munmap(base_, bytes_);
  }

  [[nodiscard]] std::byte* base() const { return base_; }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  [[nodiscard]] const SharedMemory* shared() const { return shared_ ? &*shared_ : nullptr; }

 private:
  std::size_t bytes_;
  std::optional<SharedMemory> shared_;
  std::byte* base_ = nullptr;
};

/// Pages, a transport over them, and counts of what has happened.
struct Node {
  Node(const Options& o, bool sends)
      : pool(((o.mib << 20U) / (o.page_kib << 10U)) * (o.page_kib << 10U),
             sends && !o.private_pool && may_share_memory()) {
    const std::uint64_t page_bytes = o.page_kib << 10U;
    memory.page_count = static_cast<std::uint32_t>((o.mib << 20U) / page_bytes);
    memory.stride_bytes = page_bytes;
    memory.part_offsets = {0, page_bytes};
    memory.base = pool.base();
    memory.shared = pool.shared();
    order.resize(memory.page_count);
    std::iota(order.begin(), order.end(), 0U);
    if (o.scattered) {
      Random random(7);
      for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[static_cast<std::size_t>(random.below(i))]);
    }
    auto made = make_ucx_transport(
        memory, [this](TransportEvent&& e) { on(e); }, UcxOptions{});
    if (!made.ok()) {
      std::cerr << made.status().message() << "\n";
      std::exit(1);
    }
    transport = std::move(made).value();
  }

  void on(const TransportEvent& event) {
    const std::lock_guard lock(mutex);
    if (const auto* landed_event = std::get_if<UnitLandedEvent>(&event)) {
      landed += landed_event->crc_ok ? landed_event->header.page_count : 0U;
      // The thread that waits shares the receiver's core: two changes of threads for each unit.
      if (landed < landed_wanted) return;
    } else if (const auto* done_event = std::get_if<SendDoneEvent>(&event)) {
      ++done;
      failed += done_event->status.ok() ? 0U : 1U;
      if (done < done_wanted) return;
    } else if (const auto* up = std::get_if<PeerConnectedEvent>(&event)) {
      lanes = up->transports;
    } else if (std::holds_alternative<PeerIsLocalEvent>(event)) {
      is_local = true;
    } else if (std::holds_alternative<PeerIsNearEvent>(event)) {
      is_near = true;
    } else if (std::holds_alternative<LandingClosedEvent>(event)) {
      ++closed;
    }
    changed.notify_all();
  }

  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(30), condition);
  }

  /// Until so many sends have ended.
  bool wait_for_done(std::uint64_t count) {
    {
      const std::lock_guard lock(mutex);
      done_wanted = count;
    }
    return wait([&] { return done >= count; });
  }

  Pool pool;
  PageMemory memory;
  std::vector<std::uint32_t> order;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t landed = 0, landed_wanted = 0;          ///< pages
  std::uint64_t done = 0, done_wanted = 0, failed = 0;  ///< units
  std::uint64_t closed = 0;
  bool is_local = false;         ///< the peer: nothing goes over the network
  bool is_near = false;          ///< the peer: TCP takes pages from where they lie
  std::uint32_t unit_pages = 1;  ///< of the last round; the sender's thread alone
  std::string lanes;
  std::unique_ptr<KvTransport> transport;
};

void put(int fd, const std::string& text) {
  std::array<char, 1024> frame{};
  const auto size = static_cast<std::uint32_t>(text.size());
  std::memcpy(frame.data(), &size, sizeof size);
  std::memcpy(frame.data() + sizeof size, text.data(), std::min<std::size_t>(size, 1000));
  if (::write(fd, frame.data(), frame.size()) != static_cast<ssize_t>(frame.size())) std::exit(1);
}

std::string get(int fd) {
  std::array<char, 1024> frame{};
  if (::recv(fd, frame.data(), frame.size(), MSG_WAITALL) != static_cast<ssize_t>(frame.size())) {
    std::exit(0);  // the other side has ended
  }
  std::uint32_t size = 0;
  std::memcpy(&size, frame.data(), sizeof size);
  return {frame.data() + sizeof size, std::min<std::size_t>(size, 1000)};
}

/// As prefill cuts units of pages that are at most half as long as a run (handoff::SideOptions).
std::uint32_t unit_pages(const Options& o, bool is_local, bool is_near) {
  const handoff::SideOptions prefill;
  std::uint64_t bytes = o.unit_kib << 10U;
  const bool as_list = is_near && (o.page_kib << 10U) >= prefill.list_part_bytes;
  const bool is_long = is_local || (o.scattered && !as_list);
  if (bytes == 0) bytes = is_long ? prefill.unit_bytes : prefill.run_bytes;
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, bytes / (o.page_kib << 10U)));
}

void receiver(const Options& o, int fd) {
  pin_to(o.receiver_cpu);
  Node node(o, /*sends=*/false);
  put(fd, node.transport->address());
  node.transport->connect(kSender, get(fd));
  for (std::uint64_t round = 0; round < o.rounds; ++round) {
    {
      const std::lock_guard lock(node.mutex);
      node.landed_wanted = (round + 1) * node.memory.page_count;
    }
    node.transport->open_landing(name_of_round(round), 0, node.order);
    put(fd, "open");
    const bool all = node.wait([&] { return node.landed >= node.landed_wanted; });
    put(fd, all ? "landed" : "failed");
    node.transport->close_landing(name_of_round(round));
    node.wait([&] { return node.closed > round; });
  }
  get(fd);
}

double send_round(const Options& o, Node& node, std::uint64_t round, int fd) {
  const std::uint64_t before = node.done;
  std::uint64_t sent = 0;
  std::uint64_t allowed = o.in_flight;
  get(fd);  // "open"
  {
    const std::lock_guard lock(node.mutex);
    node.unit_pages = unit_pages(o, node.is_local, node.is_near);
  }
  const double begin = seconds_now();
  for (std::uint32_t first = 0; first < node.memory.page_count; first += node.unit_pages) {
    if (sent == allowed) {
      // Half of them at a time: the thread that waits shares the sender's core, two changes of
      // threads for each unit.
      allowed += std::max<std::uint64_t>(o.in_flight / 2, 1);
      node.wait_for_done(before + allowed - o.in_flight);
    }
    const std::uint32_t count = std::min(node.unit_pages, node.memory.page_count - first);
    node.transport->send(
        {.peer = kReceiver,
         .header = {.name = name_of_round(round),
                    .unit = static_cast<std::uint32_t>(sent),
                    .first_page = first,
                    .page_count = count,
                    .page_offset = 0,
                    .page_length = static_cast<std::uint32_t>(node.memory.stride_bytes),
                    .first_part = 0,
                    .part_count = 1,
                    .payload_crc = 0},
         .source_pages = {node.order.begin() + first, node.order.begin() + first + count}});
    ++sent;
  }
  const bool landed = get(fd) == "landed";
  const double seconds = seconds_now() - begin;
  // The receiver may know before the sender does.
  const bool all = node.wait_for_done(before + sent);
  if (!landed || !all || node.failed > 0) {
    std::cerr << "the transfer has failed\n";
    std::exit(1);
  }
  return static_cast<double>(node.pool.bytes()) / seconds * 1e-9;
}

/// How most of the units went.
std::string way(const Node& node) {
  const TransportStats stats = node.transport->stats();
  if (stats.sent_from_pool > stats.sent_units / 2) return "pool";
  return stats.sent_in_slots > stats.sent_units / 2 ? "slots" : node.lanes;
}

template <class Work>
double best_gb_per_s(std::size_t bytes, Work work) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const double begin = seconds_now();
    work();
    best = std::max(best, static_cast<double>(bytes) / (seconds_now() - begin) * 1e-9);
  }
  return best;
}

/// GB/s of UCX's own benchmark with messages of so many bytes, 0 when it is not installed.
double perftest(std::uint64_t message_bytes) {
  if (std::system("command -v ucx_perftest > /dev/null 2>&1") != 0) return 0;
  const std::string port = std::to_string(20000 + system_random() % 20000);
  const std::string arguments = " -t ucp_am_bw -f -n 400 -w 20 -s " +
                                std::to_string(message_bytes) + " -p " + port + " 2>/dev/null";
  const std::string command = "(timeout 20 ucx_perftest" + arguments +
                              " > /dev/null & sleep 0.7; timeout 20 ucx_perftest 127.0.0.1" +
                              arguments + "; wait)";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return 0;
  double mb_per_s = 0;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) {
    // "Final: iterations latency(3) bandwidth(2: average, overall) rate(2)"; fewer columns with -f.
    std::vector<double> numbers;
    for (char* at = line.data(); *at != '\0';) {
      char* end = at;
      const double value = std::strtod(at, &end);
      if (end == at) {
        ++at;
        continue;
      }
      numbers.push_back(value);
      at = end;
    }
    if (numbers.size() >= 7) mb_per_s = numbers[5];
  }
  ::pclose(pipe);
  return mb_per_s * 1048576.0 * 1e-9;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    std::uint64_t* field = arg == "--mib"         ? &o.mib
                           : arg == "--page-kib"  ? &o.page_kib
                           : arg == "--unit-kib"  ? &o.unit_kib
                           : arg == "--in-flight" ? &o.in_flight
                           : arg == "--rounds"    ? &o.rounds
                                                  : nullptr;
    if (arg == "--scattered") {
      o.scattered = true;
    } else if (arg == "--private-pool") {
      o.private_pool = true;
    } else if (arg == "--no-perftest") {
      o.perftest = false;
    } else if (arg == "--pin" && i + 1 < argc &&
               std::sscanf(argv[i + 1], "%d,%d", &o.sender_cpu, &o.receiver_cpu) == 2) {
      ++i;
    } else if (arg == "--receiver-netns" && i + 1 < argc) {
      o.receiver_netns = argv[++i];
    } else if (arg == "--receiver-fd" && i + 1 < argc) {
      o.receiver_fd = std::atoi(argv[++i]);
    } else if (field != nullptr && i + 1 < argc && std::strtoull(argv[i + 1], nullptr, 10) > 0) {
      *field = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::cerr
          << "usage: transfer_bench [--mib N] [--page-kib N] [--unit-kib N] [--in-flight N] "
             "[--rounds N] [--scattered] [--private-pool] [--pin CPU,CPU] [--receiver-netns NAME] "
             "[--no-perftest]\n";
      std::exit(2);
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  if (o.receiver_fd >= 0) {
    receiver(o, o.receiver_fd);
    return 0;
  }
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    if (!o.receiver_netns.empty()) receive_in_netns(o.receiver_netns, fds[1], argc, argv);
    receiver(o, fds[1]);
    return 0;
  }
  ::close(fds[1]);
  nlohmann::json result;
  {
    pin_to(o.sender_cpu);
    Node node(o, /*sends=*/true);
    const std::string address = get(fds[0]);
    put(fds[0], node.transport->address());
    node.transport->connect(kReceiver, address);
    double best = 0;
    double sum = 0;
    std::vector<double> rates;
    for (std::uint64_t round = 0; round < o.rounds; ++round) {
      const double rate = send_round(o, node, round, fds[0]);
      best = std::max(best, rate);
      sum += rate;
      rates.push_back(rate);
    }
    std::nth_element(
        rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2), rates.end());
    std::vector<std::byte> copy(node.pool.bytes(), std::byte{2});
    const double memcpy_rate = best_gb_per_s(
        copy.size(), [&] { std::memcpy(copy.data(), node.pool.base(), copy.size()); });
    std::uint32_t crc = 0;
    const double crc_rate =
        best_gb_per_s(copy.size(), [&] { crc ^= crc32c(copy.data(), copy.size()); });
    const double perftest_rate = o.perftest ? perftest(handoff::SideOptions{}.unit_bytes) : 0;
    const TransportStats stats = node.transport->stats();
    result = {{"bench", "transfer"},
              {"mib", o.mib},
              {"page_kib", o.page_kib},
              {"unit_kib", node.unit_pages * o.page_kib},
              {"in_flight", o.in_flight},
              {"scattered", o.scattered},
              {"transports", way(node)},
              {"spliced_share",
               static_cast<double>(stats.spliced_bytes) / static_cast<double>(stats.sent_bytes)},
              {"gb_per_s_best", best},
              {"gb_per_s_median", rates[rates.size() / 2]},
              {"gb_per_s_mean", sum / static_cast<double>(o.rounds)},
              {"memcpy_gb_per_s", memcpy_rate},
              {"crc32c_gb_per_s", crc_rate},
              {"fraction_of_memcpy", best / memcpy_rate}};
    if (perftest_rate > 0) {
      result["ucx_perftest_gb_per_s"] = perftest_rate;
      result["fraction_of_ucx_perftest"] = best / perftest_rate;
    }
  }
  ::close(fds[0]);
  ::waitpid(child, nullptr, 0);
  std::cout << result.dump() << "\n";
  return 0;
}
