// Finds each linear of a table in a checkpoint and says which format it is in. Stateless.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "quant/stored_linear.h"

namespace lk {

// Every linear and plain tensor of the table, found and checked.
struct StoredModel {
  std::vector<StoredLinear> linears;   // same order as table.linears
  std::vector<TensorView> plain;       // same order as table.plain
  std::vector<std::string> warnings;   // e.g. the config's quantization says otherwise
};

// Tensors decide the format (docs and shapes: models spec G.7); the config is compared afterwards. Errors: a tensor missing, of wrong
// shape or dtype, or present in the checkpoint but unknown to the table; each names the tensor, expected and found.
Result<StoredModel> match_checkpoint(const Checkpoint& checkpoint, const LinearTable& table);

}  // namespace lk
