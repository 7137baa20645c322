#include "model/lora.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace lk {

PreparedAdapter::PreparedAdapter(const Adapter& adapter, const LinearTable& table,
                                 const Kernels& kernels)
    : name_(adapter.name), identity_(adapter.identity), linears_(table.linears.size()) {
  for (const AdapterModule& module : adapter.modules) {
    const LinearSpec* spec = table.find(module.spec->stage, module.spec->layer);
    LK_CHECK(spec != nullptr && spec->out == module.spec->out && spec->in == module.spec->in &&
             spec->experts == module.spec->experts);
    std::vector<LoraSource> sources;
    for (const LoraPair& pair : module.experts) {
      LK_CHECK(pair.a.size() == static_cast<size_t>(pair.rank * spec->in) &&
               pair.b.size() == static_cast<size_t>(pair.rank * spec->out));
      sources.push_back({pair.rank, pair.scale, pair.a.data(), pair.b.data()});
    }
    std::unique_ptr<LoraWeights>& slot = linears_[spec - table.linears.data()];
    LK_CHECK(slot == nullptr);
    slot = kernels.pack_lora(*spec, sources);
    bytes_ += slot->bytes();
  }
}

LoraSlots::LoraSlots(size_t linears, int slots, Device& device)
    : adapters_(slots), pairs_(linears * slots), device_(&device) {
  if (!device.is_host())
    table_ = DeviceBuffer(device, pairs_.size() * sizeof(void*), MemoryUse::kWorkspace);
}

void LoraSlots::set(int slot, std::shared_ptr<const PreparedAdapter> adapter) {
  LK_CHECK(slot >= 0 && slot < slots());
  const size_t linears = adapters_.empty() ? 0 : pairs_.size() / adapters_.size();
  for (size_t i = 0; i < linears; ++i) {
    pairs_[i * adapters_.size() + slot] = adapter ? adapter->linear(i) : nullptr;
  }
  // The old adapter goes after the table that no longer names it is on its way.
  const std::shared_ptr<const PreparedAdapter> old =
      std::exchange(adapters_[slot], std::move(adapter));
  if (table_.data()) update_device();
}

void LoraSlots::update_device() {
  std::vector<const void*> addresses;
  addresses.reserve(pairs_.size());
  shape_ = 0;
  for (size_t i = 0; i < pairs_.size(); i += adapters_.size()) {
    int rank = 0;
    for (size_t slot = 0; slot < adapters_.size(); ++slot) {
      const LoraWeights* pairs = pairs_[i + slot];
      addresses.push_back(pairs ? pairs->device_address() : nullptr);
      if (pairs) rank = std::max(rank, pairs->max_rank());
    }
    const uint64_t width = rank == 0 ? 0 : std::bit_ceil(static_cast<unsigned>(rank));
    shape_ = (shape_ ^ width) * 0x100000001b3u;  // FNV-1a
  }
  device_->upload(table_.data(), addresses.data(), addresses.size() * sizeof(void*));
}

}  // namespace lk
