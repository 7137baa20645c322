#include "cache/block_pool.h"

#include <algorithm>

#include "base/check.h"
#include "cache/state_pool.h"

namespace lk {
namespace {

int blocks_for(int tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// Leading blocks that no token from position `next` on can see.
int blocks_passed(int window, int next) {
  return window == 0 ? 0 : std::max(0, next - window + 1) / kKvBlockTokens;
}

// Blocks at the beginning of `keys` that every group knows as far as a token behind them sees.
int longest_known(const BlockPools& pools, std::span<const PrefixKey> keys) {
  const auto known = [&](int g, int i) { return pools.pool(g).index().find(keys[i]) >= 0; };
  int length = static_cast<int>(keys.size());
  for (int g = 0; g < pools.groups(); ++g) {
    if (pools.window(g) > 0) continue;
    int run = 0;
    while (run < length && known(g, run)) ++run;
    length = run;
  }
  // A block that a window lacks is lacked by every length between it and this one.
  for (int g = 0; g < pools.groups();) {
    const int needed = blocks_passed(pools.window(g), length * kKvBlockTokens);
    int i = length - 1;
    if (pools.window(g) > 0) {
      while (i >= needed && known(g, i)) --i;
    } else {
      i = -1;
    }
    if (i < needed) {
      ++g;
    } else {
      length = i;
      g = 0;
    }
  }
  return length;
}

// The same where the model also needs the state at the end.
int longest_known(const BlockPools& pools, const StatePool& states,
                  std::span<const PrefixKey> keys) {
  int length = longest_known(pools, keys);
  while (states.used() && length > 0 && !states.knows(keys[length - 1]))
    length = longest_known(pools, keys.first(length - 1));
  return length;
}

}  // namespace

BlockPool::BlockPool(int blocks) : index_(blocks), references_(blocks, 0) {
  free_.reserve(blocks);
  for (int32_t block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::take() {
  int32_t block = -1;
  if (free_.empty()) {
    block = index_.take_oldest();
    if (block < 0) return -1;
  } else {
    block = free_.back();
    free_.pop_back();
  }
  references_[block] = 1;
  return block;
}

void BlockPool::add_reference(int32_t block) {
  if (references_[block] == 0) {
    LK_CHECK(index_.contains(block));
    index_.remove_idle(block);
  }
  ++references_[block];
}

void BlockPool::drop_reference(int32_t block) {
  LK_CHECK(references_[block] > 0);
  if (--references_[block] > 0) return;
  if (index_.contains(block))
    index_.push_idle(block);
  else
    free_.push_back(block);
}

BlockPools::BlockPools(const KvLayout& layout, const std::vector<int>& blocks) {
  LK_CHECK(layout.groups.size() == blocks.size());
  for (size_t g = 0; g < blocks.size(); ++g) {
    pools_.emplace_back(blocks[g]);
    windows_.push_back(layout.groups[g].window);
  }
}

int BlockPools::blocks_needed(int group, int computed, int count) const {
  return blocks_for(computed + count) - blocks_passed(windows_[group], computed);
}

int BlockPools::most_blocks(int group, int length, int chunk) const {
  const int all = blocks_for(length);
  if (windows_[group] == 0) return all;
  return std::min(all, blocks_for(windows_[group] + std::min(length, chunk)) + 1);
}

bool SequenceBlocks::reserve(BlockPools& pools, int computed, int count) {
  if (groups_.empty()) groups_.resize(pools.groups());
  const size_t wanted = blocks_for(computed + count);
  bool enough = true;
  for (int g = 0; g < pools.groups(); ++g) {
    Group& group = groups_[g];
    const int passed = std::min<int>(blocks_passed(pools.window(g), computed), group.table.size());
    for (; group.passed < passed; ++group.passed) {
      pools.pool(g).drop_reference(group.table[group.passed]);
      group.table[group.passed] = -1;
    }
    const size_t missing = wanted - std::min(wanted, group.table.size());
    enough = enough && missing <= static_cast<size_t>(pools.pool(g).free_count());
  }
  if (!enough) return false;
  for (int g = 0; g < pools.groups(); ++g) {
    while (groups_[g].table.size() < wanted) groups_[g].table.push_back(pools.pool(g).take());
  }
  return true;
}

// The last blocks go first: of what nobody uses they are the ones to lose first, as those behind a
// lost block are of no use.
void SequenceBlocks::clear(BlockPools& pools) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<int32_t>& table = groups_[g].table;
    for (size_t i = table.size(); i > static_cast<size_t>(groups_[g].passed); --i)
      pools.pool(static_cast<int>(g)).drop_reference(table[i - 1]);
  }
  groups_.clear();
}

int SequenceBlocks::match(BlockPools& pools, const StatePool& states,
                          std::span<const PrefixKey> keys) {
  LK_CHECK(groups_.empty());
  const int length = longest_known(pools, states, keys);
  if (length == 0) return 0;
  groups_.resize(pools.groups());
  for (int g = 0; g < pools.groups(); ++g) {
    Group& group = groups_[g];
    group.passed = blocks_passed(pools.window(g), length * kKvBlockTokens);
    group.table.assign(length, -1);
    for (int i = group.passed; i < length; ++i) {
      group.table[i] = pools.pool(g).index().find(keys[i]);
      pools.pool(g).add_reference(group.table[i]);
    }
  }
  return length;
}

void SequenceBlocks::publish(BlockPools& pools, std::span<const PrefixKey> keys, int first) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    PrefixIndex& index = pools.pool(static_cast<int>(g)).index();
    for (size_t i = std::max(first, groups_[g].passed); i < keys.size(); ++i)
      index.insert(keys[i], groups_[g].table[i]);
  }
}

}  // namespace lk
