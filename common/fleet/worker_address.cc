#include "common/fleet/worker_address.h"

#include <charconv>
#include <string_view>

namespace tandem::fleet {

Result<WorkerAddress> parse_worker_url(const std::string& url, rpc::Role role) {
  const auto bad = [&](const std::string& why) {
    return invalid_argument("worker URL '" + url + "': " + why +
                            ", expected http://HOST:PORT or grpc://HOST:PORT");
  };
  WorkerAddress address;
  address.role = role;
  std::string_view rest = url;
  if (const auto scheme = rest.find("://"); scheme != std::string_view::npos) {
    const std::string_view name = rest.substr(0, scheme);
    if (name == "grpc") {
      address.is_grpc = true;
    } else if (name != "http") {
      return bad("scheme '" + std::string(name) + "' is not spoken");
    }
    rest.remove_prefix(scheme + 3);
  }
  while (rest.ends_with('/'))
    rest.remove_suffix(1);
  if (rest.find_first_of("/?#@ ") != std::string_view::npos)
    return bad("it has more than a host and a port");
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto close = rest.find("]:");
    if (close == std::string_view::npos) return bad("no port");
    address.host = std::string(rest.substr(0, close + 1));
    port = rest.substr(close + 2);
  } else {
    const auto colon = rest.rfind(':');
    if (colon == std::string_view::npos) return bad("no port");
    address.host = std::string(rest.substr(0, colon));
    port = rest.substr(colon + 1);
  }
  if (address.host.empty()) return bad("no host");
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0 || number > 65535) {
    return bad("port '" + std::string(port) + "' is not 1 to 65535");
  }
  address.port = static_cast<std::uint16_t>(number);
  return address;
}

}  // namespace tandem::fleet
