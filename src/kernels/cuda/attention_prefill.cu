// Attention of sequences with several new tokens: 16-row tiles of (token, query head of one KV
// head) against tiles of keys in shared memory, two of them on the way; softmax in float32.
#include "kernels/cuda/attention.cuh"

namespace lk::cuda {
namespace {

template <int dims_, int row_tiles_, int warps_, int keys_>
struct Shape {
  static constexpr int dims = dims_, row_tiles = row_tiles_, warps = warps_, keys = keys_;
  static constexpr int threads = warps * 32, rows = row_tiles * 16 * warps;
  static constexpr int tile_bytes = keys * dims * 2;  // of keys, or values
  static constexpr int shared_bytes = 4 * tile_bytes;
};

// Keys [tile * S::keys, + S::keys) with their values. Tokens behind `last` may be no numbers and
// blocks before `first` may be gone: zeros instead.
template <typename S>
__device__ void start_tile(const AttentionParams& p, const int32_t* table, int kv_head, int tile,
                           int first, int last, uint32_t to) {
  constexpr int kPieces = S::dims * 2;  // of a block's keys
  const auto* keys = static_cast<const __nv_bfloat16*>(p.keys);
  const auto* values = static_cast<const __nv_bfloat16*>(p.values);
#pragma unroll
  for (int c = threadIdx.x; c < S::keys / kKvBlockTokens * kPieces; c += S::threads) {
    const int b = c / kPieces, i = c % kPieces;
    const int block = tile * (S::keys / kKvBlockTokens) + b, start = block * kKvBlockTokens;
    const bool there = start <= last && start + kKvBlockTokens > first;
    const int64_t from =
        there ? (int64_t{table[block]} * p.kv_heads + kv_head) * S::dims * kKvBlockTokens + i * 8
              : 0;
    copy16(to + b * kPieces * 16 + key_piece(i / 2, i % 2), keys + from, there);
    const int token = i / (S::dims / 8);
    copy16(to + S::tile_bytes + value_piece<S::dims>(b * kKvBlockTokens + token, i % (S::dims / 8)),
           values + from, there && start + token <= last);
  }
}

template <typename S>
__global__ void __launch_bounds__(S::threads) prefill_kernel(const AttentionParams p) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr int dims = S::dims, kTiles = S::row_tiles, kNTiles = S::keys / 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = blockIdx.x;
  // The longest rows, at the end of a prompt, first.
  const Piece piece = find_piece(p.query_start, p.context_len, 1, p.sequences, 2, p.group, S::rows,
                                 gridDim.y - 1 - blockIdx.y);
  if (piece.sequence < 0) return;
  const int first_token = p.query_start[piece.sequence];
  const int count = p.query_start[piece.sequence + 1] - first_token;
  const int position = p.positions[first_token];
  const int all_rows = count * p.group;
  const int from_position = position + piece.first / p.group;
  const int to_position = position + (min(piece.first + S::rows, all_rows) - 1) / p.group;
  const int first = p.first_key(from_position), last = position + count - 1;
  const int begin = first / S::keys, end = to_position / S::keys + 1;
  const int32_t* table = p.block_table + int64_t{piece.sequence} * p.max_blocks;
  const uint32_t base = shared_address(shared);

  start_tile<S>(p, table, kv_head, begin, first, last, base);
  commit_copies();

  uint32_t q[kTiles][dims / 16][4];
  int row_position[kTiles][2];
  float* row_out[kTiles][2];  // null: there is no such row
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const float* from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = piece.first + (warp * kTiles + m) * 16 + lane / 4 + 8 * r;
      const int token = min(row, all_rows - 1) / p.group;
      const int64_t at =
          (int64_t{first_token + token} * p.heads + kv_head * p.group + row % p.group) * dims;
      row_position[m][r] = position + token;
      from[r] = row < all_rows ? p.q + at : nullptr;
      row_out[m][r] = row < all_rows ? p.out + at : nullptr;
    }
    load_query<dims>(q[m], from[0], from[1]);
  }
  float out[kTiles][dims / 8][4] = {}, most[kTiles][2], sum[kTiles][2] = {};
#pragma unroll
  for (int m = 0; m < kTiles; ++m) most[m][0] = most[m][1] = -INFINITY;

  for (int tile = begin; tile < end; ++tile) {
    const uint32_t at = base + (tile - begin) % 2 * 2 * S::tile_bytes;
    if (tile + 1 < end)
      start_tile<S>(p, table, kv_head, tile + 1, first, last,
                    base + (tile + 1 - begin) % 2 * 2 * S::tile_bytes);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    float score[kTiles][kNTiles][4] = {};
#pragma unroll
    for (int b = 0; b < kNTiles / 2; ++b) {
#pragma unroll
      for (int k = 0; k < dims / 16; ++k) {
        uint32_t f[4];
        load_transposed(f, at + b * dims * 32 + key_piece(k * 16 + lane % 16, lane / 16));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply(score[m][2 * b], q[m][k], f[0], f[1]);
          multiply(score[m][2 * b + 1], q[m][k], f[2], f[3]);
        }
      }
    }
    const int key = tile * S::keys;
    if (key + S::keys - 1 > from_position || key < p.first_key(to_position)) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int k = key + n * 8 + lane % 4 * 2 + e % 2, at_position = row_position[m][e / 2];
            if (k > at_position || k < p.first_key(at_position)) score[m][n][e] = -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      float top[2] = {most[m][0], most[m][1]};
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) top[e / 2] = fmaxf(top[e / 2], score[m][n][e]);
      }
      float shrink[2], shift[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(kAllLanes, top[r], 2));
        // A row whose window begins behind this tile has seen nothing yet.
        shift[r] = top[r] == -INFINITY ? 0.0f : top[r] * p.scale_log2;
        shrink[r] = fast_exp2(most[m][r] * p.scale_log2 - shift[r]);
        most[m][r] = top[r];
        sum[m][r] *= shrink[r];
      }
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = score[m][n][e];
          x = fast_exp2(fmaf(x, p.scale_log2, -shift[e / 2]));
          sum[m][e / 2] += x;
        }
      }
#pragma unroll
      for (int d = 0; d < dims / 8; ++d) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[m][d][e] *= shrink[e / 2];
      }
    }
#pragma unroll
    for (int b = 0; b < kNTiles / 2; ++b) {
      uint32_t weights[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = score[m][2 * b + i / 2] + i % 2 * 2;
          weights[m][i] = pack_bf16(pair[0], pair[1]);
        }
      }
#pragma unroll
      for (int d = 0; d < dims / 16; ++d) {
        uint32_t f[4];
        load_transposed(
            f, at + S::tile_bytes + value_piece<dims>(b * 16 + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply(out[m][2 * d], weights[m], f[0], f[1]);
          multiply(out[m][2 * d + 1], weights[m], f[2], f[3]);
        }
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[m][r];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      float* to = row_out[m][r];
      if (!to) continue;
      const int head = static_cast<int>((to - p.out) / dims % p.heads);
      const float factor = finished_factor(p.sinks, head, most[m][r] * p.scale_log2, total);
#pragma unroll
      for (int d = 0; d < dims / 8; ++d) {
        const int column = d * 8 + lane % 4 * 2;
        float2 v{out[m][d][2 * r] * factor, out[m][d][2 * r + 1] * factor};
        if (p.gate) {
          const float2 g = *reinterpret_cast<const float2*>(p.gate + (to - p.out) + column);
          v = {v.x * sigmoid(g.x), v.y * sigmoid(g.y)};
        }
        *reinterpret_cast<float2*>(to + column) = v;
      }
    }
  }
}

template <typename S>
void run(Context& context, const Batch& batch, const AttentionParams& p) {
  const auto kernel = prefill_kernel<S>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
  check_cuda(allowed, "attention's shared memory");
  const dim3 grid(p.kv_heads, most_pieces(batch, p.group, S::rows));
  kernel<<<grid, S::threads, S::shared_bytes, context.stream()>>>(p);
  check_launch("attention of prompts");
}

}  // namespace

// Two row tiles of a warp share what it reads of keys and values; larger heads leave no registers
// for a second.
void run_prefill_attention(Context& context, const Batch& batch, const AttentionArgs& args,
                           const AttentionParams& params) {
  switch (args.head_dim) {
    case 64:
      return run<Shape<64, 2, 4, 64>>(context, batch, params);
    case 128:
      return run<Shape<128, 1, 8, 64>>(context, batch, params);
    default:
      return run<Shape<256, 1, 8, 32>>(context, batch, params);
  }
}

}  // namespace lk::cuda
