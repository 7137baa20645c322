// Products of packed weights with interleaved activations. For every output element: the products
// of 32 consecutive input channels are summed one after the other, then scaled and added to the
// row's sum, whatever the number of tokens. That order is the contract which makes a token's result
// independent of its company; the two ways below (codes decoded in registers for few tokens,
// decoded once to a scratch tile for many) therefore give the same bits.
#pragma once

#include "kernels/cpu/body/dispatch.h"
#include "kernels/cpu/isa.h"

namespace lk::cpu {
namespace {

// Elements of which bfloat16 pair products are exact: only the activations are rounded.
template <class I, Element E>
constexpr bool uses_dot() {
  return I::kDot && (E == Element::kBF16 || E == Element::kE2M1);
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

// acc[t * stride + 16 r + lane] += sum over `groups` groups of 32 channels, RG row groups, MT
// tokens. codes: RG runs of words, `code_stride` words apart; x: [channels, MT] floats or [channels
// / 2, MT] bfloat16 pairs.
template <class I, Element E, int RG, int MT>
inline void tile(const uint32_t* codes, int64_t code_stride, const uint8_t* scales,
                 int64_t scale_stride, int64_t groups, const void* panel, float* acc,
                 int64_t stride) {
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
    for (int w = 0; w < kGroup / kCodes; ++w) {
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
      if (scales) {
        const F scale = I::load_e8m0(scales + r * scale_stride);
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
    if (scales) scales += kRows;
  }
}

// The same for any number of row groups and tokens of a tile.
template <class I, Element E, int MT>
void tile_rows(const uint32_t* codes, int64_t code_stride, const uint8_t* scales,
               int64_t scale_stride, int row_groups, int64_t groups, const void* panel, float* acc,
               int64_t stride) {
  // One token: four row groups at once, so that enough independent sums are in flight; else as many
  // as the registers hold.
  constexpr int kWide = MT == 1 ? 4 : MT <= 3 ? 2 : I::kTileGroups;
  int r = 0;
  auto at = [&](int group) { return codes + group * code_stride; };
  auto scale_at = [&](int group) { return scales ? scales + group * scale_stride : nullptr; };
  for (; r + kWide <= row_groups; r += kWide) {
    tile<I, E, kWide, MT>(at(r), code_stride, scale_at(r), scale_stride, groups, panel,
                          acc + r * kRows, stride);
  }
  for (; r < row_groups; ++r) {
    tile<I, E, 1, MT>(at(r), code_stride, scale_at(r), scale_stride, groups, panel, acc + r * kRows,
                      stride);
  }
}

template <class I, Element E>
void tile_any(int tokens, const uint32_t* codes, int64_t code_stride, const uint8_t* scales,
              int64_t scale_stride, int row_groups, int64_t groups, const void* panel, float* acc,
              int64_t stride) {
  dispatch_index<I::kMaxTile>(tokens - 1, [&]<int T>() {
    tile_rows<I, E, T + 1>(codes, code_stride, scales, scale_stride, row_groups, groups, panel, acc,
                           stride);
  });
}

// Channels that are decoded to scratch at once: with 4 row groups 32 KiB of float32, which stays in
// the first cache.
constexpr int kScratchChannels = 128;

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

template <class I, Element E>
void gemm_element(const GemmItem& item) {
  const PackedWeights& w = *item.weights;
  const int64_t code_stride = w.words * kRows, groups = w.padded_in / kGroup;
  const uint32_t* codes = w.group_codes(item.expert, item.group);
  const uint8_t* scales = w.scales.size() ? w.group_scales(item.expert, item.group) : nullptr;
  const int64_t scale_stride = groups * kRows;
  int tokens = 0;
  for (int i = 0; i < item.tile_count; ++i) tokens += item.tiles[i].tokens;
  for (int64_t i = 0; i < int64_t{tokens} * kBlockRows; ++i) item.acc[i] = 0.0f;

  // Values already in their final form need no scratch.
  constexpr bool kDirect = E == Element::kF32 || (uses_dot<I, E>() && E == Element::kBF16);
  if (kDirect || item.tile_count == 1) {
    float* acc = item.acc;
    for (int i = 0; i < item.tile_count; ++i) {
      tile_any<I, E>(item.tiles[i].tokens, codes, code_stride, scales, scale_stride, item.groups,
                     groups, item.tiles[i].panel, acc, kBlockRows);
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
      tile_any<I, kDecoded>(mt, reinterpret_cast<const uint32_t*>(item.scratch), scratch_stride,
                            scales ? scales + g * kRows : nullptr, scale_stride, item.groups, count,
                            panel, acc, kBlockRows);
      acc += int64_t{mt} * kBlockRows;
    }
  }
}

template <class I>
void gemm(const GemmItem& item) {
  switch (item.weights->format->element) {
    case Element::kF32:
      return gemm_element<I, Element::kF32>(item);
    case Element::kF16:
      return gemm_element<I, Element::kF16>(item);
    case Element::kBF16:
      return gemm_element<I, Element::kBF16>(item);
    case Element::kE2M1:
      return gemm_element<I, Element::kE2M1>(item);
    case Element::kE4M3:
      __builtin_unreachable();  // no row of the kernels table takes it yet
  }
}

template <class I>
size_t panel_bytes(int64_t padded_in, int tokens) {
  return static_cast<size_t>(padded_in) * tokens * sizeof(float);
}

inline uint32_t to_bf16_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <class I>
void pack_tile(const float* const* rows, int tokens, int64_t in, Element element, void* panel) {
  const int64_t padded = (in + kGroup - 1) / kGroup * kGroup;
  if (I::kDot && (element == Element::kBF16 || element == Element::kE2M1)) {
    const int half = codes_per_word(element) / 2;
    auto* out = static_cast<uint32_t*>(panel);
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
  auto* out = static_cast<float*>(panel);
  for (int t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < in; ++c) out[c * tokens + t] = rows[t][c];
    for (int64_t c = in; c < padded; ++c) out[c * tokens + t] = 0.0f;
  }
}

}  // namespace
}  // namespace lk::cpu
