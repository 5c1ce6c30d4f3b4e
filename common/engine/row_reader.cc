#include "common/engine/row_reader.h"

#include "common/sample/logprobs.h"

namespace tandem::engine {

RowReader::RowReader(Executor* executor) : executor_(executor) {
  for (std::size_t worker = 0; worker < executor->worker_count(); ++worker)
    scratch_.emplace_back(executor->info().vocab_size);
}

Status RowReader::Scratch::read(LogitRow& row) {
  const core::Request& request = row.generation->request;
  if (row.prompt_token) {
    TANDEM_TRY(
        row.prompt_logprob,
        sample::token_logprob(scan, row.logits, *row.prompt_token, request.top_logprobs_num));
  }
  if (!row.output_index) return {};
  TANDEM_TRY(row.token,
             sampler.sample({.logits = row.logits,
                             .params = &request.sampling,
                             .counts = &row.generation->counts,
                             .end_ids = row.generation->end_ids,
                             .output_index = *row.output_index}));
  if (request.return_logprob) {
    TANDEM_TRY(row.logprob,
               sample::token_logprob(scan, row.logits, row.token, request.top_logprobs_num));
  }
  return {};
}

void RowReader::read(std::span<LogitRow> rows) {
  struct Context {
    RowReader* reader;
    std::span<LogitRow> rows;
  } context{.reader = this, .rows = rows};

  executor_->run_tasks(
      rows.size(),
      [](void* opaque, std::size_t task, std::size_t worker) {
        const Context& all = *static_cast<Context*>(opaque);
        all.rows[task].status = all.reader->scratch_[worker].read(all.rows[task]);
      },
      &context);
}

}  // namespace tandem::engine
