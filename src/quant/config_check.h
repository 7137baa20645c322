// Compares what a model's JSON files say about its architecture and quantization with what its
// tensors are.
// Stateless.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/detect.h"
#include "quant/recipe.h"

namespace lk {

// Appends a warning for each class in `architectures` that does not belong to the model_type.
void compare_architectures(const HfConfig& config, StoredModel& model);

// Errors: a module that the recipe quantizes and the tensors do not, or the other way round, or in
// another format; the first by name, the others by number. What quantizers leave out without a word
// (quantizers_take) may be plain whatever the recipe says. Appends warnings to
// model.warnings: quantized tensors without a recipe, a recipe without any quantized tensor, and
// names that no module has (published files have such).
Status compare_with_recipe(const Recipe& recipe, const Checkpoint& checkpoint,
                           const LinearTable& table, StoredModel& model);

}  // namespace lk
