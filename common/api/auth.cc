#include "common/api/auth.h"

#include "common/http/message.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace tandem::api {

namespace {

constexpr std::string_view kScheme = "bearer ";

}  // namespace

KeyCheck::KeyCheck(const obs::Secret& key)
    : required_(!key.empty()), key_digest_(digest(key.reveal())) {}

KeyCheck::Digest KeyCheck::digest(std::string_view text) {
  Digest out{};
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data());
  return out;
}

bool KeyCheck::allows(std::string_view authorization) const {
  if (!required_) return true;
  const bool scheme = authorization.size() >= kScheme.size() &&
                      http::equals_ignoring_case(authorization.substr(0, kScheme.size()), kScheme);
  if (!scheme) return false;
  const Digest given = digest(authorization.substr(kScheme.size()));
  return CRYPTO_memcmp(given.data(), key_digest_.data(), given.size()) == 0;
}

bool KeyCheck::is_open_path(std::string_view path) {
  return path.starts_with("/health") || path == "/ready" || path == "/readiness" ||
         path == "/liveness" || path.starts_with("/metrics");
}

}  // namespace tandem::api
