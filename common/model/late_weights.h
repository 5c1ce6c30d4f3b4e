// Weights that are packed after the start: by the first passes, and while there is nothing else to
// do.
//
// Where new memory is slow (a hypervisor that takes it back, a system that has to free it first),
// most of what a start costs is memory: it takes many times as long as reading the files from the
// system's cache. A pass does not need that memory. It can pack a few rows at a time into a buffer
// that stays in the cache of the processor, multiply, and forget them; the bits are the same. So
// the first token does not wait for the rest.
#pragma once

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/decoder_weights.h"
#include "common/tensor/host_buffer.h"
#include "kernels/api/backend.h"

#include <cstddef>
#include <deque>
#include <memory>

namespace tandem::model {

/// Owned and used by the thread of the model.
class LateWeights {
 public:
  /// What a product packs before it multiplies, and fill_some() fills: about the second-level
  /// caches of a few cores. With more than two threads 4 MiB for each of them, up to 64 MiB.
  static constexpr std::size_t kChunkBytes = std::size_t{4} << 20;
  /// How long a pass after the first one fills for good, besides what it computes: as long as the
  /// pass before it packed in vain, and this at least. So a stream of passes takes about twice as
  /// long as filling at once, however slow new memory is.
  static constexpr Duration kPassTime = milliseconds(100);
  /// How often fill_while_fast() packs the first chunk into memory that is there, to know what
  /// packing alone takes.
  static constexpr int kTrials = 4;

  /// The layers of `weights` with `late` rows, which `source` reads. `weights`, `backend` and
  /// `pool` are borrowed; `weights` must not move. Products pack at least `chunk_bytes` at a time,
  /// more where there are many threads. `clock` (borrowed) is all the time that is looked at.
  static Result<std::unique_ptr<LateWeights>> make(DecoderWeights& weights,
                                                   std::unique_ptr<WeightSource> source,
                                                   const kernels::Backend& backend,
                                                   kernels::ThreadPool& pool,
                                                   std::size_t chunk_bytes = kChunkBytes,
                                                   const Clock& clock = steady_clock());

  /// Whether all are filled.
  [[nodiscard]] bool done() const { return waiting_.empty(); }

  /// Packed size of what is not filled.
  [[nodiscard]] std::size_t waiting_bytes() const;

  /// Fills as long as that takes little more time than packing into memory that is there; all,
  /// where new memory is fast. kDataLoss when files cannot be read.
  Status fill_while_fast();

  void begin_pass();

  /// Backend::linear with `layer`, of which some rows are not filled; `args` without weight.
  void linear(Linear& layer, const kernels::LinearArgs& args);

  /// Backend::gated_linear likewise.
  void gated_linear(Linear& layer, const kernels::GatedLinearArgs& args);

  /// Whether all rows could be read that the products since begin_pass() needed. If not, what they
  /// computed is worthless; rows that could not be read stay late, so a later pass may succeed.
  Status end_pass();

  /// Fills a chunk of the first layer that is not filled; kDataLoss when it cannot be read.
  Status fill_some();

 private:
  LateWeights(std::unique_ptr<WeightSource> source,
              const kernels::Backend& backend,
              kernels::ThreadPool& pool,
              const Clock& clock)
      : source_(std::move(source)), backend_(backend), pool_(pool), clock_(clock) {}

  [[nodiscard]] std::size_t chunk_rows(const Linear& layer) const;
  [[nodiscard]] kernels::PackedWeight rows_of(Linear& layer,
                                              std::size_t begin,
                                              std::size_t end) const;
  bool pack(std::vector<kernels::MatrixView> parts, kernels::PackedWeight& to);
  bool pack_in_vain(std::vector<kernels::MatrixView> parts, kernels::PackedWeight& to);
  void fill_in_time(Linear& layer);
  bool fill_next(Linear& layer);
  bool begin_again(Linear& layer);
  void drop_filled();

  std::unique_ptr<WeightSource> source_;
  const kernels::Backend& backend_;
  kernels::ThreadPool& pool_;
  const Clock& clock_;
  std::size_t chunk_bytes_ = 0;
  tensor::HostBuffer staging_;
  std::deque<Linear*> waiting_;
  Status failure_;
  Time fill_until_;
  Duration in_vain_;  ///< what this pass spent on packing to forget
  bool first_pass_ = true;
};

}  // namespace tandem::model
