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
  std::vector<std::string> warnings;  // e.g. the config's quantization says otherwise
};

// Tensors decide the format (docs and shapes: models spec G.7); the config is compared afterwards.
// Errors: a tensor missing, of wrong shape or dtype, or present in the checkpoint but unknown to
// the table; each names the tensor, expected and found. Shapes and dtypes only; no tensor data is
// read (except biases that lie in pieces). The result points into both arguments.
Result<StoredModel> match_checkpoint(const Checkpoint& checkpoint, const LinearTable& table);

// Refuses weights that are no numbers: NaN or infinity in floating-point tensors, scales that are
// NaN, and scales that carry a code beyond float32. Each names tensor and index. Reads every byte
// once and gives mapped pages back as it goes, so that a loader can call it for one linear at a
// time, before packing it. Ok without data.
Status check_finite(const StoredLinear& linear);
// The same for plain tensors; `mapped` says whether the tensor lies in a mapped file.
Status check_finite(const TensorView& tensor, std::string_view name, bool mapped);

}  // namespace lk
