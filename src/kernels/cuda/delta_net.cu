#include "kernels/cuda/recurrent.cuh"

namespace lk::cuda {
namespace {

constexpr int kWarps = 4;

struct Prepare {
  const float* convolved;  // [T, channels]: q, k, v
  const float *a, *b;      // [T, heads]
  const float *a_log, *dt_bias;
  const int32_t* sequence;
  float *kq, *dots, *rates;  // of the Scan
  int channels, key_heads, key_dim, padded, heads;
};

// A block a token, a warp a key head: q and k scaled to length 1, and the heads' rates.
__global__ void __launch_bounds__(kWarps * 32) prepare_kernel(const Prepare p) {
  const int64_t t = blockIdx.x;
  if (p.sequence[t] < 0) return;
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x; h < p.heads; h += kWarps * 32) {
    const int64_t at = t * p.heads + h;
    const float step = softplus(p.a[at] + p.dt_bias[h]);
    p.rates[at * 2] = expf(-expf(p.a_log[h]) * step);
    p.rates[at * 2 + 1] = sigmoid(p.b[at]);
  }
  for (int h = threadIdx.x / 32; h < p.key_heads; h += kWarps) {
    const float* q = p.convolved + t * p.channels + h * p.key_dim;
    const float* k = q + p.key_heads * p.key_dim;
    float qq = 0, kk = 0, both = 0;
    for (int i = lane; i < p.key_dim; i += 32) {
      qq += q[i] * q[i];
      kk += k[i] * k[i];
      both += q[i] * k[i];
    }
    const float q_scale = 1.0f / sqrtf((warp_sum(qq) + 1e-6f) * static_cast<float>(p.key_dim));
    const float k_scale = 1.0f / sqrtf(warp_sum(kk) + 1e-6f);
    both = warp_sum(both) * q_scale * k_scale;
    const int64_t at = t * p.key_heads + h;
    float* to = p.kq + at * 2 * p.padded;
    for (int i = lane; i < p.padded; i += 32) {
      const bool there = i < p.key_dim;
      to[i] = there ? k[i] * k_scale : 0.0f;
      to[p.padded + i] = there ? q[i] * q_scale : 0.0f;
    }
    if (lane == 0) p.dots[at] = both;
  }
}

// out = norm(out) * silu(z), a warp a head.
__global__ void __launch_bounds__(kWarps * 32)
    gate_kernel(float* out, const float* z, const Norm norm, const int32_t* sequence, int heads,
                int width, int64_t count) {
  const int64_t item = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (item >= count || sequence[item / heads] < 0) return;
  const int lane = threadIdx.x % 32;
  float* row = out + item * width;
  float sum = 0;
  for (int i = lane; i < width; i += 32) sum += row[i] * row[i];
  const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(width) + norm.eps);
  for (int i = lane; i < width; i += 32)
    row[i] = norm.weight[i] * (row[i] * scale) * silu(z[item * width + i]);
}

}  // namespace

void mix_delta_net(Context& context, const Batch& batch, const DeltaNetArgs& args, const float* u,
                   const float* z, const float* a, const float* b) {
  if (batch.tokens == 0) return;
  const int keys = args.key_heads * args.key_dim, values = args.value_heads * args.value_dim;
  const int channels = 2 * keys + values, padded = padded_keys(args.key_dim);
  const size_t tokens = batch.tokens;
  // 16-byte pieces first.
  float* kq = context.scratch<float>(Scratch::kProjected2,
                                     tokens * (2 * size_t(args.key_heads) * padded + channels +
                                               args.key_heads + 2 * args.value_heads));
  float* convolved = kq + tokens * 2 * args.key_heads * padded;
  float* dots = convolved + tokens * channels;
  float* rates = dots + tokens * args.key_heads;
  run_convolution(
      context, batch,
      {u, channels, args.conv, nullptr, args.kernel, channels, args.state.conv, convolved});
  prepare_kernel<<<batch.tokens, kWarps * 32, 0, context.stream()>>>(
      {convolved, a, b, args.a_log, args.dt_bias, batch.sequence, kq, dots, rates, channels,
       args.key_heads, args.key_dim, padded, args.value_heads});
  run_scan(context, batch,
           {true, kq, dots, rates, convolved + 2 * keys, channels, args.key_heads, args.key_dim,
            args.value_heads, args.value_dim, args.state.state, args.out});
  const int64_t items = int64_t{batch.tokens} * args.value_heads;
  gate_kernel<<<static_cast<unsigned>((items + kWarps - 1) / kWarps), kWarps * 32, 0,
                context.stream()>>>(args.out, z, args.out_norm, batch.sequence, args.value_heads,
                                    args.value_dim, items);
  check_launch("gated delta rule");
}

}  // namespace lk::cuda
