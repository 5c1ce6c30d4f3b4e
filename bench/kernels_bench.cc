// Kernel speed as JSON lines: achieved figure, the limit measured in the same run, and their ratio.
//   kernels_bench [--threads N] [--family NAME] [--quick]
#include "kernels/api/backend.h"
#include "kernels/api/convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

namespace {

using tandem::kernels::Backend;
using tandem::kernels::DType;
using tandem::kernels::Family;
using tandem::kernels::ThreadPool;

struct Limits {
  double read_gb_s = 0;
  double fma_gflop_s = 0;
};

struct Setup {
  const Backend& backend;
  ThreadPool& pool;
  double budget_s;  // per case
  Limits limits;
};

// With one thread, processor time: neighbours on a shared machine then cost only cache and
// bandwidth. With several, wall time.
bool use_cpu_time = false;

double now_s() {
  timespec time{};
  clock_gettime(use_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Seconds of the fastest of as many runs as the budget allows (at least 3): others share the
// machine.
template <class Fn>
double best_time(double budget_s, Fn fn) {
  fn();
  double best = 1e30;
  const double end = now_s() + budget_s;
  for (int runs = 0; runs < 3 || now_s() < end; ++runs) {
    const double start = now_s();
    fn();
    best = std::min(best, now_s() - start);
  }
  return best;
}

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
  if (backend.family() == Family::kAvx512 || backend.family() == Family::kAmx) {
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

void read_loop_scalar(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i < count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j)
      sums[j] |= words[i + j];
  }
  for (const std::uint64_t sum : sums) {
    if (sum == 0) sink = 1;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void read_loop_256(const std::uint64_t* words, std::size_t count) {
  const auto* vectors = reinterpret_cast<const __m256i*>(words);
  __m256i sums[8];
  for (auto& sum : sums)
    sum = _mm256_setzero_si256();
  for (std::size_t i = 0; i < count / 4; i += 8) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 8; ++j)
      sums[j] = _mm256_or_si256(sums[j], _mm256_loadu_si256(vectors + i + j));
  }
  for (const auto& sum : sums) {
    if (_mm256_testz_si256(sum, sum) != 0) sink = 1;
  }
}
#endif

double measure_read(const Backend& backend, ThreadPool& pool, double budget_s) {
  constexpr std::size_t kWords = std::size_t{32} << 20;  // 256 MiB, beyond any cache here
  constexpr std::size_t kPieces = 256;
  void (*loop)(const std::uint64_t*, std::size_t) = &read_loop_scalar;
#if defined(__x86_64__)
  if (backend.family() >= Family::kAvx2) loop = &read_loop_256;
#else
  (void)backend;
#endif
  const std::vector<std::uint64_t> memory(kWords, 1);
  const double seconds = best_time(budget_s, [&] {
    pool.parallel_for(kPieces, [&](std::size_t piece, std::size_t) {
      loop(memory.data() + piece * (kWords / kPieces), kWords / kPieces);
    });
  });
  return static_cast<double>(kWords * 8) / seconds * 1e-9;
}

void report(const Setup& setup,
            const char* op,
            const char* shape,
            DType dtype,
            double seconds,
            double bytes,
            double flops) {
  const double gb_s = bytes / seconds * 1e-9;
  const double gflop_s = flops / seconds * 1e-9;
  // The binding limit is the one whose own time is longer.
  const bool memory_bound = bytes / setup.limits.read_gb_s > flops / setup.limits.fma_gflop_s;
  const double fraction =
      memory_bound ? gb_s / setup.limits.read_gb_s : gflop_s / setup.limits.fma_gflop_s;
  std::printf(
      "{\"bench\":\"%s\",\"family\":\"%s\",\"threads\":%zu,\"shape\":\"%s\",\"dtype\":\"%s\","
      "\"ms\":%.4f,\"gb_s\":%.2f,\"gflop_s\":%.2f,\"limit\":\"%s\",\"limit_value\":%.2f,"
      "\"fraction\":%.3f}\n",
      op,
      std::string(tandem::kernels::family_name(setup.backend.family())).c_str(),
      setup.pool.thread_count(),
      shape,
      std::string(tandem::kernels::dtype_name(dtype)).c_str(),
      seconds * 1e3,
      gb_s,
      gflop_s,
      memory_bound ? "read_gb_s" : "fma_gflop_s",
      memory_bound ? setup.limits.read_gb_s : setup.limits.fma_gflop_s,
      fraction);
  std::fflush(stdout);
}

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(i % 251) * 0.01F - 1.25F;
  return values;
}

// Several copies of the weight, so that a decode step finds it in memory and not in a cache.
void bench_linear(const Setup& setup, std::size_t n, std::size_t k, DType dtype) {
  const std::vector<float> source = ramp(n * k);
  const tandem::kernels::MatrixView view{
      .data = source.data(), .dtype = DType::kF32, .rows = n, .cols = k};
  const std::size_t bytes = setup.backend.packed_bytes(n, k, dtype);
  const std::size_t copies = std::max<std::size_t>(1, (std::size_t{192} << 20) / bytes);
  std::vector<std::unique_ptr<tandem::kernels::PackedWeight>> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    weights.push_back(setup.backend.pack({&view, 1}, dtype, setup.pool));
    if (weights.back() == nullptr) return;
  }
  for (const std::size_t tokens : {1U, 8U, 512U}) {
    const std::vector<float> x = ramp(tokens * k);
    std::vector<float> y(tokens * n);
    const std::size_t uses = tokens >= 512 ? 1 : copies;
    const double seconds = best_time(setup.budget_s, [&] {
      for (std::size_t i = 0; i < uses; ++i) {
        setup.backend.linear(
            {.x = x.data(), .weight = weights[i].get(), .y = y.data(), .tokens = tokens},
            setup.pool);
      }
    });
    char shape[64];
    std::snprintf(shape, sizeof(shape), "T=%zu N=%zu K=%zu", tokens, n, k);
    report(setup,
           "linear",
           shape,
           dtype,
           seconds / static_cast<double>(uses),
           static_cast<double>(bytes),
           2.0 * static_cast<double>(tokens) * static_cast<double>(n) * static_cast<double>(k));
  }
}

// 16 query heads over 8 kv heads of 128: `sequences` of `context` positions, the last `chunk` of
// each queried.
void bench_attention(const Setup& setup,
                     const char* name,
                     std::size_t sequences,
                     std::size_t context,
                     std::size_t chunk,
                     DType dtype) {
  constexpr std::size_t kHeads = 16;
  constexpr std::size_t kPage = 16;
  tandem::kernels::KvLayer kv{.page_size = kPage, .kv_heads = 8, .head_dim = 128, .dtype = dtype};
  const std::size_t pages = (context + kPage - 1) / kPage;
  kv.page_stride_bytes = kv.layer_bytes();
  std::vector<std::byte> memory(sequences * pages * kv.page_stride_bytes);
  kv.base = memory.data();
  for (std::size_t i = 0; i < memory.size() / tandem::kernels::dtype_bytes(dtype); ++i) {
    tandem::kernels::store_element(
        memory.data(), dtype, i, static_cast<float>(i % 17) * 0.1F - 0.8F);
  }
  std::vector<std::vector<std::int32_t>> tables(sequences, std::vector<std::int32_t>(pages));
  std::vector<tandem::kernels::SequencePages> views;
  std::vector<std::int32_t> sequence;
  std::vector<std::int32_t> position;
  double visible = 0;
  for (std::size_t s = 0; s < sequences; ++s) {
    for (std::size_t p = 0; p < pages; ++p)
      tables[s][p] = static_cast<std::int32_t>(p * sequences + s);
    views.push_back({.pages = tables[s].data(), .page_count = pages});
    for (std::size_t i = context - chunk; i < context; ++i) {
      sequence.push_back(static_cast<std::int32_t>(s));
      position.push_back(static_cast<std::int32_t>(i));
      visible += static_cast<double>(i + 1);
    }
  }
  const std::vector<float> q = ramp(sequence.size() * kHeads * 128);
  std::vector<float> out(q.size());
  const double seconds = best_time(setup.budget_s, [&] {
    setup.backend.attention({.q = q.data(),
                             .out = out.data(),
                             .batch = {.tokens = sequence.size(),
                                       .sequence = sequence.data(),
                                       .position = position.data(),
                                       .sequences = views.data(),
                                       .sequence_count = views.size()},
                             .kv = kv,
                             .heads = kHeads,
                             .scale = 0.0884F},
                            setup.pool);
  });
  char shape[64];
  std::snprintf(shape, sizeof(shape), "S=%zu context=%zu chunk=%zu", sequences, context, chunk);
  report(setup,
         name,
         shape,
         dtype,
         seconds,
         static_cast<double>(sequences * context) * 2 * 8 * 128 *
             static_cast<double>(tandem::kernels::dtype_bytes(dtype)),
         visible * kHeads * 128 * 4);
}

struct Flags {
  std::size_t threads = std::max(1U, std::thread::hardware_concurrency());
  Family family = Family::kAuto;
  double budget_s = 0.5;
};

bool parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--quick") {
      flags->budget_s = 0.05;
    } else if (name == "--threads" && i + 1 < argc) {
      flags->threads = static_cast<std::size_t>(std::strtoul(argv[++i], nullptr, 10));
    } else if (name == "--family" && i + 1 < argc) {
      if (!tandem::kernels::parse_family(argv[++i], &flags->family)) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  if (!parse(argc, argv, &flags)) {
    std::fprintf(
        stderr,
        "usage: kernels_bench [--threads N] [--family auto|generic|avx2|avx512|amx] [--quick]\n");
    return 2;
  }
  std::string reason;
  const Backend* backend = tandem::kernels::select(flags.family, &reason);
  if (backend == nullptr) {
    std::fprintf(stderr, "kernels_bench: %s\n", reason.c_str());
    return 3;
  }
  ThreadPool pool(flags.threads);
  use_cpu_time = pool.thread_count() == 1;
  Setup setup{.backend = *backend, .pool = pool, .budget_s = flags.budget_s, .limits = {}};
  setup.limits.read_gb_s = measure_read(*backend, pool, flags.budget_s);
  setup.limits.fma_gflop_s = measure_fma(*backend, pool, flags.budget_s);
  std::printf(
      "{\"bench\":\"limits\",\"family\":\"%s\",\"threads\":%zu,\"clock\":\"%s\",\"read_gb_s\":%.2f,"
      "\"fma_gflop_s\":%"
      ".2f}\n",
      std::string(tandem::kernels::family_name(backend->family())).c_str(),
      pool.thread_count(),
      use_cpu_time ? "cpu" : "wall",
      setup.limits.read_gb_s,
      setup.limits.fma_gflop_s);
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    bench_linear(setup, 4096, 1024, dtype);  // Qwen3-0.6B: fused q, k, v
    bench_linear(setup, 6144, 1024, dtype);  // gate and up
    bench_linear(setup, 1024, 3072, dtype);  // down
  }
  for (const DType dtype : {DType::kBf16, DType::kF32}) {
    bench_attention(setup, "attention_decode", 8, 2048, 1, dtype);
    bench_attention(setup, "attention_decode", 1, 4096, 1, dtype);
    bench_attention(setup, "attention_prefill", 1, 1024, 512, dtype);
  }
  return 0;
}
