#include "kernels/cpu/panels.h"

#include "kernels/api/convert.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace tandem::kernels::cpu {
namespace {

// Columns converted at a time: what is widened stays in the first-level cache.
constexpr std::size_t kStrip = 256;

// A task packs about as much as a huge page holds: threads that touch the same one first would each
// clear it, and all but one in vain.
constexpr std::size_t kBytesPerTask = std::size_t{2} << 20;

struct Source {
  const std::byte* row[kPanel];  // null: padding
  DType dtype[kPanel];
};

Source find_rows(std::span<const MatrixView> parts, std::size_t first) {
  Source source{};
  std::size_t begin = 0;
  for (const MatrixView& part : parts) {
    const std::size_t stride = stride_or(part.row_stride, part.cols) * dtype_bytes(part.dtype);
    for (std::size_t lane = 0; lane < kPanel; ++lane) {
      const std::size_t row = first + lane;
      if (row < begin || row >= begin + part.rows) continue;
      source.row[lane] = static_cast<const std::byte*>(part.data) + (row - begin) * stride;
      source.dtype[lane] = part.dtype;
    }
    begin += part.rows;
  }
  return source;
}

/// Memory of one thread for the rows of a panel.
class RowBuffer {
 public:
  /// Room for the rows of any panel with `k` inputs. Apart from fetch(): tasks must not throw.
  void reserve(std::size_t k) { bytes_.resize(kPanel * k * sizeof(float)); }

  /// Brings the rows of `source` here, those that follow each other in one piece, and points
  /// `source` at them.
  void fetch(Source& source, std::size_t k, ElementReader& reader) {
    const auto bytes_of = [&](std::size_t lane) { return k * dtype_bytes(source.dtype[lane]); };
    const auto is_row = [&](std::size_t lane) {
      return lane < kPanel && source.row[lane] != nullptr;
    };
    std::byte* to = bytes_.data();
    for (std::size_t lane = 0; is_row(lane);) {
      const std::byte* const from = source.row[lane];
      std::size_t length = 0;
      do {
        source.row[lane] = to + length;
        length += bytes_of(lane);
        ++lane;
      } while (is_row(lane) && source.row[lane] == from + length);
      reader.read(from, length, to);
      to += length;
    }
  }

 private:
  std::vector<std::byte> bytes_;
};

bool is_full(const Source& source) {
  return source.row[kPanel - 1] != nullptr;  // padding comes last
}

/// A strip of each row, to be moved into the panel in words of 32 bits.
struct Strips {
  alignas(64) std::byte data[kPanel][kStrip * sizeof(float)];
  const std::byte* row[kPanel];

  // Rows that are padding stay zero.
  Strips() {
    std::memset(data, 0, sizeof(data));
    for (std::size_t lane = 0; lane < kPanel; ++lane)
      row[lane] = data[lane];
  }

  /// Zeros behind `bytes`, up to a whole word.
  void pad(std::size_t lane, std::size_t bytes) {
    std::memset(data[lane] + bytes, 0, round_up(bytes, 4) - bytes);
  }
};

/// `count` elements as `store` has them; the bits as they are where nothing is to convert, NaN
/// payloads too.
void convert(const std::byte* from,
             DType dtype,
             DType store,
             std::size_t count,
             const Kernels& kernels,
             std::byte* to) {
  if (dtype == store) {
    std::memcpy(to, from, count * dtype_bytes(store));
    return;
  }
  alignas(64) float wide[kStrip];
  kernels.widen_row(from, dtype, wide, count);
  kernels.narrow_row(wide, store, to, count);
}

void pack_f16(const Source& source, std::size_t k, const Kernels& kernels, std::byte* panel) {
  const std::size_t bytes = panel_bytes(k, DType::kF16);
  const std::size_t kept = is_full(source) ? bytes - kPanelGapBytes : 0;
  std::memset(panel + kept, 0, bytes - kept);
  alignas(64) std::uint16_t strip[kStrip];
  for (std::size_t lane = 0; lane < kPanel && source.row[lane] != nullptr; ++lane) {
    const std::size_t element_bytes = dtype_bytes(source.dtype[lane]);
    for (std::size_t begin = 0; begin < k; begin += kStrip) {
      const std::size_t count = std::min(kStrip, k - begin);
      convert(source.row[lane] + begin * element_bytes,
              source.dtype[lane],
              DType::kF16,
              count,
              kernels,
              reinterpret_cast<std::byte*>(strip));
      auto* to = reinterpret_cast<std::uint16_t*>(panel) + panel_index(lane, begin, DType::kF16);
      for (std::size_t i = 0; i < count; ++i)
        to[i * kPanel] = strip[i];
    }
  }
}

/// Whether the rows hold whole words that only change places.
bool only_moves(const Source& source, std::size_t k, DType store) {
  const auto same = [store](DType dtype) { return dtype == store; };
  return is_full(source) && std::all_of(source.dtype, source.dtype + kPanel, same) &&
         k * dtype_bytes(store) % 4 == 0;
}

/// f32 and bf16: words of one or two elements.
void pack_words(
    const Source& source, std::size_t k, DType store, const Kernels& kernels, std::byte* panel) {
  const std::size_t bytes = k * dtype_bytes(store);
  const std::size_t used = round_up(bytes, 4) * kPanel;
  std::memset(panel + used, 0, panel_bytes(k, store) - used);
  if (only_moves(source, k, store)) return kernels.move_words(source.row, bytes / 4, panel);
  Strips strips;
  for (std::size_t begin = 0; begin < k; begin += kStrip) {
    const std::size_t count = std::min(kStrip, k - begin);
    const std::size_t strip_bytes = count * dtype_bytes(store);
    for (std::size_t lane = 0; lane < kPanel && source.row[lane] != nullptr; ++lane) {
      const DType dtype = source.dtype[lane];
      const std::byte* from = source.row[lane] + begin * dtype_bytes(dtype);
      convert(from, dtype, store, count, kernels, strips.data[lane]);
      strips.pad(lane, strip_bytes);
    }
    std::byte* to = panel + begin * dtype_bytes(store) * kPanel;
    kernels.move_words(strips.row, round_up(strip_bytes, 4) / 4, to);
  }
}

/// Scales of a panel's rows; zero of padding. `wide` takes k floats, as below.
struct Scales {
  float of[kPanel] = {};

  Scales(const Source& source, std::size_t k, const Kernels& kernels, float* wide) {
    for (std::size_t lane = 0; lane < kPanel && source.row[lane] != nullptr; ++lane) {
      kernels.widen_row(source.row[lane], source.dtype[lane], wide, k);
      of[lane] = kernels.int8_scale(wide, k);
    }
  }
};

/// What precedes a quantised panel's elements: `sums` are those of the integers that stand for
/// weights.
void write_header(const Scales& scales, std::int32_t* sums, std::byte* panel) {
  // Of products with dynamic rows, whose k keeps it within 32 bits; else unused.
  for (std::size_t lane = 0; lane < kPanel; ++lane)
    sums[lane] = static_cast<std::int32_t>(static_cast<std::uint32_t>(sums[lane]) * 128U);
  std::memcpy(panel, scales.of, sizeof(scales.of));
  std::memcpy(panel + sizeof(scales.of), sums, kPanel * sizeof(*sums));
}

void pack_int8(
    const Source& source, std::size_t k, const Kernels& kernels, float* wide, std::byte* panel) {
  const Scales scales(source, k, kernels, wide);
  std::byte* const words = panel + kByteHeaderBytes;
  Strips strips;
  for (std::size_t begin = 0; begin < k; begin += kStrip) {
    const std::size_t count = std::min(kStrip, k - begin);
    for (std::size_t lane = 0; lane < kPanel && source.row[lane] != nullptr; ++lane) {
      const DType dtype = source.dtype[lane];
      kernels.widen_row(source.row[lane] + begin * dtype_bytes(dtype), dtype, wide, count);
      kernels.to_int8(
          wide, count, scales.of[lane], reinterpret_cast<std::int8_t*>(strips.data[lane]));
      strips.pad(lane, count);
    }
    kernels.move_words(strips.row, (count + 3) / 4, words + begin * kPanel);
  }
  std::int32_t sums[kPanel];
  kernels.sum_bytes(words, (k + 3) / 4, sums);
  write_header(scales, sums, panel);
}

/// Up to kInt4Group integers of 4 bit, in whole words of eight: the first four low in four bytes,
/// the others high. Returns their sum.
std::int32_t pack_nibbles(const std::int8_t* q, std::size_t count, std::byte* to) {
  static_assert(kInt4Group / 8 * 15 <= 255, "sums of 8 bit");
  std::uint64_t sums = 0;
  for (std::size_t i = 0; i < count; i += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, q + i, std::min<std::size_t>(8, count - i));
    const auto word = static_cast<std::uint32_t>(eight | eight >> 28U);
    std::memcpy(to + i / 2, &word, sizeof(word));
    sums += eight;
  }
  constexpr std::uint64_t kEven = 0x00ff00ff00ff00ff;
  const std::uint64_t pairs = (sums & kEven) + (sums >> 8U & kEven);
  return static_cast<std::int32_t>(pairs * 0x0001000100010001 >> 48U);
}

void pack_int4(
    const Source& source, std::size_t k, const Kernels& kernels, float* wide, std::byte* panel) {
  const Scales scales(source, k, kernels, wide);
  std::int8_t q[kInt4Group];
  std::int32_t sums[kPanel] = {};
  Strips strips;
  std::byte* to = panel + kByteHeaderBytes;
  for (std::size_t begin = 0; begin < k; begin += kInt4HeaderGroups * kInt4Group) {
    std::int8_t affine[kInt4HeaderGroups][kPanel][2] = {};
    std::byte* const header = to;
    to += kInt4HeaderBytes;
    for (std::size_t group = 0; group < kInt4HeaderGroups; ++group) {
      const std::size_t first = begin + group * kInt4Group;
      if (first >= k) break;
      const std::size_t count = std::min(kInt4Group, k - first);
      for (std::size_t lane = 0; lane < kPanel && source.row[lane] != nullptr; ++lane) {
        const DType dtype = source.dtype[lane];
        const std::int8_t* own = affine[group][lane];
        kernels.widen_row(source.row[lane] + first * dtype_bytes(dtype), dtype, wide, count);
        kernels.to_int4(wide, count, scales.of[lane], q, affine[group][lane]);
        // What pads a word counts, too.
        sums[lane] += own[0] * pack_nibbles(q, count, strips.data[lane]) -
                      own[1] * static_cast<std::int32_t>(round_up(count, 4));
      }
      kernels.move_words(strips.row, (count + 7) / 8, to);
      to += (count + 7) / 8 * 64;
    }
    static_assert(sizeof(affine) == kInt4HeaderBytes);
    std::memcpy(header, affine, sizeof(affine));
  }
  write_header(scales, sums, panel);
}

/// False where it does not fit its format.
bool pack_panel(const Source& source,
                std::size_t k,
                WeightFormat store,
                const Kernels& kernels,
                float* wide,
                std::byte* panel) {
  switch (store.scheme) {
    case WeightScheme::kFloat:
      if (store.dtype == DType::kF16) {
        pack_f16(source, k, kernels, panel);
      } else {
        pack_words(source, k, store.dtype, kernels, panel);
      }
      return true;
    case WeightScheme::kInt8:
    case WeightScheme::kInt8Dynamic:
      pack_int8(source, k, kernels, wide, panel);
      return true;
    case WeightScheme::kInt4Group128:
      pack_int4(source, k, kernels, wide, panel);
      return true;
    case WeightScheme::kShortBf16: {
      auto* plain = reinterpret_cast<std::byte*>(wide);
      pack_words(source, k, DType::kBf16, kernels, plain);
      return kernels.shorten(plain, short_steps(k), panel);
    }
  }
  return true;
}

/// Some panels of one weight.
struct Piece {
  PackJob* job;
  std::span<const MatrixView> parts;
  std::byte* to;
  std::size_t k;
  WeightFormat store;
  std::size_t panel_begin;
  std::size_t panel_end;
};

void cut(PackJob& job, std::vector<Piece>& pieces) {
  PackedWeight& weight = *job.to;
  const std::size_t parts_each = job.parts.size() / weight.count();
  const std::size_t panels = panel_count(weight.n());
  const std::size_t bytes = std::max<std::size_t>(panel_bytes(weight.k(), weight.format()), 1);
  const std::size_t step = std::max<std::size_t>(kBytesPerTask / bytes, 1);
  for (std::size_t i = 0; i < weight.count(); ++i) {
    for (std::size_t panel = 0; panel < panels; panel += step) {
      pieces.push_back({.job = &job,
                        .parts = std::span(job.parts).subspan(i * parts_each, parts_each),
                        .to = weight.mutable_data(i),
                        .k = weight.k(),
                        .store = weight.format(),
                        .panel_begin = panel,
                        .panel_end = std::min(panel + step, panels)});
    }
  }
}

}  // namespace

void fill_panels(std::span<PackJob> jobs, const Kernels& kernels, ThreadPool& pool) {
  std::vector<Piece> pieces;
  for (PackJob& job : jobs)
    cut(job, pieces);
  std::size_t longest = 0;
  for (const Piece& piece : pieces)
    longest = std::max(longest, piece.job->reader == nullptr ? 0 : piece.k);
  std::vector<RowBuffer> buffers(pool.thread_count());
  for (RowBuffer& buffer : buffers)
    buffer.reserve(longest);
  pool.parallel_for(pieces.size(), [&](std::size_t task, std::size_t worker) {
    const Piece& piece = pieces[task];
    const std::size_t bytes = panel_bytes(piece.k, piece.store);
    auto* wide = reinterpret_cast<float*>(pool.scratch(worker));
    for (std::size_t panel = piece.panel_begin; panel < piece.panel_end; ++panel) {
      Source source = find_rows(piece.parts, panel * kPanel);
      if (piece.job->reader != nullptr) buffers[worker].fetch(source, piece.k, *piece.job->reader);
      if (pack_panel(source, piece.k, piece.store, kernels, wide, piece.to + panel * bytes))
        continue;
      std::atomic_ref(piece.job->misfit).store(true, std::memory_order_relaxed);
      return;
    }
  });
}

}  // namespace tandem::kernels::cpu
