// Codes of single values, the inverses of numeric.h's decoders: E4M3 and E2M1. Pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace lk {

// Nearest E4M3 code, ties to even; magnitudes over 448 become 448.
inline uint8_t encode_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const float magnitude = std::min(std::fabs(value), 448.0f);
  if (magnitude < 0x1p-6f) {
    // Subnormals are multiples of 2^-9; 8 of them are the smallest normal code.
    return static_cast<uint8_t>(sign | static_cast<int>(std::nearbyint(magnitude * 512.0f)));
  }
  uint32_t m = std::bit_cast<uint32_t>(magnitude);
  m += 0x7ffffu + ((m >> 20) & 1u);  // to three bits of mantissa
  return static_cast<uint8_t>(sign | ((m >> 20) - (120u << 3)));
}

// Nearest E2M1 code of a magnitude, ties to the even code; over 5 it is 6.
inline uint8_t encode_e2m1_magnitude(float magnitude) {
  return static_cast<uint8_t>((magnitude > 0.25f) + (magnitude >= 0.75f) + (magnitude > 1.25f) +
                              (magnitude >= 1.75f) + (magnitude > 2.5f) + (magnitude >= 3.5f) +
                              (magnitude > 5.0f));
}

// The same with ties to the smaller magnitude.
inline uint8_t encode_e2m1_magnitude_down(float magnitude) {
  return static_cast<uint8_t>((magnitude > 0.25f) + (magnitude > 0.75f) + (magnitude > 1.25f) +
                              (magnitude > 1.75f) + (magnitude > 2.5f) + (magnitude > 3.5f) +
                              (magnitude > 5.0f));
}

// Packs code(values[c]) of `cols` values, two a byte, the even one in the low nibble.
template <typename Code>
void pack_nibbles(const float* values, int64_t cols, std::byte* out, Code code) {
  for (int64_t c = 0; c < cols; c += 2) {
    const unsigned low = code(values[c]);
    const unsigned high = c + 1 < cols ? code(values[c + 1]) : 0;
    out[c / 2] = static_cast<std::byte>(low | high << 4);
  }
}

inline float largest_magnitude(const float* values, int64_t count) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

}  // namespace lk
