// What the fuzz programs and the replay test feed to code that reads what others wrote, and what
// must hold whatever it is fed. Each aborts when a promise is broken.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

namespace tandem::fuzz {

using Bytes = std::span<const std::uint8_t>;

inline void must(bool holds, const char* promise) {
  if (holds) return;
  (void)std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

inline std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A whole command line: the first byte picks the program, then come words, one a line. A line
/// "$NAME=VALUE" is a variable of the environment instead.
void feed_argv(Bytes bytes);

/// A config file: the first byte picks the program, the rest is the file. Writes one file below
/// TMPDIR, which is removed when the process ends.
void feed_yaml(Bytes bytes);

/// A JSON text, as in bodies of requests and files of models. The oracle is nlohmann's parser.
void feed_json(Bytes bytes);

/// The head of an HTTP request and a chunked body behind it. The first bytes say in which pieces
/// they arrive: no piece may change what they mean.
void feed_http(Bytes bytes);

/// A text that becomes words: the first byte picks the pattern. The oracle is PCRE2.
void feed_words(Bytes bytes);

/// A text that the demo model's tokenizer encodes and decodes, whole, remembered and in a stream.
void feed_text(Bytes bytes);

/// A tokenizer.json and, behind a NUL, a tokenizer_config.json.
void feed_tokenizer(Bytes bytes);

/// A chat template, rendered for a short conversation with tools.
void feed_template(Bytes bytes);

/// A safetensors file.
void feed_safetensors(Bytes bytes);

/// A model.safetensors.index.json, of a folder with two shards. Writes below TMPDIR as feed_yaml.
void feed_index(Bytes bytes);

/// A worker's HTTP response, to a router that asks. The first bytes say in which pieces it arrives;
/// one of them, whether HEAD was asked.
void feed_response(Bytes bytes);

/// A model's config.json, generation_config.json and an override, with a NUL between them.
void feed_config(Bytes bytes);

/// The body of a request to the API; the first byte says to which route.
void feed_request(Bytes bytes);

/// A message of a session or of a pair, as Protocol Buffers; the first byte says which.
void feed_wire(Bytes bytes);

/// What a peer says to one half of the hand-off, and what goes on there meanwhile. The first byte
/// says to which.
void feed_sides(Bytes bytes);

}  // namespace tandem::fuzz
