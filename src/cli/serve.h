// The `serve` command: from flags to a server that answers. Stateless.
#pragma once

#include "cli/options.h"

namespace lk {

// Loads the model, serves until it is told to stop. Returns the exit code.
int serve_command(const ServeOptions& options);

}  // namespace lk
