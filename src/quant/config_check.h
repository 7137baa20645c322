// Compares what a model's JSON files say about its quantization with what its tensors are.
// Stateless.
#pragma once

#include <string>

#include "checkpoint/hf_config.h"
#include "quant/detect.h"

namespace lk {

// Appends a sentence to model.warnings for each contradiction. The tensors are believed: nothing
// here fails.
void compare_with_config(const HfConfig& config, const LinearTable& table,
                         const std::string& prefix, StoredModel& model);

}  // namespace lk
