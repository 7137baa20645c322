#include "adapters/adapter.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lk {
namespace {

size_t pair_bytes(const LoraPair& pair) {
  return (pair.a.size() + pair.b.size()) * sizeof(uint16_t);
}

size_t module_bytes(const AdapterModule& module) {
  size_t bytes = 0;
  for (const LoraPair& pair : module.experts) bytes += pair_bytes(pair);
  return bytes;
}

OrderedJson describe_module(const AdapterModule& module) {
  std::vector<int> ranks;
  std::vector<float> scales;
  int64_t adapted = 0;
  for (const LoraPair& pair : module.experts) {
    if (pair.rank == 0) continue;
    ++adapted;
    if (std::find(ranks.begin(), ranks.end(), pair.rank) == ranks.end()) ranks.push_back(pair.rank);
    if (std::find(scales.begin(), scales.end(), pair.scale) == scales.end())
      scales.push_back(pair.scale);
  }
  OrderedJson out;
  out["stage"] = std::string(stage_name(module.spec->stage));
  if (module.spec->layer >= 0) out["layer"] = module.spec->layer;
  out["path"] = module.spec->path();
  if (module.spec->experts > 0) {
    out["experts_adapted"] = adapted;
    out["experts"] = module.spec->experts;
  }
  out["ranks"] = ranks;
  out["scales"] = scales;
  out["bytes"] = module_bytes(module);
  return out;
}

}  // namespace

int AdapterModule::max_rank() const {
  int rank = 0;
  for (const LoraPair& pair : experts) rank = std::max(rank, pair.rank);
  return rank;
}

const AdapterModule* Adapter::find(Stage stage, int layer) const {
  for (const AdapterModule& module : modules) {
    if (module.spec->stage == stage && module.spec->layer == layer) return &module;
  }
  return nullptr;
}

size_t Adapter::bytes() const {
  size_t total = 0;
  for (const AdapterModule& module : modules) total += module_bytes(module);
  return total;
}

OrderedJson Adapter::describe() const {
  OrderedJson out;
  out["name"] = name;
  out["path"] = path;
  out["identity"] = fmt::format("{:016x}", identity);
  int64_t pairs = 0;
  int rank = 0;
  OrderedJson list = OrderedJson::array();
  for (const AdapterModule& module : modules) {
    list.push_back(describe_module(module));
    rank = std::max(rank, module.max_rank());
    pairs += std::count_if(module.experts.begin(), module.experts.end(),
                           [](const LoraPair& pair) { return pair.rank > 0; });
  }
  out["totals"] = {
      {"modules", modules.size()}, {"pairs", pairs}, {"max_rank", rank}, {"bytes", bytes()}};
  out["modules"] = std::move(list);
  out["not_adapted"] = not_adapted;
  out["warnings"] = warnings;
  return out;
}

}  // namespace lk
