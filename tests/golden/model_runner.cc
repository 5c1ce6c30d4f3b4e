#include "tests/golden/model_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tandem::golden {

ModelRunner::ModelRunner(model::Model& model, const Options& options)
    : model_(model), options_(options) {
  const auto layout = model.kv_layout(static_cast<std::int64_t>(options.page_size));
  // 0xFF is NaN in every dtype: a slot that is read before it is written shows.
  arena_.assign(options.page_count * layout.page_bytes(), std::byte{0xFF});
  // Neighbours in a sequence are far apart in the arena: page arithmetic must go by the table.
  for (std::size_t i = 0; i < options.page_count; ++i) {
    free_pages_.push_back(static_cast<std::int32_t>((i * 97 + 13) % options.page_count));
  }
  std::sort(free_pages_.begin(), free_pages_.end(), [](std::int32_t a, std::int32_t b) {
    return std::pair((a * 37) % 101, a) < std::pair((b * 37) % 101, b);
  });
  free_pages_.erase(std::unique(free_pages_.begin(), free_pages_.end()), free_pages_.end());
}

Track ModelRunner::start(std::vector<std::int32_t> tokens, std::size_t token_count_max) {
  Track track;
  const std::size_t pages = (token_count_max + options_.page_size - 1) / options_.page_size;
  TANDEM_CHECK(pages <= free_pages_.size(), "the test's arena is too small");
  track.pages.assign(free_pages_.end() - static_cast<std::ptrdiff_t>(pages), free_pages_.end());
  free_pages_.resize(free_pages_.size() - pages);
  track.tokens = std::move(tokens);
  return track;
}

void ModelRunner::finish(Track& track) {
  free_pages_.insert(free_pages_.end(), track.pages.begin(), track.pages.end());
  track.pages.clear();
}

Status ModelRunner::step(std::span<const Slice> slices) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> sequence;
  std::vector<model::SequencePages> pages;
  for (const Slice& slice : slices) {
    for (std::size_t i = 0; i < slice.token_count; ++i) {
      ids.push_back(slice.track->tokens[slice.track->done + i]);
      positions.push_back(static_cast<std::int32_t>(slice.track->done + i));
      sequence.push_back(static_cast<std::int32_t>(pages.size()));
    }
    pages.push_back({slice.track->pages.data(), slice.track->pages.size()});
  }
  model::ForwardOutput output;
  TANDEM_TRY(model_.forward({.token_ids = ids,
                             .positions = positions,
                             .sequence = sequence,
                             .sequences = pages,
                             .kv = {.base = arena_.data(),
                                    .page_count = options_.page_count,
                                    .page_size = options_.page_size},
                             .logit_rows = {},
                             .keep_rows = true,
                             .hidden_states = hidden_states_},
                            output));
  const auto row_max = static_cast<std::size_t>(model_.limits().logit_row_count_max);
  std::size_t row = 0;
  for (const Slice& slice : slices) {
    for (std::size_t left = slice.token_count; left > 0;) {
      std::vector<std::int32_t> rows(std::min(left, row_max));
      std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(row));
      TANDEM_TRY(model_.logits(rows, output));
      slice.track->logits.insert(slice.track->logits.end(),
                                 output.logits,
                                 output.logits + output.rows * output.vocab_size);
      row += rows.size();
      left -= rows.size();
    }
    slice.track->done += slice.token_count;
  }
  return {};
}

Status ModelRunner::run(Track& track, std::size_t chunk) {
  while (track.done < track.tokens.size()) {
    const std::size_t left = track.tokens.size() - track.done;
    const Slice slice{&track, chunk == 0 ? left : std::min(chunk, left)};
    TANDEM_TRY(step({&slice, 1}));
  }
  return {};
}

}  // namespace tandem::golden
