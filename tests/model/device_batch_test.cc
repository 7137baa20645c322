// A step's arrays on a device of its own: copied, padded to sizes that recordings share, and the
// same step for the model.
#include "model/device_batch.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/model/batch_arrays.h"
#include "tests/model/harness.h"
#include "tests/model/separate_device.h"

namespace lk::test {
namespace {

// `count` sequences that decode one token each, the tables `blocks` wide.
struct Decoding : BatchArrays {
  std::vector<int32_t> table;
  std::vector<int64_t> slots;

  Decoding(int count, int blocks, bool adapters) {
    for (int i = 0; i < count; ++i) {
      ids.push_back(100 + i);
      positions.push_back(5 + i);
      adapter.push_back(adapters ? i % 2 : -1);
      sequence.push_back(i);
      query_start.push_back(i);
      context.push_back(6 + i);
      rows.push_back(i);
      states.push_back(count - 1 - i);
      slots.push_back(1000 + i);
    }
    query_start.push_back(count);
    table.resize(static_cast<size_t>(count) * blocks);
    std::iota(table.begin(), table.end(), 0);
    kv = {{table.data(), slots.data(), blocks}};
  }
};

TEST(DeviceBatch, PadsDecodeSteps) {
  SeparateDevice device;
  DeviceBatch placed(device);
  const Rope rope = default_rope(8, 10000);
  const Decoding step(5, 3, true);
  const Batch& batch = placed.place(step.batch(), rope);
  EXPECT_TRUE(placed.decodes());
  ASSERT_EQ(batch.tokens, 8);
  EXPECT_EQ(batch.sequences, 8);
  EXPECT_EQ(batch.logit_count, 8);
  EXPECT_TRUE(batch.adapters);
  EXPECT_EQ(batch.longest_query, 1);
  ASSERT_EQ(batch.kv.size(), 1u);
  EXPECT_EQ(batch.kv[0].max_blocks, 4);
  EXPECT_EQ(batch.longest_context, 4 * kKvBlockTokens);
  std::vector<float> cos(5 * 4), sin(5 * 4);
  rope.angles(step.positions, cos.data(), sin.data());
  for (int t = 0; t < 5; ++t) {
    EXPECT_EQ(batch.token_ids[t], step.ids[t]);
    EXPECT_EQ(batch.positions[t], step.positions[t]);
    EXPECT_EQ(batch.adapter[t], step.adapter[t]);
    EXPECT_EQ(batch.sequence[t], t);
    EXPECT_EQ(batch.query_start[t], t);
    EXPECT_EQ(batch.context_len[t], step.context[t]);
    EXPECT_EQ(batch.state_slot[t], step.states[t]);
    EXPECT_EQ(batch.kv[0].slot_mapping[t], step.slots[t]);
    for (int b = 0; b < 4; ++b)
      EXPECT_EQ(batch.kv[0].block_table[t * 4 + b], b < 3 ? step.table[t * 3 + b] : -1);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(placed.rope_cos()[t * 4 + i], cos[t * 4 + i]);
      EXPECT_EQ(placed.rope_sin()[t * 4 + i], sin[t * 4 + i]);
    }
  }
  EXPECT_EQ(batch.query_start[5], 5);
  for (int t = 5; t < 8; ++t) {
    EXPECT_EQ(batch.sequence[t], -1);
    EXPECT_EQ(batch.adapter[t], -1);
    EXPECT_EQ(batch.kv[0].slot_mapping[t], -1);
    EXPECT_EQ(batch.context_len[t], 0);
    EXPECT_EQ(batch.state_slot[t], -1);
    EXPECT_EQ(batch.query_start[t + 1], 5);
  }
}

TEST(DeviceBatch, KeysFollowWhatLaunchesDependOn) {
  SeparateDevice device;
  DeviceBatch placed(device);
  const auto key = [&](int count, int blocks, bool adapters) {
    const Decoding step(count, blocks, adapters);
    placed.place(step.batch(), default_rope(8, 10000));
    return placed.key();
  };
  EXPECT_EQ(key(5, 3, false), key(8, 4, false));
  EXPECT_NE(key(8, 4, false), key(9, 4, false));
  EXPECT_NE(key(8, 4, false), key(8, 5, false));
  EXPECT_NE(key(8, 4, false), key(8, 4, true));
}

TEST(DeviceBatch, LeavesThePromptsAsTheyAre) {
  SeparateDevice device;
  DeviceBatch placed(device);
  Decoding step(3, 2, false);
  step.query_start = {0, 3, 3, 3};
  const Batch& batch = placed.place(step.batch(), default_rope(8, 10000));
  EXPECT_FALSE(placed.decodes());
  EXPECT_EQ(batch.tokens, 3);
  EXPECT_EQ(batch.longest_query, 3);
  EXPECT_FALSE(batch.adapters);
}

}  // namespace
}  // namespace lk::test
