#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lk {

void Rope::angles(std::span<const int32_t> positions, float* cos, float* sin) const {
  const size_t half = inv_freq.size();
  for (size_t t = 0; t < positions.size(); ++t) {
    const float position = static_cast<float>(positions[t]);
    for (size_t i = 0; i < half; ++i) {
      const float angle = position * inv_freq[i];
      cos[t * half + i] = std::cos(angle) * concentration;
      sin[t * half + i] = std::sin(angle) * concentration;
    }
  }
}

Rope default_rope(int dim, double theta) {
  Rope rope;
  for (int i = 0; i < dim / 2; ++i) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(theta, -2.0 * i / dim)));
  }
  return rope;
}

Rope yarn_rope(const YarnParams& p) {
  // The dimension whose wave turns `beta` times within the original context.
  const auto bound = [&](double beta) {
    return p.dim * std::log(p.original_max_positions / (beta * 2 * std::numbers::pi)) /
           (2 * std::log(p.theta));
  };
  double low = bound(p.beta_fast), high = bound(p.beta_slow);
  if (p.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, p.dim - 1.0);
  if (low == high) high += 0.001;  // as the reference does, against a division by zero

  Rope rope;
  for (int i = 0; i < p.dim / 2; ++i) {
    const double extrapolated = std::pow(p.theta, -2.0 * i / p.dim);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    rope.inv_freq.push_back(
        static_cast<float>(extrapolated / p.factor * ramp + extrapolated * (1 - ramp)));
  }
  if (p.concentration != 0) {
    rope.concentration = static_cast<float>(p.concentration);
  } else if (p.factor > 1) {
    rope.concentration = static_cast<float>(0.1 * std::log(p.factor) + 1);
  }
  return rope;
}

}  // namespace lk
