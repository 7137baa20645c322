// Products with many rows of x a matrix (prompts): a block computes 128 rows of the matrix for 128
// of x. Rows of x and records of the weights come to shared memory, three steps of 64 channels
// deep, and the weights are decoded in registers.
#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/expand.cuh"

namespace lk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowWarps = 4;  // times 2 over the rows of x
constexpr int kTilesOfWarp = kExpandTiles;
constexpr int kColumnsOfWarp = kProductTile / 2;
constexpr int kGroups = kColumnsOfWarp / 8;
constexpr int kTilesOfBlock = kRowWarps * kTilesOfWarp;
constexpr int kStages = 3;
// Of a lane's 16 channels of x.
template <Codec C>
constexpr int kLaneBytes = meets_codes(C) ? 16 : 32;
// Of a row of x in shared memory, so that the two rows which eight lanes read 16 bytes of lie in
// different banks: 16 more than its 64 channels, but for codes, of which two rows fill all banks.
template <Codec C>
constexpr int kRowBytes = meets_codes(C) ? kTileCols : kTileCols * 2 + 16;
// Scales of all rows for one group of codes, one group after the other.
template <Codec C>
constexpr bool kScaled = C == Codec::kFp8BlockCodes || C == Codec::kMxfp8Codes;
template <Codec C>
constexpr int kRecordsAt = kProductTile* kRowBytes<C>;
template <Codec C>
constexpr int kScalesAt = kRecordsAt<C> + kTilesOfBlock* record_bytes(C);
template <Codec C>
constexpr int kStageBytes = kScalesAt<C> +
                            (kScaled<C> ? kProductTile * groups_of_record(C) * 4 : 0);

template <Codec C>
__global__ void __launch_bounds__(kThreads, C == Codec::kFp8Block || meets_codes(C) ? 1 : 2)
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
  constexpr int kRecordPieces = kRecord / 16, kPieces = kTilesOfBlock * kRecordPieces;
  const uint8_t* const records =
      m.records +
      (int64_t{expert} * m.row_tiles + blockIdx.x * kTilesOfBlock) * m.k_tiles * kRecord;
  const int tiles_here =
      min(m.row_tiles - static_cast<int>(blockIdx.x) * kTilesOfBlock, kTilesOfBlock);

  // Each thread copies half a row of x a step.
  const int copied = threadIdx.x / 2, half = threadIdx.x % 2;
  constexpr int kHalf = 2 * kLaneBytes<C>;
  const int64_t copied_row = x_row(p.operand, entry_at(p.map, first + min(copied, count - 1)));
  const auto* const source = rows_for<C>(p.operand) + copied_row * p.operand.stride + half * 32;
  const float* const x_scales = p.operand.scales + copied_row * p.operand.row_scales;
  uint8_t* const place = stages + copied * kRowBytes<C> + half * kHalf;
  uint8_t* const scale_place = stages + kScalesAt<C> + (half * kProductTile + copied) * 4;
  const auto fetch = [&](int k) {
    if (k < m.k_tiles && copied < count) {
      uint8_t* to = place + k % kStages * kStageBytes<C>;
#pragma unroll
      for (int i = 0; i < kHalf / 16; ++i)
        __pipeline_memcpy_async(to + i * 16, source + k * kTileCols + i * (16 / sizeof(*source)),
                                16);
      if constexpr (kScaled<C>) {
        constexpr int kGroups = groups_of_record(C);
        if (half < kGroups) {
          __pipeline_memcpy_async(scale_place + k % kStages * kStageBytes<C>,
                                  x_scales + (kGroups == 2 ? 2 * k + half : k / 2), 4);
        }
      }
    }
    if (k < m.k_tiles) {
      uint8_t* to = stages + k % kStages * kStageBytes<C> + kRecordsAt<C>;
#pragma unroll
      for (int i = 0; i < (kPieces + kThreads - 1) / kThreads; ++i) {
        const int piece = threadIdx.x + i * kThreads;
        const int tile = piece / kRecordPieces, at = piece % kRecordPieces;
        if (tile >= tiles_here) continue;
        if constexpr (C == Codec::kBf16Rows) {
          // Eight threads read a row's 128 bytes, to where a record would have them.
          const int row = at / 8, part = at % 8;
          const uint32_t from = uint32_t((tile * kTileRows + row) * m.k_tiles + k);
          __pipeline_memcpy_async(
              to + tile * kRecord + (row / 8 * 2 + part % 2) * 512 + (row % 8 * 4 + part / 2) * 16,
              records + from * (kTileCols * 2) + part * 16, 16);
        } else {
          __pipeline_memcpy_async(
              to + piece * 16, records + (int64_t{tile} * m.k_tiles + k) * kRecord + at * 16, 16);
        }
      }
    }
    __pipeline_commit();
  };
  // Rows that no entry fills are read by the products of their group of eight.
  for (int s = 0; s < kStages; ++s) {
    if (copied >= count) {
      for (int i = 0; i < kHalf / 16; ++i)
        *reinterpret_cast<uint4*>(place + s * kStageBytes<C> + i * 16) = uint4{0, 0, 0, 0};
      if (kScaled<C> && half < groups_of_record(C))
        *reinterpret_cast<float*>(scale_place + s * kStageBytes<C>) = 0.0f;
    }
  }

  float acc[kTilesOfWarp][kGroups][4] = {};
  fetch(0);
  fetch(1);
  for (int k = 0; k < m.k_tiles; ++k) {
    __pipeline_wait_prior(1);
    __syncthreads();
    fetch(k + 2);
    if (columns == 0) continue;
    const uint8_t* const stage = stages + k % kStages * kStageBytes<C>;
    Fragment<C> w[kTilesOfWarp];
#pragma unroll
    for (int t = 0; t < kTilesOfWarp; ++t) {
      w[t].take(stage + kRecordsAt<C> + (warp % kRowWarps * kTilesOfWarp + t) * kRecord, lane);
    }
    float block_scale[kTilesOfWarp][2];
    if constexpr (has_blocks(C)) {
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
    const uint8_t* x = stage + (column0 + g) * kRowBytes<C> + j * kLaneBytes<C>;
    if constexpr (meets_codes(C)) {
      const float* scales = reinterpret_cast<const float*>(stage + kScalesAt<C>) + column0 + 2 * j;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (n * 8 >= columns) break;
        const uint4 v = *reinterpret_cast<const uint4*>(x + n * 8 * kRowBytes<C>);
        float2 scale[groups_of_record(C)];
        if constexpr (kScaled<C>) {
#pragma unroll
          for (int h = 0; h < groups_of_record(C); ++h)
            scale[h] = *reinterpret_cast<const float2*>(scales + h * kProductTile + n * 8);
        }
#pragma unroll
        for (int t = 0; t < kTilesOfWarp; ++t)
          add_record<C>(acc[t][n], w[t], v, block_scale[t], scale);
      }
    } else if constexpr (C == Codec::kFp8Block) {
      uint32_t a[kTilesOfWarp][4][4];
#pragma unroll
      for (int t = 0; t < kTilesOfWarp; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) decode<C>(w[t], i, a[t][i]);
      }
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        if (n * 8 >= columns) break;
        const auto* from = reinterpret_cast<const uint4*>(x + n * 8 * kRowBytes<C>);
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
// Four groups at a time, so that products of one sum stand far apart.
#pragma unroll
        for (int n0 = 0; n0 < kGroups; n0 += 4) {
          if (n0 * 8 >= columns) break;
          uint4 v[4];
#pragma unroll
          for (int n = 0; n < 4; ++n)
            v[n] = *reinterpret_cast<const uint4*>(x + (n0 + n) * 8 * kRowBytes<C> + h * 16);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
              for (int t = 0; t < kTilesOfWarp; ++t)
                multiply(acc[t][n0 + n], a[t][i], i ? v[n].z : v[n].x, i ? v[n].w : v[n].y);
            }
          }
        }
      }
    }
  }
  if (columns == 0) return;
  int tiles[kTilesOfWarp];
  float factor[kTilesOfWarp][2], bias[kTilesOfWarp][2];
#pragma unroll
  for (int t = 0; t < kTilesOfWarp; ++t) {
    tiles[t] = tile0 + t;
    const int64_t at =
        (int64_t{expert} * m.row_tiles + min(tiles[t], m.row_tiles - 1)) * kTileRows + g;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      factor[t][h] = m.factor[at + 8 * h];
      bias[t][h] = m.bias[at + 8 * h];
    }
  }
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    if (n * 8 >= columns) break;
    float d[kTilesOfWarp][4] = {};
    bool adapted[2] = {}, mixed = false;
    if (p.adapters.slot) {
      const int column = n * 8 + g;
      const int entry = entry_at(p.map, first + column0 + min(column, columns - 1));
      const DevicePair* pair = pair_of(p.adapters, token_of(p.operand, entry), expert);
      if (column >= columns) pair = nullptr;
      const unsigned any = __ballot_sync(0xffffffffu, pair != nullptr);
      mixed = any && is_mixed(pair, any);
      if (any && !mixed) expand_group(p, tiles, pair, entry, lane, d);
      adapted[0] = any >> (8 * j) & 1;
      adapted[1] = any >> (8 * j + 4) & 1;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = n * 8 + 2 * j + c;
      if (column >= columns) continue;
      const int entry = entry_at(p.map, first + column0 + column);
#pragma unroll
      for (int t = 0; t < kTilesOfWarp; ++t) {
        if (tiles[t] >= m.row_tiles) continue;
        float upper =
            times_row_scale<C>(p.operand, entry, acc[t][n][c]) * factor[t][0] + bias[t][0];
        float lower =
            times_row_scale<C>(p.operand, entry, acc[t][n][c + 2]) * factor[t][1] + bias[t][1];
        if (adapted[c] && mixed) {
          const DevicePair* pair = pair_of(p.adapters, token_of(p.operand, entry), expert);
          const float* z = p.adapters.z + int64_t{entry} * p.adapters.z_stride;
          if (row_exists(m, tiles[t], g)) upper += expand(*pair, spec_row(m, tiles[t], g), z);
          if (row_exists(m, tiles[t], g + 8))
            lower += expand(*pair, spec_row(m, tiles[t], g + 8), z);
        } else if (adapted[c]) {
          upper += d[t][c];
          lower += d[t][c + 2];
        }
        finish<C>(p, tiles[t], g, entry, upper, lower);
      }
    }
  }
}

template <Codec C>
void launch(Context& context, const Product& p) {
  static const bool raised = [] {
    check_cuda(cudaFuncSetAttribute(tile_product<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kStages * kStageBytes<C>),
               "asking for shared memory");
    return true;
  }();
  (void)raised;
  int tiles = (p.map.entries + kProductTile - 1) / kProductTile;
  if (p.map.counts) tiles += std::min(p.map.experts, p.map.entries);
  const dim3 grid((p.matrix.row_tiles + kTilesOfBlock - 1) / kTilesOfBlock, tiles);
  tile_product<C><<<grid, kThreads, kStages * kStageBytes<C>, context.stream()>>>(p);
}

}  // namespace

void run_tile_product(Context& context, Codec codec, const Product& p) {
  with_codec(codec, [&](auto c) { launch<decltype(c)::value>(context, p); });
}

}  // namespace lk::cuda
