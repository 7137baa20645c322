// Weights exp((logit - max) * scale) of a row of logits and their sums, in float32 with a relative
// error of about 1e-6; `max` is the largest logit. A weight below exp(-87) is 0, and a NaN's. Pure
// functions; what they give depends on the row and the instruction set alone.
#pragma once

#include <array>
#include <span>
#include <vector>

namespace lk {

inline constexpr int kSumBlock = 128;
// Weights of logits with (max - logit) * scale up to these are also summed apart, if asked for.
inline constexpr std::array<float, 4> kLevels = {2, 5, 9, 14};
using LevelSums = std::array<double, kLevels.size()>;
struct ExpSums {
  double total = 0;
  LevelSums within{};          // by level
  std::vector<double> blocks;  // of kSumBlock ids each
};
void exp_sums(const float* row, int count, float max, float scale, bool levels, ExpSums& sums);
// The weights of `count` <= kSumBlock logits, as exp_sums adds them up.
void exp_weights(const float* row, int count, float max, float scale, float* weights);

// The same for one whole block, by instruction set, the fastest first and plain loops last. The
// first that is supported is used.
struct RowExp {
  const char* name;
  bool (*supported)();
  double (*sum)(const float* block, float max, float scale);
  // Also adds to `within`.
  double (*sum_levels)(const float* block, float max, float scale, LevelSums& within);
  void (*weights)(const float* block, float max, float scale, float* weights);
};
std::span<const RowExp> row_exps();

}  // namespace lk
