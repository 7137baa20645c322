// Sixteen floats as two AVX2 registers, and the decoding of weight words. Included by isa_avx2.cc
// alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "quant/format.h"

namespace lk::cpu {
namespace {

struct Avx2 {
  static constexpr const char* kName = "avx2";
  static constexpr bool kDot = false;  // activations stay float32, products by FMA
  static constexpr int kMaxTile = 6;   // tokens x 2 registers = 12 of 16
  static constexpr int kTileGroups =
      1;  // row groups in registers at once when several tokens share them
  static constexpr int kScanVectors = 2;  // two sums of each in 8 registers

  struct F {
    __m256 lo, hi;
  };  // 16 floats
  struct W {
    __m256i lo, hi;
  };  // 16 words

  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static F broadcast(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F round(F a) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, kNearest), _mm256_round_ps(a.hi, kNearest)};
  }
  // 2^n for whole n in [-126, 127].
  static F exp2_int(F n) {
    const __m256i bias = _mm256_set1_epi32(127);
    return {_mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.lo), bias), 23)),
            _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.hi), bias), 23))};
  }
  static F power_of_two_part(F a) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
  }
  // 16 whole numbers of at most 127.
  static void store_bytes(int8_t* p, F a) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
  static F load_bf16(const uint16_t* p) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), 16)),
            _mm256_castsi256_ps(
                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)), 16))};
  }
  static F load_e8m0(const uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(v), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)), 23))};
  }
  // 2^-8 of the values of 16 positive codes: a binary16's exponent and fraction hold a code's.
  static F load_e4m3(const uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(v), 7);
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
  }

  static W load_words(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }

  // Code J of each of the 16 words as float, of E4M3 2^-8 of it; of E2M1, where J is 0 or 1, of the
  // byte at which the words were loaded.
  template <Element E, int J>
  static F decode(W w) {
    if constexpr (E == Element::kE4M3) {
      // Each 16-bit lane holds two codes; one of them is moved to a binary16's place.
      const __m256i mask = _mm256_set1_epi16(int16_t(0xbf80));
      auto half = [&](__m256i v) {
        if (J % 2 == 0) v = _mm256_slli_epi16(v, 8);
        v = _mm256_and_si256(_mm256_srai_epi16(v, 1), mask);
        return J < 2 ? _mm256_and_si256(v, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(v, 16);
      };
      const __m256i packed =
          _mm256_permute4x64_epi64(_mm256_packus_epi32(half(w.lo), half(w.hi)), 0xd8);
      return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
              _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
    } else {
      return decode_both<E, J>(w);
    }
  }
  template <Element E, int J>
  static F decode_both(W w) {
    return {decode_half<E, J>(w.lo), decode_half<E, J>(w.hi)};
  }
  template <Element E, int J>
  static __m256 decode_half(__m256i w) {
    if constexpr (E == Element::kF32) {
      return _mm256_castsi256_ps(w);
    } else if constexpr (E == Element::kBF16) {
      return _mm256_castsi256_ps(J == 0 ? _mm256_slli_epi32(w, 16)
                                        : _mm256_and_si256(w, _mm256_set1_epi32(int(0xffff0000u))));
    } else if constexpr (E == Element::kF16) {
      const __m256i half =
          J == 0 ? _mm256_and_si256(w, _mm256_set1_epi32(0xffff)) : _mm256_srli_epi32(w, 16);
      const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0x08);
      return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    } else {
      static_assert(E == Element::kE2M1);
      // Magnitude by the low 3 bits (vpermps ignores the rest), then the sign bit of the code.
      const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
      const __m256 magnitude =
          _mm256_permutevar8x32_ps(table, J == 0 ? w : _mm256_srli_epi32(w, 4));
      const __m256i sign =
          _mm256_and_si256(_mm256_slli_epi32(w, 28 - 4 * J), _mm256_set1_epi32(int(0x80000000u)));
      return _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign));
    }
  }
};

}  // namespace
}  // namespace lk::cpu
