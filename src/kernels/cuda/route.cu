// The choice of experts, a warp a token: expert e's score lies in lane e % 32. Scores and weights
// are computed in double precision, as the reference does, so that ties fall the same way.
#include "base/check.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/stages.h"

namespace lk::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMostExperts = 1024;
constexpr int kMostChosen = 32;  // one lane keeps each

struct Params {
  RouterRule rule;
  RouterChoice choice;
  int tokens, experts, top_k;
  const int32_t *forced, *sequence;
  const float* logits;
  int32_t* expert;
  float* weight;
};

__device__ float sigmoid_exact(float x) {
  return static_cast<float>(1.0 / (1.0 + exp(-double{x})));
}

__device__ double warp_sum_exact(double v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(kAllLanes, v, offset);
  return v;
}
__device__ float warp_max(float v) {
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, offset));
  return v;
}

// The `k` largest of `count` values, value i in lane i % 32: lane j returns the j-th, ties to the
// lower index. NaN is below all others.
template <int per_lane>
__device__ int choose(const float (&value)[per_lane], int count, int k) {
  const int lane = threadIdx.x % 32;
  unsigned left = 0;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) left |= (lane + 32 * i < count ? 1u : 0u) << i;
  int chosen = -1;
  for (int j = 0; j < k; ++j) {
    float best = -INFINITY;
    int index = INT32_MAX;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      const bool better = value[i] > best || index == INT32_MAX;
      if ((left >> i & 1) && better) {
        best = isnan(value[i]) ? -INFINITY : value[i];
        index = lane + 32 * i;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, offset);
      const int at = __shfl_xor_sync(kAllLanes, index, offset);
      if (other > best || (other == best && at < index)) best = other, index = at;
    }
    if (index % 32 == lane) left &= ~(1u << (index / 32));
    if (lane == j) chosen = index;
  }
  return chosen;
}

// Scores outside of the best groups become -infinity. `shared` [experts + groups].
template <int per_lane>
__device__ void keep_groups(const RouterChoice& choice, int experts, float (&score)[per_lane],
                            float* shared) {
  const int lane = threadIdx.x % 32, size = experts / choice.groups;
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    if (lane + 32 * i < experts) shared[lane + 32 * i] = score[i];
  }
  __syncwarp();
  float best_two[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int g = lane + 32 * i;
    float first = -INFINITY, second = -INFINITY;
    for (int e = 0; g < choice.groups && e < size; ++e) {
      const float v = shared[g * size + e];
      if (v > first)
        second = first, first = v;
      else if (v > second)
        second = v;
    }
    best_two[i] = size > 1 ? first + second : first;
  }
  const int kept = choose(best_two, choice.groups, min(choice.top_groups, kMostChosen));
  float* keeps = shared + experts;
  for (int g = lane; g < choice.groups; g += 32) keeps[g] = 0;
  __syncwarp();
  if (kept >= 0) keeps[kept] = 1;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int e = lane + 32 * i;
    if (e < experts && keeps[e / size] == 0) score[i] = -INFINITY;
  }
}

template <int per_lane>
__global__ void __launch_bounds__(kWarps * 32) route_kernel(const Params p) {
  extern __shared__ float shared[];  // [kWarps, experts + groups]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t t = int64_t{blockIdx.x} * kWarps + warp;
  if (t >= p.tokens) return;
  if (p.sequence[t] < 0) {
    if (lane < p.top_k) p.expert[t * p.top_k + lane] = -1, p.weight[t * p.top_k + lane] = 0;
    return;
  }
  const float* logits = p.logits + t * p.experts;
  const bool by_sigmoid = p.rule == RouterRule::kSigmoidThenTopK;
  float value[per_lane];
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    const int e = lane + 32 * i;
    value[i] = e < p.experts ? logits[e] : -INFINITY;
  }
  float largest = -INFINITY;
  double all = 0;
  if (p.rule == RouterRule::kSoftmaxThenTopK) {
#pragma unroll
    for (int i = 0; i < per_lane; ++i) largest = fmaxf(largest, value[i]);
    largest = warp_max(largest);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      if (lane + 32 * i < p.experts) all += exp(double{value[i]} - largest);
    }
    all = warp_sum_exact(all);
  }
  int chosen = -1;
  if (p.forced) {
    if (lane < p.top_k) chosen = p.forced[t * p.top_k + lane];
    if (chosen >= p.experts) chosen = -1;
  } else {
    if (by_sigmoid) {
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        const int e = lane + 32 * i;
        if (e >= p.experts) continue;
        value[i] = sigmoid_exact(value[i]) + (p.choice.correction ? p.choice.correction[e] : 0.0f);
      }
      if (p.choice.top_groups < p.choice.groups)
        keep_groups(p.choice, p.experts, value, shared + warp * (p.experts + p.choice.groups));
    }
    chosen = choose(value, p.experts, p.top_k);
  }
  const bool mine = lane < p.top_k && chosen >= 0;
  const float logit = mine ? logits[chosen] : -INFINITY;
  double weight;
  if (by_sigmoid) {
    const float score = mine ? sigmoid_exact(logit) : 0.0f;
    const double sum = warp_sum_exact(double{score}) + 1e-20;
    weight = score * (p.choice.normalized ? p.choice.scale / sum : double{p.choice.scale});
  } else if (p.rule == RouterRule::kSoftmaxThenTopK) {
    weight = mine ? exp(double{logit} - largest) / all : 0;
  } else {
    const float most = warp_max(logit);
    const double mass = mine ? exp(double{logit} - most) : 0;
    weight = mass / warp_sum_exact(mass);
  }
  if (lane >= p.top_k) return;
  p.expert[t * p.top_k + lane] = chosen;
  p.weight[t * p.top_k + lane] = mine ? static_cast<float>(weight) : 0.0f;
}

}  // namespace

void choose_experts(Context& context, const Batch& batch, const RouteArgs& args,
                    const float* logits) {
  if (batch.tokens == 0) return;
  LK_CHECK(args.experts <= kMostExperts && args.top_k <= kMostChosen &&
           args.top_k <= args.experts && args.choice.groups >= 1);
  LK_CHECK(args.choice.top_groups >= args.choice.groups || args.choice.top_groups <= kMostChosen);
  const Params params{args.rule,   args.choice,    batch.tokens, args.experts, args.top_k,
                      args.forced, batch.sequence, logits,       args.expert,  args.weight};
  const auto kernel = args.experts <= 128   ? route_kernel<4>
                      : args.experts <= 512 ? route_kernel<16>
                                            : route_kernel<32>;
  const bool groups =
      args.rule == RouterRule::kSigmoidThenTopK && args.choice.top_groups < args.choice.groups;
  const size_t shared =
      groups ? kWarps * size_t(args.experts + args.choice.groups) * sizeof(float) : 0;
  kernel<<<(batch.tokens + kWarps - 1) / kWarps, kWarps * 32, shared, context.stream()>>>(params);
  check_launch("choice of experts");
}

}  // namespace lk::cuda
