// PEFT's wrappers of 3-D expert parameters: which parameter a nested name stands for, and which
// side of a matrix lora_A sits on. Sources: PEFT's ParamWrapper and _inject_parameters, 0.17 to
// 0.21. Stateless.
#pragma once

#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "adapters/adapter_config.h"
#include "adapters/targets.h"
#include "adapters/tensor_groups.h"
#include "base/result.h"

namespace lk {

struct ParameterPair {
  const TensorGroup* group = nullptr;
  LinearPlace place;
  // Shapes allow: A [E r, in], B [out, E r] / A [E r, out], B [in, E r]. At least one.
  bool standard = false, swapped = false;
};

// Assigns the groups of one module (all of one path) to the parameters below it. Wrappers nest in
// the order in which the module registers its parameters, the first innermost (most base_layer
// levels); only targeted parameters have one. Names decide, shapes verify; where the names cannot
// be right, shapes decide alone. Errors: kInvalid if neither does.
Result<std::vector<ParameterPair>> assign_parameters(const std::vector<const TensorGroup*>& groups,
                                                     const std::vector<LinearPlace>& parameters,
                                                     const Targets& targets,
                                                     std::vector<std::string>& warnings);

// Decides pairs whose shapes allow both orientations (square matrices): from the other parameters
// of the adapter, else from peft_version, else from `option`. Afterwards each has exactly one set.
// Errors: kInvalid if nothing decides.
Status decide_orientation(std::vector<ParameterPair>& pairs, const AdapterConfig& config,
                          ExpertOrientation option, std::vector<std::string>& warnings);

}  // namespace lk
