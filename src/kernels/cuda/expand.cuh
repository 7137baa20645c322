// scale * B z of eight entries and two tiles of rows, as a matrix product of a warp.
#pragma once

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace lk::cuda {

inline constexpr int kExpandTiles = 2;

// Do the groups' entries have more than two adapters? Then each is expanded by itself.
__device__ inline bool is_mixed(const DevicePair* pair, unsigned any) {
  const auto value = reinterpret_cast<unsigned long long>(pair);
  const auto first = __shfl_sync(0xffffffffu, value, __ffs(any) - 1);
  const unsigned others = any & ~__ballot_sync(0xffffffffu, value == first);
  if (!others) return false;
  const auto second = __shfl_sync(0xffffffffu, value, __ffs(others) - 1);
  return (others & ~__ballot_sync(0xffffffffu, value == second)) != 0;
}

// d[t] += scale * B z of eight entries, one product for each adapter among them. z is split into
// two bfloat16 numbers, which hold 16 bits of it. `pair` is that of entry lane / 4, or null.
__device__ inline void expand_group(const Product& p, const int (&tiles)[kExpandTiles],
                                    const DevicePair* pair, int entry, int lane,
                                    float (&d)[kExpandTiles][4]) {
  const Matrix& m = p.matrix;
  const int g = lane / 4, j = lane % 4;
  unsigned left = __ballot_sync(0xffffffffu, pair != nullptr);
  while (left) {
    const auto chosen = reinterpret_cast<const DevicePair*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(pair), __ffs(left) - 1));
    left &= ~__ballot_sync(0xffffffffu, pair == chosen);
    const int rank = chosen->rank;
    const float scale = pair == chosen ? chosen->scale : 0.0f;
    for (int r = 4 * j; r < rank + 4 * j; r += 16) {
      float4 z = {0, 0, 0, 0};
      if (scale != 0 && r < rank)
        z = *reinterpret_cast<const float4*>(p.adapters.z + int64_t{entry} * p.adapters.z_stride +
                                             r);
      const float v[4] = {z.x * scale, z.y * scale, z.z * scale, z.w * scale};
      uint32_t high[2], low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) split(v[2 * i], v[2 * i + 1], high[i], low[i]);
#pragma unroll
      for (int t = 0; t < kExpandTiles; ++t) {
        uint2 rows[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (r < rank && row_exists(m, tiles[t], g + 8 * h)) {
            rows[h] = __ldg(reinterpret_cast<const uint2*>(
                chosen->b + int64_t{spec_row(m, tiles[t], g + 8 * h)} * rank + r));
          }
        }
        const uint32_t a[4] = {rows[0].x, rows[1].x, rows[0].y, rows[1].y};
        multiply(d[t], a, high[0], high[1]);
        multiply(d[t], a, low[0], low[1]);
      }
    }
  }
}

}  // namespace lk::cuda
