// Products of bytes on AVX2: four channels of 16 rows in two registers. Included by isa_avx2.cc
// alone.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/body/byte_codec.h"
#include "kernels/cpu/body/simd_avx2.h"

namespace lk::cpu {
namespace {

struct BytesAvx2 {
  struct V {
    __m256i lo, hi;
  };  // 16 sums
  struct Bytes {
    __m256i lo, hi;
  };  // 16 rows x 4 channels

  // What is added to a code to make it unsigned.
  template <ByteCodec C>
  static constexpr int bias() {
    return C == ByteCodec::kE2M1 ? kE2m1Bias : 0;
  }
  static V broadcast(int32_t x) {
    const __m256i v = _mm256_set1_epi32(x);
    return {v, v};
  }
  static Avx2::F to_float(V a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

  template <ByteCodec C, int J>
  static Bytes decode(const uint32_t* line) {
    const auto half = [](__m256i w) {
      if constexpr (C == ByteCodec::kInt8) return w;
      const __m256i table =
          _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1Bytes)));
      const __m256i nibbles =
          _mm256_and_si256(J == 0 ? w : _mm256_srli_epi32(w, 4), _mm256_set1_epi8(15));
      return _mm256_shuffle_epi8(table, nibbles);
    };
    return {half(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line))),
            half(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(line + 8)))};
  }
  // acc + the four products of each row. Pairs fit 16 bits: 2 * 24 * 127 and 2 * 127 * 127.
  template <ByteCodec C>
  static V dot(V acc, Bytes b, uint32_t x) {
    const __m256i activations = _mm256_set1_epi32(static_cast<int>(x));
    const auto half = [&](__m256i sum, __m256i weights) {
      __m256i signed_x = activations;
      if constexpr (C == ByteCodec::kInt8) {
        signed_x = _mm256_sign_epi8(activations, weights);
        weights = _mm256_abs_epi8(weights);
      }
      const __m256i pairs = _mm256_maddubs_epi16(weights, signed_x);
      return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    };
    return {half(acc.lo, b.lo), half(acc.hi, b.hi)};
  }
};

}  // namespace
}  // namespace lk::cpu
