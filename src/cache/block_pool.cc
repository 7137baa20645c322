#include "cache/block_pool.h"

#include <algorithm>

#include "base/check.h"

namespace lk {
namespace {

int blocks_for(int tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// Leading blocks that no token from position `next` on can see.
int blocks_passed(int window, int next) {
  return window == 0 ? 0 : std::max(0, next - window + 1) / kKvBlockTokens;
}

}  // namespace

BlockPool::BlockPool(int blocks) : references_(blocks, 0) {
  free_.reserve(blocks);
  for (int32_t block = blocks - 1; block >= 0; --block) free_.push_back(block);
}

int32_t BlockPool::take() {
  if (free_.empty()) return -1;
  const int32_t block = free_.back();
  free_.pop_back();
  references_[block] = 1;
  return block;
}

void BlockPool::add_reference(int32_t block) {
  LK_CHECK(references_[block] > 0);
  ++references_[block];
}

void BlockPool::drop_reference(int32_t block) {
  LK_CHECK(references_[block] > 0);
  if (--references_[block] == 0) free_.push_back(block);
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

void SequenceBlocks::clear(BlockPools& pools) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int32_t block : groups_[g].table) {
      if (block >= 0) pools.pool(static_cast<int>(g)).drop_reference(block);
    }
  }
  groups_.clear();
}

}  // namespace lk
