// Attention of any shape: a warp a token and head, 32 keys at a time. For small models, float32
// caches and odd head dims; the fast kernels are in attention_decode.cu and attention_prefill.cu.
#include "base/check.h"
#include "kernels/cuda/attention.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostDims = 512;

__device__ float load(const float* p) { return *p; }
__device__ float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }

template <typename Kv, int kPerLane>  // dims of a lane
__global__ void __launch_bounds__(kWarps * 32) general_kernel(const AttentionParams p) {
  extern __shared__ float queries[];  // [kWarps, head_dim]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = p.head_dim;
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp;
  if (item >= int64_t{p.tokens} * p.heads) return;
  const int64_t t = item / p.heads;
  const int h = static_cast<int>(item % p.heads), kv_head = h / p.group;
  const int s = p.sequence[t];
  if (s < 0 || p.context_len[s] <= 0) return;
  const float* q = p.q + item * n;
  float* query = queries + warp * n;
  for (int d = lane; d < n; d += 32) query[d] = q[d];
  __syncwarp();
  const int position = p.positions[t];
  const int32_t* table = p.block_table + int64_t{s} * p.max_blocks;
  const auto at = [&](int key) {  // of the key's block for this head
    return (int64_t{table[key / kKvBlockTokens]} * p.kv_heads + kv_head) * n * kKvBlockTokens;
  };
  float most = -INFINITY, sum = 0, out[kPerLane] = {};
  for (int begin = p.first_key(position); begin <= position; begin += 32) {
    const int key = begin + lane;
    float score = -INFINITY;
    if (key <= position) {
      const Kv* keys = static_cast<const Kv*>(p.keys) + at(key) + key % kKvBlockTokens;
      score = 0;
      for (int d = 0; d < n; ++d) score += query[d] * load(keys + d * kKvBlockTokens);
      score *= p.scale_log2;
    }
    float top = score;
    for (int offset = 16; offset > 0; offset /= 2)
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
    top = fmaxf(top, most);
    const float shrink = exp2f(most - top), weight = exp2f(score - top);
    most = top;
    sum = sum * shrink + warp_sum(weight);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) out[i] *= shrink;
    const int count = min(32, position - begin + 1);
    for (int j = 0; j < count; ++j) {
      const float w = __shfl_sync(kAllLanes, weight, j);
      const int other = begin + j;
      const Kv* values = static_cast<const Kv*>(p.values) + at(other) + other % kKvBlockTokens * n;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int d = lane + 32 * i;
        if (d < n) out[i] += w * load(values + d);
      }
    }
  }
  const float factor = finished_factor(p.sinks, h, most, sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int d = lane + 32 * i;
    if (d >= n) continue;
    const float value = out[i] * factor;
    p.out[item * n + d] = p.gate ? value * sigmoid(p.gate[item * n + d]) : value;
  }
}

void run_general(Context& context, const AttentionParams& p, KvType type) {
  LK_CHECK(p.head_dim <= kMostDims);
  const bool wide = p.head_dim > 128;
  const auto kernel =
      type == KvType::kF32
          ? (wide ? general_kernel<float, kMostDims / 32> : general_kernel<float, 4>)
          : (wide ? general_kernel<__nv_bfloat16, kMostDims / 32>
                  : general_kernel<__nv_bfloat16, 4>);
  const int64_t warps = int64_t{p.tokens} * p.heads;
  kernel<<<static_cast<unsigned>((warps + kWarps - 1) / kWarps), kWarps * 32,
           kWarps * p.head_dim * sizeof(float), context.stream()>>>(p);
  check_launch("attention");
}

}  // namespace

bool has_fast_attention(const AttentionArgs& args) {
  const int n = args.head_dim;
  return args.kv.type == KvType::kBF16 && (n == 64 || n == 128 || n == 256);
}

void run_attention(Context& context, const Batch& batch, const AttentionArgs& args) {
  if (batch.tokens == 0) return;
  const KvIndex& index = batch.kv[args.kv.group];
  const AttentionParams params{.q = args.q,
                               .keys = args.kv.keys,
                               .values = args.kv.values,
                               .block_table = index.block_table,
                               .query_start = batch.query_start,
                               .positions = batch.positions,
                               .context_len = batch.context_len,
                               .sequence = batch.sequence,
                               .sinks = args.sinks,
                               .gate = args.gate,
                               .out = args.out,
                               .tokens = batch.tokens,
                               .sequences = batch.sequences,
                               .max_blocks = index.max_blocks,
                               .heads = args.heads,
                               .kv_heads = args.kv_heads,
                               .group = args.heads / args.kv_heads,
                               .head_dim = args.head_dim,
                               .window = args.window,
                               .scale = args.scale,
                               .scale_log2 = args.scale * kLog2e};
  if (!has_fast_attention(args)) return run_general(context, params, args.kv.type);
  // A sequence's result does not depend on what the others of the batch do: single tokens always
  // take the kernel for them.
  const bool all_long = batch.sequences == 1 && batch.longest_query > 1;
  if (!all_long) run_decode_attention(context, batch, args, params);
  if (batch.longest_query > 1) run_prefill_attention(context, batch, args, params);
}

}  // namespace lk::cuda
