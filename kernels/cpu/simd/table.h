// The seam between portable code and code compiled for one instruction set. An instruction-set file
// exports one table of functions and nothing else. Such files must not call inline functions of
// shared headers: the linker keeps one copy of an inline function, and it might keep the one
// compiled for AVX-512. Hence plain structs here.
#pragma once

#include "kernels/api/ops.h"
#include "kernels/cpu/features.h"

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::cpu {

/// Outputs in a panel of a packed weight, lanes of the common vector.
inline constexpr std::size_t kPanel = 16;
/// Bytes behind a panel of floats, zeros: without them panels would lie powers of 2 apart, which
/// memory reads slower where several are read side by side.
inline constexpr std::size_t kPanelGapBytes = 128;
/// Bytes before the elements of a quantised panel: 16 f32 scales, then 16 int32, see panels.h.
inline constexpr std::size_t kByteHeaderBytes = 128;
/// Groups of k of an int4 panel whose steps and offsets precede them together, and the bytes of it.
inline constexpr std::size_t kInt4HeaderGroups = 2;
inline constexpr std::size_t kInt4HeaderBytes = kInt4HeaderGroups * kPanel * 2;
/// Packed rows of activations, as bf16: on tiles, columns and rows that lie together; row by row,
/// what k is whole ones of, and to what their room is rounded up.
inline constexpr std::size_t kPackedColumns = kPackedHeadStep;
inline constexpr std::size_t kPackedRows = 16;
/// Query rows (token, head) of one attention tile; of several tokens, kernels may take more.
inline constexpr std::size_t kTileRows = 32;
/// Positions of one attention block; blocks are aligned to absolute positions. Part of the
/// numerics.
inline constexpr std::size_t kKeyBlock = 256;
/// Scratch floats for rows of x: what limits k of a weight (ThreadPool::kScratchBytes, less room
/// for padding).
inline constexpr std::size_t kPackedFloats = kMaxK;
/// Rows of a block at most, unless kernels say most_rows.
inline constexpr std::size_t kMostRows = 192;
/// Bytes of scratch for rows of x on tiles, with what is kept of each row; and for all that
/// products on tiles need.
inline constexpr std::size_t kRowsRoom = (1024 + 32) * 1024;
inline constexpr std::size_t kTilesRoom = kRowsRoom + 128 * 1024;
/// See Kernels::rows_in_parts.
inline constexpr std::size_t kPartPanels = 32;
/// Bytes of scratch for a tile of attention; and, at its end, for what a tile puts out before it is
/// packed, which kernels leave alone. Those that take packed rows take no tiles that put out more.
inline constexpr std::size_t kAttentionRoom = 1024 * 1024;
inline constexpr std::size_t kAttentionOut = 512 * 1024;

/// Tasks of a product of many rows for each thread where each has a beginning of its own: on tiles,
/// and of experts, which pack their rows.
inline constexpr std::size_t kLongTasks = 16;

/// Some rows of x against some panels of a weight.
struct LinearBlock {
  const float* x;  ///< first row
  std::size_t x_stride;
  std::size_t rows;         ///< rows * k <= kPackedFloats, or what Kernels::most_rows says
  const std::byte* weight;  ///< panel 0
  std::size_t panel_bytes;
  WeightScheme scheme;
  DType dtype;  ///< of WeightScheme::kFloat and kShortBf16
  std::size_t k;
  std::size_t n;
  std::size_t panel_begin;
  std::size_t panel_end;
  const float* bias;  ///< [n] or null
  float* y;           ///< first row, column 0
  std::size_t y_stride;
  bool accumulate;
  float* scratch;  ///< ThreadPool::kScratchBytes, 64-byte aligned
  bool packed;     ///< these rows are packed already: the call before had the same rows and k
  /// Rows that lie elsewhere (the tokens of an expert): row r of x is row x_rows[r] behind `x`, of
  /// y row y_rows[r] behind `y`. Null: r itself.
  const std::int32_t* x_rows;
  const std::int32_t* y_rows;
  const float* row_scale;  ///< [rows]: factor of a row's sums, before bias and old y; or null
  /// Where rows are packed if not in `scratch`: kRowsRoom bytes that workers share, see
  /// Kernels::pack_rows, or rows that came packed, unless Kernels::packs_by_row: see
  /// Kernels::pack_part. In whole tiles.
  std::byte* rows_room;
  /// Where outputs go packed, from row 0 of this block on, with `up` only; null: y.
  std::byte* y_packed;
  /// Panel 0 of a second weight of the same shape, whole panels from `weight`: outputs are
  /// silu(weight x) * (up x). Only where Kernels::takes_gated, and n is whole panels; `bias` has
  /// both weights' columns. Null: none.
  const std::byte* up;
  /// Panel that is read after the last one of these, to be asked for early. Null: the one behind.
  const std::byte* next;
  /// See ReadOrder.
  ReadOrder read_order = ReadOrder::kSideBySide;
  /// From one panel that is multiplied beside others to the next, see PanelAsks::run_length.
  std::size_t panel_step = 1;
  /// [rows]: scales of rows that came packed as integers; else null.
  const float* x_scales = nullptr;
  /// Rows that came as bf16 and are to be packed in place of x, for weights that take 8 bit as
  /// such; else null.
  const std::byte* x_halves = nullptr;
  /// Rows that came as 8 bit, with x_scales, and are to be packed in place of x. Only where
  /// Kernels::packs_by_row; else null.
  const std::byte* x_bytes = nullptr;
};

/// Some columns of some rows of activations, on their way to the product that comes next.
struct PackedPart {
  const float* x;
  std::size_t x_stride;
  std::size_t rows;
  std::size_t columns;  ///< kPackedColumns each
  std::byte* to;        ///< row 0, column 0 of [., k]
  std::size_t k;
  std::size_t row;  ///< the first one's place there
  std::size_t column;
  /// Of the product.
  WeightScheme scheme = WeightScheme::kFloat;
  /// As 8 bit, for kInt8 as integers of 16 bits: whole rows (column 0, k columns), whose scales go
  /// to [row...] here. Null: bf16.
  float* scales = nullptr;
};

struct NormRow {
  const float* x;
  const float* next;  ///< x of the row that comes then, which is asked for; or null
  float* residual;    ///< or null
  const float* weight;
  float* y;
  std::size_t dim;
  float eps;
};

struct RopeHead {
  float* x;
  const float* cos;
  const float* sin;
  std::size_t half;
};

struct AttentionTile;

/// What a thread does after a tile of one token, for kernels that ask for its first lines.
struct NextTile {
  /// May be called once for a tile. Null: nothing.
  const AttentionTile* (*claim)(NextTile& next);
  /// Lines of it that were asked for: keys and values in the order of the kernel.
  std::size_t lines_asked = 0;
};

/// Tokens of one sequence, neighbours in the batch, with some heads of one kv head, or one token
/// with all heads of several: at most as many rows as Kernels::attention_rows says.
struct AttentionTile {
  const float* q;  ///< head head_begin of the first token
  std::size_t q_stride;
  float* out;
  std::size_t out_stride;
  const std::int32_t* position;  ///< [tokens]
  std::size_t tokens;
  std::size_t heads;     ///< query heads of each kv head of this tile, contiguous
  std::size_t kv_heads;  ///< 1, unless tokens is 1
  const std::int32_t* pages;
  const std::byte* keys;       ///< slot 0 of the first kv head in page 0
  std::size_t kv_head_stride;  ///< bytes from one kv head to the next
  std::size_t value_offset;    ///< bytes from a key row to its value row
  std::size_t page_stride_bytes;
  std::size_t row_bytes;
  std::size_t page_size;
  std::size_t head_dim;
  DType dtype;
  float scale;
  std::int32_t window;
  std::byte* scratch;  ///< ThreadPool::kScratchBytes, 64-byte aligned
  NextTile* next = nullptr;
};

struct Kernels {
  /// This machine's.
  ReadOrder read_order = ReadOrder::kSideBySide;
  /// Rows a linear block is best cut into.
  std::size_t row_step;
  /// Tasks of a product of many rows for each thread, or kLongTasks.
  std::size_t many_rows_tasks = 48;
  /// Rows that a block of such a weight takes at most; 0: as many as kPackedFloats holds. Null: 0
  /// for all.
  std::size_t (*most_rows)(std::size_t k, WeightScheme scheme, DType dtype);
  /// Rows, more than most_rows, of a block that takes k in parts: its rows came packed, in tiles,
  /// and it has kPartPanels panels at most. 0: none does. Null: 0 for all.
  std::size_t (*rows_in_parts)(std::size_t k, WeightScheme scheme, DType dtype) = nullptr;
  void (*linear)(const LinearBlock&);
  /// Whether so many rows may be packed by pack_rows and shared. Null: never.
  bool (*shares_rows)(std::size_t rows, WeightScheme scheme, DType dtype) = nullptr;
  /// Whether so many rows may be multiplied with two weights at once. Null: never.
  bool (*takes_gated)(std::size_t rows, WeightScheme scheme, DType dtype) = nullptr;
  /// Packs rows [begin, end) of a block, in whole tiles but for the last, into its rows_room.
  void (*pack_rows)(const LinearBlock&, std::size_t begin, std::size_t end) = nullptr;
  /// Whether rows of k may be packed before they come to a product with such a weight: as bf16,
  /// and whole rows where they become bytes also as 8 bit; for kInt8 whole rows only, as integers
  /// of 16 bits. Null: never.
  bool (*takes_packed)(std::size_t rows, std::size_t k, WeightScheme scheme, DType dtype) = nullptr;
  /// For takes_packed: as pack_rows does, or where packs_by_row row behind row. Rows that fill up
  /// the last tile are left as they are: rows do not meet.
  void (*pack_part)(const PackedPart&) = nullptr;
  /// Whether rows that came packed are in the order of x, not in that of products: each worker
  /// packs them once more.
  bool packs_by_row = false;
  void (*norm_row)(const NormRow&);
  void (*rope_head)(const RopeHead&);
  void (*silu_mul_row)(const float* gate, const float* up, float* out, std::size_t dim);
  /// f32 from `dtype`.
  void (*widen_row)(const void* from, DType dtype, float* to, std::size_t count);
  /// `dtype` from f32, rounded to nearest even.
  void (*narrow_row)(const float* from, DType dtype, void* to, std::size_t count);
  /// Scale of a row as WeightScheme::kInt8 has it; NaN when a value is not finite.
  float (*int8_scale)(const float* values, std::size_t count);
  void (*to_int8)(const float* values, std::size_t count, float scale, std::int8_t* out);
  /// One group of WeightScheme::kInt4Group128, of which `scale` is the output's: q, and in `affine`
  /// step and offset.
  void (*to_int4)(
      const float* values, std::size_t count, float scale, std::int8_t* out, std::int8_t* affine);
  /// panel[w][lane] = word w of rows[lane]: `count` words of 32 bits of kPanel rows.
  void (*move_words)(const std::byte* const* rows, std::size_t count, std::byte* panel);
  /// A panel of kShortBf16 of a plain one of bf16, of so many steps of 32 k, see short_bf16.h.
  /// False: it does not fit. Null: no products with such weights here.
  bool (*shorten)(const std::byte* plain, std::size_t steps, std::byte* panel) = nullptr;
  /// sums[lane] = sum of the signed bytes of panel[w][lane] over `count` words.
  void (*sum_bytes)(const std::byte* panel, std::size_t count, std::int32_t* sums);
  void (*attention)(const AttentionTile&);
  /// Rows that a tile of several tokens over such keys takes at most; null: kTileRows for all. A
  /// tile of one token takes kTileRows.
  std::size_t (*attention_rows)(DType dtype, std::size_t head_dim) = nullptr;
  float (*max)(const float* values, std::size_t count);
  /// Sum of exp(values[i] - max).
  double (*exp_sum)(const float* values, std::size_t count, float max);
};

/// Of generic/, avx2/ and avx512/. Call only where the machine has the instructions.
const Kernels& generic_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

/// avx512 with AVX512_VNNI where inputs become bytes: the same bits, sooner.
Kernels avx512_vnni_kernels();
void avx512_vnni_linear(const LinearBlock& block);
/// The same, but kInt8 with inputs of 16 bits (fixed_int8.h): other bits.
void avx512_fixed_int8_linear(const LinearBlock& block);

}  // namespace tandem::kernels::cpu
