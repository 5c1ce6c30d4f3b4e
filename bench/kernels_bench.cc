// Kernel speed as JSON lines: achieved figure, the limit measured in the same run, and their ratio.
//   kernels_bench [--threads N] [--family NAME] [--quick]
#include "bench/limits.h"
#include "kernels/api/backend.h"
#include "kernels/api/convert.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

using tandem::bench::best_time;
using tandem::bench::Limits;
using tandem::bench::use_cpu_time;
using tandem::kernels::Backend;
using tandem::kernels::DType;
using tandem::kernels::Family;
using tandem::kernels::ThreadPool;
using tandem::kernels::WeightScheme;

struct Setup {
  const Backend& backend;
  ThreadPool& pool;
  double budget_s;  // per case
  /// Weights, or keys and values, of a bench together: several copies, so that what reads them
  /// finds them in memory, as the bound of reading over as many bytes does.
  std::size_t set_bytes;
  Limits limits;
};

/// A quarter more than the last level of caches where the system tells its size, within reason:
/// read in turn, nothing of it is still there (480 MiB of cache give 600 MiB at memory's pace).
std::size_t set_bytes() {
  constexpr std::size_t kLeast = std::size_t{192} << 20;
  const long cache_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return std::clamp(static_cast<std::size_t>(std::max(cache_bytes, 0L)) / 4 * 5,
                    kLeast,
                    tandem::bench::kBeyondCaches);
}

void report(const Setup& setup,
            const char* op,
            const char* shape,
            std::string_view format,
            double seconds,
            double bytes,
            double flops,
            double peak) {
  const double gb_s = bytes / seconds * 1e-9;
  const double gflop_s = flops / seconds * 1e-9;
  // The binding limit is the one whose own time is longer.
  const bool memory_bound = bytes / setup.limits.read_gb_s > flops / peak;
  const double fraction = memory_bound ? gb_s / setup.limits.read_gb_s : gflop_s / peak;
  std::printf(
      "{\"bench\":\"%s\",\"family\":\"%s\",\"threads\":%zu,\"shape\":\"%s\",\"dtype\":\"%s\","
      "\"ms\":%.4f,\"gb_s\":%.2f,\"gflop_s\":%.2f,\"limit\":\"%s\",\"limit_value\":%.2f,"
      "\"fraction\":%.3f}\n",
      op,
      std::string(tandem::kernels::family_name(setup.backend.family())).c_str(),
      setup.pool.thread_count(),
      shape,
      std::string(format).c_str(),
      seconds * 1e3,
      gb_s,
      gflop_s,
      memory_bound ? "read_gb_s" : "peak_gflop_s",
      memory_bound ? setup.limits.read_gb_s : peak,
      fraction);
  std::fflush(stdout);
}

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(i % 251) * 0.01F - 1.25F;
  return values;
}

/// Of rows of inputs: large values are few, as they are in a model's (byte_cuts.h counts on it).
std::vector<float> bell(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t sum = i * 7919 % 251 + i * 104'729 % 241 + i * 1'299'709 % 239;
    values[i] = static_cast<float>(sum) * 0.01F - 3.65F;
  }
  return values;
}

struct Format {
  const char* name;
  tandem::kernels::WeightFormat format;
};

double peak_of(const Setup& setup, const tandem::kernels::WeightFormat& format) {
  const tandem::bench::Limits& limits = setup.limits;
  if (format.scheme == WeightScheme::kInt4Group128) return limits.int4_gop_s;
  if (rounds_to_bytes(format.scheme)) return limits.int8_gop_s;
  return tandem::bench::multiplies_bf16(setup.backend.family(), format) ? limits.bf16_gflop_s
                                                                        : limits.fma_gflop_s;
}

void bench_linear(const Setup& setup, std::size_t n, std::size_t k, const Format& format) {
  const std::vector<float> source = ramp(n * k);
  const tandem::kernels::MatrixView view{
      .data = source.data(), .dtype = DType::kF32, .rows = n, .cols = k};
  const std::size_t bytes = setup.backend.packed_bytes(n, k, format.format);
  const std::size_t copies = std::max<std::size_t>(1, setup.set_bytes / bytes);
  std::vector<std::unique_ptr<tandem::kernels::PackedWeight>> weights;
  for (std::size_t i = 0; i < copies; ++i) {
    weights.push_back(setup.backend.pack({&view, 1}, format.format, setup.pool));
    if (weights.back() == nullptr) return;
  }
  for (const std::size_t tokens : {1U, 8U, 512U}) {
    const std::vector<float> x = bell(tokens * k);
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
           format.name,
           seconds / static_cast<double>(uses),
           static_cast<double>(bytes),
           2.0 * static_cast<double>(tokens) * static_cast<double>(n) * static_cast<double>(k),
           peak_of(setup, format.format));
  }
}

/// Experts of one layer: 32 of 512, 4 a token, hidden 1024.
struct Layer {
  std::unique_ptr<tandem::kernels::PackedWeight> gate;
  std::unique_ptr<tandem::kernels::PackedWeight> up;
  std::unique_ptr<tandem::kernels::PackedWeight> down;
};

void bench_experts(const Setup& setup, const Format& format) {
  constexpr std::size_t kExperts = 32;
  constexpr std::size_t kTopK = 4;
  constexpr std::size_t kHidden = 1024;
  constexpr std::size_t kInner = 512;
  const std::vector<float> source = ramp(kHidden * kInner);
  const auto stack = [&](std::size_t n, std::size_t k) {
    const std::vector<tandem::kernels::MatrixView> views(
        kExperts, {.data = source.data(), .dtype = DType::kF32, .rows = n, .cols = k});
    return setup.backend.pack_stack(views, format.format, setup.pool);
  };
  const std::size_t bytes = 3 * setup.backend.packed_bytes(kInner, kHidden, format.format);
  std::vector<Layer> layers(setup.set_bytes / (kExperts * bytes) + 1);
  for (Layer& layer : layers) {
    layer = {stack(kInner, kHidden), stack(kInner, kHidden), stack(kHidden, kInner)};
    if (layer.gate == nullptr || layer.up == nullptr || layer.down == nullptr) return;
  }
  for (const std::size_t tokens : {1U, 8U, 512U}) {
    const std::size_t rows = tokens * kTopK;
    const std::vector<float> x = bell(tokens * kHidden);
    const std::vector<float> weights(rows, 0.25F);
    std::vector<float> y(tokens * kHidden);
    std::vector<float> inner(rows * 2 * kInner);
    std::vector<float> row_weights(rows);
    std::vector<std::int32_t> sorted(rows);
    // Few tokens take other experts of a layer each time.
    const std::size_t turns = std::max<std::size_t>(1, kExperts / rows);
    std::vector<std::int32_t> ids(turns * rows);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(i * 7 % kExperts);
    const std::size_t uses = tokens >= 512 ? 1 : turns * layers.size();
    const double seconds = best_time(setup.budget_s, [&] {
      for (std::size_t i = 0; i < uses; ++i) {
        const Layer& layer = layers[i % layers.size()];
        setup.backend.expert_mlp({.x = x.data(),
                                  .gate = layer.gate.get(),
                                  .up = layer.up.get(),
                                  .down = layer.down.get(),
                                  .ids = ids.data() + i / layers.size() * rows,
                                  .weights = weights.data(),
                                  .tokens = tokens,
                                  .top_k = kTopK,
                                  .y = y.data(),
                                  .inner = inner.data(),
                                  .rows = sorted.data(),
                                  .row_weights = row_weights.data()},
                                 setup.pool);
      }
    });
    char shape[64];
    std::snprintf(shape, sizeof(shape), "T=%zu %zu of 32 H=1024 I=512", tokens, kTopK);
    report(setup,
           "expert_mlp",
           shape,
           format.name,
           seconds / static_cast<double>(uses),
           static_cast<double>(std::min(kExperts, rows) * bytes),
           6.0 * static_cast<double>(rows * kHidden * kInner),
           peak_of(setup, format.format));
  }
}

/// Memory as the engine's arena has it: on huge pages where the system gives them.
class PoolMemory {
 public:
  explicit PoolMemory(std::size_t bytes) : size_(bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(memory);
  }

  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  ~PoolMemory() { munmap(data_, size_); }

  [[nodiscard]] std::byte* data() const { return data_; }

  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

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
  const std::size_t bytes = sequences * pages * kv.page_stride_bytes;
  // A prompt is bound by its products; tokens alone read other keys and values each time.
  const std::size_t copies = chunk > 1 ? 1 : std::max<std::size_t>(1, setup.set_bytes / bytes);
  const PoolMemory memory(copies * bytes);
  for (std::size_t i = 0; i < bytes / tandem::kernels::dtype_bytes(dtype); ++i) {
    tandem::kernels::store_element(
        memory.data(), dtype, i, static_cast<float>(i % 17) * 0.1F - 0.8F);
  }
  for (std::size_t copy = 1; copy < copies; ++copy)
    std::memcpy(memory.data() + copy * bytes, memory.data(), bytes);
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
    for (std::size_t copy = 0; copy < copies; ++copy) {
      kv.base = memory.data() + copy * bytes;
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
    }
  });
  char shape[64];
  std::snprintf(shape, sizeof(shape), "S=%zu context=%zu chunk=%zu", sequences, context, chunk);
  report(setup,
         name,
         shape,
         tandem::kernels::dtype_name(dtype),
         seconds / static_cast<double>(copies),
         static_cast<double>(sequences * context) * 2 * 8 * 128 *
             static_cast<double>(tandem::kernels::dtype_bytes(dtype)),
         visible * kHeads * 128 * 4,
         tandem::bench::attention_multiplies_bf16(setup.backend.family(), dtype)
             ? setup.limits.bf16_gflop_s
             : setup.limits.fma_gflop_s);
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
    std::fprintf(stderr,
                 "usage: kernels_bench [--threads N] [--family "
                 "auto|generic|avx2|avx512|avx512_bf16|amx] [--quick]\n");
    return 2;
  }
  std::string reason;
  const Backend* backend = tandem::kernels::select(flags.family, &reason);
  if (backend == nullptr) {
    std::fprintf(stderr, "kernels_bench: %s\n", reason.c_str());
    return 3;
  }
  // As a worker has it.
  ThreadPool pool(flags.threads,
                  tandem::kernels::thread_places(flags.threads, tandem::kernels::allowed_cpus()));
  use_cpu_time = pool.thread_count() == 1;
  Setup setup{.backend = *backend,
              .pool = pool,
              .budget_s = flags.budget_s,
              .set_bytes = set_bytes(),
              .limits = {}};
  setup.limits = tandem::bench::measure_limits(*backend, pool, flags.budget_s, setup.set_bytes);
  std::printf(
      "{\"bench\":\"limits\",\"family\":\"%s\",\"threads\":%zu,\"clock\":\"%s\",\"read_gb_s\":%.2f,"
      "\"fma_gflop_s\":%.2f,\"bf16_gflop_s\":%.2f,\"int8_gop_s\":%.2f,\"int4_gop_s\":%.2f,"
      "\"set_bytes\":%zu}\n",
      std::string(tandem::kernels::family_name(backend->family())).c_str(),
      pool.thread_count(),
      use_cpu_time ? "cpu" : "wall",
      setup.limits.read_gb_s,
      setup.limits.fma_gflop_s,
      setup.limits.bf16_gflop_s,
      setup.limits.int8_gop_s,
      setup.limits.int4_gop_s,
      setup.set_bytes);
  for (const Format& format : {Format{"bf16", DType::kBf16},
                               Format{"f32", DType::kF32},
                               Format{"int8wo", WeightScheme::kInt8},
                               Format{"int4wo-128", WeightScheme::kInt4Group128},
                               Format{"w8a8_int8", WeightScheme::kInt8Dynamic}}) {
    bench_linear(setup, 4096, 1024, format);  // Qwen3-0.6B: fused q, k, v
    bench_linear(setup, 6144, 1024, format);  // gate and up
    bench_linear(setup, 1024, 3072, format);  // down
    bench_experts(setup, format);             // MoE 0.7B
  }
  for (const DType dtype : {DType::kBf16, DType::kFp8E4m3, DType::kF32}) {
    bench_attention(setup, "attention_decode", 8, 2048, 1, dtype);
    bench_attention(setup, "attention_decode", 1, 4096, 1, dtype);
    bench_attention(setup, "attention_prefill", 1, 1024, 512, dtype);
  }
  return 0;
}
