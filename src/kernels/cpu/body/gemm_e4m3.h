// Activations rounded to E4M3 with their scales, for the products of gemm.h: a code times its scale
// is a float32, so that the unquantized kernels compute with it as they are.
#pragma once

#include "kernels/cpu/body/elementwise.h"
#include "kernels/cpu/isa.h"

namespace lk::cpu {
namespace {

// The E4M3 value next to v, ties to even. Adding and subtracting 1.5 * 2^23 steps rounds to whole
// steps; a step is 2^-3 of the value's power of two, 2^-9 for subnormals.
template <class I>
inline typename I::F round_e4m3(typename I::F v) {
  using F = typename I::F;
  // The value stands second, where the instructions hand NaN on.
  v = I::min(I::broadcast(448.0f), I::max(I::broadcast(-448.0f), v));
  const F power = I::max(I::power_of_two_part(v), I::broadcast(0x1p-6f));
  const F shift = I::mul(power, I::broadcast(0x1.8p20f));
  return I::sub(I::add(v, shift), shift);
}

// NaN where a value is no number.
template <class I>
inline float e4m3_scale(const float* x, int64_t count, bool power_of_two) {
  const float largest = largest_magnitude<I>(x, count);
  if (!power_of_two || !(largest > 0)) return largest / 448.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &largest, sizeof(bits));
  const bool cut = (bits & 0x7fffff) > 0x600000;                          // 448 is 1.75 * 2^8
  const int exponent = static_cast<int>(bits >> 23) - 8 + (cut ? 1 : 0);  // biased, of the scale
  bits = static_cast<uint32_t>(exponent < 1 ? 1 : exponent) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

template <class I>
void pack_tile_e4m3(const TileRows& tile) {
  using F = typename I::F;
  const PackedWeights& w = *tile.weights;
  const ActivationScale rule = activation_scale(ActivationForm::kE4M3, *w.format);
  const int64_t group = rule.group > 0 ? rule.group : w.padded_in;
  const float fixed = rule.group > 0 ? 0.0f : w.input_scale[tile.expert];
  auto* out = static_cast<float*>(tile.panel);
  for (int t = 0; t < tile.tokens; ++t) {
    for (int64_t first = 0; first < w.padded_in; first += group) {
      const float* x = tile.rows[t] + first;
      const int64_t count = w.in - first < group ? w.in - first : group;
      const float scale = fixed > 0 ? fixed : e4m3_scale<I>(x, count, rule.power_of_two);
      const int64_t end = w.padded_in - first < group ? w.padded_in - first : group;
      for (int64_t i = 0; i < end; i += kRows) {
        float values[kRows] = {};
        if (scale != 0 && i < count) {
          const F s = I::broadcast(scale);
          I::store(values, I::mul(s, round_e4m3<I>(I::div(load_part<I>(x + i, count - i), s))));
        }
        for (int lane = 0; lane < kRows; ++lane)
          out[(first + i + lane) * tile.tokens + t] = values[lane];
      }
    }
  }
}

}  // namespace
}  // namespace lk::cpu
