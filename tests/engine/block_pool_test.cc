#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/kv_plan.h"

namespace lk {
namespace {

KvLayout layout_of(std::vector<int> windows) {
  KvLayout layout;
  layout.kv_heads = layout.head_dim = 1;
  for (size_t g = 0; g < windows.size(); ++g) {
    layout.groups.push_back({windows[g], {static_cast<int>(g)}});
    layout.layer_group.push_back(static_cast<int>(g));
  }
  return layout;
}

TEST(BlockPool, SharedBlocksAreFreeAfterTheLastReference) {
  BlockPool pool(2);
  const int32_t a = pool.take(), b = pool.take();
  EXPECT_NE(a, b);
  EXPECT_EQ(pool.take(), -1);
  pool.add_reference(a);
  pool.drop_reference(a);
  EXPECT_EQ(pool.free_count(), 0);
  pool.drop_reference(a);
  EXPECT_EQ(pool.take(), a);
}

// Whatever the chunks, a sequence never holds more than most_blocks says, and all that a query may
// see is there.
TEST(SequenceBlocks, HoldsTheWindowAndNoMoreThanPromised) {
  std::mt19937 rng(2);
  for (int round = 0; round < 300; ++round) {
    const int window = 1 + static_cast<int>(rng() % 70), chunk = 1 + static_cast<int>(rng() % 50);
    BlockPools pools(layout_of({window, 0}), {100, 100});
    SequenceBlocks blocks;
    for (int computed = 0; computed < 400;) {
      const int count = 1 + static_cast<int>(rng() % chunk);
      ASSERT_TRUE(blocks.reserve(pools, computed, count));
      EXPECT_EQ(blocks.held(0), pools.blocks_needed(0, computed, count));
      for (int g = 0; g < 2; ++g) {
        EXPECT_LE(blocks.held(g), pools.most_blocks(g, computed + count, chunk));
        EXPECT_EQ(blocks.held(g) + pools.pool(g).free_count(), 100);
        const int first = g == 0 ? std::max(0, computed - window + 1) : 0;
        for (int p = first; p < computed + count; ++p) ASSERT_GE(blocks.table(g).at(p / 16), 0);
        if (first >= 16) {
          EXPECT_EQ(blocks.table(g)[first / 16 - 1], -1);
        }
      }
      computed += count;
    }
    blocks.clear(pools);
    EXPECT_EQ(pools.pool(0).free_count() + pools.pool(1).free_count(), 200);
  }
}

TEST(SequenceBlocks, TakesNothingWhenOneGroupHasTooFew) {
  BlockPools pools(layout_of({0, 0}), {10, 2});
  SequenceBlocks blocks;
  EXPECT_FALSE(blocks.reserve(pools, 0, 33));
  EXPECT_EQ(pools.pool(0).free_count(), 10);
  EXPECT_TRUE(blocks.reserve(pools, 0, 32));
  blocks.clear(pools);
}

TEST(KvPlan, FullDemandOrWhatTheBytesHold) {
  const KvLayout layout = layout_of({64, 0});  // 64 bytes a block and group
  const KvDemand demand{8, 1024, 64};
  const auto full = plan_kv(layout, demand, 1 << 30);
  ASSERT_TRUE(full);
  EXPECT_GE(full->blocks[1], 8 * 64);
  EXPECT_LT(full->blocks[0], 8 * 10);
  for (size_t bytes : {8'000, 12'000, 20'000, 30'000}) {
    const auto some = plan_kv(layout, demand, bytes);
    ASSERT_TRUE(some) << some.error().message;
    EXPECT_LE((some->blocks[0] + some->blocks[1]) * layout.block_bytes(0), bytes);
    EXPECT_GE(some->blocks[1], 64);
  }
  EXPECT_FALSE(plan_kv(layout, demand, 2'000));
  const size_t least = least_kv_bytes(layout, demand);
  EXPECT_TRUE(plan_kv(layout, demand, least));
  EXPECT_FALSE(plan_kv(layout, demand, least - 1));
}

TEST(KvPlan, StatesAndSnapshotsOfRecurrentLayers) {
  KvLayout layout = layout_of({0});
  layout.states = {{.conv = 100, .state = 900}, {.conv = 100, .state = 900}};  // 8,000 bytes
  KvDemand demand{8, 64, 64, true};
  const size_t kBlocks = least_kv_bytes(layout, demand) - 8'000;
  const auto full = plan_kv(layout, demand, 1 << 20);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->states, 8);
  EXPECT_EQ(full->snapshots, static_cast<int>(((1 << 20) - kBlocks - 8 * 8'000) / 4 / 8'000));
  const auto some = plan_kv(layout, demand, 50'000);
  ASSERT_TRUE(some) << some.error().message;
  EXPECT_EQ(some->states, 4);  // three in half the bytes, beside one that has what it needs
  EXPECT_EQ(some->snapshots, 0);
  // However little there is beyond, it does not starve the one.
  for (size_t more = 0; more < 60'000; more += 500) {
    const auto plan = plan_kv(layout, demand, 8'000 + kBlocks + more);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_GE(plan->blocks[0] * layout.block_bytes(0), kBlocks);
    EXPECT_LE(plan->blocks[0] * layout.block_bytes(0) + (plan->states + plan->snapshots) * 8'000,
              8'000 + kBlocks + more);
  }
  EXPECT_FALSE(plan_kv(layout, demand, 8'000 + kBlocks - 1));
  demand.prefix_cache = false;
  EXPECT_EQ(plan_kv(layout, demand, 1 << 20)->snapshots, 0);
  EXPECT_EQ(kv_bytes_of_sequence(layout, 64), 8'000 + 4 * layout.block_bytes(0));
  layout.states.clear();
  EXPECT_EQ(plan_kv(layout, demand, 1 << 20)->states, 0);
}

}  // namespace
}  // namespace lk
