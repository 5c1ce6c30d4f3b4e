// The life of a serving program: signals, exit codes, the port file.
#pragma once

#include "common/args/args.h"
#include "common/base/ids.h"
#include "common/base/status.h"

#include <signal.h>

#include <cstdint>
#include <functional>
#include <string>

namespace tandem::serve {

/// SIGTERM and SIGINT as something to wait for. Make it on the main thread before any other thread
/// starts: they inherit the mask. SIGPIPE is ignored: a lost peer is an error code.
class Signals {
 public:
  Signals();
  /// Waits up to `timeout`; true once a stop was asked for (and ever after).
  bool stop_requested(Duration timeout);

 private:
  sigset_t set_{};
  bool stop_ = false;
};

/// What every program does with the outcome of args::parse: prints what there is to print. A value:
/// the exit status. Otherwise logging, failure points and the notes of the arguments are set up and
/// the program goes on.
struct Started {
  bool exits = false;
  int exit_status = 0;
};

Started start_process(const args::ParseOutcome& outcome);

/// "<program>: error: <message>" on stderr. Returns the exit status: 2 for what the arguments asked
/// for (invalid_argument), 1 for what the machine refused.
int fail(args::Program program, const Status& status);

struct Ports {
  std::uint16_t http = 0;
  std::uint16_t grpc = 0;
  std::uint16_t bootstrap = 0;  ///< 0: none
};

/// {"port":..,"grpc_port":..,"bootstrap_port":..}: whole or not at all (a rename), or straight into
/// a device path such as /dev/fd/3.
Status write_port_file(const std::string& path, const Ports& ports);

/// Address that peers use: --disaggregation-advertise-host, or --host unless that is "any", then
/// this host's name.
std::string advertised_host(const args::Arguments& args);

/// Seeds for requests that bring none: the n-th depends on `seed` and n alone, so that the same
/// requests in the same order get the same answers. The function may be called from any thread.
std::function<std::uint64_t()> seed_stream(std::uint64_t seed);

}  // namespace tandem::serve
