// One step of the serving loop: plan, compute, sample, tell.
#include "common/base/check.h"
#include "common/base/load_ahead.h"
#include "common/engine/engine_impl.h"
#include "common/obs/log.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tandem::engine {

namespace {

/// What a step computes; read before it changes the phases.
void log_batch(std::span<const sched::WorkItem> plan) {
  std::int64_t prefill_sequences = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t decode_sequences = 0;
  for (const sched::WorkItem& item : plan) {
    if (item.sequence->phase == sched::Phase::kDecode) {
      ++decode_sequences;
    } else {
      ++prefill_sequences;
      prefill_tokens += item.count;
    }
  }
  obs::debug("batch",
             {{"prefill_sequences", prefill_sequences},
              {"prefill_tokens", prefill_tokens},
              {"decode_sequences", decode_sequences}});
}

}  // namespace

bool Engine::Impl::has_work() const {
  return !scheduler.idle() || !ended_before_.empty();
}

bool Engine::Impl::step(Time now) {
  ++progress_;
  expire(now);
  bool worked = report_ended_before();
  const auto plan = scheduler.plan();
  if (!plan.empty()) {
    worked = true;
    if (obs::enabled(obs::Level::kDebug)) log_batch(plan);
    run_plan(plan);
  }
  measure_throughput(now);
  return worked;
}

void Engine::Impl::expire(Time now) {
  if (!next_deadline_ || now < *next_deadline_) return;
  next_deadline_.reset();
  scratch_ids_.clear();
  for (const auto& [id, generation] : generations_) {
    const std::optional<Time> deadline = generation->request.deadline;
    if (!deadline || generation->reported) continue;
    const bool reserved =
        generation->sequence != nullptr && generation->sequence->phase == sched::Phase::kReserved;
    // Bytes may be on their way to a reservation: only its owner ends it.
    if (*deadline <= now && !reserved) {
      scratch_ids_.push_back(id);
    } else {
      next_deadline_ = std::min(next_deadline_.value_or(*deadline), *deadline);
    }
  }
  for (const core::RequestId id : scratch_ids_) {
    fail(*find(id), deadline_exceeded("the request's deadline passed before its output ended"));
  }
}

bool Engine::Impl::report_ended_before() {
  if (ended_before_.empty()) return false;
  const std::vector<core::RequestId> ids = std::exchange(ended_before_, {});
  for (const core::RequestId id : ids) {
    Generation& generation = *find(id);
    send(generation, generation.ended_before);
    if (!generation.prefill_role) erase(generation);
  }
  return true;
}

void Engine::Impl::run_plan(std::span<const sched::WorkItem> plan) {
  const Time now = options.clock->now();
  for (const sched::WorkItem& item : plan) {
    Generation& generation = *find(item.sequence->id);
    if (!generation.started) {
      generation.start(now);
      generation.timings.queue = now - generation.submitted;
      generation.cached_tokens =
          std::min(std::max(item.sequence->cached_tokens, 0), generation.prompt_count);
    }
    run_item(item, generation);
  }
  flush_pieces();
}

bool Engine::Impl::samples_after(const Generation& generation, std::int32_t end) const {
  return end == generation.sequence->token_count() && !generation.ended_before;
}

void Engine::Impl::run_item(const sched::WorkItem& item, Generation& generation) {
  const ExecutorInfo& info = executor->info();
  const std::int32_t end = item.first + item.count;
  const std::int32_t first_row =
      end - generation.logit_count(item.first, end, samples_after(generation, end));
  for (std::int32_t at = item.first; at < end;) {
    const std::int32_t tokens_left = info.max_batch_tokens - piece_tokens_;
    const std::int32_t rows_left = info.max_logit_rows - piece_rows_;
    const bool slice_left = static_cast<std::int32_t>(pieces_.size()) < info.max_slices;
    const std::int32_t to =
        slice_left ? std::min({end, at + tokens_left, std::max(at, first_row) + rows_left}) : at;
    if (to <= at) {
      flush_pieces();
      continue;
    }
    const std::int32_t rows = std::max(0, to - std::max(at, first_row));
    pieces_.push_back(
        {.generation = &generation, .first = at, .count = to - at, .logit_count = rows});
    piece_tokens_ += to - at;
    piece_rows_ += rows;
    at = to;
    // The rest of these tokens needs the KV of this part, so it goes into a later call.
    if (at < end && !flush_pieces()) return;
  }
}

bool Engine::Impl::flush_pieces() {
  if (pieces_.empty()) return true;
  const core::RequestId last = pieces_.back().generation->id();
  slices_.clear();
  for (const Piece& piece : pieces_) {
    const sched::Sequence& sequence = *piece.generation->sequence;
    slices_.push_back({.tokens = std::span(sequence.tokens)
                                     .subspan(static_cast<std::size_t>(piece.first),
                                              static_cast<std::size_t>(piece.count)),
                       .first_position = piece.first,
                       .pages = sequence.pages.pages,
                       .logit_count = piece.logit_count});
  }
  // Before the weights push what it looks at out of the caches.
  want_rows();
  const auto logits = executor->forward(slices_);
  load_pieces_ahead();
  if (logits.ok()) {
    std::span<const float> left = *logits;
    for (LogitRow& row : rows_) {
      row.logits = left.first(vocab());
      left = left.subspan(vocab());
    }
    reader_.read(rows_);
    // Again: the logits are larger than the first two levels. Results lie where others wrote them.
    for (const LogitRow& row : rows_)
      load_ahead(row);
    load_pieces_ahead();
    for (const Piece& piece : pieces_)
      load_ahead(piece.generation->sequence->tokens.back());
    std::span<LogitRow> rows = rows_;
    for (const Piece& piece : pieces_) {
      const auto count = static_cast<std::size_t>(piece.logit_count);
      complete(piece, rows.first(count));
      rows = rows.subspan(count);
    }
  } else {
    for (const Piece& piece : pieces_)
      fail(*piece.generation, logits.status());
  }
  pieces_.clear();
  piece_tokens_ = 0;
  piece_rows_ = 0;
  const Generation* rest = find(last);
  return rest != nullptr && !rest->reported;
}

void Engine::Impl::load_pieces_ahead() const {
  for (const Piece& piece : pieces_)
    load_ahead(*piece.generation);
  for (const Piece& piece : pieces_)
    load_ahead(*piece.generation->sequence);
}

void Engine::Impl::want_rows() {
  rows_.clear();
  for (const Piece& piece : pieces_) {
    const Generation& generation = *piece.generation;
    const sched::Sequence& sequence = *generation.sequence;
    std::int32_t next_prompt_row = generation.next_prompt_row;
    for (std::int32_t position = piece.end() - piece.logit_count; position < piece.end();
         ++position) {
      LogitRow& row = rows_.emplace_back();
      row.generation = &generation;
      if (generation.wants_prompt_row(position, next_prompt_row)) {
        row.prompt_token = sequence.tokens[static_cast<std::size_t>(position) + 1];
        next_prompt_row = generation.prompt_row_after(position);
      }
      if (position + 1 == sequence.token_count() && !generation.ended_before) {
        row.output_index = sequence.output_count();
      }
    }
  }
}

void Engine::Impl::complete(const Piece& piece, std::span<LogitRow> rows) {
  Generation& generation = *piece.generation;
  sched::Sequence& sequence = *generation.sequence;
  std::optional<core::TokenId> sampled;
  if (const Status status = take_rows(generation, rows, &sampled); !status.ok()) {
    // Whatever spoilt the logits may be in the KV: it must not reach others by the prefix tree.
    generation.discard = true;
    fail(generation, status);
    return;
  }
  sequence.match_limit = generation.next_prompt_row;
  const bool whole = piece.end() == sequence.token_count();
  scheduler.advance(sequence, piece.count);
  if (generation.prefill_role) {
    tell_pages(generation);
    if (whole) end_prefill(generation, sampled);
  } else if (whole) {
    continue_output(generation, sampled);
  }
}

Status Engine::Impl::take_rows(Generation& generation,
                               std::span<LogitRow> rows,
                               std::optional<core::TokenId>* sampled) {
  for (LogitRow& row : rows) {
    if (!row.status.ok()) return std::move(row.status);
    if (row.prompt_token) {
      generation.prompt_logprobs.push_back(std::move(row.prompt_logprob));
      generation.next_prompt_row = generation.prompt_row_after(generation.next_prompt_row);
    }
    if (!row.output_index) continue;
    if (generation.request.return_logprob) {
      generation.pending.logprobs.push_back(std::move(row.logprob));
    }
    generation.pending.tokens.push_back(row.token);
    if (generation.keeps_counts) ++generation.counts[row.token];
    ++window_tokens_;
    *sampled = row.token;
  }
  return {};
}

std::optional<core::FinishReason> Engine::Impl::finish_of(const Generation& generation,
                                                          core::TokenId token,
                                                          std::int32_t output_count) const {
  auto finish = generation.finish_after(token, output_count);
  if (!finish && generation.prompt_count + output_count >= output_limits().token_limit) {
    finish = finish_reason(core::FinishKind::kLength);
  }
  return finish;
}

void Engine::Impl::tell_pages(Generation& generation) {
  const sched::Sequence& sequence = *generation.sequence;
  const bool whole = sequence.computed == sequence.token_count();
  const std::int32_t ready = whole ? static_cast<std::int32_t>(sequence.pages.pages.size())
                                   : sequence.computed / options.page_size;
  if (ready == generation.pages_told) return;
  const std::int32_t first = std::exchange(generation.pages_told, ready);
  generation.observer->chunk_ready(
      generation.id(),
      first,
      std::span<const kv::PageId>(sequence.pages.pages)
          .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(ready - first)),
      whole ? sequence.computed : ready * options.page_size);
}

void Engine::Impl::end_prefill(Generation& generation, std::optional<core::TokenId> sampled) {
  generation.timings.prefill = options.clock->now() - *generation.started;
  auto finish = generation.ended_before;
  // Not by this engine's room: decode may have more.
  if (sampled) finish = generation.finish_after(*sampled, generation.resumed_count + 1);
  send(generation, std::move(finish));
}

void Engine::Impl::continue_output(Generation& generation, std::optional<core::TokenId> sampled) {
  sched::Sequence& sequence = *generation.sequence;
  if (!generation.sent_any) generation.timings.prefill = options.clock->now() - *generation.started;
  auto finish = generation.ended_before;
  const std::int32_t output_count = sequence.output_count() + 1;
  if (sampled) finish = finish_of(generation, *sampled, output_count);
  if (finish) {
    send(generation, std::move(finish));
    erase(generation);
    return;
  }
  TANDEM_CHECK(sampled.has_value(), "Engine: an output neither goes on nor ends");
  scheduler.append(sequence, *sampled);
  // Events at 1, N + 1, 2 N + 1, ... output tokens.
  const bool due = (output_count - 1) % options.stream_interval == 0;
  if (due || !generation.sent_any) send(generation, std::nullopt);
}

void Engine::Impl::send(Generation& generation, std::optional<core::FinishReason> finish) {
  core::TokenEvent event = generation.take_event();
  event.finish = std::move(finish);
  if (!generation.prefill_role) {
    generation.sink(std::move(event));
    return;
  }
  generation.reported = true;
  generation.observer->first_token(std::move(event));
}

void Engine::Impl::measure_throughput(Time now) {
  const Duration passed = now - window_start_;
  if (passed < seconds(1)) return;
  throughput_ = static_cast<double>(window_tokens_) / passed.seconds();
  window_tokens_ = 0;
  window_start_ = now;
}

}  // namespace tandem::engine
