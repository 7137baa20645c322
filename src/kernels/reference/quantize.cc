#include "kernels/reference/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "quant/encode/elements.h"

namespace lk::reference {
namespace {

// NaN where a value is no finite number.
float largest(const float* x, int64_t n) {
  float max = 0, poison = 0;
  for (int64_t i = 0; i < n; ++i) {
    max = std::max(max, std::abs(x[i]));
    poison += x[i] - x[i];
  }
  return max + poison;
}

void round_to_int8(float* x, int64_t n) {
  const float max = largest(x, n), scale = max / 127.0f, inverse = max > 0 ? 127.0f / max : 0.0f;
  for (int64_t i = 0; i < n; ++i) x[i] = scale * std::nearbyint(x[i] * inverse);
}

float e4m3_scale(const float* x, int64_t n, bool power_of_two) {
  const float max = largest(x, n);
  if (!power_of_two || !(max > 0)) return max / 448.0f;
  const int exponent = std::ilogb(max) - 8;  // 448 is 1.75 * 2^8
  const bool cut = max > std::ldexp(448.0f, exponent);
  return std::ldexp(1.0f, std::max(exponent + (cut ? 1 : 0), -126));
}

}  // namespace

float round_to_e4m3(float v) { return std::isnan(v) ? v : e4m3_to_f32(encode_e4m3(v)); }

void quantize_activations(ActivationForm form, const Format& format, float static_scale, int64_t n,
                          float* x) {
  if (form == ActivationForm::kUnquantized) return;
  const ActivationScale rule = activation_scale(form, format);
  const int64_t group = rule.group > 0 ? rule.group : n;
  for (int64_t first = 0; first < n; first += group) {
    const int64_t count = std::min(group, n - first);
    float* values = x + first;
    if (form == ActivationForm::kInt8) {
      round_to_int8(values, count);
      continue;
    }
    const bool fixed = rule.group == 0 && static_scale > 0;
    const float scale = fixed ? static_scale : e4m3_scale(values, count, rule.power_of_two);
    for (int64_t i = 0; i < count; ++i)
      values[i] = scale != 0 ? scale * round_to_e4m3(values[i] / scale) : 0.0f;
  }
}

void requantize_int8(int64_t n, float* w) {
  for (int64_t first = 0; first < n; first += kInt8WeightGroup)
    round_to_int8(w + first, std::min<int64_t>(kInt8WeightGroup, n - first));
}

}  // namespace lk::reference
