// A host as it stands in a URL, and as a resolver wants it.
#pragma once

#include <string_view>

namespace tandem {

/// `host` without the brackets that an address of IPv6 has in a URL (RFC 3986, 3.2.2).
constexpr std::string_view without_brackets(std::string_view host) {
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return host;
  return host.substr(1, host.size() - 2);
}

}  // namespace tandem
