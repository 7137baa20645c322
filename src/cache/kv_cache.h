// Paged KV memory of all attention layers, and the blocks that sequences hold of it. Used by the
// engine's thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/result.h"
#include "kernels/kernels.h"

namespace lk {

// Layers with the same window share block tables: a KV group.
struct KvGroup {
  int window = 0;           // keys a query sees; 0: all
  std::vector<int> layers;  // attention layer indices
};

struct KvLayout {
  std::vector<KvGroup> groups;
  std::vector<int> layer_group;  // [attention layers] group of each
  int kv_heads = 0, head_dim = 0;
  KvType type = KvType::kBF16;

  // Bytes of one block of one group (keys and values of all its layers).
  size_t block_bytes(int group) const;
};

class KvCache {
 public:
  // `blocks[g]` blocks for group g. Throws std::bad_alloc.
  KvCache(const KvLayout& layout, std::vector<int> blocks);

  KvLayer layer(int attention_layer);  // pointers for the kernels
  const KvLayout& layout() const { return layout_; }
  int blocks(int group) const { return blocks_[group]; }
  size_t bytes() const;

 private:
  KvLayout layout_;
  std::vector<int> blocks_;
  std::vector<AlignedBuffer> keys_, values_;  // by attention layer
};

}  // namespace lk
