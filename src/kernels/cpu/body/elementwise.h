// Norms, activations, rotary embedding and the LoRA terms: everything that is not a weight product
// or attention.
#pragma once

#include "kernels/cpu/body/dispatch.h"
#include "kernels/cpu/isa.h"

namespace lk::cpu {
namespace {

// Sum of 16 lanes, halves added pairwise: the same tree on every instruction set.
template <class I>
inline float reduce(typename I::F a) {
  float v[16];
  I::store(v, a);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

// e^x, relative error below 2e-7 for x in [-87, 88]; clamped outside. Cody-Waite reduction, degree
// 6 Taylor polynomial of e^f, |f| <= ln2 / 2.
template <class I>
inline typename I::F exp(typename I::F x) {
  auto c = [](float v) { return I::broadcast(v); };
  x = I::min(I::max(x, c(-87.0f)), c(88.0f));
  const typename I::F n = I::round(I::mul(x, c(1.44269504088896341f)));
  typename I::F f = I::fma(n, c(-0.693359375f), x);
  f = I::fma(n, c(2.12194440e-4f), f);
  typename I::F p = c(1.0f / 720.0f);
  p = I::fma(p, f, c(1.0f / 120.0f));
  p = I::fma(p, f, c(1.0f / 24.0f));
  p = I::fma(p, f, c(1.0f / 6.0f));
  p = I::fma(p, f, c(0.5f));
  p = I::fma(p, f, c(1.0f));
  p = I::fma(p, f, c(1.0f));
  return I::mul(p, I::exp2_int(n));
}

template <class I>
inline typename I::F sigmoid(typename I::F x) {
  const typename I::F one = I::broadcast(1.0f);
  return I::div(one, I::add(one, exp<I>(I::sub(I::zero(), x))));
}

template <class I>
inline typename I::F load_part(const float* x, int64_t count) {
  if (count >= kRows) return I::load(x);
  float v[kRows] = {};
  for (int64_t i = 0; i < count; ++i) v[i] = x[i];
  return I::load(v);
}

template <class I>
inline void store_part(float* x, typename I::F value, int64_t count) {
  if (count >= kRows) return I::store(x, value);
  float v[kRows];
  I::store(v, value);
  for (int64_t i = 0; i < count; ++i) x[i] = v[i];
}

template <class I>
inline typename I::F load_bf16_part(const uint16_t* x, int64_t count) {
  if (count >= kRows) return I::load_bf16(x);
  uint16_t v[kRows] = {};
  for (int64_t i = 0; i < count; ++i) v[i] = x[i];
  return I::load_bf16(v);
}

// The largest magnitude of `count` values; NaN where one is no finite number.
template <class I>
inline float largest_magnitude(const float* x, int64_t count) {
  using F = typename I::F;
  F max = I::zero(), poison = I::zero();
  for (int64_t i = 0; i < count; i += kRows) {
    const F v = load_part<I>(x + i, count - i);
    max = I::max(max, I::max(v, I::sub(I::zero(), v)));
    poison = I::add(poison, I::sub(v, v));
  }
  float lanes[kRows], bad[kRows], largest = 0, sum = 0;
  I::store(lanes, max);
  I::store(bad, poison);
  for (int i = 0; i < kRows; ++i) {
    largest = lanes[i] > largest ? lanes[i] : largest;
    sum += bad[i];
  }
  return largest + sum;
}

template <class I>
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  typename I::F sum = I::zero();
  for (int64_t i = 0; i < n; i += kRows) {
    const typename I::F v = load_part<I>(x + i, n - i);
    sum = I::fma(v, v, sum);
  }
  const float scale = 1.0f / __builtin_sqrtf(reduce<I>(sum) / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = weight[i] * (x[i] * scale);
}

inline void rope(float* x, int heads, int head_dim, int rotary, const float* cos,
                 const float* sin) {
  const int half = rotary / 2;
  for (int h = 0; h < heads; ++h) {
    float* head = x + int64_t{h} * head_dim;
    for (int i = 0; i < half; ++i) {
      const float x1 = head[i], x2 = head[i + half];
      head[i] = x1 * cos[i] - x2 * sin[i];
      head[i + half] = x2 * cos[i] + x1 * sin[i];
    }
  }
}

template <class I, int N>
inline void shrink_rows(const uint16_t* a, const float* x, int64_t in, float scale, float* z) {
  typename I::F sum[N];
  for (int r = 0; r < N; ++r) sum[r] = I::zero();
  for (int64_t i = 0; i < in; i += kRows) {
    const typename I::F v = load_part<I>(x + i, in - i);
    for (int r = 0; r < N; ++r)
      sum[r] = I::fma(load_bf16_part<I>(a + r * in + i, in - i), v, sum[r]);
  }
  for (int r = 0; r < N; ++r) z[r] = scale * reduce<I>(sum[r]);
}

template <class I>
void shrink(const uint16_t* a, const float* x, int64_t in, int rank, float scale, float* z) {
  int r = 0;
  for (; r + 4 <= rank; r += 4) shrink_rows<I, 4>(a + r * in, x, in, scale, z + r);
  for (; r < rank; ++r) shrink_rows<I, 1>(a + r * in, x, in, scale, z + r);
}

template <class I>
void add_bias_lora(float* row, const float* bias, const LoraTerm& lora, int64_t group, int groups) {
  for (int g = 0; g < groups; ++g) {
    typename I::F y = I::load(row + g * kRows);
    if (bias) y = I::add(y, I::load(bias + g * kRows));
    if (lora.pair) {
      const int rank = lora.pair->rank;
      const uint16_t* b = lora.pair->b + (group + g) * rank * kRows;
      typename I::F delta = I::zero();
      for (int r = 0; r < rank; ++r)
        delta = I::fma(I::load_bf16(b + r * kRows), I::broadcast(lora.z[r]), delta);
      y = I::add(y, delta);
    }
    I::store(row + g * kRows, y);
  }
}

// g[i] = value(gate row i, up row i) of a row that holds pairs of row groups (gate, up).
template <class I, class Value>
inline void gate_rows(const float* row, int64_t count, float* g, Value&& value) {
  for (int64_t i = 0; i < count; i += kRows) {
    const typename I::F v = value(I::load(row + 2 * i), I::load(row + 2 * i + kRows));
    store_part<I>(g + i, v, count - i);
  }
}

template <class I>
void clamped_swiglu(const float* row, int64_t count, float alpha, float limit, float* g) {
  using F = typename I::F;
  const F one = I::broadcast(1.0f), top = I::broadcast(limit), bottom = I::broadcast(-limit);
  const F minus_alpha = I::broadcast(-alpha);
  gate_rows<I>(row, count, g, [&](F gate, F up) {
    // The values stand second, where the instructions hand NaN on.
    gate = I::min(top, gate);
    up = I::max(bottom, I::min(top, up));
    const F sigmoid = I::div(one, I::add(one, exp<I>(I::mul(minus_alpha, gate))));
    return I::mul(I::mul(I::add(up, one), gate), sigmoid);
  });
}

template <class I>
void relu2(const float* row, int64_t count, float* g) {
  for (int64_t i = 0; i < count; i += kRows) {
    // The value stands second, where the instruction hands NaN on.
    const typename I::F value = I::max(I::zero(), I::load(row + i));
    store_part<I>(g + i, I::mul(value, value), count - i);
  }
}

template <class I>
void swiglu(const float* row, int64_t count, float* g) {
  using F = typename I::F;
  const F one = I::broadcast(1.0f);
  gate_rows<I>(row, count, g, [&](F gate, F up) {
    const F sigmoid = I::div(one, I::add(one, exp<I>(I::sub(I::zero(), gate))));
    return I::mul(I::mul(up, gate), sigmoid);
  });
}

}  // namespace
}  // namespace lk::cpu
