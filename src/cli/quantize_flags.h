// The flags of `lorikeet quantize`. Stateless.
#pragma once

#include <CLI/App.hpp>

#include "cli/options.h"

namespace lk {

// `options` must outlive the parsing.
void add_quantize_flags(CLI::App& app, QuantizeCommandOptions& options);

}  // namespace lk
