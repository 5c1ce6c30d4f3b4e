// Tokenizer: MB/s of encode and decode, the cost of one streamed token, and loading (milliseconds;
// `tokens` are the vocabulary's). One thread.
//
//   tokenizer_bench [--model FOLDER] [--corpus FILE] [--mib 4] [--reps 5]
//
// Without --corpus the text is the project's own documents and sources, over and over: --mib times
// 2^20 characters of it, in chunks of characters, as Python's slices count them, so that peers can
// encode the same ones (`tokens` and `ids_hash` tell). One JSON line per figure, the median of
// --reps.
#include "common/token/tokenizer.h"

#include "common/token/detokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace {

using tandem::token::IncrementalDetokenizer;
using tandem::token::Tokenizer;
using Ids = std::vector<std::int32_t>;

struct Options {
  std::string model = TANDEM_DEMO_MODEL;
  std::string corpus;
  std::size_t mib = 4;
  int reps = 5;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string own_text() {
  std::vector<std::filesystem::path> paths;
  for (const char* folder : {"/docs", "/common"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(TANDEM_SOURCE_DIR + std::string(folder))) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::string text;
  for (const auto& path : paths)
    text += read_file(path);
  return text;
}

/// Bytes of the first `characters` of UTF-8 text, or of all of it.
std::size_t bytes_of(std::string_view text, std::size_t characters) {
  std::size_t end = 0;
  for (; end < text.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U;
    if (begins && characters-- == 0) break;
  }
  return end;
}

std::vector<std::string_view> chunks_of(std::string_view text, std::size_t characters) {
  std::vector<std::string_view> chunks;
  while (!text.empty()) {
    const std::size_t size = bytes_of(text, characters);
    chunks.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return chunks;
}

/// The upper one of the two in the middle where `reps` is even.
template <class Work>
double median_seconds(int reps, Work work) {
  std::vector<double> seconds;
  for (int i = 0; i < reps; ++i) {
    const auto began = std::chrono::steady_clock::now();
    work();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

void print(const std::string& row,
           double value,
           const char* unit,
           std::size_t tokens,
           std::uint64_t hash) {
  std::cout
      << fmt::format(
             R"({{"bench":"tokenizer","row":"{}","value":{:.4g},"unit":"{}","tokens":{},"ids_hash":"{:016x}"}})",
             row,
             value,
             unit,
             tokens,
             hash)
      << std::endl;
}

/// FNV-1a over the ids.
std::uint64_t hash_of(const std::vector<Ids>& all) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const Ids& ids : all) {
    for (const std::int32_t id : ids)
      hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001B3ULL;
  }
  return hash;
}

void measure(const Options& options,
             const std::shared_ptr<const Tokenizer>& tokenizer,
             std::string_view text) {
  struct Size {
    const char* name;
    std::size_t characters;
  };

  for (const Size& size : {Size{"2kB", 2000}, Size{"100kB", 100'000}}) {
    const auto chunks = chunks_of(text, size.characters);
    std::vector<Ids> ids(chunks.size());
    const double encode = median_seconds(options.reps, [&] {
      for (std::size_t i = 0; i < chunks.size(); ++i)
        ids[i] = tokenizer->encode(chunks[i], false);
    });
    std::size_t count = 0;
    for (const Ids& each : ids)
      count += each.size();
    const double megabytes = static_cast<double>(text.size()) * 1e-6;
    print(fmt::format("encode_{}", size.name), megabytes / encode, "MB/s", count, hash_of(ids));
    std::size_t bytes = 0;
    const double decode = median_seconds(options.reps, [&] {
      for (const Ids& each : ids)
        bytes += tokenizer->decode(each, false).size();
    });
    print(fmt::format("decode_{}", size.name), megabytes / decode, "MB/s", count, bytes);
    if (size.characters > 2000) continue;
    std::string out;
    const double stream = median_seconds(options.reps, [&] {
      IncrementalDetokenizer detokenizer(tokenizer);
      for (const Ids& each : ids) {
        for (const std::int32_t id : each) {
          out.clear();
          detokenizer.push(id, &out);
        }
      }
    });
    print(
        "stream_decode", stream / static_cast<double>(count) * 1e6, "us/token", count, out.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--model") options.model = argv[i + 1];
    if (name == "--corpus") options.corpus = argv[i + 1];
    if (name == "--mib") options.mib = std::strtoul(argv[i + 1], nullptr, 10);
    if (name == "--reps") options.reps = std::max(std::atoi(argv[i + 1]), 1);
  }
  const auto tokenizer = Tokenizer::load(options.model);
  if (!tokenizer.ok()) {
    std::cerr << "tokenizer_bench: " << tokenizer.status().message() << "\n";
    return 1;
  }
  const std::string source = options.corpus.empty() ? own_text() : read_file(options.corpus);
  std::string text;
  const std::size_t characters = options.mib << 20U;
  while (!source.empty() && bytes_of(text, characters) == text.size())
    text += source;
  text.resize(bytes_of(text, characters));
  const double load =
      median_seconds(options.reps, [&] { (void)Tokenizer::load(options.model).ok(); });
  print("load", load * 1e3, "ms", (*tokenizer)->vocab_size(), 0);
  measure(options, *tokenizer, text);
  return 0;
}
