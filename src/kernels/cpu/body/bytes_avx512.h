// Products of bytes on AVX-512: four channels of 16 rows an instruction with VNNI, three without.
// Included by the isa_avx512*.cc files alone.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/body/byte_codec.h"
#include "kernels/cpu/body/simd_avx512.h"

namespace lk::cpu {
namespace {

struct BytesAvx512 {
  using V = __m512i;  // 16 sums
  struct Bytes {
    __m512i v;  // 16 rows x 4 channels
  };

  // What is added to a code to make it unsigned.
  template <ByteCodec C>
  static constexpr int bias() {
    return C == ByteCodec::kE2M1 ? kE2m1Bias : 0;
  }
  static V broadcast(int32_t x) { return _mm512_set1_epi32(x); }
  static Avx512::F to_float(V a) { return {_mm512_cvtepi32_ps(a)}; }

  template <ByteCodec C, int J>
  static Bytes decode(const uint32_t* line) {
    const __m512i w = _mm512_loadu_si512(line);
    if constexpr (C == ByteCodec::kInt8) {
      return {w};
    } else {
      const __m512i table =
          _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kE2m1Bytes)));
      const __m512i nibbles =
          _mm512_and_si512(J == 0 ? w : _mm512_srli_epi32(w, 4), _mm512_set1_epi8(15));
      return {_mm512_shuffle_epi8(table, nibbles)};
    }
  }
  // acc + the four products of each row. Pairs fit 16 bits: 2 * 24 * 127 and 2 * 127 * 127.
  template <ByteCodec C>
  static V dot(V acc, Bytes b, uint32_t x) {
    __m512i weights = b.v, activations = _mm512_set1_epi32(static_cast<int>(x));
    if constexpr (C == ByteCodec::kInt8) {
      const __mmask64 negative = _mm512_movepi8_mask(weights);
      activations =
          _mm512_mask_sub_epi8(activations, negative, _mm512_setzero_si512(), activations);
      weights = _mm512_abs_epi8(weights);
    }
    const __m512i pairs = _mm512_maddubs_epi16(weights, activations);
    return _mm512_add_epi32(acc, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
};

#ifdef __AVX512VNNI__
struct BytesAvx512Vnni : BytesAvx512 {
  template <ByteCodec C>
  static constexpr int bias() {
    return C == ByteCodec::kE2M1 ? kE2m1Bias : 128;
  }
  template <ByteCodec C, int J>
  static Bytes decode(const uint32_t* line) {
    const Bytes b = BytesAvx512::decode<C, J>(line);
    if constexpr (C == ByteCodec::kInt8) return {_mm512_xor_si512(b.v, _mm512_set1_epi8(-128))};
    return b;
  }
  template <ByteCodec C>
  static V dot(V acc, Bytes b, uint32_t x) {
    return _mm512_dpbusd_epi32(acc, b.v, _mm512_set1_epi32(static_cast<int>(x)));
  }
};
#endif

}  // namespace
}  // namespace lk::cpu
