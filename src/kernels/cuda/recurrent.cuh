// What the two recurrent mixers share on the GPU: the causal convolution with its state, the scan
// of the recurrence, and the norm with its gate. The scan keeps a column of the state in registers
// and goes token by token, so bits do not depend on where a prompt is cut.
#pragma once

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/stages.h"

namespace lk::cuda {

__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// The key rows of a head in the scan's memory: padded with zeros to one of the scan's sizes.
int padded_keys(int key_dim);

// out[t] = silu(bias + sum_j weight[j] u[t - kernel + 1 + j]); the slot's last inputs follow.
struct Convolution {
  const float* u;  // rows `stride` apart
  int64_t stride;
  const float* weight;  // [kernel, channels]
  const float* bias;    // [channels] or null
  int kernel, channels;
  float* state;  // [slots, kernel - 1, channels]
  float* out;    // [T, channels]
};
void run_convolution(Context& context, const Batch& batch, const Convolution& call);

// For each token and value head, with k, q of its key head:
//   d = gain (v - decay S^T k), or gain v without the delta rule; S = decay S + k d^T; out = S^T q
// computed as out = decay S^T q + (k . q) d, so that one pass over S serves both products.
struct Scan {
  bool delta;
  const float* kq;     // [T, key_heads, 2, padded_keys]: k, then q
  const float* dots;   // [T, key_heads] k . q
  const float* rates;  // [T, heads, 2] decay, gain
  const float* v;      // [heads * value_dim] of each token, rows `v_stride` apart
  int64_t v_stride;
  int key_heads, key_dim, heads, value_dim;
  float* state;  // [slots, heads, key_dim, value_dim]
  float* out;    // [T, heads * value_dim]
};
void run_scan(Context& context, const Batch& batch, const Scan& call);

}  // namespace lk::cuda
