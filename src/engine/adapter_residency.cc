#include "engine/adapter_residency.h"

#include <algorithm>
#include <tuple>

namespace lk {

std::shared_ptr<AdapterVersion> AdapterResidency::find(const AdapterSource& source) const {
  for (const auto& version : versions_) {
    if (version->source == source) return version;
  }
  return nullptr;
}

bool AdapterResidency::fits(size_t bytes, int count) const {
  return (max_bytes_ == 0 || (bytes <= max_bytes_ && bytes_ <= max_bytes_ - bytes)) &&
         (max_count_ == 0 || this->count() + reserved_ + count <= max_count_);
}

bool AdapterResidency::make_room(size_t bytes, int count) {
  std::vector<std::pair<uint64_t, AdapterVersion*>> idle;  // by last use
  size_t idle_bytes = 0;
  for (const auto& version : versions_) {
    if (version->leases.load() > 0) continue;
    idle.emplace_back(version->last_used, version.get());
    idle_bytes += version->bytes;
  }
  const bool enough =
      (max_bytes_ == 0 || (bytes <= max_bytes_ && bytes_ - idle_bytes <= max_bytes_ - bytes)) &&
      (max_count_ == 0 ||
       this->count() - static_cast<int>(idle.size()) + reserved_ + count <= max_count_);
  if (!enough) return false;
  std::sort(idle.begin(), idle.end());
  for (const auto& [order, version] : idle) {
    if (fits(bytes, count)) break;
    const auto at = std::find_if(versions_.begin(), versions_.end(),
                                 [&](const auto& other) { return other.get() == version; });
    evicted_.push_back(*at);
    drop(static_cast<size_t>(at - versions_.begin()));
    ++evictions_;
  }
  return true;
}

void AdapterResidency::drop(size_t index) {
  AdapterVersion& version = *versions_[index];
  bytes_ -= version.bytes;
  version.prepared.reset();
  version.draining = false;
  versions_.erase(versions_.begin() + static_cast<ptrdiff_t>(index));
}

bool AdapterResidency::reserve(size_t bytes) {
  if (!make_room(bytes, 1)) return false;
  bytes_ += bytes;
  ++reserved_;
  return true;
}

void AdapterResidency::release(size_t reserved) {
  bytes_ -= reserved;
  --reserved_;
}

bool AdapterResidency::commit(size_t reserved, std::shared_ptr<AdapterVersion> version) {
  release(reserved);
  if (!make_room(version->bytes, 1)) return false;
  bytes_ += version->bytes;
  versions_.push_back(std::move(version));
  return true;
}

void AdapterResidency::sweep() {
  for (size_t i = versions_.size(); i-- > 0;) {
    if (versions_[i]->names == 0 && versions_[i]->leases.load() == 0) drop(i);
  }
}

void AdapterResidency::drain_for(const std::vector<size_t>& needs) {
  std::vector<std::pair<std::tuple<bool, int, uint64_t>, AdapterVersion*>> used;
  for (const auto& version : versions_) {
    const int leases = version->leases.load();
    if (leases > 0)
      used.push_back({{!version->draining, leases, version->last_used}, version.get()});
    version->draining = false;
  }
  size_t bytes = 0;
  for (const size_t need : needs) bytes += max_bytes_ > 0 ? std::min(need, max_bytes_) : need;
  // What stays if every idle version left.
  size_t held_bytes = bytes_;
  int held_count = reserved_ + static_cast<int>(used.size());
  for (const auto& version : versions_) {
    if (version->leases.load() == 0) held_bytes -= version->bytes;
  }
  std::sort(used.begin(), used.end());
  for (const auto& [order, version] : used) {
    const bool bytes_suffice = max_bytes_ == 0 || held_bytes + bytes <= max_bytes_;
    const bool count_suffices =
        max_count_ == 0 || held_count + static_cast<int>(needs.size()) <= max_count_;
    if (bytes_suffice && count_suffices) break;
    version->draining = true;
    held_bytes -= version->bytes;
    --held_count;
  }
}

}  // namespace lk
