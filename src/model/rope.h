// Rotary position embedding: inverse frequencies of the known kinds, and a step's cosines and
// sines. Plain values; immutable after construction; safe to share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lk {

struct Rope {
  std::vector<float> inv_freq;  // [rotary / 2]; empty: positions are not encoded
  float concentration = 1.0f;   // factor on cos and sin

  int rotary() const { return 2 * static_cast<int>(inv_freq.size()); }
  // cos and sin, each [positions, rotary / 2]: angle = position * inv_freq in float32.
  void angles(std::span<const int32_t> positions, float* cos, float* sin) const;
};

// theta^(-2i / dim).
Rope default_rope(int dim, double theta);

// YaRN (arXiv 2309.00071), static: applied at every length.
struct YarnParams {
  int dim = 0;
  double theta = 10000;
  double factor = 1;
  double beta_fast = 32, beta_slow = 1;
  double original_max_positions = 4096;
  bool truncate = true;      // round the ramp's bounds to whole dimensions (gpt-oss: false)
  double concentration = 0;  // 0: 0.1 ln(factor) + 1
};
Rope yarn_rope(const YarnParams& params);

}  // namespace lk
