#include "model/lora.h"

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

LoraSlots::LoraSlots(size_t linears, int slots) : adapters_(slots), pairs_(linears * slots) {}

void LoraSlots::set(int slot, std::shared_ptr<const PreparedAdapter> adapter) {
  LK_CHECK(slot >= 0 && slot < slots());
  const size_t linears = adapters_.empty() ? 0 : pairs_.size() / adapters_.size();
  for (size_t i = 0; i < linears; ++i) {
    pairs_[i * adapters_.size() + slot] = adapter ? adapter->linear(i) : nullptr;
  }
  adapters_[slot] = std::move(adapter);
}

}  // namespace lk
