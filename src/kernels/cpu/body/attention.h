// One query token's attention over the paged cache for the heads that share a KV head. Keys are
// taken in blocks of 16 at absolute positions, so the order of every sum follows from (position,
// window) alone.
#pragma once

#include "kernels/cpu/body/elementwise.h"

namespace lk::cpu {
namespace {

template <class I>
inline typename I::F load_kv(const float* p) {
  return I::load(p);
}
template <class I>
inline typename I::F load_kv(const uint16_t* p) {
  return I::load_bf16(p);
}

// scores[h][block][16] = scale * q[h] . k for N heads.
template <class I, int N, class T>
inline void score_heads(const AttentionItem& a, const T* keys, const float* q, float* scores,
                        int64_t score_stride) {
  using F = typename I::F;
  const int first_block = a.first / kKvBlockTokens, last_block = a.last / kKvBlockTokens;
  const F scale = I::broadcast(a.scale);
  for (int b = first_block; b <= last_block; ++b) {
    const T* k = keys + a.blocks[b] * a.block_stride + a.head_offset;
    F sum[N];
    for (int h = 0; h < N; ++h) sum[h] = I::zero();
    for (int d = 0; d < a.head_dim; ++d) {
      const F key = load_kv<I>(k + d * kKvBlockTokens);
#pragma GCC unroll 8
      for (int h = 0; h < N; ++h) sum[h] = I::fma(key, I::broadcast(q[h * a.head_dim + d]), sum[h]);
    }
    for (int h = 0; h < N; ++h)
      I::store(scores + h * score_stride + (b - first_block) * kKvBlockTokens,
               I::mul(sum[h], scale));
  }
}

// out[0..16 N) of one head = sum over keys of p[j] v[j].
template <class I, int N, class T>
inline void weigh_values(const AttentionItem& a, const T* values, const float* p, int d0,
                         float* out) {
  using F = typename I::F;
  const int first_block = a.first / kKvBlockTokens;
  F sum[N];
  for (int n = 0; n < N; ++n) sum[n] = I::zero();
  for (int b = first_block; b <= a.last / kKvBlockTokens; ++b) {
    const T* v = values + a.blocks[b] * a.block_stride + a.head_offset + d0;
    const float* pb = p + (b - first_block) * kKvBlockTokens;
    const int begin = b == first_block ? a.first % kKvBlockTokens : 0;
    const int end = b == a.last / kKvBlockTokens ? a.last % kKvBlockTokens + 1 : kKvBlockTokens;
    for (int j = begin; j < end; ++j) {
      const F weight = I::broadcast(pb[j]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
        sum[n] = I::fma(load_kv<I>(v + j * a.head_dim + n * kRows), weight, sum[n]);
    }
  }
  for (int n = 0; n < N; ++n) I::store(out + d0 + n * kRows, sum[n]);
}

// Turns one head's scores into exp(score - max) and returns 1 / (their sum + the sink's). Keys
// outside [first, last] count nothing.
template <class I>
inline float softmax(const AttentionItem& a, int head, float* s) {
  const int begin = a.first % kKvBlockTokens;
  const int end = begin + a.last - a.first + 1;
  const int padded = (end + kRows - 1) / kRows * kRows;
  constexpr float kNone = -3.0e38f;
  for (int j = 0; j < begin; ++j) s[j] = kNone;
  for (int j = end; j < padded; ++j) s[j] = kNone;
  float max = a.sinks ? a.sinks[head] : s[begin];
  for (int j = begin; j < end; ++j) max = s[j] > max ? s[j] : max;
  typename I::F sum = I::zero();
  for (int j = 0; j < padded; j += kRows) {
    typename I::F p = exp<I>(I::sub(I::load(s + j), I::broadcast(max)));
    I::store(s + j, p);
    if (j < begin || j + kRows > end) {
      for (int i = 0; i < kRows; ++i) {
        if (j + i < begin || j + i >= end) s[j + i] = 0.0f;
      }
      p = I::load(s + j);
    }
    sum = I::add(sum, p);
  }
  float total = reduce<I>(sum);
  if (a.sinks) {
    float lanes[kRows];
    I::store(lanes, exp<I>(I::broadcast(a.sinks[head] - max)));
    total += lanes[0];
  }
  return 1.0f / total;
}

template <class I, class T>
void attention_typed(const AttentionItem& a) {
  const auto* keys = static_cast<const T*>(a.keys);
  const auto* values = static_cast<const T*>(a.values);
  const int64_t score_stride =
      (a.last / kKvBlockTokens - a.first / kKvBlockTokens + 1) * int64_t{kKvBlockTokens};
  int h = 0;
  for (; h + 4 <= a.heads; h += 4) {
    score_heads<I, 4>(a, keys, a.q + h * a.head_dim, a.scores + h * score_stride, score_stride);
  }
  for (; h < a.heads; ++h)
    score_heads<I, 1>(a, keys, a.q + h * a.head_dim, a.scores + h * score_stride, score_stride);
  for (h = 0; h < a.heads; ++h) {
    float* p = a.scores + h * score_stride;
    const float scale = softmax<I>(a, h, p);
    float* out = a.out + int64_t{h} * a.head_dim;
    int d = 0;
    for (; d + 4 * kRows <= a.head_dim; d += 4 * kRows) weigh_values<I, 4>(a, values, p, d, out);
    for (; d + kRows <= a.head_dim; d += kRows) weigh_values<I, 1>(a, values, p, d, out);
    for (; d < a.head_dim; ++d) {  // head sizes that are no multiple of 16
      float sum = 0.0f;
      for (int j = a.first; j <= a.last; ++j) {
        const T* v = values + a.blocks[j / kKvBlockTokens] * a.block_stride + a.head_offset;
        float value;
        if constexpr (sizeof(T) == 2) {
          const uint32_t bits = uint32_t{v[j % kKvBlockTokens * a.head_dim + d]} << 16;
          __builtin_memcpy(&value, &bits, sizeof(value));
        } else {
          value = v[j % kKvBlockTokens * a.head_dim + d];
        }
        sum += p[j - a.first / kKvBlockTokens * kKvBlockTokens] * value;
      }
      out[d] = sum;
    }
    for (d = 0; d < a.head_dim; ++d) out[d] *= scale;
  }
}

template <class I>
void attention(const AttentionItem& a) {
  if (a.type == KvType::kF32)
    attention_typed<I, float>(a);
  else
    attention_typed<I, uint16_t>(a);
}

}  // namespace
}  // namespace lk::cpu
