#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lk {
namespace {

// Values of gpt-oss-20b (openai/gpt-oss, config.json and modeling_gpt_oss.py).
TEST(Rope, YarnOfGptOss) {
  const Rope rope = yarn_rope({.dim = 64,
                               .theta = 150000,
                               .factor = 32,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .original_max_positions = 4096,
                               .truncate = false});
  ASSERT_EQ(rope.rotary(), 64);
  const std::pair<int, double> expected[] = {{0, 1.0},
                                             {8, 5.081327482e-02},
                                             {9, 3.170569618e-02},
                                             {12, 6.794959490e-03},
                                             {17, 1.293187012e-04},
                                             {18, 3.830881237e-05},
                                             {31, 3.023511428e-07}};
  for (const auto& [i, value] : expected) EXPECT_NEAR(rope.inv_freq[i] / value, 1, 1e-7) << i;
  EXPECT_FLOAT_EQ(rope.concentration, 1.3465735902799727f);
}

TEST(Rope, TruncateRoundsTheBounds) {
  YarnParams params{.dim = 64, .theta = 150000, .factor = 32, .original_max_positions = 4096};
  const Rope rope = yarn_rope(params);
  // Bounds 8 and 18 in place of 8.09 and 17.40: dimension 8 is not yet scaled, 18 wholly.
  EXPECT_FLOAT_EQ(rope.inv_freq[8], static_cast<float>(std::pow(150000.0, -16.0 / 64)));
  EXPECT_FLOAT_EQ(rope.inv_freq[18], static_cast<float>(std::pow(150000.0, -36.0 / 64) / 32));
  EXPECT_NE(rope.inv_freq[17], static_cast<float>(std::pow(150000.0, -34.0 / 64) / 32));
}

TEST(Rope, DefaultHasNoScaling) {
  const Rope rope = default_rope(8, 10000);
  ASSERT_EQ(rope.inv_freq.size(), 4u);
  EXPECT_FLOAT_EQ(rope.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(rope.inv_freq[1], 0.1f);
  EXPECT_FLOAT_EQ(rope.inv_freq[3], 0.001f);
  EXPECT_EQ(rope.concentration, 1.0f);
}

TEST(Rope, AnglesCarryTheConcentration) {
  Rope rope = default_rope(4, 100);
  rope.concentration = 2;
  const int32_t positions[] = {0, 3};
  float cos[4], sin[4];
  rope.angles(positions, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], 2.0f);
  EXPECT_FLOAT_EQ(sin[1], 0.0f);
  EXPECT_FLOAT_EQ(cos[2], 2 * std::cos(3.0f));
  EXPECT_FLOAT_EQ(sin[3], 2 * std::sin(0.3f));
}

}  // namespace
}  // namespace lk
