#include "kernels/reference/recurrent.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/primitives.h"

namespace lk::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// The tokens of one sequence in this step.
struct Span {
  int64_t first, count, slot;
  bool fresh;  // starts from zeros
};

Span span_of(const Batch& batch, int64_t sequence) {
  const int64_t first = batch.query_start[sequence];
  const int64_t count = batch.query_start[sequence + 1] - first;
  return {first, count, batch.state_slot[sequence], count > 0 && batch.positions[first] == 0};
}

struct Convolution {
  const float* weight;  // [kernel, channels]
  const float* bias;    // [channels] or null
  int kernel;
  int64_t channels;
};

// out[t] = silu(bias + sum_j weight[j] u[t - kernel + 1 + j]); u: rows `stride` apart. `state`: the
// kernel - 1 inputs before the first, replaced by the last ones.
void convolve(const Convolution& conv, const Span& span, const float* u, int64_t stride,
              float* state, float* out) {
  const int64_t before = conv.kernel - 1;
  if (span.count == 0) return;
  std::vector<float> inputs((before + span.count) * conv.channels, 0.0f);
  if (!span.fresh) std::copy_n(state, before * conv.channels, inputs.data());
  for (int64_t t = 0; t < span.count; ++t) {
    std::copy_n(u + (span.first + t) * stride, conv.channels,
                &inputs[(before + t) * conv.channels]);
  }
  for (int64_t t = 0; t < span.count; ++t) {
    for (int64_t c = 0; c < conv.channels; ++c) {
      double sum = conv.bias ? conv.bias[c] : 0;
      for (int j = 0; j < conv.kernel; ++j)
        sum += double{conv.weight[j * conv.channels + c]} * inputs[(t + j) * conv.channels + c];
      out[(span.first + t) * conv.channels + c] = static_cast<float>(silu(sum));
    }
  }
  std::copy_n(inputs.data() + span.count * conv.channels, before * conv.channels, state);
}

void convolve_all(ThreadPool& pool, const Batch& batch, const Convolution& conv, const float* u,
                  int64_t stride, const StateLayer& state, float* out) {
  pool.run(batch.sequences, [&](int64_t s, int) {
    const Span span = span_of(batch, s);
    convolve(conv, span, u, stride, state.conv + span.slot * (conv.kernel - 1) * conv.channels,
             out);
  });
}

// S = decay S; d = gain (v - S^T k), or gain v without the delta rule; S += k d^T; out = S^T q.
// state: [key_dim, value_dim].
void step(const Rates& rates, bool delta, int key_dim, int value_dim, const float* q,
          const float* k, const float* v, float* state, float* out) {
  std::vector<double> d(value_dim), o(value_dim, 0.0);
  for (int j = 0; j < value_dim; ++j) {
    double seen = 0;
    for (int i = 0; delta && i < key_dim; ++i)
      seen += rates.decay * state[i * value_dim + j] * k[i];
    d[j] = rates.gain * (v[j] - seen);
  }
  for (int i = 0; i < key_dim; ++i) {
    for (int j = 0; j < value_dim; ++j) {
      float& s = state[i * value_dim + j];
      s = static_cast<float>(rates.decay * s + k[i] * d[j]);
      o[j] += double{s} * q[i];
    }
  }
  for (int j = 0; j < value_dim; ++j) out[j] = static_cast<float>(o[j]);
}

// x * factor / sqrt(sum x^2 + 1e-6).
std::vector<float> unit_length(const float* x, int n, double factor) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  std::vector<float> unit(n);
  for (int i = 0; i < n; ++i) unit[i] = static_cast<float>(x[i] * factor / std::sqrt(sum + 1e-6));
  return unit;
}

}  // namespace

Rates delta_net_rates(float a, float b, float a_log, float dt_bias) {
  return {std::exp(-std::exp(double{a_log}) * softplus(double{a} + dt_bias)), sigmoid(b)};
}

Rates mamba_rates(float dt, float a_log, float dt_bias, float min, float max) {
  // NaN passes.
  double step = softplus(double{dt} + dt_bias);
  if (step < min) step = min;
  if (step > max) step = max;
  return {std::exp(-std::exp(double{a_log}) * step), step};
}

void delta_net(ThreadPool& pool, const Batch& batch, const DeltaNetArgs& args, const float* u,
               const float* z, const float* a, const float* b) {
  const int key_dim = args.key_dim, value_dim = args.value_dim, heads = args.value_heads;
  const int64_t keys = int64_t{args.key_heads} * key_dim, values = int64_t{heads} * value_dim;
  const int64_t channels = 2 * keys + values;
  std::vector<float> c(batch.tokens * channels);
  convolve_all(pool, batch, {args.conv, nullptr, args.kernel, channels}, u, channels, args.state,
               c.data());
  pool.run(int64_t{batch.sequences} * heads, [&](int64_t item, int) {
    const Span span = span_of(batch, item / heads);
    const int64_t h = item % heads, key_head = h / (heads / args.key_heads);
    float* state = args.state.state + (span.slot * heads + h) * key_dim * value_dim;
    if (span.fresh) std::fill_n(state, key_dim * value_dim, 0.0f);
    for (int64_t t = span.first; t < span.first + span.count; ++t) {
      const float* row = &c[t * channels];
      const auto q = unit_length(row + key_head * key_dim, key_dim, 1.0 / std::sqrt(key_dim));
      const auto k = unit_length(row + keys + key_head * key_dim, key_dim, 1.0);
      const Rates rates =
          delta_net_rates(a[t * heads + h], b[t * heads + h], args.a_log[h], args.dt_bias[h]);
      float* out = args.out + t * values + h * value_dim;
      step(rates, true, key_dim, value_dim, q.data(), k.data(), row + 2 * keys + h * value_dim,
           state, out);
      rms_norm(out, args.out_norm, value_dim, out);
      for (int j = 0; j < value_dim; ++j)
        out[j] = static_cast<float>(out[j] * silu(z[t * values + h * value_dim + j]));
    }
  });
}

void mamba(ThreadPool& pool, const Batch& batch, const MambaArgs& args, const float* projected) {
  const int state_dim = args.state_dim, head_dim = args.head_dim, heads = args.heads;
  const int64_t inner = int64_t{heads} * head_dim, groups = int64_t{args.groups} * state_dim;
  const int64_t channels = inner + 2 * groups, rows = inner + channels + heads;
  std::vector<float> c(batch.tokens * channels);
  convolve_all(pool, batch, {args.conv, args.conv_bias, args.kernel, channels}, projected + inner,
               rows, args.state, c.data());
  pool.run(int64_t{batch.sequences} * heads, [&](int64_t item, int) {
    const Span span = span_of(batch, item / heads);
    const int64_t h = item % heads, group = h / (heads / args.groups);
    float* state = args.state.state + (span.slot * heads + h) * state_dim * head_dim;
    if (span.fresh) std::fill_n(state, state_dim * head_dim, 0.0f);
    for (int64_t t = span.first; t < span.first + span.count; ++t) {
      const float* x = &c[t * channels] + h * head_dim;
      const float* b = &c[t * channels] + inner + group * state_dim;
      const Rates rates = mamba_rates(projected[t * rows + inner + channels + h], args.a_log[h],
                                      args.dt_bias[h], args.dt_min, args.dt_max);
      float* out = args.out + t * inner + h * head_dim;
      step(rates, false, state_dim, head_dim, b + groups, b, x, state, out);
      for (int j = 0; j < head_dim; ++j)
        out[j] = static_cast<float>((out[j] + double{args.d[h]} * x[j]) *
                                    silu(projected[t * rows + h * head_dim + j]));
    }
  });
  const int64_t width = inner / args.groups;
  for (int64_t i = 0; i < batch.tokens * int64_t{args.groups}; ++i) {
    float* out = args.out + i * width;
    const Norm norm{args.out_norm.weight + i % args.groups * width, args.out_norm.eps};
    rms_norm(out, norm, width, out);
  }
}

}  // namespace lk::reference
