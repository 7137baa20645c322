#include "kernels/cuda/recurrent.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 4;

struct Params {
  MambaArgs args;
  const float* projected;  // [T, rows]: z, x B C, dt
  const float* convolved;  // [T, channels]: x, B, C
  const int32_t* sequence;
  float *kq, *dots, *rates;  // of the Scan
  int rows, channels, inner, padded;
};

// A block a token, a warp a group: B and C to where the scan reads them, and the heads' rates.
__global__ void __launch_bounds__(kWarps * 32) prepare_kernel(const Params p) {
  const MambaArgs& args = p.args;
  const int64_t t = blockIdx.x;
  if (p.sequence[t] < 0) return;
  const int lane = threadIdx.x % 32, n = args.state_dim;
  for (int h = threadIdx.x; h < args.heads; h += kWarps * 32) {
    const float dt = p.projected[t * p.rows + p.inner + p.channels + h];
    float step = softplus(dt + args.dt_bias[h]);
    // NaN passes.
    if (step < args.dt_min) step = args.dt_min;
    if (step > args.dt_max) step = args.dt_max;
    const int64_t at = t * args.heads + h;
    p.rates[at * 2] = expf(-expf(args.a_log[h]) * step);
    p.rates[at * 2 + 1] = step;
  }
  for (int g = threadIdx.x / 32; g < args.groups; g += kWarps) {
    const float* b = p.convolved + t * p.channels + p.inner + g * n;
    const float* c = b + args.groups * n;
    float dot = 0;
    for (int i = lane; i < n; i += 32) dot += b[i] * c[i];
    dot = warp_sum(dot);
    const int64_t at = t * args.groups + g;
    float* to = p.kq + at * 2 * p.padded;
    for (int i = lane; i < p.padded; i += 32) {
      to[i] = i < n ? b[i] : 0.0f;
      to[p.padded + i] = i < n ? c[i] : 0.0f;
    }
    if (lane == 0) p.dots[at] = dot;
  }
}

// out = norm((out + d x) * silu(z)), a block a token and group. Each pass computes the products
// anew: they are cheaper than a place to keep them.
__global__ void __launch_bounds__(kWarps * 32) gate_kernel(const Params p) {
  __shared__ float sums[32];
  const MambaArgs& args = p.args;
  const int64_t t = blockIdx.x;
  if (p.sequence[t] < 0) return;
  const int width = p.inner / args.groups, first = blockIdx.y * width;
  float* out = args.out + t * p.inner;
  const float *x = p.convolved + t * p.channels, *z = p.projected + t * p.rows;
  const auto gated = [&](int i) {
    return (out[i] + args.d[i / args.head_dim] * x[i]) * silu(z[i]);
  };
  float sum = 0;
  for (int i = first + threadIdx.x; i < first + width; i += kWarps * 32) {
    const float v = gated(i);
    sum += v * v;
  }
  const float scale =
      1.0f / sqrtf(block_sum(sum, sums) / static_cast<float>(width) + args.out_norm.eps);
  for (int i = first + threadIdx.x; i < first + width; i += kWarps * 32)
    out[i] = args.out_norm.weight[i] * (gated(i) * scale);
}

}  // namespace

void mix_mamba(Context& context, const Batch& batch, const MambaArgs& args,
               const float* projected) {
  if (batch.tokens == 0) return;
  const int inner = args.heads * args.head_dim, channels = inner + 2 * args.groups * args.state_dim;
  const int rows = inner + channels + args.heads, padded = padded_keys(args.state_dim);
  const size_t tokens = batch.tokens;
  // 16-byte pieces first.
  float* kq = context.scratch<float>(
      Scratch::kProjected2,
      tokens * (2 * size_t(args.groups) * padded + channels + args.groups + 2 * args.heads));
  float* convolved = kq + tokens * 2 * args.groups * padded;
  float* dots = convolved + tokens * channels;
  float* rates = dots + tokens * args.groups;
  run_convolution(context, batch,
                  {projected + inner, rows, args.conv, args.conv_bias, args.kernel, channels,
                   args.state.conv, convolved});
  const Params params{args,  projected, convolved, batch.sequence, kq,    dots,
                      rates, rows,      channels,  inner,          padded};
  prepare_kernel<<<batch.tokens, kWarps * 32, 0, context.stream()>>>(params);
  run_scan(context, batch,
           {false, kq, dots, rates, convolved, channels, args.groups, args.state_dim, args.heads,
            args.head_dim, args.state.state, args.out});
  gate_kernel<<<dim3(batch.tokens, args.groups), kWarps * 32, 0, context.stream()>>>(params);
  check_launch("Mamba-2");
}

}  // namespace lk::cuda
