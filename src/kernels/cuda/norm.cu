#include <algorithm>

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/stages.h"

namespace lk::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKept = 4;  // float4s of a row that a thread keeps between the passes

__device__ void store4(const float4 v, int i, __nv_bfloat16* out, float* out_f32) {
  if (out) reinterpret_cast<uint2*>(out)[i] = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
  if (out_f32) reinterpret_cast<float4*>(out_f32)[i] = v;
}

// weight null: ones.
__device__ float4 scaled(const float4 v, const float4* weight, int i, float scale) {
  const float4 w = weight ? weight[i] : float4{1, 1, 1, 1};
  return {w.x * (v.x * scale), w.y * (v.y * scale), w.z * (v.z * scale), w.w * (v.w * scale)};
}

__device__ float square_sum(const float4& v) {
  return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

// Rows of whole float4s. The first kKept of each thread stay in registers.
__global__ void __launch_bounds__(kThreads)
    norm4_kernel(const float* x, const float* weight, float eps, int width,
                 const int32_t* row_token, __nv_bfloat16* out, float* out_f32) {
  __shared__ float sums[32];
  const int64_t row = blockIdx.x, token = row_token ? row_token[row] : row;
  if (token < 0) return;
  const auto* from = reinterpret_cast<const float4*>(x + token * width);
  const auto* by = reinterpret_cast<const float4*>(weight);
  if (out) out += row * width;
  if (out_f32) out_f32 += row * width;
  const int count = width / 4;
  float4 kept[kKept];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kThreads;
    kept[k] = i < count ? from[i] : float4{};
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k) sum += square_sum(kept[k]);
  for (int i = threadIdx.x + kKept * kThreads; i < count; i += kThreads) sum += square_sum(from[i]);
  const float scale =
      weight ? 1.0f / sqrtf(block_sum(sum, sums) / static_cast<float>(width) + eps) : 1.0f;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = threadIdx.x + k * kThreads;
    if (i < count) store4(scaled(kept[k], by, i, scale), i, out, out_f32);
  }
  for (int i = threadIdx.x + kKept * kThreads; i < count; i += kThreads)
    store4(scaled(from[i], by, i, scale), i, out, out_f32);
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(const float* x, const float* weight, float eps, int width, const int32_t* row_token,
                __nv_bfloat16* out, float* out_f32) {
  __shared__ float sums[32];
  const int64_t row = blockIdx.x, token = row_token ? row_token[row] : row;
  if (token < 0) return;
  const float* from = x + token * width;
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) sum += from[i] * from[i];
  const float scale =
      weight ? 1.0f / sqrtf(block_sum(sum, sums) / static_cast<float>(width) + eps) : 1.0f;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const float v = (weight ? weight[i] : 1.0f) * (from[i] * scale);
    if (out) out[row * width + i] = __float2bfloat16_rn(v);
    if (out_f32) out_f32[row * width + i] = v;
  }
}

__global__ void gather_kernel(const int32_t* from, const int32_t* at, int count, int32_t* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = from[at[i]];
}

bool is_aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

void run_norm(Context& context, const float* x, const Norm& norm, int rows, int width,
              const int32_t* row_token, __nv_bfloat16* out, float* out_f32) {
  if (rows == 0) return;
  const bool whole = width % 4 == 0 && is_aligned(x, 16) && is_aligned(norm.weight, 16) &&
                     is_aligned(out, 8) && is_aligned(out_f32, 16);
  const auto kernel = whole ? norm4_kernel : norm_kernel;
  kernel<<<rows, kThreads, 0, context.stream()>>>(x, norm.weight, norm.eps, width, row_token, out,
                                                  out_f32);
  check_launch("norm");
}

void run_gather(Context& context, const int32_t* from, const int32_t* at, int count, int32_t* out) {
  if (count == 0) return;
  gather_kernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, context.stream()>>>(from, at,
                                                                                      count, out);
  check_launch("slots of rows");
}

}  // namespace lk::cuda
