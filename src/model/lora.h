// Adapters as a model holds them: pairs packed for its kernels, and the slots that bind them to
// linears.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "backend/device_buffer.h"
#include "checkpoint/linear_table.h"
#include "kernels/kernels.h"

namespace lk {

// An adapter packed for one Kernels implementation. Immutable; shared by pointer.
class PreparedAdapter {
 public:
  // Packs every module of `adapter`, found in `table` by stage and layer: the adapter may have been
  // loaded for another model of the same table. Throws std::bad_alloc.
  PreparedAdapter(const Adapter& adapter, const LinearTable& table, const Kernels& kernels);

  const std::string& name() const { return name_; }
  uint64_t identity() const { return identity_; }
  size_t bytes() const { return bytes_; }  // as packed
  // Pairs for the table's linear `index`; null if the adapter leaves it alone.
  const LoraWeights* linear(size_t index) const { return linears_[index].get(); }

 private:
  std::string name_;
  uint64_t identity_ = 0;
  size_t bytes_ = 0;
  std::vector<std::unique_ptr<LoraWeights>> linears_;  // by index in table.linears
};

// Which adapter stands in which slot, as the kernels want it: for each linear, pairs by slot.
// Used by the engine's thread only, between steps.
class LoraSlots {
 public:
  LoraSlots(size_t linears, int slots, Device& device);

  // Null empties the slot. The slot keeps the adapter alive.
  void set(int slot, std::shared_ptr<const PreparedAdapter> adapter);
  int slots() const { return static_cast<int>(adapters_.size()); }
  bool filled(int slot) const { return adapters_[slot] != nullptr; }
  // Pairs of linear `index` by slot; the span stays valid, its contents follow `set`.
  std::span<const LoraWeights* const> linear(size_t index) const {
    return {pairs_.data() + index * adapters_.size(), adapters_.size()};
  }
  // The same as the device reads it (Linear::device_lora); null on the host.
  const void* const* device_linear(size_t index) const {
    return table_.data() ? table_.as<const void*>() + index * adapters_.size() : nullptr;
  }
  // Changes where `set` gives a linear its first pairs, takes its last, or raises the ranks beyond
  // a power of two: what the launches of a step depend on.
  uint64_t shape() const { return shape_; }

 private:
  void update_device();

  std::vector<std::shared_ptr<const PreparedAdapter>> adapters_;  // [slots]
  std::vector<const LoraWeights*> pairs_;                         // [linears, slots]
  Device* device_;
  DeviceBuffer table_;  // [linears, slots] device addresses
  uint64_t shape_ = 0;
};

}  // namespace lk
