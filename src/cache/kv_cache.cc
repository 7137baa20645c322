#include "cache/kv_cache.h"

#include "base/check.h"

namespace lk {
namespace {

size_t element_bytes(KvType type) { return type == KvType::kBF16 ? 2 : 4; }

// Bytes of the keys, or of the values, of one block of one layer.
size_t half_block_bytes(const KvLayout& layout) {
  return static_cast<size_t>(layout.kv_heads) * layout.head_dim * kKvBlockTokens *
         element_bytes(layout.type);
}

}  // namespace

size_t KvLayout::block_bytes(int group) const {
  return 2 * half_block_bytes(*this) * groups[group].layers.size();
}

size_t KvLayout::state_bytes() const {
  size_t total = 0;
  for (const StateShape& shape : states) total += sizeof(float) * (shape.conv + shape.state);
  return total;
}

KvCache::KvCache(const KvLayout& layout, std::vector<int> blocks, int state_slots, Device& device)
    : layout_(layout), blocks_(std::move(blocks)), state_slots_(state_slots), device_(&device) {
  LK_CHECK(blocks_.size() == layout_.groups.size());
  const size_t half = half_block_bytes(layout_);
  for (int group : layout_.layer_group) {
    keys_.emplace_back(device, half * blocks_[group], MemoryUse::kCache);
    values_.emplace_back(device, half * blocks_[group], MemoryUse::kCache);
  }
  for (const StateShape& shape : layout_.states) {
    convs_.emplace_back(device, sizeof(float) * shape.conv * state_slots, MemoryUse::kCache);
    states_.emplace_back(device, sizeof(float) * shape.state * state_slots, MemoryUse::kCache);
  }
}

StateLayer KvCache::state(int recurrent_layer) {
  return {.conv = convs_[recurrent_layer].as<float>(),
          .state = states_[recurrent_layer].as<float>()};
}

KvLayer KvCache::layer(int attention_layer) {
  return {.keys = keys_[attention_layer].data(),
          .values = values_[attention_layer].data(),
          .type = layout_.type,
          .group = layout_.layer_group[attention_layer]};
}

void KvCache::copy_state(int from_slot, int to_slot) {
  LK_CHECK(from_slot >= 0 && from_slot < state_slots_ && to_slot >= 0 && to_slot < state_slots_);
  for (size_t i = 0; i < layout_.states.size(); ++i) {
    const auto copy = [&](float* slots, int64_t count) {
      device_->copy(slots + to_slot * count, slots + from_slot * count, sizeof(float) * count);
    };
    copy(convs_[i].as<float>(), layout_.states[i].conv);
    copy(states_[i].as<float>(), layout_.states[i].state);
  }
}

size_t KvCache::bytes() const {
  size_t total = 0;
  for (size_t g = 0; g < blocks_.size(); ++g) {
    total += layout_.block_bytes(static_cast<int>(g)) * blocks_[g];
  }
  return total + layout_.state_bytes() * state_slots_;
}

}  // namespace lk
