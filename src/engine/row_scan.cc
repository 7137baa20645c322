#include "engine/row_scan.h"

#include <immintrin.h>

#include <algorithm>
#include <limits>

#define LK_AVX2 __attribute__((target("avx2")))

namespace lk {
namespace {

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

}  // namespace lk

#undef LK_AVX2
