// Attention of sequences with one new token: the context in pieces, a block each for all query
// heads of a KV head (16 rows of the matrix product), so that keys and values are read once. Each
// warp takes every fourth block of 16 keys with its own copies on the way; a second kernel joins
// the pieces in order. Pieces depend on the sequence's own length alone.
#include <algorithm>

#include "kernels/cuda/attention.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 16;
constexpr int kPieceBlocks = 16;  // KV blocks of a piece, more where that made over kMostPieces
constexpr int kMostPieces = 64;

__host__ __device__ int blocks_per_piece(int blocks) {
  const int least = (blocks + kMostPieces - 1) / kMostPieces;
  return least > kPieceBlocks ? least : kPieceBlocks;
}

// The KV blocks that the one token of a sequence sees.
struct Reach {
  int token, position, first, count, per_piece, pieces;
};
__device__ Reach reach_of(const AttentionParams& p, int s) {
  Reach r{};
  if (p.context_len[s] <= 0) return r;
  r.token = p.query_start[s];
  if (p.query_start[s + 1] - r.token != 1) return r;
  r.position = p.positions[r.token];
  r.first = p.first_key(r.position) / kKvBlockTokens;
  r.count = r.position / kKvBlockTokens - r.first + 1;
  r.per_piece = blocks_per_piece(r.count);
  r.pieces = (r.count + r.per_piece - 1) / r.per_piece;
  return r;
}

// Partial results: of a piece and head, the sum of values by weights relative to `most`, then
// (most, sum of weights).
struct Partials {
  float* values;  // [S, most_pieces, heads, head_dim]
  float2* state;  // [S, most_pieces, heads]
  int most_pieces;

  __device__ int64_t at(int s, int piece, int heads, int head) const {
    return (int64_t{s} * most_pieces + piece) * heads + head;
  }
};

template <int dims, int stages>
__host__ __device__ constexpr int decode_shared() {
  constexpr int copies = kWarps * stages * kKvBlockTokens * dims * 4;
  constexpr int joined = kWarps * kRows * (dims + 2) * 4;
  return copies > joined ? copies : joined;
}

template <int dims, int stages>
__global__ void __launch_bounds__(kWarps * 32)
    decode_kernel(const AttentionParams p, const Partials partials) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int kHalf = kKvBlockTokens * dims * 2;  // bytes of a block's keys, or values
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int s = blockIdx.z, piece = blockIdx.x;
  const int kv_head = blockIdx.y % p.kv_heads, row_tile = blockIdx.y / p.kv_heads;
  const Reach reach = reach_of(p, s);
  if (piece >= reach.pieces) return;
  const int begin = piece * reach.per_piece + warp;
  const int end = min((piece + 1) * reach.per_piece, reach.count);
  const int mine = begin < end ? (end - begin + kWarps - 1) / kWarps : 0;
  const int first_key = p.first_key(reach.position);
  const int32_t* table = p.block_table + int64_t{s} * p.max_blocks + reach.first + begin;
  const auto* keys = static_cast<const __nv_bfloat16*>(p.keys);
  const auto* values = static_cast<const __nv_bfloat16*>(p.values);
  const uint32_t base = shared_address(shared) + warp * stages * 2 * kHalf;

  const auto start = [&](int i) {
    if (i < mine) {
      const int64_t from =
          (int64_t{table[i * kWarps]} * p.kv_heads + kv_head) * dims * kKvBlockTokens;
      const uint32_t to = base + i % stages * 2 * kHalf;
      const int last = reach.position - (reach.first + begin + i * kWarps) * kKvBlockTokens;
#pragma unroll
      for (int c = lane; c < dims * 2; c += 32)
        copy16(to + key_piece(c / 2, c % 2), keys + from + c * 8, true);
        // What lies behind the last token may be no number: zeros instead.
#pragma unroll
      for (int c = lane; c < dims * 2; c += 32) {
        const int token = c / (dims / 8);
        copy16(to + kHalf + value_piece<dims>(token, c % (dims / 8)), values + from + c * 8,
               token <= last);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) start(i);

  uint32_t q[dims / 16][4];
  const int row = row_tile * kRows + lane / 4;
  const float* query = p.q + (int64_t{reach.token} * p.heads + kv_head * p.group) * dims;
  load_query<dims>(q, row < p.group ? query + row * dims : nullptr,
                   row + 8 < p.group ? query + (row + 8) * dims : nullptr);
  float out[dims / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  for (int i = 0; i < mine; ++i) {
    start(i + stages - 1);
    wait_copies<stages - 1>();
    __syncwarp();
    const uint32_t at = base + i % stages * 2 * kHalf;
    float score[2][4] = {};
    score_block<dims>(score[0], score[1], q, at);
    const int key = (reach.first + begin + i * kWarps) * kKvBlockTokens;
    float top[2] = {most[0], most[1]};
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int k = key + e / 4 * 8 + lane % 4 * 2 + e % 2;
      float& x = score[e / 4][e % 4];
      x = k < first_key || k > reach.position ? -INFINITY : x * p.scale_log2;
      top[e % 4 / 2] = fmaxf(top[e % 4 / 2], x);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 2));
    }
    // Every block of the reach holds a key that is seen: `top` is finite.
    const float shrink[2] = {fast_exp2(most[0] - top[0]), fast_exp2(most[1] - top[1])};
#pragma unroll
    for (int r = 0; r < 2; ++r) most[r] = top[r], sum[r] *= shrink[r];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      float& x = score[e / 4][e % 4];
      x = fast_exp2(x - top[e % 4 / 2]);
      sum[e % 4 / 2] += x;
    }
    const uint32_t weights[4] = {
        pack_bf16(score[0][0], score[0][1]), pack_bf16(score[0][2], score[0][3]),
        pack_bf16(score[1][0], score[1][1]), pack_bf16(score[1][2], score[1][3])};
#pragma unroll
    for (int d = 0; d < dims / 16; ++d) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        out[2 * d][e] *= shrink[e / 2];
        out[2 * d + 1][e] *= shrink[e / 2];
      }
      uint32_t b[4];
      load_transposed(b, at + kHalf + value_piece<dims>(lane % 16, 2 * d + lane / 16));
      multiply(out[2 * d], weights, b[0], b[1]);
      multiply(out[2 * d + 1], weights, b[2], b[3]);
    }
    __syncwarp();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
    sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
  }

  wait_copies<0>();
  __syncthreads();
  float* joined = reinterpret_cast<float*>(shared);  // [kWarps, kRows, dims]
  auto* states = reinterpret_cast<float2*>(joined + kWarps * kRows * dims);  // [kWarps, kRows]
#pragma unroll
  for (int d = 0; d < dims / 8; ++d) {
    float* to = joined + (warp * kRows + lane / 4) * dims + d * 8 + lane % 4 * 2;
    *reinterpret_cast<float2*>(to) = {out[d][0], out[d][1]};
    *reinterpret_cast<float2*>(to + 8 * dims) = {out[d][2], out[d][3]};
  }
  if (lane % 4 == 0) {
    states[warp * kRows + lane / 4] = {most[0], sum[0]};
    states[warp * kRows + lane / 4 + 8] = {most[1], sum[1]};
  }
  __syncthreads();
  const int rows = min(kRows, p.group - row_tile * kRows);
  for (int i = threadIdx.x; i < rows * dims; i += kWarps * 32) {
    const int r = i / dims, d = i % dims, h = kv_head * p.group + row_tile * kRows + r;
    float top = -INFINITY, total = 0, value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, states[w * kRows + r].x);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 state = states[w * kRows + r];
      const float factor = exp2f(state.x - top);
      total += state.y * factor;
      value += joined[(w * kRows + r) * dims + d] * factor;
    }
    if (reach.pieces == 1) {
      const int64_t to = (int64_t{reach.token} * p.heads + h) * dims + d;
      value *= finished_factor(p.sinks, h, top, total);
      p.out[to] = p.gate ? value * sigmoid(p.gate[to]) : value;
    } else {
      const int64_t to = partials.at(s, piece, p.heads, h);
      partials.values[to * dims + d] = value;
      if (d == 0) partials.state[to] = {top, total};
    }
  }
}

// A warp a sequence and head.
template <int dims>
__global__ void __launch_bounds__(kWarps * 32)
    join_kernel(const AttentionParams p, const Partials partials) {
  const int lane = threadIdx.x % 32;
  const int h = blockIdx.x * kWarps + threadIdx.x / 32, s = blockIdx.y;
  if (h >= p.heads) return;
  const Reach reach = reach_of(p, s);
  if (reach.pieces < 2) return;
  float top = -INFINITY;
  for (int i = 0; i < reach.pieces; ++i)
    top = fmaxf(top, partials.state[partials.at(s, i, p.heads, h)].x);
  float total = 0;
  float2 value[dims / 64] = {};
  for (int i = 0; i < reach.pieces; ++i) {
    const int64_t at = partials.at(s, i, p.heads, h);
    const float2 state = partials.state[at];
    const float factor = exp2f(state.x - top);
    total += state.y * factor;
#pragma unroll
    for (int j = 0; j < dims / 64; ++j) {
      const float2 v = reinterpret_cast<const float2*>(partials.values + at * dims)[lane + 32 * j];
      value[j].x += v.x * factor;
      value[j].y += v.y * factor;
    }
  }
  const float factor = finished_factor(p.sinks, h, top, total);
  const int64_t to = (int64_t{reach.token} * p.heads + h) * dims;
#pragma unroll
  for (int j = 0; j < dims / 64; ++j) {
    float2 v{value[j].x * factor, value[j].y * factor};
    if (p.gate) {
      const float2 g = reinterpret_cast<const float2*>(p.gate + to)[lane + 32 * j];
      v = {v.x * sigmoid(g.x), v.y * sigmoid(g.y)};
    }
    reinterpret_cast<float2*>(p.out + to)[lane + 32 * j] = v;
  }
}

template <int dims, int stages>
void run(Context& context, const Batch& batch, const AttentionParams& p) {
  int longest = batch.longest_context;
  if (p.window > 0) longest = std::min(longest, p.window);
  const int blocks = (longest + kKvBlockTokens - 1) / kKvBlockTokens + 1;
  const int pieces = std::min((blocks + kPieceBlocks - 1) / kPieceBlocks, kMostPieces);
  Partials partials{nullptr, nullptr, pieces};
  if (pieces > 1) {
    const size_t rows = size_t(batch.sequences) * pieces * p.heads;
    partials.values = context.scratch<float>(Scratch::kAttention, rows * (dims + 2));
    partials.state = reinterpret_cast<float2*>(partials.values + rows * dims);
  }
  const auto kernel = decode_kernel<dims, stages>;
  constexpr int bytes = decode_shared<dims, stages>();
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  check_cuda(allowed, "attention's shared memory");
  const dim3 grid(pieces, p.kv_heads * ((p.group + kRows - 1) / kRows), batch.sequences);
  kernel<<<grid, kWarps * 32, bytes, context.stream()>>>(p, partials);
  check_launch("attention of single tokens");
  if (pieces == 1) return;
  join_kernel<dims><<<dim3((p.heads + kWarps - 1) / kWarps, batch.sequences), kWarps * 32, 0,
                      context.stream()>>>(p, partials);
  check_launch("joining attention's pieces");
}

}  // namespace

void run_decode_attention(Context& context, const Batch& batch, const AttentionArgs& args,
                          const AttentionParams& params) {
  switch (args.head_dim) {
    case 64:
      return run<64, 4>(context, batch, params);
    case 128:
      return run<128, 3>(context, batch, params);
    default:
      return run<256, 2>(context, batch, params);
  }
}

}  // namespace lk::cuda
