// Writes safetensors shards of random tensors, declared first and streamed after. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"

namespace lk {

// How a random tensor's values are drawn.
struct SynthTensor {
  std::string name = {};
  DType dtype = DType::kBF16;
  Shape shape = {};
  float deviation = 0;  // of normal values (BF16, F32)
  float mean = 0;
  bool bytes = false;  // U8, F8_E4M3: uniform codes, none NaN; false: scales around `scale_byte`
  int scale_byte = 0;
  float skew = 0;  // the element at place k of a random order is lowered by skew x ln(1 + k) (BF16)
};

// Writes <stem>.safetensors, or shards with an index where the sum is over `shard_bytes`.
// `progress` is told bytes done and in all, and may be empty. False if it returned false: nothing
// is left.
Result<bool> write_random_safetensors(const std::string& folder, const std::string& stem,
                                      const std::vector<SynthTensor>& tensors, uint64_t seed,
                                      uint64_t shard_bytes,
                                      const std::function<bool(uint64_t, uint64_t)>& progress);

}  // namespace lk
