// Paged KV memory of all attention layers, and the states of recurrent ones. Used by the engine's
// thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/device_buffer.h"
#include "base/result.h"
#include "kernels/kernels.h"

namespace lk {

// Layers with the same window share block tables: a KV group.
struct KvGroup {
  int window = 0;           // keys a query sees; 0: all
  std::vector<int> layers;  // attention layer indices
};

// What one recurrent layer keeps of a sequence (StateLayer), in floats.
struct StateShape {
  int64_t conv = 0, state = 0;
};

struct KvLayout {
  std::vector<KvGroup> groups;
  std::vector<int> layer_group;  // [attention layers] group of each
  int kv_heads = 0, head_dim = 0;
  KvType type = KvType::kBF16;
  std::vector<StateShape> states{};  // [recurrent layers]

  // Bytes of one block of one group (keys and values of all its layers).
  size_t block_bytes(int group) const;
  // Bytes of what all recurrent layers keep of one sequence.
  size_t state_bytes() const;
};

class KvCache {
 public:
  // `blocks[g]` blocks for group g and states of `state_slots` sequences, in `device`'s memory.
  // Throws std::bad_alloc.
  KvCache(const KvLayout& layout, std::vector<int> blocks, int state_slots = 0,
          Device& device = host_device());

  KvLayer layer(int attention_layer);  // pointers for the kernels
  StateLayer state(int recurrent_layer);
  // Copies one sequence's state in all recurrent layers.
  void copy_state(int from_slot, int to_slot);
  const KvLayout& layout() const { return layout_; }
  int blocks(int group) const { return blocks_[group]; }
  int state_slots() const { return state_slots_; }
  size_t bytes() const;

 private:
  KvLayout layout_;
  std::vector<int> blocks_;
  int state_slots_;
  Device* device_;
  std::vector<DeviceBuffer> keys_, values_;   // by attention layer
  std::vector<DeviceBuffer> convs_, states_;  // by recurrent layer
};

}  // namespace lk
