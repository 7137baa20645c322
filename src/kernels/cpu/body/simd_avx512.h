// Sixteen floats as one AVX-512 register, and the decoding of weight words. Included by the
// isa_avx512*.cc files alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "quant/format.h"

namespace lk::cpu {
namespace {

struct Avx512 {
  static constexpr const char* kName = "avx512";
  static constexpr bool kDot = false;
  static constexpr int kMaxTile = 12;  // tokens x 2 row groups = 24 of 32 registers
  static constexpr int kTileGroups = 2;
  static constexpr int kScanVectors =
      4;  // of 128 keys 32 KiB of state, which the first cache holds

  struct F {
    __m512 v;
  };
  struct W {
    __m512i v;
  };

  static F zero() { return {_mm512_setzero_ps()}; }
  static F load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
  static F broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
  static F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
  static F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
  static F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
  static F round(F a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static F exp2_int(F n) {
    return {_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
  }
  static F power_of_two_part(F a) {
    return {_mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7f800000)))};
  }
  // 16 whole numbers of at most 127.
  static void store_bytes(int8_t* p, F a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
  }
  static F load_bf16(const uint16_t* p) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16))};
  }
  static F load_e8m0(const uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(v), 23))};
  }
  // 2^-8 of the values of 16 positive codes: a binary16's exponent and fraction hold a code's.
  static F load_e4m3(const uint8_t* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(v), 7))};
  }

  static W load_words(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
  static void store_words(float* p, W w) { _mm512_storeu_si512(p, w.v); }

  // Code J of each of the 16 words as float, of E4M3 2^-8 of it; of E2M1, where J is 0 or 1, of the
  // byte at which the words were loaded.
  template <Element E, int J>
  static F decode(W w) {
    if constexpr (E == Element::kF32) {
      return {_mm512_castsi512_ps(w.v)};
    } else if constexpr (E == Element::kBF16) {
      return {
          _mm512_castsi512_ps(J == 0 ? _mm512_slli_epi32(w.v, 16)
                                     : _mm512_and_si512(w.v, _mm512_set1_epi32(int(0xffff0000u))))};
    } else if constexpr (E == Element::kF16) {
      return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(J == 0 ? w.v : _mm512_srli_epi32(w.v, 16)))};
    } else if constexpr (E == Element::kE4M3) {
      // Each 16-bit lane holds two codes; one of them is moved to a binary16's place.
      const __m512i code = J % 2 == 0 ? _mm512_slli_epi16(w.v, 8) : w.v;
      const __m512i half =
          _mm512_and_si512(_mm512_srai_epi16(code, 1), _mm512_set1_epi16(int16_t(0xbf80)));
      return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(J < 2 ? half : _mm512_srli_epi32(half, 16)))};
    } else {
      static_assert(E == Element::kE2M1);
      // vpermps reads the low 4 bits of each index: sign and magnitude in one table.
      const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                          -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
      return {_mm512_permutexvar_ps(J == 0 ? w.v : _mm512_srli_epi32(w.v, 4), table)};
    }
  }
};

#ifdef __AVX512BF16__
// The same with bfloat16 pair products (vdpbf16ps): activations are rounded to bfloat16, sums stay
// float32. Code j of a word's lower half pairs with code j of its upper half, as 16-bit lanes hold
// them.
struct Avx512Bf16 : Avx512 {
  static constexpr const char* kName = "avx512bf16";
  static constexpr bool kDot = true;

  static F dot(W weights, uint32_t pair, F sum) {
    return {_mm512_dpbf16_ps(sum.v, (__m512bh)weights.v, (__m512bh)_mm512_set1_epi32(int(pair)))};
  }

  // Pairs (j, j + n/2) of each word's n codes as two bfloat16, of E4M3 2^-8 of them; of E2M1 the
  // pair J, 0 or 1, of the byte at which the words were loaded.
  template <Element E, int J>
  static W decode_pair(W w) {
    static_assert(E == Element::kBF16 || E == Element::kE2M1 || E == Element::kE4M3);
    if constexpr (E == Element::kBF16) {
      return w;
    } else if constexpr (E == Element::kE4M3) {
      // A normal code's exponent and fraction are moved to a bfloat16's place and its bias is
      // raised by 127 - 7 - 8; a subnormal's value comes from a table (vpermw reads the low 5 bits
      // of each lane, of which the exponent's two are 0). vdpbf16ps would take subnormals for 0.
      alignas(64) static constexpr uint16_t kTable[32] = {0,      0x3700, 0x3780, 0x37c0,
                                                          0x3800, 0x3820, 0x3840, 0x3860};
      const __m512i table = _mm512_load_si512(kTable);
      const __m512i code = J == 0 ? _mm512_slli_epi16(w.v, 8) : w.v;
      const __m512i low = J == 0 ? w.v : _mm512_srli_epi16(w.v, 8);
      const __mmask32 subnormal = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x7800));
      const __m512i bits = _mm512_and_si512(_mm512_srli_epi16(code, 4), _mm512_set1_epi16(0x07f0));
      const __m512i normal = _mm512_add_epi16(bits, _mm512_set1_epi16(112 << 7));
      const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, subnormal, low, table);
      const __m512i sign = _mm512_set1_epi16(int16_t(0x8000));
      // magnitude | (code & sign)
      return {_mm512_ternarylogic_epi32(magnitude, code, sign, 0xf8)};
    } else if constexpr (E == Element::kE2M1) {
      // vpermw reads the low 5 bits of each 16-bit lane: the table stands twice, so bit 4 does not
      // matter.
      alignas(64) static constexpr uint16_t kTable[32] = {
          0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
          0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
          0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
      const __m512i table = _mm512_load_si512(kTable);
      return {_mm512_permutexvar_epi16(J == 0 ? w.v : _mm512_srli_epi16(w.v, 4), table)};
    }
  }
};
#endif

}  // namespace
}  // namespace lk::cpu
