// The `pull` command: a model or adapter of the hub into the Hugging Face cache.
#pragma once

#include "cli/options.h"

namespace lk {

// Prints the folder. Returns the exit code.
int pull_command(const PullOptions& options);

}  // namespace lk
