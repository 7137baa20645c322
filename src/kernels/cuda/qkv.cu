#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/stages.h"

namespace lk::cuda {
namespace {

constexpr int kWarps = 8;  // a warp a head

enum class Part : uint8_t { kQuery, kKey, kValue };

struct Params {
  QkvArgs args;
  const float *query, *key, *value;
  const int32_t* sequence;
  const int64_t* slot_mapping;
  int query_blocks, key_blocks;
};

__device__ float clamped(float x, float bound) {
  return x < -bound ? -bound : x > bound ? bound : x;
}

__device__ void store(void* cache, KvType type, int64_t i, float value) {
  if (type == KvType::kF32)
    static_cast<float*>(cache)[i] = value;
  else
    static_cast<__nv_bfloat16*>(cache)[i] = __float2bfloat16_rn(value);
}

// Block (t, y): kWarps heads of one of q, k and v of token t.
__global__ void __launch_bounds__(kWarps * 32) finish_kernel(const Params p) {
  extern __shared__ float heads_values[];  // [kWarps, head_dim]
  __shared__ float sums[32];
  const QkvArgs& args = p.args;
  const int64_t t = blockIdx.x;
  if (p.sequence[t] < 0) return;
  int group = blockIdx.y;
  Part part = Part::kQuery;
  if (group >= p.query_blocks) group -= p.query_blocks, part = Part::kKey;
  if (part == Part::kKey && group >= p.key_blocks) group -= p.key_blocks, part = Part::kValue;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = args.head_dim;
  const int count = part == Part::kQuery ? args.heads : args.kv_heads;
  const int h = group * kWarps + warp;
  const bool gated = part == Part::kQuery && args.gate;
  const int head_stride = gated ? 2 * n : n;
  const float* row = (part == Part::kQuery ? p.query
                      : part == Part::kKey ? p.key
                                           : p.value) +
                     t * count * head_stride;
  const Norm norm = part == Part::kQuery ? args.query_norm
                    : part == Part::kKey ? args.key_norm
                                         : Norm{};
  float scale = 1;
  if (norm.weight && args.norm_whole) {
    float sum = 0;
    for (int i = threadIdx.x; i < count * n; i += kWarps * 32) {
      const float v = row[i / n * head_stride + i % n];
      sum += v * v;
    }
    scale = 1.0f / sqrtf(block_sum(sum, sums) / static_cast<float>(count * n) + norm.eps);
  }
  if (h >= count) return;
  const float* head = row + h * head_stride;
  float* values = heads_values + warp * n;
  float sum = 0;
  for (int d = lane; d < n; d += 32) {
    const float v = head[d];
    values[d] = v;
    sum += v * v;
  }
  if (norm.weight) {
    const float* weight = norm.weight;
    if (args.norm_whole)
      weight += h * n;
    else
      scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(n) + norm.eps);
    for (int d = lane; d < n; d += 32) values[d] = weight[d] * (values[d] * scale);
  }
  if (args.clip > 0) {
    for (int d = lane; d < n; d += 32) values[d] = clamped(values[d], args.clip);
  }
  __syncwarp();
  const int half = args.rotary / 2;
  const float *cos = args.rope_cos + t * half, *sin = args.rope_sin + t * half;
  const auto turned = [&](int d) {
    if (d >= 2 * half) return values[d];
    const int i = d < half ? d : d - half;
    const float x1 = values[i], x2 = values[i + half];
    return d < half ? x1 * cos[i] - x2 * sin[i] : x2 * cos[i] + x1 * sin[i];
  };
  if (part == Part::kQuery) {
    const int64_t at = (t * args.heads + h) * n;
    for (int d = lane; d < n; d += 32) args.q[at + d] = turned(d);
    for (int d = lane; gated && d < n; d += 32) args.gate[at + d] = head[n + d];
    return;
  }
  const int64_t slot = p.slot_mapping[t];
  if (slot < 0) return;
  const int64_t offset = slot % kKvBlockTokens;
  const int64_t base = (slot / kKvBlockTokens * args.kv_heads + h) * n * kKvBlockTokens;
  if (part == Part::kKey) {
    for (int d = lane; d < n; d += 32)
      store(args.kv.keys, args.kv.type, base + d * kKvBlockTokens + offset, turned(d));
  } else {
    for (int d = lane; d < n; d += 32)
      store(args.kv.values, args.kv.type, base + offset * n + d, values[d]);
  }
}

}  // namespace

void finish_qkv(Context& context, const Batch& batch, const QkvArgs& args, const float* query,
                const float* key, const float* value) {
  if (batch.tokens == 0) return;
  const int query_blocks = (args.heads + kWarps - 1) / kWarps,
            key_blocks = (args.kv_heads + kWarps - 1) / kWarps;
  const Params params{args,         query,          key,
                      value,        batch.sequence, batch.kv[args.kv.group].slot_mapping,
                      query_blocks, key_blocks};
  const dim3 grid(batch.tokens, query_blocks + 2 * key_blocks);
  finish_kernel<<<grid, kWarps * 32, kWarps * args.head_dim * sizeof(float), context.stream()>>>(
      params);
  check_launch("norms, RoPE and KV write");
}

}  // namespace lk::cuda
