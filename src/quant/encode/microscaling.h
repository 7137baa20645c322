// What MXFP4 and MXFP8 share: groups of 32 values with a power of two as scale (OCP Microscaling
// 1.0). Pure functions; exponents are bytes as E8M0 stores them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace lk {

inline constexpr int kMicroscalingGroup = 32;

// ceil(log2(largest / top)) with the logarithm rounded to float32, as ModelOpt computes it: a hair
// over a power of two counts as that power.
inline int microscaling_exponent_up(float largest, float top) {
  const float ratio = largest / top;
  if (!(ratio > 0)) return 0;
  const auto log = static_cast<float>(std::log2(static_cast<double>(ratio)));
  return static_cast<int>(std::ceil(std::clamp(log, -127.0f, 127.0f))) + 127;
}

// floor(log2(largest)) - offset, where `largest` counts as the next power of two from a mantissa of
// 1.75 on, as compressed-tensors computes it for E2M1 and E4M3 alike.
inline int microscaling_exponent_floor(float largest, int offset) {
  const uint32_t bits = (std::bit_cast<uint32_t>(largest) + (1u << 21)) & 0xff800000u;
  return std::clamp(static_cast<int>(bits >> 23) - offset, 0, 254);
}

}  // namespace lk
