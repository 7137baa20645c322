#include "cache/state_pool.h"

#include "base/check.h"

namespace lk {

StatePool::StatePool(int sequences, int snapshots) : sequences_(sequences), snapshots_(snapshots) {
  for (int32_t slot = sequences - 1; slot >= 0; --slot) free_.push_back(slot);
}

int32_t StatePool::take() {
  LK_CHECK(!free_.empty());
  const int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void StatePool::give(int32_t slot) {
  LK_CHECK(slot >= 0 && slot < sequences_);
  free_.push_back(slot);
}

int32_t StatePool::find(const PrefixKey& key) {
  const int32_t block = snapshots_.index().find(key);
  LK_CHECK(block >= 0);
  snapshots_.add_reference(block);
  snapshots_.drop_reference(block);
  return sequences_ + block;
}

int32_t StatePool::save(const PrefixKey& key) {
  if (snapshots() == 0) return -1;
  if (knows(key)) {
    find(key);
    return -1;
  }
  const int32_t block = snapshots_.take();
  snapshots_.index().insert(key, block);
  snapshots_.drop_reference(block);
  return sequences_ + block;
}

}  // namespace lk
