// UcxTransport: set-up, the progress thread, shutdown.
#include "common/transfer/ucx_transport.h"

#include "common/base/crc32c.h"
#include "common/transfer/ucx_load.h"
#include "common/transfer/ucx_sends.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace tandem::transfer {

namespace {

constexpr unsigned kUnitAmId = 1;
constexpr Duration kSleepMax = milliseconds(200);
/// How long destruction waits for forced closes to finish; they do at once unless UCX is broken.
constexpr Duration kQuietWithin = seconds(2);
/// And for peers that have to take what is on its way to them before they are left.
constexpr Duration kLeftWithin = milliseconds(300);
constexpr Duration kCalmFor = milliseconds(250);
/// How long UCX is left to itself at a time.
constexpr Duration kProgressFor = milliseconds(1);
/// After a unit landed the next one is likely to come soon.
constexpr Duration kPrefaultAfterLanding = milliseconds(1);
/// Taking a block's memory is followed by a rest so many times as long: running outputs may need
/// this core.
constexpr std::int64_t kPrefaultRest = 2;

Time now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return {std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec};
}

/// Sets one of UCX's own options unless the user's UCX_* variable does. An option that this version
/// does not know is not an error.
void prefer(ucp_config_t* config, const char* name, const char* value) {
  if (std::getenv((std::string("UCX_") + name).c_str()) == nullptr) {
    ucp_config_modify(config, name, value);
  }
}

/// The transports that UCX found, from its own print-out: "posix sysv cma tcp".
std::string transports_of(ucp_context_h context) {
  char* text = nullptr;
  std::size_t size = 0;
  FILE* stream = ::open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_context_print_info(context, stream);
  std::fclose(stream);
  const std::string all(text, size);
  std::free(text);  // NOLINT(cppcoreguidelines-no-malloc): open_memstream says so
  std::set<std::string> names;
  // "#  resource  2 : md 2  dev 2 flags -- sysv/memory"
  for (std::size_t at = all.find("resource"); at != std::string::npos;
       at = all.find("resource", at + 1)) {
    const std::size_t dashes = all.find("-- ", at);
    const std::size_t end = all.find('\n', at);
    if (dashes != std::string::npos && dashes < end) {
      names.insert(all.substr(dashes + 3, end - dashes - 3));
    }
  }
  std::string joined;
  for (const std::string& name : names)
    joined += (joined.empty() ? "" : " ") + name;
  return joined;
}

}  // namespace

Status ucx_error(const std::string& what, ucs_status_t status) {
  return unavailable(what + ": " + ucs_status_string(status));
}

UcxTransport::UcxTransport(PageMemory memory, EventSink sink, const UcxOptions& options)
    : memory_(std::move(memory)),
      sink_(std::move(sink)),
      options_(options),
      table_(LandingLimits{.pool_pages = memory_.page_count,
                           .part_offsets = memory_.part_offsets,
                           .planted_skip_generation_check = false}),
      prefault_(memory_),
      idle_cpu_(options_.idle_from) {}

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// They report at the very end.
constexpr bool kEndsEarly = false;
#else
constexpr bool kEndsEarly = true;
#endif

/// At exit, before what was registered earlier.
void end_now(int status, void* /*unused*/) {
  std::fflush(nullptr);
  ::_exit(status);
}

/// UCX 1.13 aborts the process (ucp_request.c:684) when a worker is destroyed while a wire-up
/// message of its own still waits for a peer that is gone, be it an answer to what that peer asked
/// for in its last moment; it does not tell of them. So where the process ends with the transport,
/// a worker that has lost a peer is left to that end, like one that surely has such messages.
/// Reachable from here, so that it is no leak.
///
/// A worker's thread of UCX's own lives on with it. When a process exits, libucs frees the table in
/// which that thread looks up who an event is for (ucs_async_global_cleanup), so the process ends
/// before libraries are taken down.
void abandon(ucp_worker_h worker, ucp_context_h context) {
  static std::mutex mutex;  // guards the list below
  static auto* abandoned = new std::vector<std::pair<ucp_worker_h, ucp_context_h>>();
  const std::lock_guard lock(mutex);
  if (kEndsEarly && abandoned->empty()) ::on_exit(&end_now, nullptr);
  abandoned->emplace_back(worker, context);
}

}  // namespace

UcxTransport::~UcxTransport() {
  if (thread_.joinable()) {
    stop_ = true;
    commands_.wake();
    thread_.join();
  }
  if (unclean_ || !endpoints_.empty() || (disturbed_ && options_.ends_with_process)) {
    abandon(worker_, context_);
    return;
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

Status UcxTransport::start() {
  TANDEM_TRY(make_context());
  TANDEM_TRY(make_worker());
  TANDEM_TRY(slots_.create());
  may_share_ = may_share_memory();
  TANDEM_TRY(handle_notes());
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  description_ = "ucx " + std::to_string(major) + "." + std::to_string(minor) + "." +
                 std::to_string(release) + ": " + transports_of(context_);
  thread_ = std::thread([this] { run(); });
  return {};
}

Status UcxTransport::make_context() {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) {
    return ucx_error("ucp_config_read", s);
  }
  // A dead peer that sends nothing must be noticed within seconds, not UCX's 20.
  prefer(config, "KEEPALIVE_INTERVAL", "1s");
  if (!options_.net_devices.empty()) {
    if (const ucs_status_t s =
            ucp_config_modify(config, "NET_DEVICES", options_.net_devices.c_str());
        s != UCS_OK) {
      ucp_config_release(config);
      return ucx_error("net_devices \"" + options_.net_devices + "\"", s);
    }
  }
  if (options_.rendezvous_bytes > 0) {
    prefer(config, "RNDV_THRESH", std::to_string(options_.rendezvous_bytes).c_str());
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "tandem";
  const ucs_status_t s = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (s != UCS_OK) return ucx_error("ucp_init", s);
  return {};
}

Status UcxTransport::make_worker() {
  const ScopedUcxSends listens({});
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const ucs_status_t s = ucp_worker_create(context_, &params, &worker_); s != UCS_OK) {
    return ucx_error("ucp_worker_create", s);
  }
  if (const ucs_status_t s = ucp_worker_get_efd(worker_, &worker_fd_); s != UCS_OK) {
    return ucx_error("ucp_worker_get_efd", s);
  }
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kUnitAmId;
  handler.cb = &UcxTransport::on_unit;
  handler.arg = this;
  if (const ucs_status_t s = ucp_worker_set_am_recv_handler(worker_, &handler); s != UCS_OK) {
    return ucx_error("ucp_worker_set_am_recv_handler", s);
  }
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  if (const ucs_status_t s = ucp_worker_query(worker_, &attributes); s != UCS_OK) {
    return ucx_error("ucp_worker_query", s);
  }
  pool_runs_max_ = pool_runs_in(attributes.max_am_header);
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  if (const ucs_status_t s = ucp_worker_get_address(worker_, &address, &length); s != UCS_OK) {
    return ucx_error("ucp_worker_get_address", s);
  }
  address_ = wrap_address({reinterpret_cast<const char*>(address), length});
  own_crc_ = crc32c(address_.data(), address_.size());
  ucp_worker_release_address(worker_, address);
  return {};
}

void UcxTransport::connect(std::uint64_t peer, std::string address) {
  commands_.push(Connect{peer, std::move(address)});
}

void UcxTransport::disconnect(std::uint64_t peer) {
  commands_.push(Disconnect{peer});
}

void UcxTransport::open_landing(const TransferName& name,
                                std::uint32_t first_page,
                                std::vector<std::uint32_t> pages) {
  commands_.push(Open{name, first_page, std::move(pages)});
}

void UcxTransport::close_landing(const TransferName& name) {
  commands_.push(Close{name});
}

void UcxTransport::send(SendRequest request) {
  commands_.push(std::move(request));
}

TransportStats UcxTransport::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void UcxTransport::publish_stats() {
  counting_.lent_units = in_pool_.size();
  counting_.landings_open = table_.open_count();
  counting_.landings_closing = table_.closing_count();
  const std::lock_guard lock(stats_mutex_);
  stats_ = counting_;
}

void UcxTransport::run_commands() {
  for (Command& command : commands_.take())
    staged_.push_back(std::move(command));
  for (Command& command : std::exchange(staged_, {}))
    std::visit([this](auto& c) { handle(c); }, command);
}

/// Inside UCX's callbacks: endpoints must not be touched, so only the landing table's commands are
/// carried out, the others wait their turn.
void UcxTransport::run_landing_commands() {
  for (Command& command : commands_.take()) {
    if (auto* open = std::get_if<Open>(&command)) {
      handle(*open);
    } else if (auto* close = std::get_if<Close>(&command)) {
      handle(*close);
    } else {
      staged_.push_back(std::move(command));
    }
  }
}

void UcxTransport::run() {
  ScopedUcxSends sends({memory_.base, memory_.stride_bytes * memory_.page_count});
  ucx_sends_ = &sends;
  while (!stop_) {
    run_commands();
    // Not for ever: peers that keep sending must not keep commands and answers waiting.
    const Time until = now() + kProgressFor;
    while (ucp_worker_progress(worker_) != 0 && now() < until) {
    }
    reap_failed();
    for (const auto& [peer, endpoint] : peers_)
      send_answers(*endpoint);
    send_waiting();
    counting_.spliced_bytes = sends.spliced_bytes();
    publish_stats();
    wait_for_work();
  }
  run_until_quiet();
  counting_.spliced_bytes = sends.spliced_bytes();
  publish_stats();
}

/// Spins a little, because the answer to what was just done comes soon, then sleeps until the
/// network or another thread has something.
void UcxTransport::wait_for_work() {
  const Time until = now() + options_.spin;
  do {
    if (ucp_worker_progress(worker_) != 0) return;
  } while (now() < until && !stop_);
  pollfd fds[2] = {{.fd = worker_fd_, .events = POLLIN, .revents = 0},
                   {.fd = commands_.fd(), .events = POLLIN, .revents = 0}};
  if (!staged_.empty()) return;
  // Busy: events came since the last progress, sleeping would miss them.
  if (ucp_worker_arm(worker_) != UCS_OK) return;
  const Duration sleep = use_spare_time();
  const timespec longest{.tv_sec = 0, .tv_nsec = static_cast<long>(sleep.ns)};
  ::ppoll(fds, 2, &longest, nullptr);
}

Duration UcxTransport::use_spare_time() {
  if (!prefault_.waiting()) return kSleepMax;
  const Time began = now();
  if (std::exchange(landed_before_, counting_.landed_units) != counting_.landed_units)
    prefault_from_ = std::max(prefault_from_, began + kPrefaultAfterLanding);
  if (began < prefault_from_) return std::min(prefault_from_ - began, kSleepMax);
  if (!options_.idle_from.empty() && !idle_cpu_.spare(began)) return IdleCpu::kLook;
  prefault_.take_some();
  const Duration took = now() - began;
  prefault_from_ = began + took + took * kPrefaultRest;
  return std::min(took * kPrefaultRest, kSleepMax);
}

/// Every endpoint is closed, so that no send or receive outlives the worker. See leave() for those
/// that may not be, and abandon() for what comes of them.
void UcxTransport::run_until_quiet() {
  run_commands();
  for (const auto& [peer, endpoint] : std::exchange(peers_, {}))
    leave(*endpoint, kLeftWithin);
  const Time left_by = now() + kLeftWithin;
  for (Endpoint& endpoint : endpoints_)
    endpoint.leave_by = std::min(endpoint.leave_by, left_by);
  const auto all_left = [this] {
    reap_closed();
    return std::none_of(endpoints_.begin(), endpoints_.end(), [](const Endpoint& e) {
      return e.ep != nullptr && e.leaving;
    });
  };
  while (!all_left() && now() < left_by)
    ucp_worker_progress(worker_);
  // Those that stay keep the worker, and sends of theirs do not end.
  const Time until = now() + (all_left() ? kQuietWithin : Duration());
  const auto quiet = [this] {
    reap_closed();
    return endpoints_.empty() && sends_.empty() && receives_.empty() && notes_.empty();
  };
  while (!quiet() && now() < until)
    ucp_worker_progress(worker_);
  // After a broken connection UCX may still have wire-up messages of its own to send or to give up;
  // see abandon().
  const bool stays = disturbed_ && !options_.ends_with_process;
  for (Time calm_by = now() + kCalmFor; stays && now() < calm_by && now() < until;) {
    if (ucp_worker_progress(worker_) != 0) calm_by = now() + kCalmFor;
  }
  for (Send& send : sends_)
    report_lost(send, unavailable("the transport has stopped"));
}

Result<std::unique_ptr<KvTransport>> make_ucx_transport(PageMemory memory,
                                                        EventSink sink,
                                                        const UcxOptions& options) {
  tame_ucx();
  TANDEM_TRY(load_ucx());
  auto transport = std::make_unique<UcxTransport>(std::move(memory), std::move(sink), options);
  TANDEM_TRY(transport->start());
  return std::unique_ptr<KvTransport>(std::move(transport));
}

}  // namespace tandem::transfer
