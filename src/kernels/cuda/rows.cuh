// Rows of activations on their way into products: float32 as they come, and rounded to E4M3.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/product.h"

namespace lk::cuda {

// Columns [column, column + 8) of a row, zeros from `in` on. Rows stand `stride` apart.
__device__ inline void load8(const float* row, int64_t stride, int in, int column, float (&v)[8]) {
  const float* from = row + column;
  if (stride % 4 == 0 && column + 8 <= in) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = *reinterpret_cast<const float4*>(from + 4);
    const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = all[i];
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = column + i < in ? from[i] : 0.0f;
  }
}

// Channels that a warp rounds at a time, 8 a lane.
constexpr int kQuantizeSpan = 256;

// Pieces of a row that warps take: a whole one where it has one scale.
__host__ __device__ inline int quantize_pieces(const Quantize& q) {
  return q.rule.group == 0 ? 1 : (q.width + kQuantizeSpan - 1) / kQuantizeSpan;
}

// `largest`: bits of max |x|. Those of what is no finite number are larger than all others.
__device__ inline float e4m3_scale(uint32_t largest, bool power_of_two) {
  if (largest >= 0x7f800000u) return __uint_as_float(0x7fffffffu);
  if (!power_of_two || largest == 0) return __uint_as_float(largest) / 448.0f;
  const bool cut = (largest & 0x7fffffu) > 0x600000u;  // 448 is 1.75 * 2^8
  const int exponent = static_cast<int>(largest >> 23) - 8 + (cut ? 1 : 0);
  return __uint_as_float(static_cast<uint32_t>(max(exponent, 1)) << 23);
}

// Called by a whole warp.
__device__ inline void quantize_piece(const Quantize& q, int64_t piece) {
  const int lane = threadIdx.x % 32, group = q.rule.group, pieces = quantize_pieces(q);
  const int64_t row = piece / pieces;
  const int expert = q.expert ? q.expert[row] : 0;
  if (expert < 0) return;
  const int start = static_cast<int>(piece % pieces) * kQuantizeSpan, first = start + lane * 8;
  const int end = group == 0 ? q.width : min(start + kQuantizeSpan, q.width);
  const float* x = q.x + row / q.divisor * q.stride;
  float v[8];
  uint32_t largest = 0;
#pragma unroll 2
  for (int c = first; c < end; c += kQuantizeSpan) {
    load8(x, q.stride, q.in, c, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = max(largest, __float_as_uint(v[i]) & 0x7fffffffu);
  }
  const int lanes = group == 0 ? 32 : group / 8;
  for (int d = lanes / 2; d > 0; d /= 2)
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, d));
  const float fixed = q.fixed ? q.fixed[expert] : 0.0f;
  const float scale =
      fixed > 0 && largest < 0x7f800000u ? fixed : e4m3_scale(largest, q.rule.power_of_two);
#pragma unroll 2
  for (int c = first; c < end; c += kQuantizeSpan) {
    if (group == 0) load8(x, q.stride, q.in, c, v);  // elsewhere there is but one c
    uint32_t codes[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = {scale != 0 ? v[2 * i] / scale : 0.0f,
                           scale != 0 ? v[2 * i + 1] / scale : 0.0f};
      const uint32_t two = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      codes[i / 2] |= two << i % 2 * 16;
    }
    *reinterpret_cast<uint2*>(q.codes + row * q.width + place_of_codes(c)) =
        uint2{codes[0], codes[1]};
  }
  if (first < end && lane % lanes == 0)
    q.scales[row * q.row_scales + (group == 0 ? 0 : first / group)] = scale;
}

}  // namespace lk::cuda
