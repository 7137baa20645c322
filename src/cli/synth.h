// The commands that make up weights: `synth` writes a checkpoint in a published layout, and
// adapters for it; `synth-lora` an adapter for any model.
#pragma once

#include "cli/options.h"

namespace lk {

// Both return the exit code.
int synth_command(const SynthCommandOptions& options);
int synth_lora_command(const SynthLoraOptions& options);

}  // namespace lk
