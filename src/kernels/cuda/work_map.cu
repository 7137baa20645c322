// The entries of an expert layer sorted by expert, on the device, and rows of x as bfloat16 or
// E4M3: one launch, since neither fills a GPU.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/rows.cuh"

namespace lk::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMostExperts = 512;

struct MapArgs {
  const int32_t* expert = nullptr;  // [pairs]; null: no map
  int pairs = 0, experts = 0;
  int32_t *counts, *start, *active, *tiles, *list;
};

// Exclusive sum over the block; `total` of all.
__device__ int scan(int value, int* shared, int& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = value;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) shared[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  __syncthreads();
  return before + sum - value;
}

// A stable counting sort: each warp counts and then places a run of entries, in order.
__device__ void sort_by_expert(const MapArgs& map) {
  __shared__ int place[kWarps][kMostExperts];
  __shared__ int shared[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int run = (map.pairs + kThreads - 1) / kThreads * 32;
  const int runs = (map.pairs + run - 1) / run;  // one of few pairs
  for (int w = 0; w < runs; ++w) place[w][threadIdx.x] = 0;
  __syncthreads();
  const int first = min(warp * run, map.pairs), end = min(first + run, map.pairs);
  for (int p = first + lane; p < end; p += 32) {
    const int e = map.expert[p];
    if (e >= 0 && e < map.experts) atomicAdd(&place[warp][e], 1);
  }
  __syncthreads();
  const int e = threadIdx.x;
  int count = 0;
  for (int w = 0; w < runs; ++w) count += place[w][e];
  int total, actives, tiles;
  const int start = scan(count, shared, total);
  const int active = scan(count > 0, shared, actives);
  const int tile_count = (count + kProductTile - 1) / kProductTile;
  const int tile = scan(tile_count, shared, tiles);
  int next = start;
  for (int w = 0; w < runs; ++w) {
    const int own = place[w][e];
    place[w][e] = next;
    next += own;
  }
  if (e < map.experts) map.start[e] = start;
  if (e == 0) {
    map.start[map.experts] = total;
    map.counts[0] = actives;
    map.counts[1] = tiles;
  }
  if (count > 0) map.active[active] = e;
  for (int i = 0; i < tile_count; ++i) {
    map.tiles[2 * (tile + i)] = e;
    map.tiles[2 * (tile + i) + 1] = start + i * kProductTile;
  }
  __syncthreads();
  for (int base = first; base < end; base += 32) {
    const int p = base + lane;
    int mine = p < end ? map.expert[p] : -1;
    if (mine >= map.experts) mine = -1;
    const unsigned same = __match_any_sync(0xffffffffu, mine);
    const int rank = __popc(same & ((1u << lane) - 1));
    if (mine >= 0) map.list[place[warp][mine] + rank] = p;
    __syncwarp();
    if (mine >= 0 && rank == 0) place[warp][mine] += __popc(same);
    __syncwarp();
  }
}

__device__ void convert(const Prepare& c, int64_t item) {
  const int columns = c.width / 8;
  const int64_t row = item / columns;
  const int column = static_cast<int>(item % columns) * 8;
  float all[8];
  load8(c.x + row * c.in, c.in, c.in, column, all);
  __align__(16) __nv_bfloat16 values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = __float2bfloat16(all[i]);
  __nv_bfloat16* to = c.to + row * c.parts * c.width + column;
  *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(values);
  if (c.parts == 1) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = __float2bfloat16(all[i] - __bfloat162float(values[i]));
  *reinterpret_cast<uint4*>(to + c.width) = *reinterpret_cast<const uint4*>(values);
}

// All rows, by `blocks` blocks of which this is `block`.
__device__ void make_rows(const Prepare& c, int block, int blocks) {
  const int64_t step = int64_t{blocks} * kThreads, at = int64_t{block} * kThreads + threadIdx.x;
  for (int64_t i = at; i < int64_t{c.rows} * (c.width / 8); i += step) convert(c, i);
  const int tail = c.tail_width - c.tail_first;
  for (int64_t i = at; tail > 0 && i < int64_t{c.tail_rows} * tail; i += step)
    c.tail[i / tail * c.tail_width + c.tail_first + i % tail] = __float2bfloat16(0.0f);
}
int64_t threads_for(const Prepare& c) { return int64_t{c.rows} * (c.width / 8); }

__device__ void make_rows(const Quantize& q, int block, int blocks) {
  const int64_t pieces = int64_t{q.rows} * quantize_pieces(q), step = int64_t{blocks} * kWarps;
  for (int64_t i = int64_t{block} * kWarps + threadIdx.x / 32; i < pieces; i += step)
    quantize_piece(q, i);
}
int64_t threads_for(const Quantize& q) { return int64_t{q.rows} * quantize_pieces(q) * 32; }

template <typename Rows>
__global__ void __launch_bounds__(kThreads) prepare(const MapArgs map, const Rows rows) {
  int block = blockIdx.x, blocks = gridDim.x;
  if (map.expert) {
    if (block == 0) return sort_by_expert(map);
    --block;
    --blocks;
  }
  make_rows(rows, block, blocks);
}

template <typename Rows>
void launch(Context& context, const MapArgs& map, const Rows& rows) {
  const int64_t items = std::max<int64_t>(threads_for(rows), 1);
  const int64_t blocks =
      std::min<int64_t>((items + kThreads - 1) / kThreads, int64_t{context.multiprocessors()} * 4);
  prepare<<<static_cast<unsigned>(blocks + (map.expert ? 1 : 0)), kThreads, 0, context.stream()>>>(
      map, rows);
  check_launch("rows of an expert layer");
}

template <typename Rows>
WorkMap map_with_rows(Context& context, const int32_t* expert, int pairs, int experts,
                      const Rows& rows) {
  LK_CHECK(experts <= kMostExperts);
  const int tiles = pairs / kProductTile + std::min(experts, pairs);
  const size_t count = 2 + (experts + 1) + experts + 2 * size_t(tiles) + pairs;
  auto* counts = context.scratch<int32_t>(Scratch::kWorkMap, count);
  MapArgs map{expert, pairs, experts, counts, counts + 2, nullptr, nullptr, nullptr};
  map.active = map.start + experts + 1;
  map.tiles = map.active + experts;
  map.list = map.tiles + 2 * size_t(tiles);
  launch(context, map, rows);
  return {map.counts, map.start, map.active, map.tiles, map.list, expert, pairs, experts};
}

}  // namespace

void run_convert(Context& context, const Prepare& prepare) { launch(context, {}, prepare); }
void run_quantize(Context& context, const Quantize& quantize) { launch(context, {}, quantize); }

WorkMap run_work_map(Context& context, const int32_t* expert, int pairs, int experts,
                     const Prepare& prepare) {
  return map_with_rows(context, expert, pairs, experts, prepare);
}
WorkMap run_work_map(Context& context, const int32_t* expert, int pairs, int experts,
                     const Quantize& quantize) {
  return map_with_rows(context, expert, pairs, experts, quantize);
}

}  // namespace lk::cuda
