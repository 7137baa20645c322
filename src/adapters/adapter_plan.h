// What each pair of an adapter file does to which linear: every name, shape, rank and orientation
// decided and checked before any value is read. Stateless.
#pragma once

#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/adapter_config.h"
#include "adapters/pair_convert.h"
#include "adapters/tensor_groups.h"
#include "adapters/tensor_names.h"
#include "base/result.h"

namespace lk {

struct PlannedPair {
  RawPair raw;
  LinearPlace place;
  int64_t expert =
      -1;  // the one expert of a per-expert module; -1: every expert, or no expert linear
  int64_t experts = 1;   // matrices that the tensors hold together
  bool swapped = false;  // A on the output side
  int rank = 0;          // of one expert
  float scale = 0;
};

struct AdapterPlan {
  std::vector<PlannedPair> pairs;  // in table order of their linears
  std::vector<std::string> not_adapted;
  std::vector<std::string> warnings;
};

// Errors: one sentence naming tensor or field, expected and found.
Result<AdapterPlan> plan_adapter(const AdapterConfig& config, const AdapterTensors& tensors,
                                 const LinearIndex& index, const AdapterLoadOptions& options);

}  // namespace lk
