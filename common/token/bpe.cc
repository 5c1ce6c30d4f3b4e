#include "common/token/bpe.h"

#include "common/json/utf8.h"
#include "common/token/word_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <unordered_map>

namespace tandem::token {
namespace {

constexpr std::size_t kBmpSize = 0x10000;
/// Up to here a plain search for the lowest rank beats the queue.
constexpr std::size_t kShortWord = 48;
constexpr std::uint32_t kNoRank = 0xFFFFFFFF;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

std::size_t hash_pair(std::uint64_t key) {
  // The upper half of the product: only there both ids have a say.
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> 32);
}

}  // namespace

BpeModel::BpeModel(Vocabulary vocabulary, const BpeOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options), char_ids_(kBmpSize, -1) {
  for (std::size_t i = 0; i < vocabulary_.id_end(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const std::string_view token = vocabulary_.token(id);
    if (token.empty() || token.size() > 4) continue;
    const json::Utf8Step step = json::decode_utf8(token);
    if (step.byte_count == token.size() && step.code_point < kBmpSize) {
      char_ids_[step.code_point] = id;
    }
  }
  byte_ids_.fill(-1);
  for (unsigned b = 0; options_.byte_fallback && b < 256; ++b) {
    byte_ids_[b] = vocabulary_.find(fmt::format("<0x{:02X}>", b)).value_or(-1);
  }
}

void BpeModel::reserve_merges(std::size_t count) {
  std::size_t slot_count = 1024;
  while (slot_count < count * 2) {
    slot_count *= 2;
  }
  const std::vector<Merge> old = std::move(merges_);
  merges_.assign(slot_count, Merge{});
  for (const Merge& merge : old) {
    if (merge.new_id >= 0) insert(merge);
  }
}

void BpeModel::insert(const Merge& merge) {
  const std::size_t mask = merges_.size() - 1;
  std::size_t slot = hash_pair(merge.pair) & mask;
  while (merges_[slot].new_id >= 0 && merges_[slot].pair != merge.pair) {
    slot = (slot + 1) & mask;
  }
  merges_[slot] = merge;
}

Status BpeModel::add_merge(std::string_view left, std::string_view right) {
  std::string merged(left);
  merged += right;
  NewMerge merge{Vocabulary::key(left), Vocabulary::key(right), Vocabulary::key(merged)};
  TANDEM_TRY(resolve(merge));
  add_merge(merge);
  return {};
}

void BpeModel::prefetch(const NewMerge& merge) const {
  vocabulary_.prefetch(merge.left);
  vocabulary_.prefetch(merge.right);
  vocabulary_.prefetch(merge.merged);
}

void BpeModel::prefetch_tokens(const NewMerge& merge) const {
  vocabulary_.prefetch_token(merge.left);
  vocabulary_.prefetch_token(merge.right);
  vocabulary_.prefetch_token(merge.merged);
}

Status BpeModel::resolve(NewMerge& merge) const {
  const auto left_id = vocabulary_.find(merge.left);
  const auto right_id = vocabulary_.find(merge.right);
  const auto new_id = vocabulary_.find(merge.merged);
  if (!left_id || !right_id || !new_id) {
    const Vocabulary::Key& missing = !left_id ? merge.left : !right_id ? merge.right : merge.merged;
    return invalid_argument(
        fmt::format("merge of \"{}\" and \"{}\": \"{}\" is not in the vocabulary",
                    merge.left.text,
                    merge.right.text,
                    missing.text));
  }
  merge.pair = pair_key(*left_id, *right_id);
  merge.new_id = *new_id;
  if (!merges_.empty())
    __builtin_prefetch(&merges_[hash_pair(merge.pair) & (merges_.size() - 1)], 1);
  return {};
}

void BpeModel::add_merge(const NewMerge& merge) {
  if ((++merge_count_) * 2 > merges_.size()) reserve_merges(merge_count_ * 2);
  insert({merge.pair, next_rank_++, merge.new_id});
}

const BpeModel::Merge* BpeModel::find_merge(std::int32_t left, std::int32_t right) const {
  if (merges_.empty()) return nullptr;
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t slot = hash_pair(key) & mask;; slot = (slot + 1) & mask) {
    const Merge& merge = merges_[slot];
    if (merge.new_id < 0) return nullptr;
    if (merge.pair == key) return &merge;
  }
}

std::int32_t BpeModel::char_id(char32_t code, std::string_view text) const {
  if (code < kBmpSize) return char_ids_.empty() ? -1 : char_ids_[code];
  return vocabulary_.find(text).value_or(-1);
}

bool BpeModel::append_bytes(std::string_view text, std::vector<std::int32_t>& out) const {
  if (!options_.byte_fallback) return false;
  const bool all = std::all_of(text.begin(), text.end(), [&](char c) {
    return byte_ids_[static_cast<unsigned char>(c)] >= 0;
  });
  if (!all) return false;
  for (const char c : text) {
    out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  }
  return true;
}

void BpeModel::first_symbols(std::string_view word, std::vector<std::int32_t>& out) const {
  bool last_is_unk = false;
  while (!word.empty()) {
    const json::Utf8Step step = json::decode_utf8(word);
    const std::string_view text = word.substr(0, step.byte_count);
    word.remove_prefix(step.byte_count);
    const std::int32_t id = char_id(step.code_point, text);
    if (id >= 0) {
      out.push_back(id);
      last_is_unk = false;
    } else if (append_bytes(text, out)) {
      last_is_unk = false;
    } else if (options_.unk_id) {
      if (!last_is_unk || !options_.fuse_unk) out.push_back(*options_.unk_id);
      last_is_unk = true;
    }
  }
}

/// Merges in place; returns how many symbols are left. `count` is at most kShortWord.
std::size_t BpeModel::merge_short(std::int32_t* symbols, std::size_t count) const {
  struct Candidate {
    std::uint32_t rank;
    std::int32_t new_id;
  };

  Candidate found[kShortWord];
  const auto look = [&](std::size_t i) -> Candidate {
    const Merge* merge = i + 1 < count ? find_merge(symbols[i], symbols[i + 1]) : nullptr;
    return merge == nullptr ? Candidate{kNoRank, -1} : Candidate{merge->rank, merge->new_id};
  };
  for (std::size_t i = 0; i < count; ++i)
    found[i] = look(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (found[i].rank < found[best].rank) best = i;
    }
    if (found[best].rank == kNoRank) break;
    symbols[best] = found[best].new_id;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      found[i] = found[i + 1];
    }
    --count;
    if (best > 0) found[best - 1] = look(best - 1);
    found[best] = look(best);
  }
  return count;
}

/// Merges of a long word. Candidates lie in one list per rank, in order of position, and a queue
/// holds the ranks: a word that repeats few pairs is walked through in order, without a large heap.
class LongMerger {
 public:
  LongMerger(const BpeModel& model, std::vector<std::int32_t>& symbols)
      : model_(model), symbols_(symbols), next_(symbols.size()), prev_(symbols.size()) {
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      next_[i] = static_cast<std::uint32_t>(i + 1);
      prev_[i] = static_cast<std::uint32_t>(i) - 1;
    }
  }

  void run() {
    for (std::size_t i = 0; i + 1 < symbols_.size(); ++i) {
      offer(static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i + 1));
    }
    while (!ranks_.empty()) {
      const std::uint32_t rank = ranks_.top();
      List& list = lists_[rank];
      if (list.unsorted) {
        std::sort(list.positions.begin() + list.done, list.positions.end());
        list.unsorted = false;
      }
      if (!drain(list, rank)) continue;
      ranks_.pop();
      lists_.erase(rank);
      last_list_ = nullptr;
    }
    std::size_t count = 0;
    for (std::uint32_t i = 0; i < symbols_.size(); i = next_[i]) {
      symbols_[count++] = symbols_[i];
    }
    symbols_.resize(count);
  }

 private:
  struct List {
    std::vector<std::uint32_t> positions;
    std::ptrdiff_t done = 0;
    std::int32_t new_id = -1;
    std::uint64_t pair = 0;
    bool unsorted = false;
  };

  /// Works through a list. False when a lower rank has turned up and comes first.
  bool drain(List& list, std::uint32_t rank) {
    while (list.done < static_cast<std::ptrdiff_t>(list.positions.size())) {
      if (ranks_.top() != rank || list.unsorted) return false;
      const std::uint32_t left = list.positions[static_cast<std::size_t>(list.done++)];
      const std::uint32_t right = next_[left];
      if (symbols_[left] < 0 || right >= symbols_.size()) continue;
      if (pair_key(symbols_[left], symbols_[right]) != list.pair) continue;
      merge(left, right, list.new_id);
    }
    return ranks_.top() == rank;
  }

  void merge(std::uint32_t left, std::uint32_t right, std::int32_t new_id) {
    symbols_[left] = new_id;
    symbols_[right] = -1;
    const std::uint32_t after = next_[right];
    next_[left] = after;
    if (after < symbols_.size()) prev_[after] = left;
    if (left > 0) offer(prev_[left], left);
    if (after < symbols_.size()) offer(left, after);
  }

  void offer(std::uint32_t left, std::uint32_t right) {
    const auto* merge = model_.find_merge(symbols_[left], symbols_[right]);
    if (merge == nullptr) return;
    // Long words repeat their pairs: mostly the list is the one used last.
    if (last_list_ == nullptr || last_rank_ != merge->rank) {
      const auto [entry, fresh] = lists_.try_emplace(merge->rank);
      last_list_ = &entry->second;
      last_rank_ = merge->rank;
      if (fresh) {
        last_list_->new_id = merge->new_id;
        last_list_->pair = merge->pair;
        ranks_.push(merge->rank);
      }
    }
    List& list = *last_list_;
    if (!list.positions.empty() && list.positions.back() > left) list.unsorted = true;
    list.positions.push_back(left);
  }

  const BpeModel& model_;
  std::vector<std::int32_t>& symbols_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> prev_;
  /// References into the map stay valid while others are added.
  std::unordered_map<std::uint32_t, List> lists_;
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ranks_;
  List* last_list_ = nullptr;
  std::uint32_t last_rank_ = 0;
};

void BpeModel::encode(std::string_view word, std::vector<std::int32_t>& out) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.find(word)) {
      out.push_back(*id);
      return;
    }
  }
  std::vector<std::int32_t> symbols;
  symbols.reserve(word.size());
  first_symbols(word, symbols);
  if (symbols.size() <= kShortWord) {
    symbols.resize(merge_short(symbols.data(), symbols.size()));
  } else {
    LongMerger(*this, symbols).run();
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

bool BpeModel::index_bytes() {
  raw_ = RawWords(vocabulary_);
  if (!raw_.usable()) return false;
  reach_ = std::make_unique<std::atomic<std::uint8_t>[]>(vocabulary_.id_end());
  static std::atomic<std::uint32_t> serial{1};
  serial_ = serial.fetch_add(1);
  return true;
}

bool BpeModel::merges_to(std::int32_t id, std::string_view bytes) const {
  if (options_.ignore_merges) return true;
  std::atomic<std::uint8_t>& reach = reach_[static_cast<std::size_t>(id)];
  const std::uint8_t known = reach.load(std::memory_order_relaxed);
  if (known != kUnknown) return known == kReached;
  std::int32_t symbols[kShortWord];
  // Longer tokens are rare enough to be merged each time.
  if (bytes.size() > kShortWord) return false;
  const std::size_t size = bytes.size();
  for (std::size_t i = 0; i < size; ++i)
    symbols[i] = raw_.byte_id(bytes[i]);
  const bool reached = merge_short(symbols, size) == 1 && symbols[0] == id;
  reach.store(reached ? kReached : kNotReached, std::memory_order_relaxed);
  return reached;
}

void BpeModel::encode_bytes(std::string_view text,
                            std::span<const Span> words,
                            std::vector<std::int32_t>& out) const {
  thread_local WordCache cache;
  // Ids that are not in `out` yet.
  std::array<std::int32_t, 256> ids;  // NOLINT: the first `count` are set
  std::size_t count = 0;
  const auto flush = [&] {
    out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
    count = 0;
  };
  for (const Span& word : words) {
    const std::string_view bytes = text.substr(word.begin, word.end - word.begin);
    if (bytes.empty()) continue;
    if (count + WordCache::kIdsMax > ids.size()) flush();
    if (bytes.size() == 1) {
      ids[count++] = raw_.byte_id(bytes[0]);
      continue;
    }
    if (bytes.size() > WordCache::kBytesMax) {
      flush();
      merge_bytes(bytes, out);
      continue;
    }
    const WordCache::Key key = WordCache::key_of(serial_, bytes);
    const std::size_t known = cache.copy(key, ids.data() + count);
    count += known;
    if (known > 0) continue;
    flush();
    const std::size_t first = out.size();
    merge_bytes(bytes, out);
    cache.keep(key, out, first);
  }
  flush();
}

void BpeModel::merge_bytes(std::string_view bytes, std::vector<std::int32_t>& out) const {
  const std::int32_t id = raw_.find(bytes);
  if (id >= 0 && merges_to(id, bytes)) {
    out.push_back(id);
    return;
  }
  if (bytes.size() > kShortWord) {
    std::vector<std::int32_t> symbols(bytes.size());
    std::transform(bytes.begin(), bytes.end(), symbols.begin(), [this](char byte) {
      return raw_.byte_id(byte);
    });
    LongMerger(*this, symbols).run();
    out.insert(out.end(), symbols.begin(), symbols.end());
    return;
  }
  std::int32_t symbols[kShortWord];
  const std::size_t size = bytes.size();
  for (std::size_t i = 0; i < size; ++i)
    symbols[i] = raw_.byte_id(bytes[i]);
  const std::size_t count = merge_short(symbols, size);
  out.insert(out.end(), symbols, symbols + count);
}

}  // namespace tandem::token
