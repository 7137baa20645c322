// The `synth` command: writes a checkpoint with random weights in a published layout, and adapters
// for it.
#pragma once

#include "cli/options.h"

namespace lk {

// Returns the exit code.
int synth_command(const SynthCommandOptions& options);

}  // namespace lk
