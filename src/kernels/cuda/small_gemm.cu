// Products with few rows of x a matrix: reading the weights is all that takes time. A block owns MT
// tiles of 16 rows; its warps split the channels and add their sums through shared memory in a
// fixed order. Weights go from memory to registers once, rows of x come from the caches.
#include <algorithm>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kColumnStride = 20;  // of shared sums [column][row]: no two lanes in one bank

// Records in flight for each warp and tile: about 64 bytes a lane. More of them cost more in blocks
// that run at once than they bring: 6 in place of 4 made one token of gpt-oss-20b's experts 40 us
// in place of 37 (H200).
template <Codec C, int MT>
constexpr int kDepth = code_pieces(C) == 4 ? 1 : (code_pieces(C) == 2 ? 2 : 4) / MT;

template <Codec C, int MT, int NT>
__global__ void __launch_bounds__(kWarps * 32, NT == 1   ? 4
                                               : NT == 8 ? 1
                                                         : 2) small_product(const Product p) {
  __shared__ float sums[kWarps][MT * 8 * kColumnStride];
  __shared__ int entries[NT * 8];
  __shared__ const DevicePair* pairs[NT * 8];
  const Matrix& m = p.matrix;
  int expert = 0, first = 0, end = p.map.entries;
  if (p.map.counts) {
    if (static_cast<int>(blockIdx.y) >= p.map.counts[0]) return;
    expert = p.map.active[blockIdx.y];
    first = p.map.start[expert];
    end = p.map.start[expert + 1];
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  const int tile0 = blockIdx.x * MT;
  // Scales of 128 channels belong to whole pairs of records.
  constexpr int kUnit = has_blocks(C) ? 2 : 1;
  // Records: each warp a run of them. Rows: warps take turns, so that a block reads 1 KiB of a row.
  constexpr bool kRows = C == Codec::kBf16Rows;
  constexpr int kStep = kRows ? kWarps : 1;
  const int share = (m.k_tiles + kWarps * kUnit - 1) / (kWarps * kUnit) * kUnit;
  const int k_first = kRows ? warp : min(warp * share, m.k_tiles);
  const int k_end = kRows ? m.k_tiles : min(k_first + share, m.k_tiles);
  constexpr int kRecord = record_bytes(C);
  // Where a lane's two pieces of a row of x lie, in channels.
  constexpr int kLaneAt = kRows ? 8 : 16, kSecondPiece = kRows ? 32 : 8;
  const uint8_t* tile_records[MT];
#pragma unroll
  for (int t = 0; t < MT; ++t) {
    const int tile = min(tile0 + t, m.row_tiles - 1);
    tile_records[t] = m.records + (int64_t{expert} * m.row_tiles + tile) * m.k_tiles * kRecord;
  }

  const auto load = [&](Fragment<C>& to, int t, int k) {
    if constexpr (kRows) {
      constexpr int kBytes = kTileCols * 2;
      to.load_rows(tile_records[t] + k * kBytes, int64_t{m.k_tiles} * kBytes, lane);
    } else {
      to.load(tile_records[t] + int64_t{k} * kRecord, lane);
    }
  };

  constexpr int kDeep = kDepth<C, MT>;
  for (; first < end; first += NT * 8) {
    // Before all that leads to the rows of x.
    Fragment<C> w[kDeep][MT];
#pragma unroll
    for (int d = 0; d < kDeep; ++d) {
#pragma unroll
      for (int t = 0; t < MT; ++t) {
        if (k_first + d * kStep < k_end) load(w[d][t], t, k_first + d * kStep);
      }
    }
    const int count = min(end - first, NT * 8);
    // The last warp has the fewest channels.
    for (int c = threadIdx.x - (kWarps - 1) * 32; c >= 0 && c < count; c += 32) {
      entries[c] = entry_at(p.map, first + c);
      pairs[c] = pair_of(p.adapters, token_of(p.operand, entries[c]), expert);
    }
    float acc[MT][NT][4] = {};
    decltype(rows_for<C>(p.operand)) x[NT];
    const float* x_scales[NT];  // of codes, by groups
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const int64_t row = x_row(p.operand, entry_at(p.map, first + min(n * 8 + g, count - 1)));
      x[n] = rows_for<C>(p.operand) + row * p.operand.stride + j * kLaneAt;
      x_scales[n] = p.operand.scales + row * p.operand.row_scales;
    }
    for (int k0 = k_first; k0 < k_end; k0 += kDeep * kStep) {
#pragma unroll
      for (int d = 0; d < kDeep; ++d) {
        const int k = k0 + d * kStep;
        if (k >= k_end) break;
        float block_scale[MT][2];
        if constexpr (has_blocks(C)) {
#pragma unroll
          for (int t = 0; t < MT; ++t) {
            const int tile = min(tile0 + t, m.row_tiles - 1);
            const float* scales =
                m.block_scale +
                ((int64_t{expert} * m.row_tiles + tile) * m.k_blocks + k / 2) * kTileRows;
            block_scale[t][0] = scales[g];
            block_scale[t][1] = scales[g + 8];
          }
        }
        uint4 v[NT][2];
        constexpr int kGroups = groups_of_record(C);
        float2 scale[NT][kGroups];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          if (n * 8 < count) {
            const auto* from = reinterpret_cast<const uint4*>(x[n] + k * kTileCols);
            v[n][0] = from[0];
            if constexpr (!meets_codes(C)) v[n][1] = from[kSecondPiece / 8];
            if constexpr (C == Codec::kFp8BlockCodes || C == Codec::kMxfp8Codes) {
#pragma unroll
              for (int h = 0; h < kGroups; ++h) {
                // Of column g; the lane's sums are those of columns 2 j and 2 j + 1.
                const float own = x_scales[n][kGroups == 2 ? 2 * k + h : k / 2];
                scale[n][h] = {__shfl_sync(0xffffffffu, own, 8 * j),
                               __shfl_sync(0xffffffffu, own, 8 * j + 4)};
              }
            }
          }
        }
#pragma unroll
        for (int t = 0; t < MT; ++t) {
          float part[C == Codec::kFp8Block ? NT : 1][4] = {};
          if constexpr (meets_codes(C)) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
              if (n * 8 < count)
                add_record<C>(acc[t][n], w[d][t], v[n][0], block_scale[t], scale[n]);
            }
          } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              uint32_t a[4];
              decode<C>(w[d][t], i, a);
#pragma unroll
              for (int n = 0; n < NT; ++n) {
                if (n * 8 >= count) continue;
                float(&c)[4] =
                    C == Codec::kFp8Block ? part[n % (C == Codec::kFp8Block ? NT : 1)] : acc[t][n];
                multiply(c, a, operand(v[n], i, 0), operand(v[n], i, 1));
              }
            }
          }
          if (k + kDeep * kStep < k_end) load(w[d][t], t, k + kDeep * kStep);
          if constexpr (C == Codec::kFp8Block) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
              for (int c = 0; c < 4; ++c) acc[t][n][c] += part[n][c] * block_scale[t][c / 2];
            }
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if (n * 8 >= count) break;
#pragma unroll
      for (int t = 0; t < MT; ++t) {
        const float(&sum)[4] = acc[t][n];
        float* to = sums[warp] + (t * 8 + 2 * j) * kColumnStride + g;
        to[0] = sum[0];
        to[kColumnStride] = sum[1];
        to[8] = sum[2];
        to[kColumnStride + 8] = sum[3];
      }
      __syncthreads();
      for (int item = threadIdx.x; item < MT * 64; item += kWarps * 32) {
        const int r = item % 8, column = item / 8 % 8, t = item / 64;
        if (n * 8 + column >= count || tile0 + t >= m.row_tiles) continue;
        const int64_t at = (int64_t{expert} * m.row_tiles + tile0 + t) * kTileRows + r;
        const float factors[2] = {m.factor[at], m.factor[at + 8]};
        const float biases[2] = {m.bias[at], m.bias[at + 8]};
        float upper = 0, lower = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          upper += sums[w][(t * 8 + column) * kColumnStride + r];
          lower += sums[w][(t * 8 + column) * kColumnStride + r + 8];
        }
        const int entry = entries[n * 8 + column], tile = tile0 + t;
        upper = times_row_scale<C>(p.operand, entry, upper) * factors[0] + biases[0];
        lower = times_row_scale<C>(p.operand, entry, lower) * factors[1] + biases[1];
        if (const DevicePair* pair = pairs[n * 8 + column]) {
          const float* z = p.adapters.z + int64_t{entry} * p.adapters.z_stride;
          if (row_exists(m, tile, r)) upper += expand(*pair, spec_row(m, tile, r), z);
          if (row_exists(m, tile, r + 8)) lower += expand(*pair, spec_row(m, tile, r + 8), z);
        }
        finish<C>(p, tile, r, entry, upper, lower);
      }
      __syncthreads();
    }
  }
}

template <Codec C, int MT, int NT>
void launch(Context& context, const Product& p) {
  const int experts = p.map.counts ? std::min(p.map.experts, p.map.entries) : 1;
  const dim3 grid((p.matrix.row_tiles + MT - 1) / MT, experts);
  small_product<C, MT, NT><<<grid, kWarps * 32, 0, context.stream()>>>(p);
}

template <Codec C>
void launch_for(Context& context, const Product& p, int average) {
  // Experts get more or fewer rows than the average, and reading weights twice is dear.
  const int rows = p.map.counts ? average + average / 2 + 2 : average;
  if (rows <= 8) {
    launch<C, 1, 1>(context, p);
  } else if (rows <= 16) {
    launch<C, 2, 2>(context, p);
  } else if (meets_codes(C) || rows <= 32) {  // of experts, no more rows come here
    launch<C, 2, 4>(context, p);
  } else if constexpr (!meets_codes(C)) {
    launch<C, 2, 8>(context, p);
  }
}

}  // namespace

void run_small_product(Context& context, Codec codec, const Product& p, int average) {
  with_codec(codec, [&](auto c) { launch_for<decltype(c)::value>(context, p, average); });
}

}  // namespace lk::cuda
