#include "engine/row_exp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace lk {
namespace {

// Some rows with values that never count.
std::vector<float> random_row(std::mt19937& rng, int count) {
  std::vector<float> row(count);
  const bool holes = rng() % 2 == 0;
  for (float& logit : row) {
    logit = static_cast<float>(rng() % 2000) * 0.02f - 20;
    if (holes && rng() % 10 == 0) logit = rng() % 2 == 0 ? NAN : -INFINITY;
  }
  row[rng() % row.size()] = 20;  // the largest
  return row;
}

// What exp gives for a row whose largest logit is 20.
struct Exact {
  Exact(const std::vector<float>& row, float scale) {
    for (float logit : row) {
      const double x = (double{logit} - 20) * scale;
      weights.push_back(std::isnan(logit) ? 0 : std::exp(x));
      total += weights.back();
      for (size_t level = 0; level < kLevels.size(); ++level) {
        if (x >= -kLevels[level] + 1e-4) low[level] += weights.back();
        if (x >= -kLevels[level] - 1e-4) high[level] += weights.back();
      }
    }
  }
  void expect_levels(const LevelSums& within) const {
    for (size_t level = 0; level < kLevels.size(); ++level) {
      EXPECT_GE(within[level], low[level] * (1 - 3e-6));
      EXPECT_LE(within[level], high[level] * (1 + 3e-6));
    }
  }

  std::vector<double> weights;
  double total = 0;
  LevelSums low{}, high{};
};

float random_scale(std::mt19937& rng) { return std::pow(10.0f, static_cast<float>(rng() % 5) - 2); }

TEST(RowExp, SumsAreThoseOfExp) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    const int count = 1 + static_cast<int>(rng() % 3000);
    const std::vector<float> row = random_row(rng, count);
    const float scale = random_scale(rng);
    ExpSums sums;
    exp_sums(row.data(), count, 20, scale, true, sums);
    ExpSums plain;
    exp_sums(row.data(), count, 20, scale, false, plain);
    EXPECT_EQ(plain.total, sums.total);
    EXPECT_EQ(plain.blocks, sums.blocks);
    const Exact exact(row, scale);
    EXPECT_NEAR(sums.total / exact.total, 1, 3e-6);
    exact.expect_levels(sums.within);
    double blocks = 0;
    for (size_t block = 0; block < sums.blocks.size(); ++block) {
      blocks += sums.blocks[block];
      float weights[kSumBlock];
      const int begin = static_cast<int>(block) * kSumBlock;
      const int size = std::min(kSumBlock, count - begin);
      exp_weights(row.data() + begin, size, 20, scale, weights);
      for (int i = 0; i < size; ++i) EXPECT_NEAR(weights[i], exact.weights[begin + i], 3e-6);
    }
    EXPECT_EQ(blocks, sums.total);
  }
}

TEST(RowExp, EveryInstructionSetIsExp) {
  for (const RowExp& exps : row_exps()) {
    if (!exps.supported()) continue;
    SCOPED_TRACE(exps.name);
    std::mt19937 rng(8);
    for (int round = 0; round < 500; ++round) {
      const std::vector<float> row = random_row(rng, kSumBlock);
      const float scale = random_scale(rng);
      const Exact exact(row, scale);
      LevelSums within{};
      const double sum = exps.sum(row.data(), 20, scale);
      EXPECT_EQ(exps.sum_levels(row.data(), 20, scale, within), sum);
      EXPECT_NEAR(sum / exact.total, 1, 3e-6);
      exact.expect_levels(within);
      float weights[kSumBlock];
      exps.weights(row.data(), 20, scale, weights);
      for (int i = 0; i < kSumBlock; ++i) {
        // Less than the smallest normal float32 may be 0.
        EXPECT_NEAR(weights[i], exact.weights[i], exact.weights[i] * 1e-5 + 1.7e-38);
      }
    }
  }
}

}  // namespace
}  // namespace lk
