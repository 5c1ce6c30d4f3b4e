// Engine: the serving loop for one model. Requests in, TokenEvents out.
#pragma once

#include "common/base/clock.h"
#include "common/base/shared_memory.h"
#include "common/base/status.h"
#include "common/core/generator.h"
#include "common/core/request.h"
#include "common/engine/executor.h"
#include "common/kv/block_pool.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tandem::engine {

enum class SchedulePolicy : std::uint8_t {
  kFcfs,  ///< first come, first served
  kLpm,   ///< longest cached prefix first; fcfs while the queue is long
};

/// Flag names in comments are those of the argument schema.
struct EngineOptions {
  /// Capacity of the KV pool in tokens, rounded down to whole pages: the resolved
  /// --max-total-tokens or what --mem-fraction-static gave.
  std::int64_t max_total_tokens = 0;
  std::int32_t page_size = 1;               ///< --page-size
  bool disable_radix_cache = false;         ///< --disable-radix-cache
  std::int32_t max_running_requests = 256;  ///< --max-running-requests
  std::int32_t max_queued_requests = 0;     ///< --max-queued-requests; 0: no limit
  std::int32_t max_prefill_tokens = 16384;  ///< --max-prefill-tokens
  std::int32_t chunked_prefill_size = -1;   ///< --chunked-prefill-size; -1: whole prompts
  /// The same while other requests decode; 0: no difference.
  std::int32_t chunk_beside_decodes = 0;
  /// --enable-mixed-chunk: a step may hold prefill chunks and decodes. Without, they take turns.
  bool mixed_chunk = true;
  SchedulePolicy schedule_policy = SchedulePolicy::kFcfs;  ///< --schedule-policy
  double schedule_conservativeness = 1.0;                  ///< --schedule-conservativeness
  std::int32_t reserved_decode_tokens = 512;               ///< --num-reserved-decode-tokens
  std::int32_t stream_interval = 1;                        ///< --stream-interval
  /// Longest prompt plus output, if shorter than the model's (--context-length); 0: the model's.
  std::int32_t context_length = 0;
  /// The KV pool is memory that other processes of the machine may map for reading, where the
  /// system has such memory. It gets no huge pages where the system gives them to anonymous memory
  /// alone (transparent_hugepage/shmem_enabled).
  bool share_pages = false;
  /// How much memory take_memory() has ready at most for pages that nobody has had yet; 0: none.
  std::size_t ready_bytes_max = 0;
  /// For the times that events report; borrowed.
  const Clock* clock = &steady_clock();
};

/// Follows one request of the prefill role. Calls come from inside Engine::step, in order, on the
/// engine's thread; they must not call into the engine.
class PrefillObserver {
 public:
  virtual ~PrefillObserver() = default;

  /// KV of the pages [first_page_index, first_page_index + pages.size()) of the request is final.
  /// Only full pages, except that the last call brings the partial last page too; pages served from
  /// the prefix cache are included, so that the calls of a request cover its prompt from page 0 on.
  /// tokens_ready: prompt tokens (resumed ones included) whose KV is covered so far. `pages` is
  /// borrowed.
  virtual void chunk_ready(core::RequestId request,
                           std::int32_t first_page_index,
                           std::span<const kv::PageId> pages,
                           std::int32_t tokens_ready) = 0;

  /// The first output token, after the last chunk_ready. With `finish` when the output ends with
  /// it (or has no token, max_new_tokens = 0). The last call of a request that worked.
  virtual void first_token(core::TokenEvent&& event) = 0;

  /// The last call of a request that did not get its first token: aborted, deadline, failed.
  virtual void ended(core::RequestId request, const Status& why) = 0;
};

/// Landing room for the KV of one prompt.
struct Reservation {
  /// The output is complete already (max_new_tokens is 0, say), or will be with the first token,
  /// which the prefill side samples: nothing is held, nothing will run.
  bool nothing_to_decode = false;
  /// Prompt tokens (resumed ones included) that this engine's prefix cache holds already; whole
  /// pages, less than all.
  std::int32_t matched_tokens = 0;
  /// Pages that take_pages() will give: those of the prompt after matched_tokens.
  std::int32_t page_count = 0;
};

/// What the prefill side's commit says.
struct AdoptState {
  /// Output token at index resumed_output_ids.size(); sent to the client by the prefill side.
  core::TokenId first_token = 0;
  /// For the events that follow.
  std::int32_t cached_tokens = 0;
  core::Timings timings = {};
};

/// All calls on one thread, the engine's, never from inside a sink or observer. No locks. Every
/// request that was taken gets exactly one finishing event (unless noted), from inside step() or
/// abort().
class Engine {
 public:
  /// Allocates the KV arena (address space; pages are touched as they are used). `executor` is
  /// borrowed. kInvalidArgument names the flag; kResourceExhausted when memory is refused.
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options, Executor* executor);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- Unified: prompt and output here ----------------------------------------------------------

  /// Takes a request. kInvalidArgument: bad sampling parameters or token ids; kOutOfRange: longer
  /// than the context or the pool; kAlreadyExists: the id is in use; kResourceExhausted: the queue
  /// is full. With resumed_output_ids the output goes on after them.
  Status submit(core::Request request, core::EventSink sink);

  /// Ends a request of any role. Its sink (or observer) gets the finishing event with `why` at
  /// once, if it has one; its pages are free for others on return, so call it for a transferring
  /// request only when no byte is in flight any more. Unknown ids are ignored.
  void abort(core::RequestId id, Status why);

  /// One scheduler step: expires deadlines, forms a batch, computes, samples, sends events. False
  /// when there was nothing to do. Takes no lock. A step in which all running requests decode, none
  /// begins and none ends asks for no memory, unless logprobs are wanted, and logs nothing above
  /// debug; what sinks do is theirs.
  bool step(Time now);

  /// True when step() would find work.
  [[nodiscard]] bool has_work() const;

  // --- Prefill role ------------------------------------------------------------------------------

  /// As submit(), but ends after the first token; whether there is room for more is for decode to
  /// say. `observer` is borrowed until first_token() or
  /// ended(). Afterwards, in both cases, the pages stay until release_prefill() or abort().
  Status submit_prefill(core::Request request, PrefillObserver* observer);

  /// Gives the pages to the prefix tree; stops the computation if it still runs (then without a
  /// call to the observer). Unknown ids are ignored.
  void release_prefill(core::RequestId id);

  // --- Decode role -------------------------------------------------------------------------------

  /// Holds pages for the prompt of `request` and keeps reserved_decode_tokens free for each
  /// running and arriving request. kResourceExhausted: not now, try again after a step;
  /// kInvalidArgument, kOutOfRange, kAlreadyExists: as submit().
  Result<Reservation> reserve(const core::Request& request);

  /// The next `count` landing pages, in order of the prompt.
  Result<std::vector<kv::PageId>> take_pages(core::RequestId id, std::int32_t count);

  /// All KV of the prompt has landed: the request joins the running batch as if prefilled here. Its
  /// next event has first_index = resumed_output_ids.size() + 1. If the output ends with
  /// state.first_token, the request ends here without an event (the prefill side sent it); if it is
  /// only that there is no room for more, with one of no tokens.
  Status adopt(core::RequestId id, const AdoptState& state, core::EventSink sink);

  /// Ends a reservation; no byte may be in flight to its pages. The first verified_tokens tokens
  /// after matched_tokens are good and go to the prefix tree, as far as they fill pages. Unknown
  /// ids are ignored.
  void cancel_reservation(core::RequestId id, std::int32_t verified_tokens);

  // --- Memory and state --------------------------------------------------------------------------

  /// Whether memory of pages to come is wanted of the system; see MemoryAhead.
  [[nodiscard]] bool wants_memory() const;
  /// Takes some of that, 2 MiB: a millisecond, or several where a hypervisor has to give it. For
  /// times when nobody waits.
  void take_memory();
  [[nodiscard]] std::byte* page_address(kv::PageId page) const;
  /// The memory of all pages, or null when it is this process's alone.
  [[nodiscard]] const SharedMemory* shared_pages() const;
  [[nodiscard]] std::size_t page_bytes() const;
  [[nodiscard]] std::int64_t page_count() const;
  [[nodiscard]] std::int32_t page_size() const;
  /// Grows at each release of the page.
  [[nodiscard]] std::uint32_t page_generation(kv::PageId page) const;

  /// Longest prompt plus output that the pool can ever hold.
  [[nodiscard]] std::int32_t max_request_tokens() const;
  /// Share of the running requests' remaining output that admission keeps free now (0..1).
  [[nodiscard]] double new_token_ratio() const;
  [[nodiscard]] std::int64_t retraction_count() const;
  [[nodiscard]] core::Load load() const;
  /// Drops the prefix cache. kFailedPrecondition while requests are here.
  Status flush_cache();
  /// Proves that no page is lost or owned twice: O(pages).
  [[nodiscard]] Status check_invariants() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
