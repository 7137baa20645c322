// From the tensors of an adapter file to LoraPairs: bfloat16, standard orientation, one pair for
// each expert. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "adapters/adapter.h"
#include "base/result.h"
#include "base/tensor_view.h"

namespace lk {

// lora_A and lora_B as a file holds them, both two-dimensional and of one of the types F32, F16,
// BF16.
struct RawPair {
  std::string a_name, b_name;
  TensorView a, b;
};

// How the values lie in a RawPair.
struct PairLayout {
  int64_t experts =
      1;  // matrices held together: A's row e*r+k and B's column k*experts+e are expert e's rank k
  bool swapped = false;  // A is on the output side: delta[o, i] = sum over k of A[k, o] B[i, k]
  float b_factor = 1;    // multiplies the output side in float32 before it is rounded
};

// One pair for each expert, with rank set and scale 0. Source of the layout: PEFT's
// ParamWrapper.get_delta_weight. The caller has checked the shapes: A's rows = B's columns =
// experts x rank. Errors: kInvalid naming the tensor if a value is not finite in bfloat16.
Result<std::vector<LoraPair>> extract_pairs(const RawPair& raw, const PairLayout& layout);

// One pair of rank gate.rank + up.rank for a linear that holds both projections: A = [A_gate;
// A_up], B block-diagonal with rows in `order`. A missing half (null) contributes no rank and zero
// rows. At least one is given; scale is that of the first given; both have the same.
LoraPair fuse_gate_up(const LoraPair* gate, const LoraPair* up, int64_t out, RowOrder order);

}  // namespace lk
