// The recurrent mixers' inner loops: the causal convolution and the scan over tokens that Gated
// DeltaNet and Mamba-2 share. Token by token and never in chunks: DeltaNet's chunked form costs
// about 90,000 multiply-adds a token and head (chunks of 64, 128 x 128) against 49,000 of the
// recurrence, which matrix units repay and vectors do not; and a recurrence has the same bits
// wherever a prompt is cut.
#pragma once

#include "kernels/cpu/body/elementwise.h"

namespace lk::cpu {
namespace {

template <class I>
void gate_silu(const float* gate, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += kRows) {
    const typename I::F g = load_part<I>(gate + i, n - i);
    store_part<I>(x + i, I::mul(load_part<I>(x + i, n - i), I::mul(g, sigmoid<I>(g))), n - i);
  }
}

template <class I>
void gate_sigmoid(const float* gate, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += kRows) {
    const typename I::F g = load_part<I>(gate + i, n - i);
    store_part<I>(x + i, I::mul(load_part<I>(x + i, n - i), sigmoid<I>(g)), n - i);
  }
}

template <class I>
void add_scaled(const float* a, float factor, int64_t n, float* x) {
  for (int64_t i = 0; i < n; i += kRows) {
    store_part<I>(
        x + i, I::fma(load_part<I>(a + i, n - i), I::broadcast(factor), load_part<I>(x + i, n - i)),
        n - i);
  }
}

template <class I>
void unit_length(float* x, int64_t n, float factor) {
  typename I::F sum = I::zero();
  for (int64_t i = 0; i < n; i += kRows) {
    const typename I::F v = load_part<I>(x + i, n - i);
    sum = I::fma(v, v, sum);
  }
  const typename I::F scale = I::broadcast(factor / __builtin_sqrtf(reduce<I>(sum) + 1e-6f));
  for (int64_t i = 0; i < n; i += kRows)
    store_part<I>(x + i, I::mul(load_part<I>(x + i, n - i), scale), n - i);
}

template <class I>
void convolve(const ConvolutionItem& c) {
  for (int64_t i = 0; i < c.count; i += kRows) {
    const int64_t n = c.count - i;
    typename I::F sum = c.bias ? load_part<I>(c.bias + i, n) : I::zero();
    for (int j = 0; j < c.kernel; ++j) {
      sum = I::fma(load_part<I>(c.weight + j * c.weight_stride + i, n),
                   load_part<I>(c.rows[j] + i, n), sum);
    }
    store_part<I>(c.out + i, I::mul(sum, sigmoid<I>(sum)), n);
  }
}

// One token over a block of N vectors of columns; rows of `state` lie `stride` apart. Sums over the
// keys are two in turn, for even and odd ones: with N vectors each enough to hide the latency of a
// multiply-add, and an order that no split of the columns changes.
template <class I, int N, bool kDelta>
inline void scan_token(const ScanItem& s, int t, float* state, int64_t stride) {
  using F = typename I::F;
  const float* q = s.q + t * s.stride;
  const float* k = s.k + t * s.stride;
  const F decay = I::broadcast(s.decay[t * s.rate_stride]);
  const F gain = I::broadcast(s.gain[t * s.rate_stride]);
  F d[N], even[N], odd[N];
  // Calls key(i, sum) for every key with the sum that it belongs to.
  auto for_each_key = [&](auto& key) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) even[n] = odd[n] = I::zero();
    int i = 0;
    for (; i + 2 <= s.key_dim; i += 2) {
      key(i, even);
      key(i + 1, odd);
    }
    if (i < s.key_dim) key(i, even);
  };
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n)
    d[n] = load_part<I>(s.v + t * s.stride + n * kRows, s.columns - n * kRows);
  if constexpr (kDelta) {
    auto see = [&](int i, F(&sum)[N]) __attribute__((always_inline)) {
      const F kb = I::broadcast(k[i]);
      const float* row = state + i * stride;
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sum[n] = I::fma(I::load(row + n * kRows), kb, sum[n]);
    };
    for_each_key(see);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) d[n] = I::sub(d[n], I::mul(decay, I::add(even[n], odd[n])));
  }
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) d[n] = I::mul(gain, d[n]);
  auto update = [&](int i, F(&sum)[N]) __attribute__((always_inline)) {
    const F kb = I::broadcast(k[i]), qb = I::broadcast(q[i]);
    float* row = state + i * stride;
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const F value = I::fma(kb, d[n], I::mul(decay, I::load(row + n * kRows)));
      I::store(row + n * kRows, value);
      sum[n] = I::fma(value, qb, sum[n]);
    }
  };
  for_each_key(update);
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) {
    store_part<I>(s.out + t * s.out_stride + n * kRows, I::add(even[n], odd[n]),
                  s.columns - n * kRows);
  }
}

// Asks for the next token's vectors: rows lie tens of KiB apart, where no hardware looks ahead.
// Saves 5 to 11% of the scan on a Xeon.
inline void prefetch_token(const ScanItem& s, int t) {
  if (t >= s.tokens) return;
  constexpr int kLine = 16;  // floats
  for (int i = 0; i < s.key_dim; i += kLine) {
    __builtin_prefetch(s.k + t * s.stride + i);
    __builtin_prefetch(s.q + t * s.stride + i);
  }
  for (int i = 0; i < s.columns; i += kLine) __builtin_prefetch(s.v + t * s.stride + i);
}

template <class I, int N, bool kDelta>
void scan_block(const ScanItem& s) {
  // A decode step leaves the state where it is: 1.5 us for 128 x 64 on a core of a Xeon, 2.9 with
  // copies.
  if (s.tokens == 1 && !s.fresh && s.columns == N * kRows)
    return scan_token<I, N, kDelta>(s, 0, s.state, s.state_stride);
  // The block's columns side by side, padded: rows of the state lie value_dim apart, at distances
  // that share few of the first cache's sets.
  constexpr int64_t kStride = N * kRows;
  for (int64_t i = 0; i < s.key_dim; ++i) {
    for (int64_t c = 0; c < kStride; c += kRows) {
      I::store(s.scratch + i * kStride + c,
               s.fresh ? I::zero() : load_part<I>(s.state + i * s.state_stride + c, s.columns - c));
    }
  }
  for (int t = 0; t < s.tokens; ++t) {
    prefetch_token(s, t + 1);
    scan_token<I, N, kDelta>(s, t, s.scratch, kStride);
  }
  for (int64_t i = 0; i < s.key_dim; ++i) {
    for (int64_t c = 0; c < kStride; c += kRows) {
      store_part<I>(s.state + i * s.state_stride + c, I::load(s.scratch + i * kStride + c),
                    s.columns - c);
    }
  }
}

template <class I>
void scan(const ScanItem& item) {
  dispatch_index<I::kScanVectors>((item.columns + kRows - 1) / kRows - 1, [&]<int N>() {
    if (item.delta)
      scan_block<I, N + 1, true>(item);
    else
      scan_block<I, N + 1, false>(item);
  });
}

}  // namespace
}  // namespace lk::cpu
