// Which state slots of recurrent layers are whose: one for each running sequence, and snapshots of
// states by the prefix that led to them. Used by the engine's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_pool.h"

namespace lk {

// One sequence's states in all recurrent layers are to be copied between slots.
struct StateCopy {
  int32_t from = 0, to = 0;
};

class StatePool {
 public:
  // Slots [0, sequences) are for running sequences, the next `snapshots` for snapshots. Both 0 for
  // a model without recurrent layers.
  StatePool(int sequences, int snapshots);

  bool used() const { return sequences_ > 0; }
  int slots() const { return sequences_ + snapshots_.size(); }
  int snapshots() const { return snapshots_.size(); }
  int free_count() const { return static_cast<int>(free_.size()); }

  // A slot for a sequence; one must be free.
  int32_t take();
  void give(int32_t slot);

  bool knows(const PrefixKey& key) const { return snapshots_.index().find(key) >= 0; }
  // The slot of the state after `key`, which must be known; it is now the last one to be forgotten.
  int32_t find(const PrefixKey& key);
  // The slot to copy the state after `key` to, known from now on; -1 if there is nothing to copy:
  // it is known already, or there are no slots for snapshots.
  int32_t save(const PrefixKey& key);

 private:
  int sequences_;
  std::vector<int32_t> free_;  // a stack
  BlockPool snapshots_;        // every block of it is idle, and known or free
};

}  // namespace lk
