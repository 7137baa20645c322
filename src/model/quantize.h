// Quantizing a checkpoint: from any that can be loaded to the layout of a published tool.
// Stateless; memory is bounded by one matrix and what the page cache keeps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "quant/encode.h"

namespace lk {

struct QuantizeOptions {
  const Target* target = nullptr;
  // Linears that stay plain, as Transformers' modules_to_not_convert names modules.
  std::vector<std::string> keep;
  uint64_t shard_bytes = uint64_t{5} << 30;
  int threads = 0;       // 0: all CPUs
  bool measure = false;  // fill QuantizedLinear::error
  // Bytes written, of how many; false stops the work. May be empty.
  std::function<bool(uint64_t done, uint64_t total)> progress;
};

struct QuantizedLinear {
  std::string name;           // in the checkpoint that was read
  std::string_view from, to;  // format names
  double error = 0;  // |new - old| / |old| over all weights, Euclidean; 0 where nothing changed
};

struct QuantizeReport {
  std::vector<QuantizedLinear> linears;
  std::vector<std::string> warnings;  // of the checkpoint that was read, and about `keep`
  uint64_t bytes = 0;                 // of all tensors written
  bool stopped = false;               // `progress` said so: nothing was left behind
};

// Reads the checkpoint in folder `in` and writes folder `out`, which must be absent or empty:
// shards and their index, tokenizer files, JSON files, config.json last, so that a folder with a
// config is a whole one. Whatever fails, what was written is removed. Errors: one sentence.
Result<QuantizeReport> quantize_checkpoint(const std::string& in, const std::string& out,
                                           const QuantizeOptions& options);

}  // namespace lk
