// What kernels of several stages share: sums over lanes, bfloat16 packing, asynchronous copies, the
// 16x8x16 matrix product, and the way from a block to its piece of a ragged batch.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/kernels.h"

namespace lk::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ inline float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kAllLanes, v, offset);
  return v;
}

// Sum over the block, to all threads. `shared` [32]; may be used again after the call.
__device__ inline float block_sum(float v, float* shared) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  v = warp_sum(v);
  if (lane == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = warp_sum(lane < warps ? shared[lane] : 0.0f);
  __syncthreads();
  return v;
}

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 2^x, 0 below the normal numbers.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// 16 bytes to shared memory, or zeros.
__device__ inline void copy16(uint32_t to, const void* from, bool valid) {
  const int size = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size)
               : "memory");
}
__device__ inline void copy4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `left` of this thread's groups are on the way.
template <int left>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// Four transposed 8x8 matrices: lane l names row l % 8 of matrix l / 8.
__device__ inline void load_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8].
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A piece of a sequence: rows [first, first + rows of a piece).
struct Piece {
  int sequence;  // -1: there are fewer pieces than blocks
  int first;
};

// The `index`-th piece of `size` rows, where each token of a sequence makes `per_token` rows.
// Sequences with `live` below `least_live` or fewer than `least_tokens` tokens have none. Called by
// whole warps.
__device__ inline Piece find_piece(const int32_t* query_start, const int32_t* live, int least_live,
                                   int sequences, int least_tokens, int per_token, int size,
                                   int index) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < sequences; base += 32) {
    const int s = base + lane;
    int count = 0;
    if (s < sequences && live[s] >= least_live) count = query_start[s + 1] - query_start[s];
    const int pieces = count < least_tokens ? 0 : (count * per_token + size - 1) / size;
    int upto = pieces;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int before = __shfl_up_sync(kAllLanes, upto, offset);
      if (lane >= offset) upto += before;
    }
    const unsigned above = __ballot_sync(kAllLanes, upto > index);
    if (above) {
      const int owner = __ffs(above) - 1;
      const int start = __shfl_sync(kAllLanes, upto - pieces, owner);
      return {base + owner, (index - start) * size};
    }
    index -= __shfl_sync(kAllLanes, upto, 31);
  }
  return {-1, 0};
}

// At least as many pieces as find_piece finds.
inline int most_pieces(const Batch& batch, int per_token, int size) {
  const int64_t rows = int64_t{batch.tokens} * per_token;
  return static_cast<int>((rows + size - 1) / size) + batch.sequences;
}

}  // namespace lk::cuda
