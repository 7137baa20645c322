// What the attention kernels share: their parameters, keys and values in shared memory, and what is
// done to a finished row.
#pragma once

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/stages.h"

namespace lk::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

struct AttentionParams {
  const float* q;
  const void *keys, *values;
  const int32_t *block_table, *query_start, *positions, *context_len, *sequence;
  const float *sinks, *gate;
  float* out;
  int tokens, sequences, max_blocks, heads, kv_heads, group, head_dim, window;
  float scale, scale_log2;  // scale_log2 = scale * log2(e): softmax in powers of two

  __device__ int first_key(int position) const {
    return window > 0 && position >= window ? position - window + 1 : 0;
  }
};

// Which kernels there are: bfloat16 caches with these dims; all others go the general way.
bool has_fast_attention(const AttentionArgs& args);
// Sequences of one token in this step.
void run_decode_attention(Context& context, const Batch& batch, const AttentionArgs& args,
                          const AttentionParams& params);
// Sequences of several.
void run_prefill_attention(Context& context, const Batch& batch, const AttentionArgs& args,
                           const AttentionParams& params);

// Byte offsets of 16-byte pieces in shared memory. Keys of a block: [head_dim][16], a row in two
// halves of 8 tokens, swapped for every other four rows; values: [token][head_dim], pieces XORed
// with the token. Eight rows that ldmatrix reads lie in eight different bank groups.
__device__ inline uint32_t key_piece(int d, int half) {
  return static_cast<uint32_t>(d * 2 + (half ^ ((d >> 2) & 1))) * 16;
}
template <int dims>
__device__ uint32_t value_piece(int token, int piece) {
  return static_cast<uint32_t>(token * dims * 2 + ((piece ^ (token & 7)) * 16));
}

// s[2] [16 rows, 8 keys each] = q k^T of one block of 16 keys at `keys`.
template <int dims>
__device__ void score_block(float (&s0)[4], float (&s1)[4], const uint32_t (&q)[dims / 16][4],
                            uint32_t keys) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < dims / 16; ++k) {
    uint32_t b[4];
    load_transposed(b, keys + key_piece(k * 16 + lane % 16, lane / 16));
    multiply(s0, q[k], b[0], b[1]);
    multiply(s1, q[k], b[2], b[3]);
  }
}

// A fragment of 16 rows of q, bfloat16: `low` and `high` are this lane's rows lane / 4 and 8
// further down, null for rows that there are not.
template <int dims>
__device__ void load_query(uint32_t (&q)[dims / 16][4], const float* low, const float* high) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int k = 0; k < dims / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* row = i % 2 ? high : low;
      float2 v{0, 0};
      if (row) v = *reinterpret_cast<const float2*>(row + k * 16 + i / 2 * 8 + column);
      q[k][i] = pack_bf16(v.x, v.y);
    }
  }
}

// A row's state of the online softmax with its sink: what to multiply the sum of values by.
// `most` is the largest score times scale_log2.
__device__ inline float finished_factor(const float* sinks, int head, float most, float sum) {
  if (!sinks) return 1.0f / sum;
  const float sink = sinks[head] * kLog2e;
  const float top = fmaxf(most, sink);
  const float shrink = exp2f(most - top);
  return shrink / (sum * shrink + exp2f(sink - top));
}

}  // namespace lk::cuda
