#include "engine/row_scan.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#define LK_AVX2 __attribute__((target("avx2")))

namespace lk {
namespace {

constexpr float kLowest = -87.0f;  // exp of less is no normal float32
constexpr int kMaxBlock = 1024;
// The inner loops over registers carry `unroll`: at -O2 GCC would keep their arrays in memory.

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

float max_of(const float* row, int count) {
  float max = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < count; ++i) max = row[i] > max ? row[i] : max;
  return max;
}

// maxps gives its second operand where one is NaN.
LK_AVX2 float max_of_avx2(const float* row, int count) {
  __m256 max[4];
  for (__m256& m : max) m = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + 32 <= count; i += 32) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) max[j] = _mm256_max_ps(_mm256_loadu_ps(row + i + 8 * j), max[j]);
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes,
                  _mm256_max_ps(_mm256_max_ps(max[0], max[1]), _mm256_max_ps(max[2], max[3])));
  return std::max(max_of(lanes, 8), max_of(row + i, count - i));
}

int first_above_plain(const float* row, int begin, int count, float bound) {
  while (begin < count && !(row[begin] > bound)) ++begin;
  return begin;
}

LK_AVX2 int first_above_avx2(const float* row, int begin, int count, float bound) {
  const __m256 bounds = _mm256_set1_ps(bound);
  for (; begin + 32 <= count; begin += 32) {
    __m256 above[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      above[j] = _mm256_cmp_ps(_mm256_loadu_ps(row + begin + 8 * j), bounds, _CMP_GT_OQ);
    const __m256 any =
        _mm256_or_ps(_mm256_or_ps(above[0], above[1]), _mm256_or_ps(above[2], above[3]));
    if (_mm256_movemask_ps(any) == 0) continue;
    unsigned mask = 0;
    for (int j = 0; j < 4; ++j)
      mask |= static_cast<unsigned>(_mm256_movemask_ps(above[j])) << (8 * j);
    return begin + __builtin_ctz(mask);
  }
  return first_above_plain(row, begin, count, bound);
}

// exp(x) for x in [kLowest, 0], 0 for less and for NaN: 2^n e^r with |r| <= ln(2) / 2 and the
// polynomial of Cephes' expf (S. Moshier), relative error below 2e-7.
LK_AVX2 inline __attribute__((always_inline)) __m256 exp_avx2(__m256 x) {
  const __m256 valid = _mm256_cmp_ps(x, _mm256_set1_ps(kLowest), _CMP_GE_OQ);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(0.693359375f)));
  r = _mm256_sub_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(-2.12194440e-4f)));
  __m256 p = _mm256_set1_ps(1.9875691500e-4f);
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.3981999507e-3f));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(8.3334519073e-3f));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(4.1665795894e-2f));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(1.6666665459e-1f));
  p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(5.0000001201e-1f));
  p = _mm256_add_ps(_mm256_mul_ps(_mm256_mul_ps(p, r), r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(exponent)), valid);
}

float weight_of(float logit, float max, float scale) {
  const float x = (logit - max) * scale;
  return x >= kLowest ? std::exp(x) : 0.0f;
}

LK_AVX2 double sum_of(__m256 lanes) {
  const __m256d halves = _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(lanes)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(lanes, 1)));
  alignas(32) double sums[4];
  _mm256_store_pd(sums, halves);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A whole block of kSumBlock. The levels are a third of the work.
template <bool levels>
LK_AVX2 double block_sum_avx2(const float* row, float max, float scale, ExpSums& sums) {
  __m256 total = _mm256_setzero_ps();
  __m256 within[kLevels.size()];
  for (__m256& sum : within) sum = _mm256_setzero_ps();
  for (int i = 0; i < kSumBlock; i += 8) {
    const __m256 x = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(row + i), _mm256_set1_ps(max)),
                                   _mm256_set1_ps(scale));
    const __m256 weight = exp_avx2(x);
    total = _mm256_add_ps(total, weight);
    if (!levels) continue;
#pragma GCC unroll 4
    for (size_t level = 0; level < kLevels.size(); ++level) {
      const __m256 near = _mm256_cmp_ps(x, _mm256_set1_ps(-kLevels[level]), _CMP_GE_OQ);
      within[level] = _mm256_add_ps(within[level], _mm256_and_ps(weight, near));
    }
  }
  for (size_t level = 0; levels && level < kLevels.size(); ++level)
    sums.within[level] += sum_of(within[level]);
  return sum_of(total);
}

double block_sum(const float* row, int count, float max, float scale, bool levels, ExpSums& sums) {
  double total = 0;
  for (int i = 0; i < count; ++i) {
    const float weight = weight_of(row[i], max, scale);
    total += weight;
    for (size_t level = 0; levels && level < kLevels.size(); ++level) {
      if ((row[i] - max) * scale >= -kLevels[level]) sums.within[level] += weight;
    }
  }
  return total;
}

LK_AVX2 void exp_weights_avx2(const float* row, float max, float scale, float* weights) {
  for (int i = 0; i < kSumBlock; i += 8) {
    const __m256 x = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(row + i), _mm256_set1_ps(max)),
                                   _mm256_set1_ps(scale));
    _mm256_storeu_ps(weights + i, exp_avx2(x));
  }
}

}  // namespace

Largest largest(const float* row, int count) {
  Largest best{-1, -std::numeric_limits<float>::infinity()};
  int best_block = -1;
  for (int begin = 0; begin < count; begin += kMaxBlock) {
    const int size = std::min(kMaxBlock, count - begin);
    const float max = has_avx2() ? max_of_avx2(row + begin, size) : max_of(row + begin, size);
    if (max > best.logit) best.logit = max, best_block = begin;
  }
  if (best_block < 0) return best;
  best.id = best_block;
  while (row[best.id] != best.logit) ++best.id;
  return best;
}

int first_above(const float* row, int begin, int count, float bound) {
  return has_avx2() ? first_above_avx2(row, begin, count, bound)
                    : first_above_plain(row, begin, count, bound);
}

void exp_sums(const float* row, int count, float max, float scale, bool levels, ExpSums& sums) {
  sums.total = 0;
  sums.within = {};
  sums.blocks.clear();
  for (int begin = 0; begin < count; begin += kSumBlock) {
    const int size = std::min(kSumBlock, count - begin);
    const bool vectors = has_avx2() && size == kSumBlock;
    const double sum = !vectors ? block_sum(row + begin, size, max, scale, levels, sums)
                       : levels ? block_sum_avx2<true>(row + begin, max, scale, sums)
                                : block_sum_avx2<false>(row + begin, max, scale, sums);
    sums.blocks.push_back(sum);
    sums.total += sum;
  }
}

void exp_weights(const float* row, int count, float max, float scale, float* weights) {
  if (has_avx2() && count == kSumBlock) return exp_weights_avx2(row, max, scale, weights);
  for (int i = 0; i < count; ++i) weights[i] = weight_of(row[i], max, scale);
}

}  // namespace lk
