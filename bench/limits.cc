#include "bench/limits.h"

#include <immintrin.h>

#include <chrono>
#include <cstdint>
#include <ctime>

#include "base/aligned_buffer.h"

namespace lk::bench {
namespace {

constexpr int kChains = 12;  // independent sums: latency 4, two units
constexpr int64_t kSteps = 2000000;
volatile float sink;
bool thread_clock = false;

// One chain of operations on `Vector` for each element of `sum`; `flops` of one operation. A macro,
// for a template cannot carry the instruction set of each use.
#define LK_PEAK(name, isa, Vector, set1, first, a_value, b_value, operation, flops) \
  __attribute__((target(isa))) double name() {                                      \
    Vector sum[kChains];                                                            \
    for (auto& s : sum) s = set1(1.0f);                                             \
    const auto a = a_value, b = b_value;                                            \
    for (int64_t i = 0; i < kSteps; ++i) {                                          \
      _Pragma("GCC unroll 12") for (auto& s : sum) s = operation(s, a, b);          \
    }                                                                               \
    for (auto& s : sum) sink = first(s);                                            \
    return double{flops} * kChains * kSteps;                                        \
  }

LK_PEAK(fma_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_cvtss_f32, _mm256_set1_ps(0.999999f),
        _mm256_set1_ps(1e-9f), _mm256_fmadd_ps, 2 * 8)
LK_PEAK(fma_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_cvtss_f32, _mm512_set1_ps(0.999999f),
        _mm512_set1_ps(1e-9f), _mm512_fmadd_ps, 2 * 16)
LK_PEAK(dot_bf16, "avx512f,avx512bf16", __m512, _mm512_set1_ps, _mm512_cvtss_f32,
        (__m512bh)_mm512_set1_epi32(0x3c003c00), (__m512bh)_mm512_set1_epi32(0x3c003c00),
        _mm512_dpbf16_ps, 4 * 16)

#undef LK_PEAK

__attribute__((target("avx2"))) int64_t read_all(const std::byte* data, int64_t bytes) {
  __m256i sum[8] = {};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
    for (int j = 0; j < 8; ++j) {
      sum[j] = _mm256_add_epi64(
          sum[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(data + i + 32 * j)));
    }
  }
  for (int j = 1; j < 8; ++j) sum[0] = _mm256_add_epi64(sum[0], sum[j]);
  return _mm256_extract_epi64(sum[0], 0) + _mm256_extract_epi64(sum[0], 3);
}

double best_rate(ThreadPool& pool, double (*kernel)()) {
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<double> work(pool.threads());
    const double start = now();
    pool.run(pool.threads(), [&](int64_t i, int) { work[i] = kernel(); });
    double total = 0;
    for (double w : work) total += w;
    best = std::max(best, total / (now() - start) * 1e-9);
  }
  return best;
}

}  // namespace

void use_thread_clock() { thread_clock = true; }

double now() {
  if (thread_clock) {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Limits measure_limits(ThreadPool& pool) {
  Limits limits;
  constexpr int64_t kBytes = int64_t{1} << 30, kPiece = int64_t{1} << 21;
  AlignedBuffer buffer(kBytes);
  pool.run(kBytes / kPiece, [&](int64_t i, int) {
    for (int64_t j = 0; j < kPiece; j += 64)
      buffer.data()[i * kPiece + j] = static_cast<std::byte>(j);
  });
  std::vector<int64_t> sums(pool.threads());
  // The best of several: the ceiling is what the machine can do, not what its other guests leave.
  for (int repeat = 0; repeat < 7; ++repeat) {
    const double start = now();
    pool.run(kBytes / kPiece, [&](int64_t i, int thread) {
      sums[thread] += read_all(buffer.data() + i * kPiece, kPiece);
    });
    limits.read_gb_s = std::max(limits.read_gb_s, kBytes / (now() - start) * 1e-9);
  }
  for (int64_t s : sums) sink = static_cast<float>(s);
  const bool avx512 = __builtin_cpu_supports("avx512f");
  limits.fma_gflop_s = best_rate(pool, avx512 ? fma_avx512 : fma_avx2);
  if (avx512 && __builtin_cpu_supports("avx512bf16"))
    limits.bf16_gflop_s = best_rate(pool, dot_bf16);
  return limits;
}

}  // namespace lk::bench
