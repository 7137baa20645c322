// The choice of tokens, and what the host needs to choose or to tell log-probabilities. A row is
// cut into parts of kPart ids, a block each: the largest of each, then the sum of weights of each,
// then one block a row that finds the draw. Sums in double precision in one fixed order.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/stages.h"

namespace lk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPart = 8192;
constexpr int kRun = kPart / kThreads;  // ids of one thread where their order matters
constexpr float kLowest = -87.0f;       // a weight of exp of less is 0, as on the CPU

struct Best {
  float logit;
  int32_t id;  // -1: none above -infinity
};
__device__ Best better(Best a, Best b) {
  if (b.id < 0) return a;
  if (a.id < 0 || b.logit > a.logit || (b.logit == a.logit && b.id < a.id)) return b;
  return a;
}
__device__ Best warp_best(Best best) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const Best other{__shfl_xor_sync(kAllLanes, best.logit, offset),
                     __shfl_xor_sync(kAllLanes, best.id, offset)};
    best = better(best, other);
  }
  return best;
}
// Of the block, to all threads. `shared` [32].
__device__ Best block_best(Best best, Best* shared) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  best = warp_best(best);
  if (lane == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  best = warp_best(lane < warps ? shared[lane] : Best{-INFINITY, -1});
  __syncthreads();
  return best;
}

__device__ double warp_sum(double v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kAllLanes, v, offset);
  return v;
}

__device__ float weight_of(float logit, float most, float scale) {
  const float x = (logit - most) * scale;
  return x >= kLowest ? expf(x) : 0.0f;
}

struct Rows {
  const float* logits;
  const RowChoice* choices;
  Best* best;          // [rows, parts]
  double* sums;        // [rows, parts]
  double* model_sums;  // [rows, parts]
  int vocab, parts;

  __device__ int count(int row) const { return min(vocab, max(choices[row].limit, 0)); }
  __device__ Best largest(int row, Best* shared) const {
    Best mine{-INFINITY, -1};
    for (int i = threadIdx.x; i < parts; i += blockDim.x)
      mine = better(mine, best[int64_t{row} * parts + i]);
    return block_best(mine, shared);
  }
};

__global__ void __launch_bounds__(kThreads) largest_kernel(const Rows p) {
  __shared__ Best shared[32];
  const int row = blockIdx.y, part = blockIdx.x;
  const float* logits = p.logits + int64_t{row} * p.vocab;
  const int end = min(p.count(row), (part + 1) * kPart);
  Best mine{-INFINITY, -1};
#pragma unroll 8
  for (int i = part * kPart + threadIdx.x; i < end; i += kThreads) {
    const float v = logits[i];
    if (v > mine.logit) mine = {v, i};
  }
  mine = block_best(mine, shared);
  if (threadIdx.x == 0) p.best[int64_t{row} * p.parts + part] = mine;
}

// Of the block, to thread 0. `shared` [kThreads / 32].
__device__ double block_sum(double v, double* shared) {
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kThreads / 32; ++i) total += shared[i];
  }
  return total;
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const Rows p) {
  __shared__ Best shared[32];
  __shared__ double sums[kThreads / 32];
  const int row = blockIdx.y, part = blockIdx.x;
  const RowChoice choice = p.choices[row];
  if (choice.scale == 0 && choice.model_sum == 0) return;
  const float most = p.largest(row, shared).logit;
  const float* logits = p.logits + int64_t{row} * p.vocab;
  const int first = part * kPart + threadIdx.x, end = (part + 1) * kPart;
  double sum = 0, model_sum = 0;
  if (choice.scale != 0) {
    const int last = min(p.count(row), end);
#pragma unroll 8
    for (int i = first; i < last; i += kThreads)
      sum += double{weight_of(logits[i], most, choice.scale)};
  }
  if (choice.model_sum != 0) {
    const int last = min(p.vocab, end);
#pragma unroll 8
    for (int i = first; i < last; i += kThreads) model_sum += double{weight_of(logits[i], most, 1)};
  }
  sum = block_sum(sum, sums);
  model_sum = block_sum(model_sum, sums);
  if (threadIdx.x > 0) return;
  p.sums[int64_t{row} * p.parts + part] = sum;
  p.model_sums[int64_t{row} * p.parts + part] = model_sum;
}

__global__ void __launch_bounds__(kThreads) draw_kernel(const Rows p, RowResult* results) {
  __shared__ Best shared[32];
  __shared__ double sums[kThreads];
  __shared__ int owner;
  __shared__ double rest;
  const int row = blockIdx.x;
  const Best best = p.largest(row, shared);
  const RowChoice choice = p.choices[row];
  const double* part_sums = p.sums + int64_t{row} * p.parts;
  const bool none = best.id < 0 || isinf(best.logit);
  double total = 0;  // of thread 0
  if (threadIdx.x == 0) {
    double model_total = 0;
    for (int i = 0; i < p.parts && !none; ++i) {
      if (choice.scale != 0) total += part_sums[i];
      if (choice.model_sum != 0) model_total += p.model_sums[int64_t{row} * p.parts + i];
    }
    results[row] = {none ? -1 : best.id, best.logit, best.logit, total, model_total};
  }
  if (none || choice.scale == 0) return;
  // Rounding may leave a rest behind the last part with a weight, and the last thread of a part.
  const auto find = [](const double* sum, int count, double& left) {
    int last = 0;
    for (int i = 0; i < count; ++i) {
      if (sum[i] <= 0) continue;
      last = i;
      if (left < sum[i]) return i;
      left -= sum[i];
    }
    left = sum[last];
    return last;
  };
  if (threadIdx.x == 0) {
    double left = choice.uniform * total;
    owner = find(part_sums, p.parts, left);
    rest = left;
  }
  __syncthreads();
  const float* logits = p.logits + int64_t{row} * p.vocab;
  const int begin = owner * kPart + threadIdx.x * kRun, end = min(begin + kRun, p.count(row));
  double sum = 0;
  for (int i = begin; i < end; ++i) sum += weight_of(logits[i], best.logit, choice.scale);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double left = rest;
    owner = find(sums, kThreads, left);
    rest = left;
  }
  __syncthreads();
  if (threadIdx.x != owner) return;
  double left = rest;
  int chosen = begin;
  for (int i = begin; i < end; ++i) {
    const double weight = weight_of(logits[i], best.logit, choice.scale);
    if (weight <= 0) continue;
    chosen = i;
    if ((left -= weight) < 0) break;
  }
  results[row].token = chosen;
  results[row].logit = logits[chosen];
}

// Orders as the floats do; 0 for NaN and -infinity.
__device__ uint32_t order_of(float v) {
  if (!(v > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(v == 0 ? 0.0f : v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ float value_of(uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}
// Rising ids fall.
__device__ uint64_t entry_of(uint32_t order, int id) {
  return uint64_t{order} << 32 | static_cast<uint32_t>(~id);
}

constexpr int kTopThreads = 512;
constexpr int kKept = kPart / kTopThreads;

// entries[row, part, 0..k) = the k largest of the part in any order, 0 where it has fewer: digit by
// digit the value of the k-th, then all above it and of its equals the lowest ids. Rows whose
// choice has no `top` are left out.
__global__ void __launch_bounds__(kTopThreads)
    part_top_kernel(const float* logits, int vocab, int parts, int k, const RowChoice* choices,
                    uint64_t* entries) {
  __shared__ int counts[256];
  __shared__ int digit, below, taken, warp_counts[kTopThreads / 32];
  const int row = blockIdx.y, part = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (choices[row].top == 0) return;
  const int limit = min(vocab, max(choices[row].limit, 0));
  uint64_t* out = entries + (int64_t{row} * parts + part) * k;
  uint32_t order[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int id = part * kPart + i * kTopThreads + threadIdx.x;
    order[i] = id < limit ? order_of(logits[int64_t{row} * vocab + id]) : 0;
  }
  uint32_t prefix = 0, mask = 0;
  int wanted = k;  // of those whose digits so far are the k-th's
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) counts[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if ((order[i] & mask) == prefix) atomicAdd(&counts[order[i] >> shift & 255], 1);
    }
    __syncthreads();
    if (warp == 0) {
      // Lane l has digits from 255 - 8 l downwards.
      int sum = 0;
      for (int i = 0; i < 8; ++i) sum += counts[255 - 8 * lane - i];
      int upto = sum;
      for (int offset = 1; offset < 32; offset *= 2) {
        const int before = __shfl_up_sync(kAllLanes, upto, offset);
        if (lane >= offset) upto += before;
      }
      const int first = __ffs(__ballot_sync(kAllLanes, upto >= wanted)) - 1;
      if (lane == first) {
        int above = upto - sum, d = 255 - 8 * lane;
        while (above + counts[d] < wanted) above += counts[d--];
        digit = d;
        below = wanted - above;
      }
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(digit) << shift;
    mask |= 255u << shift;
    wanted = below;
  }
  // `prefix` is the k-th largest; `wanted` of its equals are taken.
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (order[i] > prefix)
      out[atomicAdd(&taken, 1)] = entry_of(order[i], part * kPart + i * kTopThreads + threadIdx.x);
  }
  int before = 0;  // equals with lower ids
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (before >= wanted) break;
    const bool equal = order[i] == prefix;
    const unsigned lanes = __ballot_sync(kAllLanes, equal);
    __syncthreads();
    if (lane == 0) warp_counts[warp] = __popc(lanes);
    __syncthreads();
    int mine = before + __popc(lanes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kTopThreads / 32; ++w) {
      if (w < warp) mine += warp_counts[w];
      all += warp_counts[w];
    }
    if (equal && mine < wanted) {
      out[k - wanted + mine] =
          prefix == 0 ? 0 : entry_of(prefix, part * kPart + i * kTopThreads + threadIdx.x);
    }
    before += all;
  }
}

constexpr int kSortThreads = 1024;
constexpr int kSortBytes = 128 * 1024;  // of shared memory; half of it for up to 262,144 ids

// What the GPU allows the sort of that.
int sort_bytes() {
  static const int bytes = [] {
    int device = 0, most = 0;
    check_cuda(cudaGetDevice(&device), "asking for the GPU");
    check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
               "asking for shared memory");
    return std::min(most, kSortBytes);
  }();
  return bytes;
}

int parts_of(int vocab) { return (vocab + kPart - 1) / kPart; }

// Entries that the sort of `k` from each part takes.
int sort_size(int vocab, int k) {
  return static_cast<int>(std::bit_ceil(unsigned(parts_of(vocab) * k)));
}
int bytes_of_sort(int vocab, int k) {
  return sort_size(vocab, k) * static_cast<int>(sizeof(uint64_t));
}

// One block a row: sorts the parts' entries in shared memory, [size] a power of two.
__global__ void __launch_bounds__(kSortThreads)
    merge_top_kernel(const uint64_t* entries, int count, int size, int k, const RowChoice* choices,
                     TopLogit* best) {
  extern __shared__ uint64_t sorted[];
  const int64_t row = blockIdx.x;
  best += row * k;
  if (choices[row].top == 0) {
    for (int i = threadIdx.x; i < k; i += kSortThreads) best[i] = {-1, -INFINITY};
    return;
  }
  for (int i = threadIdx.x; i < size; i += kSortThreads)
    sorted[i] = i < count ? entries[row * count + i] : 0;
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size / 2; i += kSortThreads) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const uint64_t a = sorted[low], b = sorted[high];
        if ((a < b) == ((low & run) == 0)) sorted[low] = b, sorted[high] = a;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < k; i += kSortThreads) {
    const uint64_t entry = i < size ? sorted[i] : 0;
    best[i] = {entry == 0 ? -1 : static_cast<int32_t>(~static_cast<uint32_t>(entry)),
               entry == 0 ? -INFINITY : value_of(static_cast<uint32_t>(entry >> 32))};
  }
}

}  // namespace

void run_choice(Context& context, const float* logits, int rows, int vocab,
                const RowChoice* choices, RowResult* results) {
  if (rows == 0) return;
  const int parts = parts_of(vocab);
  const size_t count = size_t(rows) * parts;
  auto* sums = context.scratch<double>(Scratch::kSampling, 3 * count);
  static_assert(sizeof(Best) == sizeof(double));
  const Rows p{.logits = logits,
               .choices = choices,
               .best = reinterpret_cast<Best*>(sums + 2 * count),
               .sums = sums,
               .model_sums = sums + count,
               .vocab = vocab,
               .parts = parts};
  const dim3 grid(parts, rows);
  largest_kernel<<<grid, kThreads, 0, context.stream()>>>(p);
  sum_kernel<<<grid, kThreads, 0, context.stream()>>>(p);
  draw_kernel<<<rows, kThreads, 0, context.stream()>>>(p, results);
  check_launch("choice of tokens");
}

int most_top(int vocab) {
  int k = kMostTop;
  while (k > 0 && bytes_of_sort(vocab, k) > sort_bytes()) k /= 2;
  return k;
}

void run_top(Context& context, const float* logits, int rows, int vocab, int k,
             const RowChoice* choices, TopLogit* best) {
  if (rows == 0 || k == 0) return;
  LK_CHECK(k > 0 && k <= most_top(vocab));
  const int parts = parts_of(vocab), count = parts * k, size = sort_size(vocab, k);
  static const cudaError_t allowed = cudaFuncSetAttribute(
      merge_top_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sort_bytes());
  check_cuda(allowed, "shared memory of the largest logits");
  auto* entries = context.scratch<uint64_t>(Scratch::kSampling, size_t(rows) * count);
  part_top_kernel<<<dim3(parts, rows), kTopThreads, 0, context.stream()>>>(logits, vocab, parts, k,
                                                                           choices, entries);
  merge_top_kernel<<<rows, kSortThreads, bytes_of_sort(vocab, k), context.stream()>>>(
      entries, count, size, k, choices, best);
  check_launch("largest logits");
}

}  // namespace lk::cuda
