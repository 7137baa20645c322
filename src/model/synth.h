// Synthetic checkpoints and adapters: seeded random weights in the layout of a published model, for
// tests and measurements where the real one is not at hand. Stateless; writes files only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "checkpoint/linear_table.h"

namespace lk {

struct SynthOptions {
  std::string preset;  // a published model: names in synth_presets()
  int layers = 0;      // keep this many layers; 0: all
  uint64_t seed = 0;
  uint64_t shard_bytes = uint64_t{5} << 30;
  std::function<void(uint64_t done, uint64_t total)> progress;  // bytes; may be empty
};

// Comma-separated names.
std::string synth_presets();

// Writes config.json, generation_config.json, a byte-level tokenizer and the shards into `folder`
// (made if absent; refused if it holds a checkpoint already). Every tensor's random stream follows
// from seed and name alone. Errors: unknown preset, I/O.
Status synthesize_checkpoint(const std::string& folder, const SynthOptions& options);

struct SynthAdapterOptions {
  int rank = 16;
  double alpha = 32;
  bool attention = true, experts = true;
  uint64_t seed = 0;
};

// Writes a PEFT folder with random A and B for the linears of `table`, experts as 3-D
// target_parameters.
Status synthesize_adapter(const std::string& folder, const LinearTable& table,
                          const SynthAdapterOptions& options);

}  // namespace lk
