// out += scale * B z for rows with an adapter, behind a product that knows nothing of adapters.
#include "kernels/cuda/expand.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kRowsOfBlock = kWarps * kExpandTiles * kTileRows;
// Groups of eight entries that a block takes one after the other: several where there are many.
constexpr int kMostGroups = 8;
constexpr int kManyEntries = 1024;

__global__ void __launch_bounds__(kWarps * 32) expand_product(const Product p, int groups) {
  __shared__ const DevicePair* pairs[kMostGroups * 8];
  const Matrix& m = p.matrix;
  const int block_first = blockIdx.y * groups * 8;
  for (int i = threadIdx.x; i < groups * 8; i += blockDim.x) {
    const int entry = block_first + i;
    pairs[i] = entry < p.map.entries ? pair_of(p.adapters, token_of(p.operand, entry), 0) : nullptr;
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
  int tiles[kExpandTiles];
#pragma unroll
  for (int t = 0; t < kExpandTiles; ++t) tiles[t] = (blockIdx.x * kWarps + warp) * kExpandTiles + t;
  if (tiles[0] >= m.row_tiles) return;
  for (int n = 0; n < groups; ++n) {
    const int first = block_first + n * 8;
    const DevicePair* pair = pairs[n * 8 + g];
    const unsigned any = __ballot_sync(0xffffffffu, pair != nullptr);
    if (!any) continue;
    // Sums c and c + 2 are those of entry 2 j + c in rows g and g + 8.
    float before[kExpandTiles][4], d[kExpandTiles][4] = {};
    const auto each = [&](auto&& visit) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (!(any >> ((2 * j + c) * 4) & 1)) continue;
        float* out = p.epilogue.out + int64_t{first + 2 * j + c} * p.epilogue.stride;
#pragma unroll
        for (int t = 0; t < kExpandTiles; ++t) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            if (row_exists(m, tiles[t], g + 8 * h))
              visit(out + tiles[t] * kTileRows + g + 8 * h, t, c, h);
          }
        }
      }
    };
    each([&](const float* out, int t, int c, int h) { before[t][c + 2 * h] = *out; });
    if (is_mixed(pair, any)) {
      each([&](const float*, int t, int c, int h) {
        const float* z = p.adapters.z + int64_t{first + 2 * j + c} * p.adapters.z_stride;
        d[t][c + 2 * h] = expand(*pairs[n * 8 + 2 * j + c], tiles[t] * kTileRows + g + 8 * h, z);
      });
    } else {
      expand_group(p, tiles, pair, min(first + g, p.map.entries - 1), lane, d);
    }
    each([&](float* out, int t, int c, int h) { *out = before[t][c + 2 * h] + d[t][c + 2 * h]; });
  }
}

}  // namespace

void run_expand(Context& context, const Product& product) {
  if (!product.adapters.slot) return;
  const int groups = product.map.entries >= kManyEntries ? kMostGroups : 1;
  const dim3 grid((product.matrix.out + kRowsOfBlock - 1) / kRowsOfBlock,
                  (product.map.entries + groups * 8 - 1) / (groups * 8));
  expand_product<<<grid, kWarps * 32, 0, context.stream()>>>(product, groups);
  check_launch("LoRA's second product");
}

}  // namespace lk::cuda
