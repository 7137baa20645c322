// Which KV blocks hold what, so that requests with the same beginning share them. Used by the
// engine's thread only.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace lk {

// Stands for everything that the values of a full block depend on: the adapter's content and all
// tokens up to the block's end.
struct PrefixKey {
  uint64_t low = 0, high = 0;
  bool operator==(const PrefixKey&) const = default;
};

// Chains of keys. XXH3 with 128 bits and a seed that is drawn anew for each object: equal keys of
// different prefixes come neither by chance nor, without knowing the seed, by design.
class PrefixHasher {
 public:
  PrefixHasher();
  // Before the first block. `adapter`: false for the base, whose `identity` is not looked at.
  PrefixKey root(bool adapter, uint64_t identity) const;
  // Of the block of `tokens` that follows `before`.
  PrefixKey next(const PrefixKey& before, std::span<const int32_t> tokens) const;

 private:
  uint64_t seed_;
};

// The blocks of one group by key, and those of them that nobody uses, by age.
class PrefixIndex {
 public:
  explicit PrefixIndex(int blocks);

  int32_t find(const PrefixKey& key) const;  // -1: none
  // `block` holds `key` from now on. Does nothing if another block does, or `block` holds one.
  void insert(const PrefixKey& key, int32_t block);
  bool contains(int32_t block) const { return entries_[block].known; }

  // A known block that nobody uses any more, or is used again.
  void push_idle(int32_t block);
  void remove_idle(int32_t block);
  int idle() const { return idle_; }
  // Forgets the block that has been idle for longest and returns it; -1 if there is none.
  int32_t take_oldest();

 private:
  struct Entry {
    PrefixKey key;
    bool known = false;
    int32_t older = -1, newer = -1;  // neighbours among the idle ones
  };
  struct Hash {
    size_t operator()(const PrefixKey& key) const { return key.low; }
  };

  std::unordered_map<PrefixKey, int32_t, Hash> blocks_;
  std::vector<Entry> entries_;  // by block
  int32_t oldest_ = -1, newest_ = -1;
  int idle_ = 0;
};

}  // namespace lk
