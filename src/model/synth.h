// Synthetic checkpoints and adapters: seeded random weights in the layout of a published model, for
// tests and measurements where the real one is not at hand. Stateless; writes files only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/linear_table.h"

namespace lk {

// Bytes written of a file, or of a checkpoint's files, and how many they will be; false stops.
using SynthProgress = std::function<bool(uint64_t done, uint64_t total)>;

struct SynthOptions {
  std::string preset;  // a published model (synth_presets()) or a folder with a config.json
  int layers = 0;      // keep this many layers; 0: all
  uint64_t seed = 0;
  // 0: tokens spread evenly over the experts. Otherwise the expert at place k of a random order of
  // each layer's is e^-(router_skew ln(1 + k)) = (1 + k)^-router_skew times as likely as the first.
  double router_skew = 0;
  uint64_t shard_bytes = uint64_t{5} << 30;
  // Adapters to write into adapter0, adapter1 ... of the folder, on attention (recurrent mixers
  // where the layers have none) and experts, each with a seed of its own.
  int adapters = 0;
  int adapter_rank = 16;
  SynthProgress progress = {};  // may be empty
};

// Writes a byte-level tokenizer, the shards, generation_config.json and config.json into `folder`,
// which must be absent or empty. Every tensor's random stream follows from seed and name alone.
// False if `progress` said so; then, and after an error, the folder is as before. Errors: unknown
// preset, a folder with something in it or inside the preset's, I/O.
Result<bool> synthesize_checkpoint(const std::string& folder, const SynthOptions& options);

struct SynthAdapterOptions {
  int rank = 16;
  double alpha = 32;
  // What is adapted: "attention", "recurrent", "experts", "shared", "latent", "router", "head",
  // "embedding", "all", or a module's name as PEFT's target_modules has it (the end of its path).
  std::vector<std::string> targets = {"attention", "experts"};
  uint64_t seed = 0;
  std::string model = {};       // the folder of `table`, which is not written to; may be empty
  SynthProgress progress = {};  // may be empty
};

// Writes a PEFT folder (absent or empty before) with random A and B for the linears of `table`,
// experts as 3-D target_parameters where the architecture has them so. A and B are of such size
// that an adapter adds about a tenth to what its linear gives. False and errors as above: also a
// target that names no linear.
Result<bool> synthesize_adapter(const std::string& folder, const LinearTable& table,
                                const SynthAdapterOptions& options);

}  // namespace lk
