// Who is admitted next: one lane for each adapter and one for the base, and the adapter slots that
// lanes hold. Used by the engine's thread only. Every choice follows from arrival order and counts,
// never from addresses or hashes.
//
// Rules:
// - Among the lanes that may run, the one with the fewest running requests is served next; among
// equals the earliest arrival. A lane
//   serves its requests in order of arrival. Preempted requests go before all others.
// - A lane holds one slot from its first running request on. It keeps it while idle, until another
// lane needs one (least recently used
//   first). Requests of lanes that cannot get a slot do not hold up the others.
// - A lane that has waited `patience` steps for a slot makes the slot holder with the fewest
// running requests drain: it admits nothing
//   more, and its slot passes on when its running requests are done. So no lane waits for longer
//   than that.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/sequence.h"

namespace lk {

struct Lane {
  bool base = true;
  uint64_t identity = 0;  // of the adapter: two names of the same content share a lane
  // Null for the base, and while the lane has no requests: only they keep an adapter in memory.
  std::shared_ptr<const EngineAdapter> adapter;
  std::weak_ptr<const EngineAdapter> bound;  // what stands in the slot
  std::deque<Sequence*> waiting;             // by arrival
  int running = 0;
  int slot = -1;
  bool draining = false;
  uint64_t last_used = 0;      // step
  uint64_t blocked_since = 0;  // step since which its first request lacks a slot; 0: it does not
};

// `adapter` takes `slot` before the next forward pass; null empties it.
struct SlotBinding {
  int slot = 0;
  std::shared_ptr<const EngineAdapter> adapter;
};

// What an adapter has to do.
struct AdapterLoad {
  std::string name;
  uint64_t identity = 0;
  int running = 0, waiting = 0;
};

class AdapterLanes {
 public:
  AdapterLanes(int slots, int patience);

  void add(Sequence* sequence);      // to the end of its adapter's lane
  void remove(Sequence* sequence);   // waiting or running
  void preempt(Sequence* sequence);  // from running to its place among the waiting ones
  void pause(Sequence* sequence) { remove(sequence); }
  void resume(Sequence* sequence);  // to its place by arrival

  // Starts a step: ages the lanes that lack a slot.
  void begin_step();
  // The sequence to admit next; null if none may be. Stays the same until something changes.
  Sequence* next();
  // From waiting to running; binds a slot to its lane if it has none.
  void admit(Sequence* sequence, std::vector<SlotBinding>& bindings);
  // Empties the slots of lanes without requests whose adapter nobody holds any more.
  void release_unused(std::vector<SlotBinding>& bindings);

  int waiting() const { return waiting_; }
  // Adapters with requests, in order of their lanes.
  std::vector<AdapterLoad> loads() const;

 private:
  Lane* lane_of(const std::shared_ptr<const EngineAdapter>& adapter);
  void insert_waiting(Sequence* sequence);
  bool slot_obtainable() const;
  bool admissible(const Lane& lane) const;
  int take_slot();
  void drain(int wanted);
  void settle_empty_lanes();

  std::vector<std::unique_ptr<Lane>> lanes_;  // in order of creation
  std::vector<Lane*> slots_;                  // holder of each slot
  int patience_;
  int waiting_ = 0;
  uint64_t step_ = 0;
};

}  // namespace lk
