#include "server/api/served_model.h"

#include <fmt/format.h>

#include <algorithm>

namespace lk {

bool ServedModel::is_base(const std::string& name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string ServedModel::fingerprint(const EngineAdapter* adapter) const {
  if (adapter == nullptr) return fmt::format("lorikeet-{:016x}", info.content_hash);
  return fmt::format("lorikeet-{:016x}-{:016x}", info.content_hash, adapter->identity);
}

}  // namespace lk
