// The engine on a thread of its own: requests go in from any thread, token events come out in
// batches, one for each step. Owns the engine; every public function is thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"

namespace lk {

// What can be told about a running engine without stopping it; taken between two steps.
struct EngineSnapshot {
  EngineStats stats;
  std::vector<int> total_blocks;  // by KV group
  bool alive = true;              // the thread runs; false after a fault that ended it
  std::string fault;              // why it ended; empty while it lives
  std::chrono::steady_clock::time_point last_step;  // end of the last step
  bool stepping = false;  // a step is being computed (its beginning is `step_began`)
  std::chrono::steady_clock::time_point step_began;
};

class EngineService {
 public:
  // Called on the engine's thread after a step with the events of that step, in the order in which
  // the engine gave them; a fault that ends the thread is the last call, with whatever requests
  // there were. Must only hand them on: a step waits for it. May call the service, not destroy it.
  using Deliver = std::function<void(std::vector<TokenEvent>&&)>;

  EngineService(std::unique_ptr<Engine> engine, Deliver deliver);
  // Waits for the running step; requests that are still there get no further event.
  ~EngineService();

  // Checks the request at once and queues it for the next step. Its events may come before this
  // returns. Errors: as Engine::check; kResource after a fault.
  Result<RequestId> submit(Request request);
  // All of them or none, with ids that follow each other.
  Result<std::vector<RequestId>> submit(std::vector<Request> requests);
  // The request gets no events from steps that begin after this; ones of the running step may still
  // arrive. Its blocks and its share of a slot are free before the next step. Unknown ids are
  // ignored.
  void cancel(RequestId id);
  // Takes the request out of the batch until `resume`, with its blocks given back (its reader is
  // slow): the others go on, and it goes on later with the same bits.
  void pause(RequestId id);
  void resume(RequestId id);
  // An adapter that only an idle slot still keeps in memory is freed soon: to be called after the
  // last other holder let go of one. Each step does it too.
  void release_unused_adapters();

  // Ends the thread after the running step, as the destructor does. False if that step takes longer
  // than `wait`: then the destructor would wait for it, maybe for ever where a device hangs.
  bool stop(std::chrono::milliseconds wait);

  int max_model_len() const;
  EngineSnapshot snapshot() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lk
