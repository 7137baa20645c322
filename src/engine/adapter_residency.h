// Which adapters are in memory, and which leave when others need their place. Bookkeeping alone:
// neither files nor threads. The owner's lock guards everything but `leases`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/adapter_source.h"
#include "model/model.h"

namespace lk {

// An adapter loaded from files in one state. What is told of it stays after its weights left.
struct AdapterVersion {
  AdapterSource source;
  uint64_t identity = 0;
  size_t bytes = 0;  // packed
  int max_rank = 0;
  double load_seconds = 0;
  std::vector<std::string> warnings;
  std::string description;                          // JSON
  std::shared_ptr<const PreparedAdapter> prepared;  // null once it left

  std::atomic<int> leases{0};  // requests that use it; raised under the owner's lock only
  int names = 0;               // that stand for it
  uint64_t last_used = 0;
  // In use, but others wait for its place: takes no new requests until they had their turn.
  bool draining = false;

  bool serves() const { return prepared && !draining; }
};

class AdapterResidency {
 public:
  // 0: no bound.
  AdapterResidency(size_t max_bytes, int max_count)
      : max_bytes_(max_bytes), max_count_(max_count) {}

  // The version in memory that was loaded from `source`; null if there is none.
  std::shared_ptr<AdapterVersion> find(const AdapterSource& source) const;

  // Takes a place of `bytes` for a load, evicting versions that nobody uses, least recently used
  // first. False, and nothing changes, if that does not make room enough.
  bool reserve(size_t bytes);
  void release(size_t reserved);
  // Gives a reserved place to the loaded version. False if it is larger than reserved and there is
  // no room for the rest: the place is given back.
  bool commit(size_t reserved, std::shared_ptr<AdapterVersion> version);

  // Drops the versions without a name that nobody uses.
  void sweep();
  // Makes versions in use drain until `needs` (bytes of each load that waits) would have room; the
  // ones with the fewest leases, and those that drain already go on. All others stop draining.
  void drain_for(const std::vector<size_t>& needs);

  // The versions that left for the sake of others since the last call.
  std::vector<std::shared_ptr<AdapterVersion>> take_evicted() {
    return std::exchange(evicted_, {});
  }

  void touch(AdapterVersion& version) { version.last_used = ++clock_; }
  size_t max_bytes() const { return max_bytes_; }
  int count() const { return static_cast<int>(versions_.size()); }
  uint64_t evictions() const { return evictions_; }

 private:
  bool fits(size_t bytes, int count) const;
  bool make_room(size_t bytes, int count);
  void drop(size_t index);

  size_t max_bytes_;
  int max_count_;
  std::vector<std::shared_ptr<AdapterVersion>> versions_, evicted_;
  size_t bytes_ = 0;  // of versions and reserved places
  int reserved_ = 0;  // places
  uint64_t clock_ = 0, evictions_ = 0;
};

}  // namespace lk
