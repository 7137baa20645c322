// What the two product kernels share: entries, and what becomes of a finished pair of sums.
#pragma once

#include <type_traits>

#include "kernels/cuda/product.h"

namespace lk::cuda {

__device__ inline int entry_at(const WorkMap& map, int index) {
  return map.list ? map.list[index] : index;
}
__device__ inline int token_of(const Operand& o, int entry) { return entry / o.token_divisor; }
__device__ inline int64_t x_row(const Operand& o, int entry) { return entry / o.x_divisor; }

// Row 0 of what weights meet.
template <Codec C>
__device__ inline auto rows_for(const Operand& o) {
  if constexpr (meets_codes(C)) {
    return o.codes;
  } else {
    return o.x;
  }
}
// What scales a whole row of x.
template <Codec C>
__device__ inline float times_row_scale(const Operand& o, int entry, float v) {
  if constexpr (C == Codec::kFp8Codes) v *= o.scales[x_row(o, entry) * o.row_scales];
  return v;
}

// The pair of an entry's adapter for one expert; null where there is none.
__device__ inline const DevicePair* pair_of(const Adapters& adapters, int token, int expert) {
  if (!adapters.slot) return nullptr;
  const int slot = adapters.slot[token];
  if (slot < 0) return nullptr;
  const auto* pairs = static_cast<const DevicePair*>(adapters.table[slot]);
  if (!pairs || pairs[expert].rank == 0) return nullptr;
  return pairs + expert;
}

// The row of the spec's order behind row r (< 16) of a tile; may lie beyond the last one.
__device__ inline int spec_row(const Matrix& m, int tile, int r) {
  if (!m.gated) return tile * kTileRows + r;
  const int unit = tile * 8 + r % 8;
  return m.interleaved ? 2 * unit + r / 8 : unit + (r / 8) * (m.out / 2);
}
__device__ inline bool row_exists(const Matrix& m, int tile, int r) {
  return m.gated ? tile * 8 + r % 8 < m.out / 2 : tile * kTileRows + r < m.out;
}

__device__ inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// scale * B[row] z
__device__ inline float expand(const DevicePair& pair, int row, const float* z) {
  const auto* b = reinterpret_cast<const uint4*>(pair.b + int64_t{row} * pair.rank);
  float sum = 0;
  for (int r = 0; r < pair.rank; r += 8) {
    const uint4 w = __ldg(b++);
    const float4 low = *reinterpret_cast<const float4*>(z + r);
    const float4 high = *reinterpret_cast<const float4*>(z + r + 4);
    sum += bf16_low(w.x) * low.x + bf16_high(w.x) * low.y + bf16_low(w.y) * low.z +
           bf16_high(w.y) * low.w + bf16_low(w.z) * high.x + bf16_high(w.z) * high.y +
           bf16_low(w.w) * high.z + bf16_high(w.w) * high.w;
  }
  return pair.scale * sum;
}

__device__ inline float activated(const Epilogue& e, float gate, float up) {
  if (e.activation == Activation::kSwiGlu) return up * gate / (1.0f + expf(-gate));
  // Comparisons, not fminf: what is no number stays none.
  gate = gate > e.limit ? e.limit : gate;
  up = up > e.limit ? e.limit : up < -e.limit ? -e.limit : up;
  return (up + 1.0f) * gate / (1.0f + expf(-e.alpha * gate));
}
__device__ inline float relu2(float v) {
  v = v < 0 ? 0.0f : v;
  return v * v;
}

__device__ inline void put(__nv_bfloat16* to, float v) { *to = __float2bfloat16(v); }
__device__ inline void put(float* to, float v) { *to = v; }

template <typename Mid>
__device__ inline void store(const Epilogue& e, int entry, int row, float v) {
  float* out = e.out + entry * e.stride + row;
  switch (e.target) {
    case Target::kStore:
      *out = v;
      break;
    case Target::kAdd:
      *out += v;
      break;
    case Target::kGatedAdd:
      *out += v / (1.0f + expf(-e.factor[entry]));
      break;
    case Target::kWeighted:
      *out = e.factor[entry] * v;
      break;
    case Target::kActivate:
      put(static_cast<Mid*>(e.mid) + entry * e.stride + row, relu2(v));
      break;
  }
}

// Rows r and r + 8 (r < 8) of a tile for one entry, complete.
template <Codec C>
__device__ inline void finish(const Product& p, int tile, int r, int entry, float upper,
                              float lower) {
  using Mid = std::conditional_t<meets_codes(C), float, __nv_bfloat16>;
  const Matrix& m = p.matrix;
  const Epilogue& e = p.epilogue;
  if (m.gated && e.target == Target::kActivate) {
    put(static_cast<Mid*>(e.mid) + entry * e.stride + tile * 8 + r, activated(e, upper, lower));
    return;
  }
  if (row_exists(m, tile, r)) store<Mid>(e, entry, spec_row(m, tile, r), upper);
  if (row_exists(m, tile, r + 8)) store<Mid>(e, entry, spec_row(m, tile, r + 8), lower);
}

}  // namespace lk::cuda
