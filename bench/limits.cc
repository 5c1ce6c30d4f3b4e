#include "bench/limits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace tandem::bench {
namespace {

using kernels::Backend;
using kernels::Family;
using kernels::ThreadPool;

volatile float sink = 0;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void fma_loop_512(std::size_t rounds) {
  __m512 sums[12];
  for (auto& sum : sums)
    sum = _mm512_set1_ps(1.0F);
  const __m512 a = _mm512_set1_ps(0.999F);
  const __m512 b = _mm512_set1_ps(0.001F);
  for (std::size_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums)
      sum = _mm512_fmadd_ps(sum, a, b);
  }
  __m512 total = sums[0];
  for (int i = 1; i < 12; ++i)
    total = _mm512_add_ps(total, sums[i]);
  float lanes[16];
  _mm512_storeu_ps(lanes, total);
  sink = lanes[0];
}

__attribute__((target("avx2,fma"))) void fma_loop_256(std::size_t rounds) {
  __m256 sums[12];
  for (auto& sum : sums)
    sum = _mm256_set1_ps(1.0F);
  const __m256 a = _mm256_set1_ps(0.999F);
  const __m256 b = _mm256_set1_ps(0.001F);
  for (std::size_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums)
      sum = _mm256_fmadd_ps(sum, a, b);
  }
  __m256 total = sums[0];
  for (int i = 1; i < 12; ++i)
    total = _mm256_add_ps(total, sums[i]);
  float lanes[8];
  _mm256_storeu_ps(lanes, total);
  sink = lanes[0];
}
#endif

#if defined(__x86_64__)
// dst += products of 64 bytes, 12 chains.
__attribute__((target("avx512f,avx512vnni"))) void int8_loop_vnni(std::size_t rounds) {
  __m512i sums[12];
  for (auto& sum : sums)
    sum = _mm512_set1_epi32(1);
  const __m512i a = _mm512_set1_epi32(0x01020304);
  for (std::size_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums)
      sum = _mm512_dpbusd_epi32(sum, a, a);
  }
  __m512i total = sums[0];
  for (int i = 1; i < 12; ++i)
    total = _mm512_add_epi32(total, sums[i]);
  sink = static_cast<float>(_mm512_cvtsi512_si32(total));
}

// kWords: sums stay words of 16 bits, as those of 4 bit do for a while.
template <bool kWords>
__attribute__((target("avx2"))) void byte_loop_256(std::size_t rounds) {
  __m256i sums[12];
  for (auto& sum : sums)
    sum = _mm256_set1_epi32(1);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_set1_epi32(0x01020304);
  for (std::size_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      __asm__ volatile("" : "+x"(a));
      const __m256i pairs = _mm256_maddubs_epi16(a, a);
      sum = kWords ? _mm256_add_epi16(sum, pairs)
                   : _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
  }
  __m256i total = sums[0];
  for (int i = 1; i < 12; ++i)
    total = _mm256_add_epi32(total, sums[i]);
  sink = static_cast<float>(_mm256_extract_epi32(total, 0));
}

#endif

#if defined(__x86_64__)
// Products of bf16 pairs, 24 chains. Assembly as a whole: the compiler would store each sum.
__attribute__((target("avx512f"))) void bf16_loop(std::size_t rounds) {
  for (std::size_t i = 0; i < rounds; ++i) {
    __asm__ volatile(
        ".irp sum, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
        "vdpbf16ps %%zmm31, %%zmm30, %%zmm\\sum\n\t"
        ".endr" ::
            : "zmm0",
              "zmm1",
              "zmm2",
              "zmm3",
              "zmm4",
              "zmm5",
              "zmm6",
              "zmm7",
              "zmm8",
              "zmm9",
              "zmm10",
              "zmm11",
              "zmm12",
              "zmm13",
              "zmm14",
              "zmm15",
              "zmm16",
              "zmm17",
              "zmm18",
              "zmm19",
              "zmm20",
              "zmm21",
              "zmm22",
              "zmm23");
  }
}
#endif

#if defined(__x86_64__)
// Tiles of 16 rows of 64 bytes: four chains, two A and two B, as the products have them.
struct alignas(64) WholeTiles {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <bool kInt8>
void tile_loop(std::size_t rounds) {
  const WholeTiles config;
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  __asm__ volatile(
      ".irp tile, 0,1,2,3,4,5,6,7\n\t"
      "tilezero %%tmm\\tile\n\t"
      ".endr" ::);
  for (std::size_t i = 0; i < rounds; ++i) {
    if constexpr (kInt8) {
      __asm__ volatile(
          "tdpbssd %%tmm6, %%tmm4, %%tmm0\n\t"
          "tdpbssd %%tmm7, %%tmm4, %%tmm1\n\t"
          "tdpbssd %%tmm6, %%tmm5, %%tmm2\n\t"
          "tdpbssd %%tmm7, %%tmm5, %%tmm3" ::);
    } else {
      __asm__ volatile(
          "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
          "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
          "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
          "tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::);
    }
  }
  __asm__ volatile("tilerelease" ::: "memory");
}

/// Four products of 16 x 16 outputs a round.
template <bool kInt8>
double measure_tiles(ThreadPool& pool, double budget_s) {
  constexpr std::size_t kRounds = 200'000;
  const std::size_t threads = pool.thread_count();
  const double seconds = best_time(budget_s, [&] {
    pool.parallel_for(threads, [&](std::size_t, std::size_t) { tile_loop<kInt8>(kRounds); });
  });
  return static_cast<double>(threads * kRounds) * 4 * 16 * 16 * (kInt8 ? 64 : 32) * 2 / seconds *
         1e-9;
}
#endif

/// Families with registers of 512 bits.
bool has_wide_vectors(const Backend& backend) {
  return backend.family() >= Family::kAvx512;
}

/// Products of bytes, or with `half` of bytes and half bytes.
double measure_bytes(const Backend& backend, ThreadPool& pool, double budget_s, bool half) {
#if defined(__x86_64__)
  if (backend.family() == Family::kAmx) return measure_tiles<true>(pool, budget_s);
  constexpr std::size_t kRounds = 1'000'000;
  void (*loop)(std::size_t) = nullptr;
  double op_per_round = 0;
  const bool wide = has_wide_vectors(backend);
  if (wide && __builtin_cpu_supports("avx512vnni") != 0) {
    loop = &int8_loop_vnni;
    op_per_round = 12 * 64 * 2;
  } else if (wide || backend.family() == Family::kAvx2) {
    loop = half && !wide ? &byte_loop_256<true> : &byte_loop_256<false>;
    op_per_round = 12 * 32 * 2;
  }
  if (loop == nullptr) return 0;
  const std::size_t threads = pool.thread_count();
  const double seconds = best_time(budget_s, [&] {
    pool.parallel_for(threads, [&](std::size_t, std::size_t) { loop(kRounds); });
  });
  return static_cast<double>(threads * kRounds) * op_per_round / seconds * 1e-9;
#else
  (void)backend;
  (void)pool;
  (void)budget_s;
  (void)half;
  return 0;
#endif
}

void fma_loop_scalar(std::size_t rounds) {
  float sums[8] = {};
  for (std::size_t i = 0; i < rounds; ++i) {
    for (float& sum : sums)
      sum = sum * 0.999F + 0.001F;
  }
  sink = sums[0];
}

// f32 multiply-adds of the family's own vectors, all threads.
double measure_fma(const Backend& backend, ThreadPool& pool, double budget_s) {
  constexpr std::size_t kRounds = 1'000'000;
  void (*loop)(std::size_t) = &fma_loop_scalar;
  double flop_per_round = 8 * 2;
#if defined(__x86_64__)
  if (has_wide_vectors(backend)) {
    loop = &fma_loop_512;
    flop_per_round = 12 * 16 * 2;
  } else if (backend.family() == Family::kAvx2) {
    loop = &fma_loop_256;
    flop_per_round = 12 * 8 * 2;
  }
#else
  (void)backend;
#endif
  const std::size_t threads = pool.thread_count();
  const double seconds = best_time(budget_s, [&] {
    pool.parallel_for(threads, [&](std::size_t, std::size_t) { loop(kRounds); });
  });
  return static_cast<double>(threads * kRounds) * flop_per_round / seconds * 1e-9;
}

double measure_bf16(const Backend& backend, ThreadPool& pool, double budget_s, double otherwise) {
#if defined(__x86_64__)
  if (backend.family() == Family::kAmx) return measure_tiles<false>(pool, budget_s);
  if (backend.family() == Family::kAvx512Bf16) {
    constexpr std::size_t kRounds = 1'000'000;
    const std::size_t threads = pool.thread_count();
    const double seconds = best_time(budget_s, [&] {
      pool.parallel_for(threads, [&](std::size_t, std::size_t) { bf16_loop(kRounds); });
    });
    return static_cast<double>(threads * kRounds) * 24 * 32 * 2 / seconds * 1e-9;
  }
#else
  (void)backend;
  (void)pool;
  (void)budget_s;
#endif
  return otherwise;
}

constexpr std::size_t kLine = 64;
/// Bytes of one stream that are read before it is the next one's turn.
constexpr std::size_t kTurn = 256;

/// loop() reads [from, from + bytes) as some streams, taken in turns, and asks for each line
/// `ahead` bytes before it is read; 0 leaves that to the hardware.
struct ReadPattern {
  void (*loop)(const std::byte* from, std::size_t bytes, std::size_t ahead);
  std::size_t ahead;
};

template <std::size_t kStreams>
void read_scalar(const std::byte* from, std::size_t bytes, std::size_t /*ahead*/) {
  const std::size_t run = bytes / kStreams;
  std::uint64_t seen[kStreams] = {};
  for (std::size_t at = 0; at < run; at += kTurn) {
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(from + stream * run + at);
      for (std::size_t i = 0; i < kTurn / 8; ++i)
        seen[stream] |= words[i];
    }
  }
  for (const std::uint64_t word : seen) {
    if (word == 0) sink = 1;
  }
}

#if defined(__x86_64__)
template <std::size_t kStreams>
__attribute__((target("avx2"))) void read_256(const std::byte* from,
                                              std::size_t bytes,
                                              std::size_t ahead) {
  const std::size_t run = bytes / kStreams;
  __m256i seen[kStreams];
  for (auto& each : seen)
    each = _mm256_setzero_si256();
  for (std::size_t at = 0; at < run; at += kTurn) {
#pragma GCC unroll 4
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* turn = from + stream * run + at;
#pragma GCC unroll 4
      for (std::size_t line = 0; line < kTurn; line += kLine) {
        if (ahead != 0) _mm_prefetch(turn + line + ahead, _MM_HINT_T0);
        const auto* half = reinterpret_cast<const __m256i*>(turn + line);
        seen[stream] = _mm256_or_si256(seen[stream], _mm256_load_si256(half));
        seen[stream] = _mm256_or_si256(seen[stream], _mm256_load_si256(half + 1));
      }
    }
  }
  for (const auto& each : seen) {
    if (_mm256_testz_si256(each, each) != 0) sink = 1;
  }
}

template <std::size_t kStreams>
__attribute__((target("avx512f"))) void read_512(const std::byte* from,
                                                 std::size_t bytes,
                                                 std::size_t ahead) {
  const std::size_t run = bytes / kStreams;
  __m512i seen[kStreams];
  for (auto& each : seen)
    each = _mm512_setzero_si512();
  for (std::size_t at = 0; at < run; at += kTurn) {
#pragma GCC unroll 4
    for (std::size_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* turn = from + stream * run + at;
#pragma GCC unroll 4
      for (std::size_t line = 0; line < kTurn; line += kLine) {
        if (ahead != 0) _mm_prefetch(turn + line + ahead, _MM_HINT_T0);
        seen[stream] = _mm512_or_si512(seen[stream], _mm512_load_si512(turn + line));
      }
    }
  }
  for (const auto& each : seen) {
    if (_mm512_test_epi64_mask(each, each) == 0) sink = 1;
  }
}
#endif

/// Processors differ in which is the fastest, by a third: a limit is the best of them.
std::vector<ReadPattern> read_patterns(const Backend& backend) {
  constexpr std::size_t kNear = 2048;
  constexpr std::size_t kFar = 4096;
#if defined(__x86_64__)
  if (has_wide_vectors(backend)) {
    return {{&read_512<1>, 0},
            {&read_512<1>, kFar},
            {&read_512<2>, 0},
            {&read_512<2>, kNear},
            {&read_512<4>, 0},
            {&read_512<4>, kNear}};
  }
  if (backend.family() == Family::kAvx2) {
    return {{&read_256<1>, 0},
            {&read_256<1>, kFar},
            {&read_256<2>, 0},
            {&read_256<2>, kNear},
            {&read_256<4>, 0},
            {&read_256<4>, kNear}};
  }
#else
  (void)backend;
#endif
  return {{&read_scalar<1>, 0}, {&read_scalar<4>, 0}};
}

/// Memory as weights have it: in huge pages, where the system gives some.
class HugeMemory {
 public:
  static constexpr std::size_t kPage = std::size_t{2} << 20;

  explicit HugeMemory(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes))) {
    (void)madvise(data_.get(), bytes_, MADV_HUGEPAGE);
    std::memset(data_.get(), 1, bytes_);
  }

  [[nodiscard]] const std::byte* data() const { return data_.get(); }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

/// Of at least so many bytes, until the process ends: what a guest frees it gives back to its
/// hypervisor some 2 s later (free page reporting), and 1 GiB of it takes all processors away for
/// 0.3 s of the very rows that come next.
const HugeMemory& kept_memory(std::size_t bytes) {
  static std::vector<std::unique_ptr<HugeMemory>> kept;
  const auto found =
      std::ranges::find_if(kept, [bytes](const auto& memory) { return memory->bytes() >= bytes; });
  if (found != kept.end()) return **found;
  return *kept.emplace_back(std::make_unique<HugeMemory>(bytes));
}

double measure_read(const Backend& backend,
                    ThreadPool& pool,
                    double budget_s,
                    std::size_t least_bytes) {
  constexpr std::size_t kLeast = std::size_t{64} << 20;  // of a model that lies in caches
  constexpr std::size_t kPiece = HugeMemory::kPage;
  const std::size_t pieces = (std::max(kLeast, least_bytes) + kPiece - 1) / kPiece;
  const HugeMemory& memory = kept_memory(pieces * kPiece);
  const std::vector<ReadPattern> patterns = read_patterns(backend);
  double best = 1e30;
  const double end = now_s() + budget_s;
  // In turns, so that no pattern has a bad moment of the machine to itself.
  for (int rounds = 0; rounds < 5 || now_s() < end; ++rounds) {
    for (const ReadPattern& pattern : patterns) {
      const double start = now_s();
      pool.parallel_for(pieces, [&](std::size_t piece, std::size_t) {
        pattern.loop(memory.data() + piece * kPiece, kPiece, pattern.ahead);
      });
      best = std::min(best, now_s() - start);
    }
  }
  return static_cast<double>(pieces * kPiece) / best * 1e-9;
}

}  // namespace

Limits measure_limits(const Backend& backend,
                      ThreadPool& pool,
                      double budget_s,
                      std::size_t read_bytes) {
  read_bytes = std::min(read_bytes, kBeyondCaches);
  const double fma_gflop_s = measure_fma(backend, pool, budget_s);
  return {.read_gb_s = measure_read(backend, pool, budget_s, read_bytes),
          .fma_gflop_s = fma_gflop_s,
          .bf16_gflop_s = measure_bf16(backend, pool, budget_s, fma_gflop_s),
          .int8_gop_s = measure_bytes(backend, pool, budget_s, false),
          .int4_gop_s = measure_bytes(backend, pool, budget_s, true)};
}

}  // namespace tandem::bench
