// The tensors of an adapter file sorted into pairs; everything that is no half of a pair is refused
// or named in a warning. Stateless.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "adapters/pair_convert.h"
#include "adapters/tensor_names.h"
#include "base/result.h"

namespace lk {

struct TensorGroup {
  AdapterTensorName name;  // of the pair: role is kA or kEmbeddingA
  RawPair raw;             // both there, two-dimensional, of one inner size > 0
  int64_t total_rank() const { return raw.a.shape[0]; }  // rank x experts
};

using AdapterTensors = std::map<std::string, TensorView>;

struct GroupedTensors {
  std::vector<TensorGroup> groups;  // sorted by path, then depth
  std::vector<std::string> warnings;
};

// Errors: a tensor that is no half of a pair, a lone half, a type other than F32, F16 and BF16, a
// pair whose halves do not fit together; one sentence naming tensors, expected and found. Whether
// the path names a linear is the caller's to say.
Result<GroupedTensors> group_tensors(const AdapterTensors& tensors, const LinearIndex& index);

// "a, b, c and 4 more": the first eight of many names.
std::string list_some(const std::vector<std::string>& names);

}  // namespace lk
