// Passes over one row of logits, which may have 200 thousand: with AVX2 where the CPU has it, plain
// loops elsewhere. NaNs never count. Pure functions; what they give depends on the row and the
// instruction set alone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lk {

struct Largest {
  int32_t id = -1;  // the lowest of equals; -1 if no logit is above -infinity
  float logit = 0;
};
Largest largest(const float* row, int count);

// Index of the first logit from `begin` on that is above `bound`; `count` if there is none.
int first_above(const float* row, int begin, int count, float bound);

// Sums of weights exp((logit - max) * scale) in float32, relative error about 1e-6; `max` is the
// largest logit. A weight below exp(-87) is 0.
inline constexpr int kSumBlock = 128;
// Weights of logits with (max - logit) * scale up to these are also summed apart, if asked for.
inline constexpr std::array<float, 4> kLevels = {2, 5, 9, 14};
struct ExpSums {
  double total = 0;
  std::array<double, kLevels.size()> within{};  // by level
  std::vector<double> blocks;                   // of kSumBlock ids each
};
void exp_sums(const float* row, int count, float max, float scale, bool levels, ExpSums& sums);
// The weights of `count` <= kSumBlock logits, as exp_sums adds them up.
void exp_weights(const float* row, int count, float max, float scale, float* weights);

}  // namespace lk
