// What a model's JSON files say about its quantization: quantization_config of config.json
// (Transformers, compressed-tensors, ModelOpt) or quantization of hf_quant_config.json (ModelOpt).
// Immutable after reading.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/hf_config.h"
#include "quant/format.h"
#include "quant/name_patterns.h"

namespace lk {

// Modules that are quantized alike.
struct RecipeGroup {
  NamePatterns targets;
  bool all = false;                    // every module that is not excluded; no targets
  std::vector<const Format*> formats;  // that fit the description; never empty
};

struct Recipe {
  std::string file;    // "config.json"
  std::string method;  // as the file spells it; empty: no recipe
  // Of those whose targets cover a module the one that does so most particularly counts, of
  // equals the first.
  std::vector<RecipeGroup> groups;
  NamePatterns excluded;  // modules that are not quantized
  // The file tells modules that are quantized from those that are not, so that a plain tensor can
  // contradict it.
  bool complete = false;
  std::string kv_cache;  // format of the KV cache that the file asks for; empty: none
};

// Errors: a method or format that is unknown, or no format that fits what the file says (a group
// size, say), or a field of the wrong type; each names file and field.
Result<Recipe> read_recipe(const HfConfig& config);

}  // namespace lk
