#include "common/api/timings.h"

#include <algorithm>
#include <cstdint>

namespace tandem::api {

namespace {

void keep_longer(Duration* mine, Duration other) {
  mine->ns = std::max(mine->ns, other.ns);
}

// Known parts only: -1 stands for unknown and must not be counted.
template <class Number>
void add_known(Number* mine, Number other) {
  if (other < 0) return;
  *mine = std::max(*mine, Number{0}) + other;
}

void write_ms(json::Writer& writer, const char* name, Duration time) {
  writer.key(name);
  if (time.ns < 0) return writer.null();
  writer.number(static_cast<double>(time.ns) * 1e-6);
}

}  // namespace

void SequenceTimings::merge(const core::Timings& report) {
  if (report.queue.ns >= 0) worker.queue = report.queue;
  if (report.prefill.ns >= 0) worker.prefill = report.prefill;
  if (report.kv_transfer.ns >= 0) worker.kv_transfer = report.kv_transfer;
  if (report.kv_transfer_bytes >= 0) worker.kv_transfer_bytes = report.kv_transfer_bytes;
}

void SequenceTimings::add(const SequenceTimings& other) {
  keep_longer(&worker.queue, other.worker.queue);
  keep_longer(&worker.prefill, other.worker.prefill);
  keep_longer(&worker.kv_transfer, other.worker.kv_transfer);
  add_known(&worker.kv_transfer_bytes, other.worker.kv_transfer_bytes);
  keep_longer(&tokenize, other.tokenize);
  keep_longer(&first_token, other.first_token);
  add_known(&decode_tokens_per_second, other.decode_tokens_per_second);
}

void write_timings(json::Writer& writer, const SequenceTimings& timings) {
  writer.begin_object();
  write_ms(writer, "tokenize_ms", timings.tokenize);
  write_ms(writer, "queue_ms", timings.worker.queue);
  write_ms(writer, "prefill_ms", timings.worker.prefill);
  write_ms(writer, "first_token_ms", timings.first_token);
  write_ms(writer, "kv_transfer_ms", timings.worker.kv_transfer);
  writer.key("kv_transfer_bytes");
  const std::int64_t bytes = timings.worker.kv_transfer_bytes;
  bytes < 0 ? writer.null() : writer.number(bytes);
  writer.key("decode_tokens_per_second");
  const double rate = timings.decode_tokens_per_second;
  rate < 0 ? writer.null() : writer.number(rate);
  writer.end_object();
}

}  // namespace tandem::api
