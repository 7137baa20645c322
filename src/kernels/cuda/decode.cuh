// From records (packed.h) to A fragments of mma.m16n8k16, and the product itself.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/packed.h"

namespace lk::cuda {

__device__ inline uint4 load_once(const uint8_t* from) {  // weights: read by one block, or nearly
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// One lane's part of a record.
template <Codec C>
struct Fragment {
  uint4 piece[code_pieces(C)];
  uint32_t scales;

  // From rows of `row_bytes`, the tile's first channel of the first row at `rows`. Lane j of four
  // owns channels 8 j to 8 j + 7 and 32 + 8 j to 32 + 8 j + 7 here: a load takes whole sectors.
  __device__ void load_rows(const uint8_t* rows, int64_t row_bytes, int lane) {
    static_assert(is_bf16(C));
    const uint8_t* upper = rows + lane / 4 * row_bytes + lane % 4 * 16;
    const uint8_t* lower = upper + 8 * row_bytes;
    piece[0] = load_once(upper);
    piece[1] = load_once(upper + 64);
    piece[2] = load_once(lower);
    piece[3] = load_once(lower + 64);
  }

  // From shared memory.
  __device__ void take(const uint8_t* record, int lane) {
#pragma unroll
    for (int i = 0; i < code_pieces(C); ++i)
      piece[i] = *reinterpret_cast<const uint4*>(record + i * 512 + lane * 16);
    const uint8_t* from = record + code_pieces(C) * 512;
    if constexpr (C == Codec::kMxfp8Codes) {
      scales = reinterpret_cast<const uint32_t*>(from)[lane / 4];
    } else if constexpr (tile_scale_bytes(C) > 0) {
      scales = reinterpret_cast<const uint16_t*>(from)[C == Codec::kNvfp4 ? lane : lane / 2];
    }
  }

  __device__ void load(const uint8_t* record, int lane) {
#pragma unroll
    for (int i = 0; i < code_pieces(C); ++i) piece[i] = load_once(record + i * 512 + lane * 16);
    const uint8_t* from = record + code_pieces(C) * 512;
    if constexpr (C == Codec::kMxfp8Codes) {
      scales = __ldg(reinterpret_cast<const uint32_t*>(from) + lane / 4);
    } else if constexpr (tile_scale_bytes(C) > 0) {
      scales =
          __ldg(reinterpret_cast<const uint16_t*>(from) + (C == Codec::kNvfp4 ? lane : lane / 2));
    }
  }
};

__device__ inline uint32_t times(uint32_t pair, uint32_t factor) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(pair),
                                         reinterpret_cast<const __nv_bfloat162&>(factor));
  return reinterpret_cast<const uint32_t&>(product);
}

// Both halves: the factor of a scale's byte.
template <Codec C>
__device__ inline uint32_t scale_factor(uint32_t byte) {
  uint32_t bits = byte << 7;
  if constexpr (C == Codec::kNvfp4) bits = (byte << 4) + (kNvfp4Field << 7);
  if constexpr (C == Codec::kFp8 || C == Codec::kFp8Block) bits = kTopE4m3 << 7;
  return bits | bits << 16;
}

// Bytes 1 and 3 of a word of E4M3 codes as two bfloat16 numbers: 2^-120 of their values.
__device__ inline uint32_t e4m3_bits(uint32_t w) {
  return (w & 0x80008000u) | ((w >> 4) & 0x07f007f0u);
}

// The A fragment of product i of a record, i < 4.
template <Codec C>
__device__ inline void decode(const Fragment<C>& f, int i, uint32_t (&a)[4]) {
  if constexpr (is_bf16(C)) {
    const uint4 &upper = f.piece[i / 2], &lower = f.piece[2 + i / 2];
    a[0] = i % 2 ? upper.z : upper.x;
    a[1] = i % 2 ? lower.z : lower.x;
    a[2] = i % 2 ? upper.w : upper.y;
    a[3] = i % 2 ? lower.w : lower.y;
  } else {
    const uint32_t upper = scale_factor<C>(f.scales & 0xff), lower = scale_factor<C>(f.scales >> 8);
    uint32_t first[2], second[2];
    if constexpr (code_pieces(C) == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4& p = f.piece[0];
        const uint32_t w = h ? (i / 2 ? p.w : p.z) : (i / 2 ? p.y : p.x);
        if (i % 2 == 0) {
          first[h] = w & 0x81c081c0u;
          second[h] = (w << 3) & 0x81c081c0u;
        } else {
          first[h] = (w << 6) & 0x81c081c0u;
          second[h] =
              ((w >> 3) & 0x01800180u) | ((w >> 7) & 0x00400040u) | ((w << 1) & 0x80008000u);
        }
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4& p = f.piece[h];
        const uint32_t w = i == 0 ? p.x : i == 1 ? p.y : i == 2 ? p.z : p.w;
        first[h] = e4m3_bits(w);
        second[h] = e4m3_bits(w << 8);
      }
    }
    a[0] = times(first[0], upper);
    a[1] = times(first[1], lower);
    a[2] = times(second[0], upper);
    a[3] = times(second[1], lower);
  }
}

// Two float32 numbers as two bfloat16 each: the nearest, and what that leaves.
__device__ inline void split(float first, float second, uint32_t& high, uint32_t& low) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(first, second);
  const __nv_bfloat162 l = __floats2bfloat162_rn(first - __low2float(h), second - __high2float(h));
  high = reinterpret_cast<const uint32_t&>(h);
  low = reinterpret_cast<const uint32_t&>(l);
}

// c += a b: c [16 rows, 8 columns], a [16, 16], b [16, 8].
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The B fragment of product i from a lane's 16 consecutive channels.
__device__ inline uint32_t operand(const uint4 (&x)[2], int i, int which) {
  const uint4& v = x[i / 2];
  return i % 2 ? (which ? v.w : v.z) : (which ? v.y : v.x);
}

// c += a b in E4M3: c [16 rows, 8 columns], a [16, 32], b [32, 8]. Before compute capability 8.9
// there is no such instruction, and both are decoded: products are exact either way.
__device__ inline void multiply_codes(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                      uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const auto decoded = [](uint32_t word, int second) {
    return times(e4m3_bits(word << 8 * second), scale_factor<Codec::kFp8>(0));
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t upper = a[2 * i], lower = a[2 * i + 1], b = i ? b1 : b0;
    const uint32_t four[4] = {decoded(upper, 0), decoded(lower, 0), decoded(upper, 1),
                              decoded(lower, 1)};
    multiply(c, four, decoded(b, 0), decoded(b, 1));
  }
#endif
}

// Groups of a record's channels, where it meets codes.
constexpr int groups_of_record(Codec codec) { return codec == Codec::kMxfp8Codes ? 2 : 1; }

// acc += one tile times 64 channels of eight rows: sums of a group times the scales of both.
// `block_scale` is that of the lane's two rows of the tile, `x_scale` that of its two columns.
template <Codec C>
__device__ inline void add_record(float (&acc)[4], const Fragment<C>& w, const uint4& x,
                                  const float (&block_scale)[2],
                                  const float2 (&x_scale)[groups_of_record(C)]) {
  const auto add = [&](const float(&part)[4], int group) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float xs = c % 2 ? x_scale[group].y : x_scale[group].x;
      if constexpr (C == Codec::kFp8Codes) {
        acc[c] += part[c];
      } else if constexpr (C == Codec::kFp8BlockCodes) {
        acc[c] += part[c] * (block_scale[c / 2] * xs);
      } else {
        const int exponent = static_cast<int>(w.scales >> (16 * group + 8 * (c / 2)) & 0xff);
        const int field = max(exponent - (kTopE4m3 - 127), 0);  // below: nothing beside the largest
        acc[c] += part[c] * (__uint_as_float(static_cast<uint32_t>(field) << 23) * xs);
      }
    }
  };
  float part[4] = {};
  multiply_codes(part, {w.piece[0].x, w.piece[1].x, w.piece[0].y, w.piece[1].y}, x.x, x.y);
  if constexpr (groups_of_record(C) == 2) {
    add(part, 0);
    float second[4] = {};
    multiply_codes(second, {w.piece[0].z, w.piece[1].z, w.piece[0].w, w.piece[1].w}, x.z, x.w);
    add(second, 1);
  } else {
    multiply_codes(part, {w.piece[0].z, w.piece[1].z, w.piece[0].w, w.piece[1].w}, x.z, x.w);
    add(part, 0);
  }
}

}  // namespace lk::cuda
