// Products with many rows of x a matrix (prompts): a block computes 128 rows of the matrix for 128
// of x. Rows of x stand in shared memory, three steps of 64 channels deep; fragments of the weights
// come from memory a step ahead and are decoded in registers.
#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace lk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowWarps = 4;  // times 2 over the rows of x
constexpr int kTilesOfWarp = 2;
constexpr int kColumnsOfWarp = kProductTile / 2;
constexpr int kGroups = kColumnsOfWarp / 8;
constexpr int kTilesOfBlock = kRowWarps * kTilesOfWarp;
constexpr int kStages = 3;
// Bytes of a row of x in shared memory: 16 more than its 64 channels, so that the two rows which
// eight lanes read 16 bytes of lie in different banks.
constexpr int kRowBytes = kTileCols * 2 + 16;
constexpr int kStageBytes = kProductTile * kRowBytes;
constexpr int kSharedBytes = kStages * kStageBytes;

template <Codec C>
__global__ void __launch_bounds__(kThreads, C == Codec::kFp8Block ? 1 : 2)
    tile_product(const Product p) {
  extern __shared__ __align__(16) uint8_t stages[];
  const Matrix& m = p.matrix;
  int expert = 0, first = blockIdx.y * kProductTile, end = p.map.entries;
  if (p.map.counts) {
    if (static_cast<int>(blockIdx.y) >= p.map.counts[1]) return;
    expert = p.map.tiles[blockIdx.y * 2];
    first = p.map.tiles[blockIdx.y * 2 + 1];
    end = p.map.start[expert + 1];
  }
  const int count = min(end - first, kProductTile);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  const int column0 = warp / kRowWarps * kColumnsOfWarp;
  const int tile0 = blockIdx.x * kTilesOfBlock + warp % kRowWarps * kTilesOfWarp;
  const int columns = min(max(count - column0, 0), kColumnsOfWarp);
  constexpr int kRecord = record_bytes(C);
  const uint8_t* records[kTilesOfWarp];
#pragma unroll
  for (int t = 0; t < kTilesOfWarp; ++t) {
    const int tile = min(tile0 + t, m.row_tiles - 1);
    records[t] = m.records + (int64_t{expert} * m.row_tiles + tile) * m.k_tiles * kRecord;
  }

  // Each thread copies half a row of x a step.
  const int copied = threadIdx.x / 2, half = threadIdx.x % 2;
  const __nv_bfloat16* source =
      p.operand.x + half * 32 +
      x_row(p.operand, entry_at(p.map, first + min(copied, count - 1))) * p.operand.stride;
  uint8_t* const place = stages + copied * kRowBytes + half * 64;
  const auto fetch = [&](int k) {
    if (k < m.k_tiles && copied < count) {
      uint8_t* to = place + k % kStages * kStageBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        __pipeline_memcpy_async(to + i * 16, source + k * kTileCols + i * 8, 16);
    }
    __pipeline_commit();
  };
  // Rows that no entry fills are read by the products of their group of eight.
  for (int s = 0; s < kStages; ++s) {
    if (copied >= count) {
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint4*>(place + s * kStageBytes + i * 16) = uint4{0, 0, 0, 0};
    }
  }

  float acc[kTilesOfWarp][kGroups][4] = {};
  fetch(0);
  fetch(1);
  Fragment<C> next[kTilesOfWarp];
#pragma unroll
  for (int t = 0; t < kTilesOfWarp; ++t) next[t].load(records[t], lane);
  for (int k = 0; k < m.k_tiles; ++k) {
    __pipeline_wait_prior(1);
    __syncthreads();
    fetch(k + 2);
    Fragment<C> w[kTilesOfWarp];
#pragma unroll
    for (int t = 0; t < kTilesOfWarp; ++t) {
      w[t] = next[t];
      if (k + 1 < m.k_tiles) next[t].load(records[t] + int64_t{k + 1} * kRecord, lane);
    }
    if (columns == 0) continue;
    float block_scale[kTilesOfWarp][2];
    if constexpr (C == Codec::kFp8Block) {
#pragma unroll
      for (int t = 0; t < kTilesOfWarp; ++t) {
        const int tile = min(tile0 + t, m.row_tiles - 1);
        const float* scales =
            m.block_scale +
            ((int64_t{expert} * m.row_tiles + tile) * m.k_blocks + k / 2) * kTileRows;
        block_scale[t][0] = scales[g];
        block_scale[t][1] = scales[g + 8];
      }
    }
    const uint8_t* x = stages + k % kStages * kStageBytes + (column0 + g) * kRowBytes + j * 32;
    if constexpr (C == Codec::kFp8Block) {
      uint32_t a[kTilesOfWarp][4][4];
#pragma unroll
      for (int t = 0; t < kTilesOfWarp; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) decode<C>(w[t], i, a[t][i]);
      }
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (n * 8 >= columns) break;
        const auto* from = reinterpret_cast<const uint4*>(x + n * 8 * kRowBytes);
        const uint4 v[2] = {from[0], from[1]};
#pragma unroll
        for (int t = 0; t < kTilesOfWarp; ++t) {
          float part[4] = {};
#pragma unroll
          for (int i = 0; i < 4; ++i) multiply(part, a[t][i], operand(v, i, 0), operand(v, i, 1));
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[t][n][c] += part[c] * block_scale[t][c / 2];
        }
      }
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // products 2 h and 2 h + 1: 16 bytes of each row of x
        uint32_t a[kTilesOfWarp][2][4];
#pragma unroll
        for (int t = 0; t < kTilesOfWarp; ++t) {
          decode<C>(w[t], 2 * h, a[t][0]);
          decode<C>(w[t], 2 * h + 1, a[t][1]);
        }
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          if (n * 8 >= columns) break;
          const uint4 v = *reinterpret_cast<const uint4*>(x + n * 8 * kRowBytes + h * 16);
#pragma unroll
          for (int t = 0; t < kTilesOfWarp; ++t) {
            multiply(acc[t][n], a[t][0], v.x, v.y);
            multiply(acc[t][n], a[t][1], v.z, v.w);
          }
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = n * 8 + 2 * j + c;
      if (column >= columns) continue;
      const int entry = entry_at(p.map, first + column0 + column);
      const DevicePair* pair = pair_of(p.adapters, token_of(p.operand, entry), expert);
#pragma unroll
      for (int t = 0; t < kTilesOfWarp; ++t) {
        if (tile0 + t < m.row_tiles)
          finish(p, expert, tile0 + t, g, entry, pair, acc[t][n][c], acc[t][n][c + 2]);
      }
    }
  }
}

template <Codec C>
void launch(Context& context, const Product& p) {
  static const bool raised = [] {
    check_cuda(cudaFuncSetAttribute(tile_product<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kSharedBytes),
               "asking for shared memory");
    return true;
  }();
  (void)raised;
  int tiles = (p.map.entries + kProductTile - 1) / kProductTile;
  if (p.map.counts) tiles += std::min(p.map.experts, p.map.entries);
  const dim3 grid((p.matrix.row_tiles + kTilesOfBlock - 1) / kTilesOfBlock, tiles);
  tile_product<C><<<grid, kThreads, kSharedBytes, context.stream()>>>(p);
}

}  // namespace

void run_tile_product(Context& context, Codec codec, const Product& p) {
  switch (codec) {
    case Codec::kBf16:
      return launch<Codec::kBf16>(context, p);
    case Codec::kMxfp4:
      return launch<Codec::kMxfp4>(context, p);
    case Codec::kNvfp4:
      return launch<Codec::kNvfp4>(context, p);
    case Codec::kFp8:
      return launch<Codec::kFp8>(context, p);
    case Codec::kMxfp8:
      return launch<Codec::kMxfp8>(context, p);
    case Codec::kFp8Block:
      return launch<Codec::kFp8Block>(context, p);
  }
}

}  // namespace lk::cuda
