#include "checkpoint/linear_table.h"

#include <gtest/gtest.h>

namespace lk {
namespace {

TEST(LinearTable, FindsAndNames) {
  LinearTable table;
  table.rootless = {"lm_head"};
  table.linears.push_back({.stage = Stage::kQuery, .layer = 1, .names = {}});
  EXPECT_EQ(table.find(Stage::kQuery, 1), &table.linears[0]);
  EXPECT_EQ(table.find(Stage::kQuery, 0), nullptr);
  EXPECT_EQ(table.find(Stage::kKey, 1), nullptr);
  EXPECT_EQ(table.full_name("layers.0.x", "model."), "model.layers.0.x");
  EXPECT_EQ(table.full_name("lm_head", "model."), "lm_head");
  EXPECT_EQ(table.full_name("lm_head.weight", "model."), "lm_head.weight");
  EXPECT_EQ(table.full_name("lm_headroom", "model."), "model.lm_headroom");
}

}  // namespace
}  // namespace lk
