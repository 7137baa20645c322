#include "engine/row_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lk {
namespace {

std::vector<float> random_row(std::mt19937& rng, int count) {
  std::vector<float> row(count);
  const int kind = static_cast<int>(rng() % 3);
  for (float& logit : row) {
    logit = static_cast<float>(rng() % 2000) * 0.02f - 20;
    if (kind == 1 && rng() % 10 == 0) logit = NAN;
    if (kind == 1 && rng() % 10 == 0) logit = -INFINITY;
    if (kind == 2) logit = -INFINITY;
  }
  return row;
}

TEST(RowScan, MatchesPlainLoopsForAnyLength) {
  std::mt19937 rng(6);
  for (int round = 0; round < 600; ++round) {
    const int count = 1 + static_cast<int>(rng() % 3000);
    const std::vector<float> row = random_row(rng, count);
    Largest expected{-1, -INFINITY};
    for (int i = 0; i < count; ++i) {
      if (row[i] > expected.logit) expected = {i, row[i]};
    }
    const Largest got = largest(row.data(), count);
    ASSERT_EQ(got.id, expected.id);
    if (expected.id < 0) continue;
    EXPECT_EQ(got.logit, expected.logit);
    const float bound = row[rng() % count];
    int next = static_cast<int>(rng() % count);
    const int begin = next;
    while (next < count && !(row[next] > bound)) ++next;
    EXPECT_EQ(first_above(row.data(), begin, count, bound), next);
  }
}

TEST(RowScan, SumsAreThoseOfExp) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    const int count = 1 + static_cast<int>(rng() % 3000);
    const std::vector<float> row = random_row(rng, count);
    const Largest best = largest(row.data(), count);
    if (best.id < 0) continue;
    const float scale = std::pow(10.0f, static_cast<float>(rng() % 5) - 2);
    ExpSums sums;
    exp_sums(row.data(), count, best.logit, scale, true, sums);
    ExpSums plain;
    exp_sums(row.data(), count, best.logit, scale, false, plain);
    EXPECT_EQ(plain.total, sums.total);
    EXPECT_EQ(plain.blocks, sums.blocks);
    double total = 0;
    std::vector<double> exact;
    std::array<double, kLevels.size()> low{}, high{};
    for (float logit : row) {
      const double x = (double{logit} - best.logit) * scale;
      exact.push_back(std::isnan(logit) ? 0 : std::exp(x));
      total += exact.back();
      for (size_t level = 0; level < kLevels.size(); ++level) {
        if (x >= -kLevels[level] + 1e-4) low[level] += exact.back();
        if (x >= -kLevels[level] - 1e-4) high[level] += exact.back();
      }
    }
    EXPECT_NEAR(sums.total / total, 1, 3e-6);
    for (size_t level = 0; level < kLevels.size(); ++level) {
      EXPECT_GE(sums.within[level], low[level] * (1 - 3e-6));
      EXPECT_LE(sums.within[level], high[level] * (1 + 3e-6));
    }
    double blocks = 0;
    for (size_t block = 0; block < sums.blocks.size(); ++block) {
      blocks += sums.blocks[block];
      float weights[kSumBlock];
      const int begin = static_cast<int>(block) * kSumBlock;
      const int size = std::min(kSumBlock, count - begin);
      exp_weights(row.data() + begin, size, best.logit, scale, weights);
      for (int i = 0; i < size; ++i) EXPECT_NEAR(weights[i], exact[begin + i], 3e-6);
    }
    EXPECT_EQ(blocks, sums.total);
  }
}

}  // namespace
}  // namespace lk
