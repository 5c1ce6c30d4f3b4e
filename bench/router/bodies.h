// What the load sends: requests of 64 conversations, each with an end of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem::bench {

/// Conversations that requests belong to, in turn. All of one begin alike; its request number n
/// ends in more tokens than a block of the router's prefix index has, as no other request does, so
/// that each makes that index grow.
inline constexpr std::uint64_t kConversations = 64;

/// POST /generate with token ids.
class IdsBodies {
 public:
  explicit IdsBodies(int prompt_tokens);

  /// All have the same size.
  [[nodiscard]] std::string body(std::uint64_t number) const;

 private:
  std::string middle_;
};

/// POST /v1/chat/completions.
class ChatBodies {
 public:
  struct Options {
    int max_tokens = 0;
    std::size_t text_bytes = 0;
    bool stream = false;
  };

  explicit ChatBodies(const Options& options);

  /// All of one `seed` have the same size; the worker finds the seed in the request.
  [[nodiscard]] std::string body(std::uint64_t number, std::size_t seed = 0) const;

 private:
  std::string head_;
  std::string middle_;
};

}  // namespace tandem::bench
