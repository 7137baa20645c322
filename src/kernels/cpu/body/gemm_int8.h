// Products of packed weights with activations rounded to int8 in groups of channels. Within a group
// every sum is one of whole numbers and exact, so that neither the instruction set nor the order
// matters; groups are added to the row's sum one after the other. Codes are decoded in registers
// for any number of tokens: a step of four channels costs two instructions, a twelfth of what it
// feeds.
#pragma once

#include <cstring>

#include "kernels/cpu/body/byte_codec.h"
#include "kernels/cpu/body/dispatch.h"
#include "kernels/cpu/body/elementwise.h"
#include "kernels/cpu/body/gemm.h"
#include "kernels/cpu/isa.h"

namespace lk::cpu {
namespace {

inline int int8_group(const PackedWeights& w) {
  return activation_scale(ActivationForm::kInt8, *w.format).group;
}

// A panel holds, group by group: [group / 4][tokens] words of four codes, the tokens' scales, the
// tokens' sums of codes.
template <int kSum>
constexpr int panel_words() {
  return kSum / 4 + 2;
}

inline size_t panel_bytes_int8(const PackedWeights& weights, int tokens) {
  const int group = int8_group(weights);
  return static_cast<size_t>(weights.padded_in / group) * (group / 4 + 2) * sizeof(uint32_t) *
         tokens;
}

// acc[t * stride + 16 r + lane] += sum over `groups` groups of kSum channels.
template <class I, class D, ByteCodec C, int kSum, int RG, int MT>
inline void tile_int8(const uint32_t* codes, int64_t code_stride, ScaleView scales, int64_t groups,
                      const uint32_t* x, float* acc, int64_t stride) {
  using F = typename I::F;
  using V = typename D::V;
  constexpr int kBias = D::template bias<C>();
  for (int64_t g = 0; g < groups; ++g) {
    const uint32_t* factors = x + kSum / 4 * MT;
    V part[RG][MT];
#pragma GCC unroll 16
    for (int t = 0; t < MT; ++t) {
      const V start = D::broadcast(-kBias * static_cast<int32_t>(factors[MT + t]));
#pragma GCC unroll 4
      for (int r = 0; r < RG; ++r) part[r][t] = start;
    }
    for (int w = 0; w < kSum / codes_per_word(C); ++w) {
      auto step = [&]<int J>() __attribute__((always_inline)) {
        typename D::Bytes bytes[RG];
#pragma GCC unroll 4
        for (int r = 0; r < RG; ++r) bytes[r] = D::template decode<C, J>(codes + r * code_stride);
#pragma GCC unroll 16
        for (int t = 0; t < MT; ++t) {
#pragma GCC unroll 4
          for (int r = 0; r < RG; ++r) part[r][t] = D::template dot<C>(part[r][t], bytes[r], x[t]);
        }
        x += MT;
      };
      for_each_index<codes_per_word(C) / 4>(step);
      codes += kRows;
    }
    const auto* x_scales = reinterpret_cast<const float*>(factors);
#pragma GCC unroll 4
    for (int r = 0; r < RG; ++r) {
      const F scale = load_scale<I, kSum>(
          scales.kind, scales.at + (g >> scales.shift) * scales.line + r * scales.stride);
#pragma GCC unroll 16
      for (int t = 0; t < MT; ++t) {
        float* a = acc + t * stride + r * kRows;
        const F both = I::mul(scale, I::broadcast(x_scales[t]));
        I::store(a, I::fma(D::to_float(part[r][t]), both, I::load(a)));
      }
    }
    x += 2 * MT;
  }
}

template <class I, class D, ByteCodec C, int kSum>
void gemm_bytes(const GemmItem& item) {
  const PackedWeights& w = *item.weights;
  const int64_t code_stride = w.words * kRows, groups = w.padded_in / kSum;
  const uint32_t* codes = w.group_codes(item.expert, item.group);
  const ScaleView scales = scale_view(w, item, 0);
  float* acc = item.acc;
  for (int i = 0; i < item.tile_count; ++i) {
    const auto* panel = static_cast<const uint32_t*>(item.tiles[i].panel);
    dispatch_index<I::kMaxTile>(item.tiles[i].tokens - 1, [&]<int T>() {
      // As in gemm.h: enough independent sums for one token, as many as registers hold for more.
      constexpr int kWide = T == 0 ? 4 : T <= 2 ? 2 : I::kTileGroups;
      int r = 0;
      for (; r + kWide <= item.groups; r += kWide) {
        tile_int8<I, D, C, kSum, kWide, T + 1>(codes + r * code_stride, code_stride,
                                               scales.rows_from(r), groups, panel, acc + r * kRows,
                                               kBlockRows);
      }
      for (; r < item.groups; ++r) {
        tile_int8<I, D, C, kSum, 1, T + 1>(codes + r * code_stride, code_stride,
                                           scales.rows_from(r), groups, panel, acc + r * kRows,
                                           kBlockRows);
      }
    });
    acc += int64_t{item.tiles[i].tokens} * kBlockRows;
  }
}

template <class I, class D>
void gemm_int8(const GemmItem& item) {
  const int tokens = start_sums(item);
  constexpr int kNarrow = scale_channels(GroupScale::kE4M3x16);
  if (item.weights->form.int8_weights)
    gemm_bytes<I, D, ByteCodec::kInt8, kGroup>(item);
  else if (item.weights->scale == GroupScale::kE4M3x16)
    gemm_bytes<I, D, ByteCodec::kE2M1, kNarrow>(item);
  else
    gemm_bytes<I, D, ByteCodec::kE2M1, kGroup>(item);
  apply_row_factor<I>(item, tokens);
}

// Rounds one group (reference/quantize.h) to `codes` [group]; x has `count` of its channels, the
// rest is 0. Returns the scale; NaN where a value is no number.
template <class I>
inline float quantize_group(const float* x, int64_t count, int group, int8_t* codes) {
  const float largest = largest_magnitude<I>(x, count < group ? count : group);
  const auto inverse = I::broadcast(largest > 0 ? 127.0f / largest : 0.0f);
  for (int64_t i = 0; i < group; i += kRows)
    I::store_bytes(codes + i, I::round(I::mul(load_part<I>(x + i, count - i), inverse)));
  return largest / 127.0f;
}

template <class I>
void pack_tile_int8(const TileRows& tile) {
  const PackedWeights& w = *tile.weights;
  const int group = int8_group(w), tokens = tile.tokens;
  const bool e2m1 = !w.form.int8_weights;
  auto* out = static_cast<uint32_t*>(tile.panel);
  for (int64_t first = 0; first < w.padded_in; first += group) {
    uint32_t* factors = out + group / 4 * tokens;
    for (int t = 0; t < tokens; ++t) {
      int8_t codes[kGroup], ordered[kGroup];
      float scale = quantize_group<I>(tile.rows[t] + first, w.in - first, group, codes);
      int32_t sum = 0;
      for (int c = 0; c < group; ++c) {
        // Of a word's eight E2M1 codes the low nibbles come first: 0 2 4 6, then 1 3 5 7.
        const int from = e2m1 ? c / 8 * 8 + c % 4 * 2 + c % 8 / 4 : c;
        ordered[c] = codes[from];
        sum += codes[c];
      }
      if (e2m1) scale *= 0.5f;  // the weights' table holds twice their values
      for (int i = 0; i < group / 4; ++i)
        std::memcpy(out + i * tokens + t, ordered + 4 * i, sizeof(uint32_t));
      std::memcpy(factors + t, &scale, sizeof(scale));
      std::memcpy(factors + tokens + t, &sum, sizeof(sum));
    }
    out = factors + 2 * tokens;
  }
}

}  // namespace
}  // namespace lk::cpu
