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

}  // namespace
}  // namespace lk
