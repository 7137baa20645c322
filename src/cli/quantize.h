// The `quantize` command: writes a checkpoint in a quantized format.
#pragma once

#include "cli/options.h"

namespace lk {

// Returns the exit code.
int quantize_command(const QuantizeCommandOptions& options);

}  // namespace lk
