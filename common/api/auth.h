// The API key: hashed, and compared in constant time.
#pragma once

#include "common/obs/log.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace tandem::api {

/// Immutable; any thread.
class KeyCheck {
 public:
  /// An empty key lets everybody in.
  explicit KeyCheck(const obs::Secret& key);

  /// `authorization` is the whole header value: "Bearer KEY", the scheme in any case. The time
  /// depends on its length alone.
  [[nodiscard]] bool allows(std::string_view authorization) const;

  /// Paths that need no key: /health*, /ready*, /metrics*.
  [[nodiscard]] static bool is_open_path(std::string_view path);

  [[nodiscard]] bool required() const { return required_; }

 private:
  using Digest = std::array<std::uint8_t, 32>;

  static Digest digest(std::string_view text);

  bool required_;
  Digest key_digest_;
};

}  // namespace tandem::api
