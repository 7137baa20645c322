// Which KV blocks are free, per KV group, and the block tables of sequences. Reference counts let
// blocks be shared between sequences. Used by the engine's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/prefix_index.h"

namespace lk {

class StatePool;

// The blocks of one KV group. A block without a reference is free. If its contents are known (the
// prefix index has it) it keeps them until no other free block is left; the others are handed out
// last freed first: memory that was never needed is not touched before.
class BlockPool {
 public:
  explicit BlockPool(int blocks);

  int size() const { return static_cast<int>(references_.size()); }
  int free_count() const { return static_cast<int>(free_.size()) + index_.idle(); }
  // A block with one reference; -1 if none is free.
  int32_t take();
  // Of a block that is in use, or known.
  void add_reference(int32_t block);
  // Gives one reference back; the block is free when none is left.
  void drop_reference(int32_t block);

  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }

 private:
  PrefixIndex index_;
  std::vector<int32_t> free_;        // not known; a stack
  std::vector<int32_t> references_;  // by block
};

// The pools of all groups of a cache.
class BlockPools {
 public:
  BlockPools(const KvLayout& layout, const std::vector<int>& blocks);

  int groups() const { return static_cast<int>(pools_.size()); }
  int window(int group) const { return windows_[group]; }
  BlockPool& pool(int group) { return pools_[group]; }
  const BlockPool& pool(int group) const { return pools_[group]; }

  // Blocks of `group` that a sequence holds when it has `computed` tokens in the cache and `count`
  // more are being written: those that the window of the first new token still reaches, and the new
  // ones.
  int blocks_needed(int group, int computed, int count) const;
  // The most that a sequence of `length` tokens holds at any time when at most `chunk` tokens are
  // written in a step.
  int most_blocks(int group, int length, int chunk) const;

 private:
  std::vector<BlockPool> pools_;
  std::vector<int> windows_;
};

// Block tables of one sequence, by group. Gives nothing back by itself: call `clear` before it is
// destroyed.
class SequenceBlocks {
 public:
  // Makes room to write tokens [computed, computed + count): frees the blocks wholly behind the
  // window of token `computed`, then takes what is missing. False, with no block taken, if a pool
  // has too few.
  bool reserve(BlockPools& pools, int computed, int count);
  void clear(BlockPools& pools);
  // Takes the longest prefix of at most keys.size() blocks that the pools know with all that a
  // token behind it can see, and at whose end there is a state if the model has recurrent layers;
  // returns its blocks. Nothing may be held.
  int match(BlockPools& pools, const StatePool& states, std::span<const PrefixKey> keys);
  // Blocks [first, keys.size()) are full and computed: makes them known.
  void publish(BlockPools& pools, std::span<const PrefixKey> keys, int first) const;

  // Block of tokens [16 i, 16 i + 16); -1 where the window has passed.
  const std::vector<int32_t>& table(int group) const { return groups_[group].table; }
  // Blocks held of `group`.
  int held(int group) const {
    return groups_.empty() ? 0
                           : static_cast<int>(groups_[group].table.size()) - groups_[group].passed;
  }

 private:
  struct Group {
    std::vector<int32_t> table;
    int passed = 0;  // leading entries that are -1
  };
  std::vector<Group> groups_;
};

}  // namespace lk
