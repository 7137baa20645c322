#include "engine/row_exp.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>

#define LK_AVX2 __attribute__((target("avx2,fma")))
#define LK_AVX512 __attribute__((target("avx512f,avx512dq,avx2,fma")))
#define LK_INLINE inline __attribute__((always_inline))

namespace lk {
namespace {

constexpr float kLowest = -87.0f;  // exp of less is no normal float32
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
// Of Cephes' expf (S. Moshier): exp(x) = 2^n e^r with |r| <= ln(2) / 2 and
// e^r = 1 + r + r^2 p(r), relative error below 2e-7.
constexpr float kPolynomial[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
// The inner loops over registers carry `unroll`: at -O2 GCC would keep their arrays in memory.

float weight_plain(float logit, float max, float scale) {
  const float x = (logit - max) * scale;
  return x >= kLowest ? std::exp(x) : 0.0f;
}

double sum_plain(const float* row, int count, float max, float scale, LevelSums* within) {
  double total = 0;
  for (int i = 0; i < count; ++i) {
    const float weight = weight_plain(row[i], max, scale);
    total += weight;
    for (size_t level = 0; within != nullptr && level < kLevels.size(); ++level) {
      if ((row[i] - max) * scale >= -kLevels[level]) (*within)[level] += weight;
    }
  }
  return total;
}

void weights_plain(const float* row, int count, float max, float scale, float* weights) {
  for (int i = 0; i < count; ++i) weights[i] = weight_plain(row[i], max, scale);
}

// exp(x) for x in [kLowest, 0], 0 for less and for NaN.
LK_AVX2 LK_INLINE __m256 exp_avx2(__m256 x) {
  const __m256 valid = _mm256_cmp_ps(x, _mm256_set1_ps(kLowest), _CMP_GE_OQ);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2e)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2High), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Low), r);
  __m256 p = _mm256_set1_ps(kPolynomial[0]);
#pragma GCC unroll 5
  for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kPolynomial[i]));
  p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(exponent)), valid);
}

LK_AVX2 LK_INLINE __m256 exponent_avx2(const float* at, float max, float scale) {
  return _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(at), _mm256_set1_ps(max)),
                       _mm256_set1_ps(scale));
}

LK_AVX2 double sum_of(__m256 lanes) {
  const __m256d halves = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(lanes)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(lanes, 1)));
  alignas(32) double sums[4];
  _mm256_store_pd(sums, halves);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

LK_AVX2 double sum_avx2(const float* block, float max, float scale) {
  __m256 total = _mm256_setzero_ps();
  for (int i = 0; i < kSumBlock; i += 8)
    total = _mm256_add_ps(total, exp_avx2(exponent_avx2(block + i, max, scale)));
  return sum_of(total);
}

// The levels are a third of the work.
LK_AVX2 double sum_levels_avx2(const float* block, float max, float scale, LevelSums& within) {
  __m256 total = _mm256_setzero_ps();
  __m256 sums[kLevels.size()];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int i = 0; i < kSumBlock; i += 8) {
    const __m256 x = exponent_avx2(block + i, max, scale);
    const __m256 weight = exp_avx2(x);
    total = _mm256_add_ps(total, weight);
#pragma GCC unroll 4
    for (size_t level = 0; level < kLevels.size(); ++level) {
      const __m256 near = _mm256_cmp_ps(x, _mm256_set1_ps(-kLevels[level]), _CMP_GE_OQ);
      sums[level] = _mm256_add_ps(sums[level], _mm256_and_ps(weight, near));
    }
  }
  for (size_t level = 0; level < kLevels.size(); ++level) within[level] += sum_of(sums[level]);
  return sum_of(total);
}

LK_AVX2 void weights_avx2(const float* block, float max, float scale, float* weights) {
  for (int i = 0; i < kSumBlock; i += 8)
    _mm256_storeu_ps(weights + i, exp_avx2(exponent_avx2(block + i, max, scale)));
}

LK_AVX512 LK_INLINE __m512 exp_avx512(__m512 x) {
  const __mmask16 valid = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kLowest), _CMP_GE_OQ);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2e)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2High), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Low), r);
  __m512 p = _mm512_set1_ps(kPolynomial[0]);
#pragma GCC unroll 5
  for (int i = 1; i < 6; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kPolynomial[i]));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_maskz_scalef_ps(valid, p, n);
}

LK_AVX512 LK_INLINE __m512 exponent_avx512(const float* at, float max, float scale) {
  return _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(at), _mm512_set1_ps(max)),
                       _mm512_set1_ps(scale));
}

LK_AVX512 double sum_of(__m512 lanes) {
  return sum_of(_mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1)));
}

LK_AVX512 double sum_avx512(const float* block, float max, float scale) {
  __m512 total = _mm512_setzero_ps();
  for (int i = 0; i < kSumBlock; i += 16)
    total = _mm512_add_ps(total, exp_avx512(exponent_avx512(block + i, max, scale)));
  return sum_of(total);
}

LK_AVX512 double sum_levels_avx512(const float* block, float max, float scale, LevelSums& within) {
  __m512 total = _mm512_setzero_ps();
  __m512 sums[kLevels.size()];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int i = 0; i < kSumBlock; i += 16) {
    const __m512 x = exponent_avx512(block + i, max, scale);
    const __m512 weight = exp_avx512(x);
    total = _mm512_add_ps(total, weight);
#pragma GCC unroll 4
    for (size_t level = 0; level < kLevels.size(); ++level) {
      const __mmask16 near = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-kLevels[level]), _CMP_GE_OQ);
      sums[level] = _mm512_mask_add_ps(sums[level], near, sums[level], weight);
    }
  }
  for (size_t level = 0; level < kLevels.size(); ++level) within[level] += sum_of(sums[level]);
  return sum_of(total);
}

LK_AVX512 void weights_avx512(const float* block, float max, float scale, float* weights) {
  for (int i = 0; i < kSumBlock; i += 16)
    _mm512_storeu_ps(weights + i, exp_avx512(exponent_avx512(block + i, max, scale)));
}

constexpr RowExp kRowExps[] = {
    {"avx512",
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("fma");
     },
     sum_avx512, sum_levels_avx512, weights_avx512},
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); },
     sum_avx2, sum_levels_avx2, weights_avx2},
    {"plain", [] { return true; },
     [](const float* block, float max, float scale) {
       return sum_plain(block, kSumBlock, max, scale, nullptr);
     },
     [](const float* block, float max, float scale, LevelSums& within) {
       return sum_plain(block, kSumBlock, max, scale, &within);
     },
     [](const float* block, float max, float scale, float* weights) {
       weights_plain(block, kSumBlock, max, scale, weights);
     }},
};

const RowExp& chosen() {
  static const RowExp& fastest =
      *std::find_if(std::begin(kRowExps), std::end(kRowExps),
                    [](const RowExp& candidate) { return candidate.supported(); });
  return fastest;
}

}  // namespace

std::span<const RowExp> row_exps() { return kRowExps; }

void exp_sums(const float* row, int count, float max, float scale, bool levels, ExpSums& sums) {
  const RowExp& exps = chosen();
  sums.total = 0;
  sums.within = {};
  sums.blocks.clear();
  for (int begin = 0; begin < count; begin += kSumBlock) {
    const float* block = row + begin;
    const int size = std::min(kSumBlock, count - begin);
    const double sum = size < kSumBlock
                           ? sum_plain(block, size, max, scale, levels ? &sums.within : nullptr)
                       : levels ? exps.sum_levels(block, max, scale, sums.within)
                                : exps.sum(block, max, scale);
    sums.blocks.push_back(sum);
    sums.total += sum;
  }
}

void exp_weights(const float* row, int count, float max, float scale, float* weights) {
  if (count == kSumBlock) return chosen().weights(row, max, scale, weights);
  weights_plain(row, count, max, scale, weights);
}

}  // namespace lk

#undef LK_AVX2
#undef LK_AVX512
#undef LK_INLINE
