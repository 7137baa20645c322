// Products of packed weights with interleaved activations. For every output element: the products
// of 32 consecutive input channels (16, where so few share a scale) are summed one after the other,
// then scaled and added to the row's sum, which the row's factor multiplies at the end, whatever
// the number of tokens. That order is the contract which makes a token's result independent of its
// company; the two ways below (codes decoded in registers for few tokens, decoded once to a scratch
// tile for many) therefore give the same bits.
#pragma once

#include "kernels/cpu/body/dispatch.h"
#include "kernels/cpu/isa.h"

namespace lk::cpu {
namespace {

// Elements of which bfloat16 pair products are exact: only the activations are rounded.
template <class I, Element E>
constexpr bool uses_dot() {
  return I::kDot && (E == Element::kBF16 || E == Element::kE2M1 || E == Element::kE4M3);
}

constexpr int codes_per_word(Element e) {
  return e == Element::kF32 ? 1 : e == Element::kE2M1 ? 8 : e == Element::kE4M3 ? 4 : 2;
}

// Step J of a word: which bytes to load, and which code (or pair) of them to decode. E2M1 words are
// loaded anew for every byte, at an odd address: the table lookups read only the lowest bits of a
// lane, and a load costs less than the shift that it saves (the vector ports, not the load ports,
// bound a decode step on AVX-512). The last load reads 3 bytes past the line.
template <Element E>
constexpr int byte_of_step(int j) {
  return E == Element::kE2M1 ? j / 2 : 0;
}
template <Element E>
constexpr int code_of_step(int j) {
  return E == Element::kE2M1 ? j % 2 : j;
}

template <class I, Element E, int J>
inline typename I::W load_step(const uint32_t* codes) {
  return I::load_words(
      reinterpret_cast<const uint32_t*>(reinterpret_cast<const char*>(codes) + byte_of_step<E>(J)));
}

// Scales of the row groups of a block: those of group g of channels lie `line` bytes after those of
// the group before, once every 2^shift groups.
struct ScaleView {
  GroupScale kind;
  const uint8_t* at;
  int64_t stride;  // bytes between row groups
  int line, shift;

  ScaleView rows_from(int row_groups) const {
    return {kind, at + row_groups * stride, stride, line, shift};
  }
};

// Scales of the groups from channel `channel` on, which is a multiple of kScratchChannels.
inline ScaleView scale_view(const PackedWeights& w, const GemmItem& item, int64_t channel) {
  if (w.scale == GroupScale::kNone) return {w.scale, nullptr, 0, 0, 0};
  const int line = kRows * scale_bytes(w.scale);
  return {w.scale,
          w.group_scales(item.expert, item.group) + channel / scale_channels(w.scale) * line,
          w.scale_stride(), line, w.scale == GroupScale::kF32x128 ? 2 : 0};
}

// kSum: channels summed before the scale is applied.
template <class I, int kSum>
inline typename I::F load_scale(GroupScale kind, const uint8_t* line) {
  if constexpr (kSum == scale_channels(GroupScale::kE4M3x16)) return I::load_e4m3(line);
  return kind == GroupScale::kE8M0x32 ? I::load_e8m0(line)
                                      : I::load(reinterpret_cast<const float*>(line));
}

// acc[t * stride + 16 r + lane] += sum over `groups` groups of kSum channels, RG row groups, MT
// tokens. codes: RG runs of words, `code_stride` words apart; x: [channels, MT] floats or [channels
// / 2, MT] bfloat16 pairs.
template <class I, Element E, int kSum, int RG, int MT>
inline void tile(const uint32_t* codes, int64_t code_stride, ScaleView scales, int64_t groups,
                 const void* panel, float* acc, int64_t stride) {
  using F = typename I::F;
  using W = typename I::W;
  constexpr int kCodes = codes_per_word(E);
  constexpr bool kDot = uses_dot<I, E>();
  constexpr int kSteps = kDot ? kCodes / 2 : kCodes;  // products per word
  const auto* x = static_cast<const float*>(panel);
  for (int64_t g = 0; g < groups; ++g) {
    F part[RG][MT];
#pragma GCC unroll 4
    for (int r = 0; r < RG; ++r) {
#pragma GCC unroll 16
      for (int t = 0; t < MT; ++t) part[r][t] = I::zero();
    }
    for (int w = 0; w < kSum / kCodes; ++w) {
      auto step = [&]<int J>() __attribute__((always_inline)) {
        if constexpr (kDot) {
          W pair[RG];
#pragma GCC unroll 4
          for (int r = 0; r < RG; ++r) {
            pair[r] = I::template decode_pair<E, code_of_step<E>(J)>(
                load_step<I, E, J>(codes + r * code_stride));
          }
#pragma GCC unroll 16
          for (int t = 0; t < MT; ++t) {
            const uint32_t xp = reinterpret_cast<const uint32_t*>(x)[t];
#pragma GCC unroll 4
            for (int r = 0; r < RG; ++r) part[r][t] = I::dot(pair[r], xp, part[r][t]);
          }
        } else {
          F weight[RG];
#pragma GCC unroll 4
          for (int r = 0; r < RG; ++r) {
            weight[r] = I::template decode<E, code_of_step<E>(J)>(
                load_step<I, E, J>(codes + r * code_stride));
          }
#pragma GCC unroll 16
          for (int t = 0; t < MT; ++t) {
            const F xb = I::broadcast(x[t]);
#pragma GCC unroll 4
            for (int r = 0; r < RG; ++r) part[r][t] = I::fma(weight[r], xb, part[r][t]);
          }
        }
        x += MT;
      };
      for_each_index<kSteps>(step);
      codes += kRows;
    }
#pragma GCC unroll 4
    for (int r = 0; r < RG; ++r) {
      if (scales.kind != GroupScale::kNone) {
        const F scale = load_scale<I, kSum>(
            scales.kind, scales.at + (g >> scales.shift) * scales.line + r * scales.stride);
#pragma GCC unroll 16
        for (int t = 0; t < MT; ++t) {
          float* a = acc + t * stride + r * kRows;
          I::store(a, I::fma(part[r][t], scale, I::load(a)));
        }
      } else {
#pragma GCC unroll 16
        for (int t = 0; t < MT; ++t) {
          float* a = acc + t * stride + r * kRows;
          I::store(a, I::add(part[r][t], I::load(a)));
        }
      }
    }
  }
}

// The same for any number of row groups and tokens of a tile.
template <class I, Element E, int kSum, int MT>
void tile_rows(const uint32_t* codes, int64_t code_stride, ScaleView scales, int row_groups,
               int64_t groups, const void* panel, float* acc, int64_t stride) {
  // One token: four row groups at once, so that enough independent sums are in flight; else as many
  // as the registers hold.
  constexpr int kWide = MT == 1 ? 4 : MT <= 3 ? 2 : I::kTileGroups;
  int r = 0;
  auto at = [&](int group) { return codes + group * code_stride; };
  for (; r + kWide <= row_groups; r += kWide) {
    tile<I, E, kSum, kWide, MT>(at(r), code_stride, scales.rows_from(r), groups, panel,
                                acc + r * kRows, stride);
  }
  for (; r < row_groups; ++r) {
    tile<I, E, kSum, 1, MT>(at(r), code_stride, scales.rows_from(r), groups, panel, acc + r * kRows,
                            stride);
  }
}

// `channels`: a multiple of kGroup.
template <class I, Element E, int kSum>
void tile_any(int tokens, const uint32_t* codes, int64_t code_stride, ScaleView scales,
              int row_groups, int64_t channels, const void* panel, float* acc, int64_t stride) {
  dispatch_index<I::kMaxTile>(tokens - 1, [&]<int T>() {
    tile_rows<I, E, kSum, T + 1>(codes, code_stride, scales, row_groups, channels / kSum, panel,
                                 acc, stride);
  });
}

// Channels that are decoded to scratch at once: with 4 row groups 32 KiB of float32, which stays in
// the first cache; and as many as share a scale at most.
constexpr int kScratchChannels = 128;
static_assert(kScratchChannels % scale_channels(GroupScale::kF32x128) == 0);

// Decodes `groups` groups of channels of one row group to [channels, 16] floats (or [channels / 2,
// 16] pairs).
template <class I, Element E>
void decode_tile(const uint32_t* codes, int64_t groups, float* out) {
  constexpr int kCodes = codes_per_word(E);
  for (int64_t w = 0; w < groups * (kGroup / kCodes); ++w) {
    auto step = [&]<int J>() __attribute__((always_inline)) {
      const typename I::W words = load_step<I, E, J>(codes + w * kRows);
      if constexpr (uses_dot<I, E>())
        I::store_words(out, I::template decode_pair<E, code_of_step<E>(J)>(words));
      else
        I::store(out, I::template decode<E, code_of_step<E>(J)>(words));
      out += kRows;
    };
    for_each_index<uses_dot<I, E>() ? kCodes / 2 : kCodes>(step);
  }
}

template <class I, Element E, int kSum = kGroup>
void gemm_element(const GemmItem& item) {
  const PackedWeights& w = *item.weights;
  const int64_t code_stride = w.words * kRows, groups = w.padded_in / kGroup;
  const uint32_t* codes = w.group_codes(item.expert, item.group);

  // Values already in their final form need no scratch.
  constexpr bool kDirect = E == Element::kF32 || (uses_dot<I, E>() && E == Element::kBF16);
  if (kDirect || item.tile_count == 1) {
    float* acc = item.acc;
    for (int i = 0; i < item.tile_count; ++i) {
      tile_any<I, E, kSum>(item.tiles[i].tokens, codes, code_stride, scale_view(w, item, 0),
                           item.groups, w.padded_in, item.tiles[i].panel, acc, kBlockRows);
      acc += int64_t{item.tiles[i].tokens} * kBlockRows;
    }
    return;
  }
  // Decoded codes: float32, or pairs that the bfloat16 form reads as they are.
  constexpr Element kDecoded = uses_dot<I, E>() ? Element::kBF16 : Element::kF32;
  constexpr int kLines =
      uses_dot<I, E>() ? kGroup / 2 : kGroup;  // panel entries and scratch lines of one group
  constexpr int kChunk = kScratchChannels / kGroup;
  for (int64_t g = 0; g < groups; g += kChunk) {
    const int64_t count = groups - g < kChunk ? groups - g : kChunk;
    const int64_t scratch_stride = int64_t{kChunk} * kLines * kRows;
    for (int r = 0; r < item.groups; ++r) {
      decode_tile<I, E>(codes + r * code_stride + g * (kGroup / codes_per_word(E)) * kRows, count,
                        item.scratch + r * scratch_stride);
    }
    float* acc = item.acc;
    for (int i = 0; i < item.tile_count; ++i) {
      const int mt = item.tiles[i].tokens;
      const auto* panel = static_cast<const float*>(item.tiles[i].panel) + g * kLines * mt;
      tile_any<I, kDecoded, kSum>(mt, reinterpret_cast<const uint32_t*>(item.scratch),
                                  scratch_stride, scale_view(w, item, g * kGroup), item.groups,
                                  count * kGroup, panel, acc, kBlockRows);
      acc += int64_t{mt} * kBlockRows;
    }
  }
}

// Zeroes the sums; returns the tokens of all tiles.
inline int start_sums(const GemmItem& item) {
  int tokens = 0;
  for (int i = 0; i < item.tile_count; ++i) tokens += item.tiles[i].tokens;
  for (int64_t i = 0; i < int64_t{tokens} * kBlockRows; ++i) item.acc[i] = 0.0f;
  return tokens;
}

template <class I>
void apply_row_factor(const GemmItem& item, int tokens) {
  const float* factor = item.weights->group_row_scale(item.expert, item.group);
  if (!factor) return;
  for (int r = 0; r < item.groups; ++r) {
    const typename I::F f = I::load(factor + r * kRows);
    for (int t = 0; t < tokens; ++t) {
      float* a = item.acc + int64_t{t} * kBlockRows + r * kRows;
      I::store(a, I::mul(I::load(a), f));
    }
  }
}

template <class I>
void gemm(const GemmItem& item) {
  const PackedWeights& w = *item.weights;
  const int tokens = start_sums(item);
  switch (w.format->element) {
    case Element::kF32:
      gemm_element<I, Element::kF32>(item);
      break;
    case Element::kF16:
      gemm_element<I, Element::kF16>(item);
      break;
    case Element::kBF16:
      gemm_element<I, Element::kBF16>(item);
      break;
    case Element::kE4M3:
      gemm_element<I, Element::kE4M3>(item);
      break;
    case Element::kE2M1:
      if (w.scale == GroupScale::kE4M3x16)
        gemm_element<I, Element::kE2M1, scale_channels(GroupScale::kE4M3x16)>(item);
      else
        gemm_element<I, Element::kE2M1>(item);
      break;
  }
  apply_row_factor<I>(item, tokens);
}

template <class I>
size_t panel_bytes(const PackedWeights& weights, int tokens) {
  return static_cast<size_t>(weights.padded_in) * tokens * sizeof(float);
}

inline uint32_t to_bf16_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <class I>
void pack_tile(const TileRows& tile) {
  const int64_t in = tile.weights->in, padded = tile.weights->padded_in;
  const int tokens = tile.tokens;
  const float* const* rows = tile.rows;
  const Element element = tile.weights->format->element;
  if (I::kDot &&
      (element == Element::kBF16 || element == Element::kE2M1 || element == Element::kE4M3)) {
    const int half = codes_per_word(element) / 2;
    auto* out = static_cast<uint32_t*>(tile.panel);
    for (int64_t c = 0; c < padded; c += 2 * half) {
      for (int j = 0; j < half; ++j) {
        for (int t = 0; t < tokens; ++t) {
          const uint32_t lo = c + j < in ? to_bf16_bits(rows[t][c + j]) : 0;
          const uint32_t hi = c + j + half < in ? to_bf16_bits(rows[t][c + j + half]) : 0;
          *out++ = lo | hi << 16;
        }
      }
    }
    return;
  }
  auto* out = static_cast<float*>(tile.panel);
  for (int t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < in; ++c) out[c * tokens + t] = rows[t][c];
    for (int64_t c = in; c < padded; ++c) out[c * tokens + t] = 0.0f;
  }
}

}  // namespace
}  // namespace lk::cpu
