// Finds each linear of a table in a checkpoint and says which format it is in. Stateless.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "quant/stored_linear.h"

namespace lk {

// Every linear and plain tensor of the table, found and checked.
struct StoredModel {
  std::vector<StoredLinear> linears;  // same order as table.linears
  std::vector<TensorView> plain;      // same order as table.plain
  std::string prefix;                 // root prefix of the checkpoint's names
  std::vector<std::string> warnings;  // e.g. the config's quantization says otherwise
};

// Tensors decide the format; the quantization recipe of the JSON files is compared afterwards
// (config_check.h). Errors: a tensor missing, of wrong shape or dtype, present in the checkpoint
// but unknown to the table, or at odds with the recipe; each names the tensor, expected and found.
// Of tensor data only scales of whole tensors and biases that lie in pieces are read. Scales of an
// FP8 KV cache are passed over with a warning: keys and values are kept in wider types. The result
// points into both arguments.
Result<StoredModel> match_checkpoint(const Checkpoint& checkpoint, const LinearTable& table);

// Refuses weights that are no numbers: NaN or infinity in floating-point tensors, scales that are
// NaN or negative, and weights, plain or of a code and its scales, whose square float32 does not
// hold, so that no norm after them is finite. Each names tensor and index. Reads
// every byte once and gives mapped pages back as it goes, so that a loader can call it for one
// linear at a time, before packing it. Ok without data.
Status check_finite(const StoredLinear& linear);
// The same for plain tensors; `mapped` says whether the tensor lies in a mapped file.
Status check_finite(const TensorView& tensor, std::string_view name, bool mapped);

}  // namespace lk
