// The op interface. One backend is selected at start and serves every batch size of the process,
// because its order of sums is part of what "same tokens everywhere" means.
#pragma once

#include "kernels/api/ops.h"
#include "kernels/api/thread_pool.h"
#include "kernels/api/weight.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::kernels {

enum class Family : std::uint8_t {
  kAuto,
  kReference,  ///< scalar, sums in double: the oracle
  kGeneric,    ///< the vector kernels in portable code: slow, same bits as kAvx2 and kAvx512
  kAvx2,
  kAvx512,
  kAvx512Bf16,  ///< bf16 weights by pairs (activations rounded to bf16); the rest as kAvx512
  kAmx,  ///< bf16 and quantised weights through AMX tiles (activations rounded to bf16, or to 8 bit
         ///< where the weight says so); the rest as kAvx512
};

/// "auto", "reference", "generic", "avx2", "avx512", "avx512_bf16", "amx".
std::string_view family_name(Family family);

/// The family of that name; false when there is none.
bool parse_family(std::string_view name, Family* family);

/// Brings the elements of matrices from where they are kept, such as a file.
class ElementReader {
 public:
  virtual ~ElementReader() = default;

  /// Copies the `bytes` bytes that a view has at `from` to `to`. What cannot be read becomes zero,
  /// and the reader tells its owner. Any thread.
  virtual void read(const std::byte* from, std::size_t bytes, std::byte* to) = 0;
};

/// A weight to be filled from matrices.
struct PackJob {
  PackedWeight* to = nullptr;  ///< Borrowed, of Backend::allocate or Backend::over.
  /// Those of each weight of the stack in turn, stacked along rows to [n, k]; every weight is made
  /// of as many, of the same sizes. Their elements are borrowed until fill() returns.
  std::vector<MatrixView> parts;
  /// Borrowed; null: elements are read where the views say.
  ElementReader* reader = nullptr;
  /// Out, never cleared: the elements do not fit into WeightScheme::kShortBf16, and what `to` holds
  /// is worthless. Backend::fill_exactly() gives it other memory.
  bool misfit = false;
};

/// All ops. Stateless and immutable: one instance may be used by several threads, each with its own
/// pool. No op allocates, except allocate(), fill() and what calls them. No op fails. Zero
/// tokens are fine everywhere.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual Family family() const = 0;

  /// Names the order of sums and roundings: two processes with the same string, weight format and
  /// KV dtype compute the same bits. Part of the link digest. avx2, avx512 and generic share one:
  /// "simd16-f32fma-v1".
  [[nodiscard]] virtual std::string_view numerics() const = 0;

  /// Of the weights that its ops take.
  [[nodiscard]] virtual WeightLayout layout() const = 0;

  /// How weights of `wanted` with `k` inputs are kept: as that, or as what takes less memory and
  /// has the same products.
  [[nodiscard]] virtual WeightFormat kept_format(WeightFormat wanted, std::size_t /*k*/) const {
    return wanted;
  }

  /// Memory for a stack of `count` weights [n, k], not yet filled; null when memory ran out.
  /// `store` is the kept type: floats are rounded to nearest even, quantised ones as WeightScheme
  /// says, from the values of the matrices themselves.
  [[nodiscard]] std::unique_ptr<PackedWeight> allocate(std::size_t n,
                                                       std::size_t k,
                                                       WeightFormat store,
                                                       std::size_t count) const;

  /// A weight [n, k] in memory of the caller: packed_bytes(n, k, store), 64-byte aligned. Where a
  /// packed weight of floats holds rows from a multiple of kOutputStep on, at packed_bytes() of the
  /// rows before them, this is a view of those rows.
  [[nodiscard]] PackedWeight over(std::byte* memory,
                                  std::size_t n,
                                  std::size_t k,
                                  WeightFormat store) const;

  /// Outputs that every layout keeps together.
  static constexpr std::size_t kOutputStep = 16;

  /// Fills what allocate() or over() gave. Many jobs at once leave no thread waiting at the end of
  /// each.
  virtual void fill(std::span<PackJob> jobs, ThreadPool& pool) const = 0;

  /// The same of weights of allocate(); those that do not fit their format become plain bf16, in
  /// memory of their own. False when that ran out.
  [[nodiscard]] bool fill_exactly(std::span<PackJob> jobs, ThreadPool& pool) const;

  /// Gives a weight of allocate() that does not fit its format other memory, as plain bf16, not yet
  /// filled. False when memory ran out.
  [[nodiscard]] bool make_plain(PackedWeight& weight) const;

  /// allocate() and fill() of the matrices of `parts`, stacked along rows (all of the same cols):
  /// [q; k; v] or [gate; up] become one weight. Null when memory ran out.
  [[nodiscard]] std::unique_ptr<PackedWeight> pack(std::span<const MatrixView> parts,
                                                   WeightFormat store,
                                                   ThreadPool& pool) const;

  /// The same for each of `weights` (all of one shape, at least one) by itself, into one stack.
  [[nodiscard]] std::unique_ptr<PackedWeight> pack_stack(std::span<const MatrixView> weights,
                                                         WeightFormat store,
                                                         ThreadPool& pool) const;

  /// Bytes that pack() will hold for [n, k]; for memory plans. Of a stack: stacked_bytes().
  [[nodiscard]] virtual std::size_t packed_bytes(std::size_t n,
                                                 std::size_t k,
                                                 WeightFormat store) const = 0;

  /// Bytes that `rows` rows of k activations take, 64-byte aligned, in the form in which products
  /// with weights of that format read them (bf16; on amx in tiles, else row by row): the op before
  /// may write them so (y_packed, out_packed) and the product take them so (x_packed), with the
  /// bits of f32 between them, but half of its bytes, and on tiles no pass to pack them;
  /// rounds_to_bytes makes 8 bit of them. 0: so many rows of so many go as f32.
  [[nodiscard]] virtual std::size_t packed_rows_bytes(std::size_t /*rows*/,
                                                      std::size_t /*k*/,
                                                      WeightFormat /*weight*/) const {
    return 0;
  }

  /// The same for ops that make whole rows (rms_norm): these may also go as 8 bit with a scale,
  /// where the product would round them so. Scales lie behind all rows, so the product takes
  /// exactly the rows that were written, with a weight of this format.
  [[nodiscard]] virtual std::size_t packed_whole_rows_bytes(std::size_t rows,
                                                            std::size_t k,
                                                            WeightFormat weight) const {
    return packed_rows_bytes(rows, k, weight);
  }

  virtual void embedding(const EmbeddingArgs& args, ThreadPool& pool) const = 0;
  virtual void linear(const LinearArgs& args, ThreadPool& pool) const = 0;
  virtual void gated_linear(const GatedLinearArgs& args, ThreadPool& pool) const = 0;
  virtual void rms_norm(const RmsNormArgs& args, ThreadPool& pool) const = 0;
  virtual void head_norm(const HeadNormArgs& args, ThreadPool& pool) const = 0;
  virtual void rope(const RopeArgs& args, ThreadPool& pool) const = 0;
  virtual void silu_mul(const SiluMulArgs& args, ThreadPool& pool) const = 0;
  virtual void route(const RouteArgs& args, ThreadPool& pool) const = 0;
  virtual void expert_mlp(const ExpertMlpArgs& args, ThreadPool& pool) const = 0;
  virtual void write_kv(const WriteKvArgs& args, ThreadPool& pool) const = 0;
  /// By default its ops one after the other.
  virtual void prepare_heads(const PrepareHeadsArgs& args, ThreadPool& pool) const;
  virtual void attention(const AttentionArgs& args, ThreadPool& pool) const = 0;

  /// Max and log-sum-exp of one row of logits. -inf entries count as probability 0. A row without
  /// any finite entry gives max = -inf (or +inf, NaN) and log_sum = 0 (or NaN).
  [[nodiscard]] virtual LogSoftmaxStats log_softmax_stats(std::span<const float> logits) const = 0;
};

/// The backend of that family, alive for the whole process; kAuto takes the fastest one here. Null
/// when this machine or build cannot run it; then *reason says in one sentence why. reason may be
/// null.
const Backend* select(Family requested, std::string* reason);

/// Families that select() would give here, reference first, fastest last.
std::vector<Family> available_families();

/// Index of the largest value; the lowest index wins ties; NaN never wins. -1 for an empty or
/// all-NaN row.
std::int32_t argmax(std::span<const float> values);

/// The `count` largest values, in falling order, the lower index first among equals; NaN is left
/// out. Writes at most min(count, values.size()) entries to `out` and returns how many. One pass
/// with a heap of `count`.
std::size_t top_k(std::span<const float> values, std::size_t count, TopEntry* out);

}  // namespace tandem::kernels
