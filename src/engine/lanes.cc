#include "engine/lanes.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace lk {

AdapterLanes::AdapterLanes(int slots, int patience) : slots_(slots, nullptr), patience_(patience) {}

Lane* AdapterLanes::lane_of(const std::shared_ptr<const EngineAdapter>& adapter) {
  const auto at = std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    return adapter ? !lane->base && lane->identity == adapter->identity : lane->base;
  });
  if (at != lanes_.end()) {
    if (!(*at)->adapter) (*at)->adapter = adapter;
    return at->get();
  }
  lanes_.push_back(std::make_unique<Lane>());
  Lane& lane = *lanes_.back();
  lane.base = adapter == nullptr;
  lane.identity = adapter ? adapter->identity : 0;
  lane.adapter = adapter;
  return &lane;
}

void AdapterLanes::add(Sequence* sequence) {
  sequence->lane = lane_of(sequence->request.adapter);
  sequence->lane->waiting.push_back(sequence);
  ++waiting_;
}

void AdapterLanes::resume(Sequence* sequence) {
  sequence->lane = lane_of(sequence->request.adapter);
  insert_waiting(sequence);
}

void AdapterLanes::remove(Sequence* sequence) {
  Lane& lane = *sequence->lane;
  if (sequence->running) {
    --lane.running;
    lane.last_used = step_;
  } else {
    const auto at = std::find(lane.waiting.begin(), lane.waiting.end(), sequence);
    LK_CHECK(at != lane.waiting.end());
    lane.waiting.erase(at);
    --waiting_;
  }
  sequence->lane = nullptr;
  settle_empty_lanes();
}

void AdapterLanes::preempt(Sequence* sequence) {
  --sequence->lane->running;
  sequence->lane->last_used = step_;
  insert_waiting(sequence);
}

void AdapterLanes::insert_waiting(Sequence* sequence) {
  std::deque<Sequence*>& waiting = sequence->lane->waiting;
  const auto earlier = [](const Sequence* a, const Sequence* b) { return a->arrival < b->arrival; };
  waiting.insert(std::lower_bound(waiting.begin(), waiting.end(), sequence, earlier), sequence);
  ++waiting_;
}

bool AdapterLanes::slot_obtainable() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const Lane* lane) { return !lane || lane->running == 0; });
}

bool AdapterLanes::admissible(const Lane& lane) const {
  if (lane.waiting.empty()) return false;
  if (lane.base) return true;
  return lane.slot >= 0 ? !lane.draining : slot_obtainable();
}

void AdapterLanes::begin_step() {
  ++step_;
  int impatient = 0;
  for (const auto& lane : lanes_) {
    const bool blocked = !lane->base && lane->slot < 0 && !lane->waiting.empty();
    if (!blocked) lane->blocked_since = 0;
    if (blocked && lane->blocked_since == 0) lane->blocked_since = step_;
    if (blocked && step_ - lane->blocked_since >= static_cast<uint64_t>(patience_)) ++impatient;
  }
  drain(impatient);
}

// Makes exactly `wanted` slot holders drain, the ones with the fewest running requests; those that
// drain already go on.
void AdapterLanes::drain(int wanted) {
  std::vector<Lane*> holders;
  for (Lane* lane : slots_) {
    if (lane)
      holders.push_back(lane);
    else
      --wanted;
  }
  std::stable_sort(holders.begin(), holders.end(), [](const Lane* a, const Lane* b) {
    return std::tuple(!a->draining, a->running) < std::tuple(!b->draining, b->running);
  });
  for (size_t i = 0; i < holders.size(); ++i) holders[i]->draining = static_cast<int>(i) < wanted;
}

Sequence* AdapterLanes::next() {
  Lane* best = nullptr;
  const auto key = [](const Lane& lane) {
    const Sequence& first = *lane.waiting.front();
    return std::tuple(!first.preempted, lane.running, first.arrival);
  };
  for (const auto& lane : lanes_) {
    if (admissible(*lane) && (!best || key(*lane) < key(*best))) best = lane.get();
  }
  return best ? best->waiting.front() : nullptr;
}

int AdapterLanes::take_slot() {
  int best = -1;
  const auto key = [](const Lane* lane) {
    return lane ? std::tuple(1, !lane->draining, lane->last_used)
                : std::tuple(0, false, uint64_t{0});
  };
  for (int slot = 0; slot < static_cast<int>(slots_.size()); ++slot) {
    if (slots_[slot] && slots_[slot]->running > 0) continue;
    if (best < 0 || key(slots_[slot]) < key(slots_[best])) best = slot;
  }
  LK_CHECK(best >= 0);
  if (Lane* evicted = slots_[best]) {
    evicted->slot = -1;
    evicted->draining = false;
  }
  return best;
}

void AdapterLanes::admit(Sequence* sequence, std::vector<SlotBinding>& bindings) {
  Lane& lane = *sequence->lane;
  LK_CHECK(!lane.waiting.empty() && lane.waiting.front() == sequence);
  lane.waiting.pop_front();
  --waiting_;
  ++lane.running;
  lane.last_used = step_;
  if (lane.base || (lane.slot >= 0 && !lane.bound.expired())) return;
  if (lane.slot < 0) {
    lane.slot = take_slot();
    slots_[lane.slot] = &lane;
  }
  // In an own slot stands the same content from before it was loaded again: that copy can go.
  lane.bound = lane.adapter;
  bindings.push_back({lane.slot, lane.adapter});
  settle_empty_lanes();
}

void AdapterLanes::release_unused(std::vector<SlotBinding>& bindings) {
  for (int slot = 0; slot < static_cast<int>(slots_.size()); ++slot) {
    Lane* lane = slots_[slot];
    if (!lane || lane->running > 0 || !lane->waiting.empty() || !lane->bound.expired()) continue;
    lane->slot = -1;
    slots_[slot] = nullptr;
    bindings.push_back({slot, nullptr});
  }
  settle_empty_lanes();
}

std::vector<AdapterLoad> AdapterLanes::loads() const {
  std::vector<AdapterLoad> loads;
  for (const auto& lane : lanes_) {
    if (!lane->adapter) continue;
    loads.push_back({lane->adapter->name, lane->identity, lane->running,
                     static_cast<int>(lane->waiting.size())});
  }
  return loads;
}

void AdapterLanes::settle_empty_lanes() {
  std::erase_if(lanes_, [](const auto& lane) {
    if (!lane->waiting.empty() || lane->running > 0) return false;
    lane->adapter = nullptr;
    return lane->slot < 0;
  });
}

}  // namespace lk
