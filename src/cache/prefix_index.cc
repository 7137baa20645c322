#include "cache/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <random>

#include "base/check.h"
#include "kernels/kernels.h"

namespace lk {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

PrefixHasher::PrefixHasher() : seed_(random_seed()) {}

PrefixKey PrefixHasher::root(bool adapter, uint64_t identity) const {
  return {adapter ? identity : 0, adapter};
}

PrefixKey PrefixHasher::next(const PrefixKey& before, std::span<const int32_t> tokens) const {
  LK_CHECK(tokens.size() == kKvBlockTokens);
  struct {
    PrefixKey before;
    std::array<int32_t, kKvBlockTokens> tokens;
  } text{before, {}};
  static_assert(sizeof(text) == sizeof(PrefixKey) + kKvBlockTokens * sizeof(int32_t));
  std::copy(tokens.begin(), tokens.end(), text.tokens.begin());
  const XXH128_hash_t hash = XXH3_128bits_withSeed(&text, sizeof(text), seed_);
  return {hash.low64, hash.high64};
}

PrefixIndex::PrefixIndex(int blocks) : entries_(blocks) {}

int32_t PrefixIndex::find(const PrefixKey& key) const {
  const auto at = blocks_.find(key);
  return at == blocks_.end() ? -1 : at->second;
}

void PrefixIndex::insert(const PrefixKey& key, int32_t block) {
  Entry& entry = entries_[block];
  if (entry.known || !blocks_.emplace(key, block).second) return;
  entry.key = key;
  entry.known = true;
}

void PrefixIndex::push_idle(int32_t block) {
  LK_CHECK(entries_[block].known);
  entries_[block].older = newest_;
  entries_[block].newer = -1;
  (newest_ >= 0 ? entries_[newest_].newer : oldest_) = block;
  newest_ = block;
  ++idle_;
}

void PrefixIndex::remove_idle(int32_t block) {
  const Entry& entry = entries_[block];
  (entry.older >= 0 ? entries_[entry.older].newer : oldest_) = entry.newer;
  (entry.newer >= 0 ? entries_[entry.newer].older : newest_) = entry.older;
  --idle_;
}

int32_t PrefixIndex::take_oldest() {
  const int32_t block = oldest_;
  if (block < 0) return -1;
  remove_idle(block);
  blocks_.erase(entries_[block].key);
  entries_[block].known = false;
  return block;
}

}  // namespace lk
