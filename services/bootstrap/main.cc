// bootstrap-server: the bootstrap service on its own.
#include "common/args/args.h"
#include "common/bootstrap/bootstrap_server.h"
#include "common/obs/log.h"
#include "common/rpc/library.h"
#include "common/serve/process.h"

namespace {

using tandem::Status;

Status serve(const tandem::args::Arguments& args, tandem::serve::Signals& signals) {
  tandem::bootstrap::BootstrapServer server(
      {.io_threads = static_cast<int>(args.server.http_threads),
       .body_bytes_max = args.server.max_body_bytes,
       .metrics = args.observability.enable_metrics,
       .port_flag = "--port"});
  TANDEM_TRY(const std::uint16_t port, server.start(args.server.host, args.server.port));
  if (args.server.port_file) {
    TANDEM_TRY(tandem::serve::write_port_file(*args.server.port_file,
                                              {.http = port, .grpc = port, .bootstrap = port}));
  }
  tandem::obs::info("ready", {{"host", args.server.host}, {"port", port}});
  while (!signals.stop_requested(tandem::seconds(60))) {
  }
  server.stop();
  tandem::obs::info("stopped");
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  using tandem::args::Program;
  const auto outcome =
      tandem::args::parse(Program::kBootstrap, argc, argv, tandem::args::Environment::system());
  const auto started = tandem::serve::start_process(outcome);
  if (started.exits) return started.exit_status;
  if (outcome.args.command.dry_run) return 0;
  tandem::serve::Signals signals;
  const tandem::rpc::Library library;
  const Status status = serve(outcome.args, signals);
  return status.ok() ? 0 : tandem::serve::fail(Program::kBootstrap, status);
}
