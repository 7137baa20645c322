// z = A x for rows with an adapter; the products' epilogues add scale * B z. Few rows: a warp for
// each number of z. Many: groups of eight rows, in which one adapter's rows are computed together.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/rows.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 8;
// Rows from which on A is read once for eight of them.
constexpr int kManyRows = 4096;

struct Shrink {
  Operand operand;
  Adapters adapters;
  WorkMap map;
  float* z;
  int width;  // of x and A: a multiple of 64
  int in;     // of them, are not zero
};

// A row of x as it lies there: bfloat16 with zeros behind it, or float32 without.
template <typename X>
__device__ const X* row_of(const Operand& o, int64_t row) {
  if constexpr (std::is_same_v<X, float>) {
    return o.full + row * o.stride;
  } else {
    return o.x + row * o.stride;
  }
}

__device__ void load_values(const Shrink&, const __nv_bfloat16* row, int column, float (&v)[8]) {
  const uint4 four = *reinterpret_cast<const uint4*>(row + column);
  const uint32_t pairs[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    v[2 * c] = bf16_low(pairs[c]);
    v[2 * c + 1] = bf16_high(pairs[c]);
  }
}
__device__ void load_values(const Shrink& s, const float* row, int column, float (&v)[8]) {
  load8(row, s.operand.stride, s.in, column, v);
}

// Sixteen columns as two bfloat16 numbers each: the nearest one, and what that leaves of float32.
__device__ void load_parts(const Shrink&, const __nv_bfloat16* row, int column,
                           uint4 (&parts)[1][2]) {
  const auto* from = reinterpret_cast<const uint4*>(row + column);
  parts[0][0] = from[0];
  parts[0][1] = from[1];
}
__device__ void load_parts(const Shrink& s, const float* row, int column, uint4 (&parts)[2][2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float v[8];
    load8(row, s.operand.stride, s.in, column + 8 * i, v);
    uint32_t high[4], low[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) split(v[2 * c], v[2 * c + 1], high[c], low[c]);
    parts[0][i] = {high[0], high[1], high[2], high[3]};
    parts[1][i] = {low[0], low[1], low[2], low[3]};
  }
}

__device__ int expert_of(const WorkMap& map, int entry) {
  return map.expert ? map.expert[entry] : 0;
}

__device__ int entry_count(const WorkMap& map) {
  return map.counts ? map.start[map.experts] : map.entries;
}

// One row: warps take one number of z each.
template <typename X>
__global__ void __launch_bounds__(kWarps * 32) shrink_row(const Shrink s) {
  const int index = blockIdx.x, lane = threadIdx.x % 32;
  if (index >= entry_count(s.map)) return;
  const int entry = entry_at(s.map, index);
  const int token = token_of(s.operand, entry);
  if (s.adapters.slot[token] < 0) return;
  const DevicePair* pair = pair_of(s.adapters, token, expert_of(s.map, entry));
  const int r = blockIdx.y * kWarps + threadIdx.x / 32;
  if (!pair || r >= pair->rank) return;
  const auto* a = reinterpret_cast<const uint4*>(pair->a + int64_t{r} * s.width);
  const X* x = row_of<X>(s.operand, x_row(s.operand, entry));
  float sum = 0;
#pragma unroll 4
  for (int i = lane; i < s.width / 8; i += 32) {
    const uint4 u = __ldg(a + i);
    float v[8];
    load_values(s, x, i * 8, v);
    const uint32_t us[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sum = fmaf(bf16_low(us[c]), v[2 * c], sum);
      sum = fmaf(bf16_high(us[c]), v[2 * c + 1], sum);
    }
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (lane == 0) s.z[int64_t{entry} * s.adapters.z_stride + r] = sum;
}

// Eight rows a warp, 16 numbers of z: one product for each adapter among them (mostly one).
template <typename X>
__global__ void __launch_bounds__(kWarps * 32) shrink_rows(const Shrink s) {
  const int lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  const int first = (blockIdx.x * kWarps + threadIdx.x / 32) * 8;
  const int total = entry_count(s.map);
  if (first >= total) return;
  const int index = first + g;
  const int entry = entry_at(s.map, min(index, total - 1));
  const int token = token_of(s.operand, entry);
  const DevicePair* pair = nullptr;
  if (index < total && s.adapters.slot[token] >= 0)
    pair = pair_of(s.adapters, token, expert_of(s.map, entry));
  const int r0 = blockIdx.y * 16;
  if (pair && r0 >= pair->rank) pair = nullptr;
  const X* x = row_of<X>(s.operand, x_row(s.operand, entry));
  unsigned left = __ballot_sync(0xffffffffu, pair != nullptr);
  while (left) {
    const auto chosen = reinterpret_cast<const DevicePair*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(pair), __ffs(left) - 1));
    left &= ~__ballot_sync(0xffffffffu, pair == chosen);
    const bool low_rows = r0 + 8 < chosen->rank;  // rows 8 to 15 of the tile
    const auto* upper =
        reinterpret_cast<const uint4*>(chosen->a + int64_t{r0 + g} * s.width + j * 16);
    const auto* lower = upper + (low_rows ? s.width : 0);  // 8 rows of `width` values
    float c[4] = {};
#pragma unroll 2
    for (int k = 0; k < s.width / kTileCols; ++k) {
      const uint4 u[2] = {__ldg(upper + k * 8), __ldg(upper + k * 8 + 1)};
      const uint4 l[2] = {__ldg(lower + k * 8), __ldg(lower + k * 8 + 1)};
      constexpr int kParts = std::is_same_v<X, float> ? 2 : 1;
      uint4 v[kParts][2];
      load_parts(s, x, k * kTileCols + j * 16, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t a[4] = {operand(u, i, 0), operand(l, i, 0), operand(u, i, 1),
                               operand(l, i, 1)};
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          multiply(c, a, operand(v[part], i, 0), operand(v[part], i, 1));
      }
    }
    // Columns 2 j and 2 j + 1 of the sums are rows of x that lanes 8 j and 8 j + 4 hold.
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int lane_of = (2 * j + n) * 4;
      const auto owner = reinterpret_cast<const DevicePair*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(pair), lane_of));
      const int row = __shfl_sync(0xffffffffu, entry, lane_of);
      if (owner != chosen) continue;
      float* z = s.z + int64_t{row} * s.adapters.z_stride + r0 + g;
      z[0] = c[n];
      if (low_rows) z[8] = c[2 + n];
    }
  }
}

template <typename X>
void launch(Context& context, const Shrink& shrink) {
  const int entries = shrink.map.entries, stride = shrink.adapters.z_stride;
  if (entries < kManyRows) {
    const dim3 grid(entries, stride / kWarps);
    shrink_row<X><<<grid, kWarps * 32, 0, context.stream()>>>(shrink);
  } else {
    const dim3 grid((entries + kWarps * 8 - 1) / (kWarps * 8), (stride + 15) / 16);
    shrink_rows<X><<<grid, kWarps * 32, 0, context.stream()>>>(shrink);
  }
}

}  // namespace

void run_shrink(Context& context, const Batch& batch, const Linear& linear, Product& product) {
  product.adapters = {};
  if (!batch.adapters || !linear.device_lora) return;
  int rank = 0;
  for (const LoraWeights* pairs : linear.lora) {
    if (pairs) rank = std::max(rank, pairs->max_rank());
  }
  if (rank == 0) return;
  // A power of two, so that recordings stay right when adapters come and go.
  const int stride = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(rank, 8))));
  const int entries = product.map.entries;
  auto* z = context.scratch<float>(Scratch::kShrunk, size_t(entries) * stride);
  product.adapters = {batch.adapter, linear.device_lora, z, stride};
  const Shrink shrink{product.operand,
                      product.adapters,
                      product.map,
                      z,
                      product.matrix.k_tiles / product.matrix.parts * kTileCols,
                      product.matrix.in};
  if (product.operand.full) {
    launch<float>(context, shrink);
  } else {
    launch<__nv_bfloat16>(context, shrink);
  }
  check_launch("LoRA's first product");
}

}  // namespace lk::cuda
