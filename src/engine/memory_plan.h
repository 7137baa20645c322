// How many threads a server runs and how it shares its memory, from what its operator asked for and
// what there is. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/result.h"
#include "engine/machine_limits.h"

namespace lk {

struct MemoryNeeds {
  size_t weights = 0;   // bytes, still to be taken
  size_t kv_full = 0;   // bytes of KV cache for as many full sequences as may run at once
  size_t kv_least = 0;  // bytes of one
  bool adapters = true;
  // What flags fix; otherwise chosen.
  std::optional<size_t> working;  // activations of the largest step
  std::optional<int> threads;
  std::optional<size_t> kv_bytes, adapter_bytes;
};

struct MemoryPlan {
  int threads = 1;
  size_t weights = 0, kv_bytes = 0, adapter_bytes = 0;
  size_t working = 0;  // set aside for activations, tokenizer, requests
  size_t total = 0, limit = 0;
  std::string limited_by;

  // One line for the start log.
  std::string describe() const;
};

// Without flags: one thread for each CPU; the KV cache gets kv_full or half of what the weights
// leave if that is less, adapters at most a quarter. Errors: kResource, naming every part, if the
// parts are more than there is or one sequence does not fit; kInvalid for threads below 1.
Result<MemoryPlan> plan_memory(const MemoryNeeds& needs, const MachineLimits& limits);

}  // namespace lk
