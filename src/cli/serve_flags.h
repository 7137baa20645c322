// The flags of `serve`: its own, and those of vllm serve that people type from habit. Stateless.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

#include "cli/options.h"

namespace lk {

void add_serve_flags(CLI::App& app, ServeOptions& options);

// What the parser leaves to be said: words to values, and what must not be given together.
Status finish_serve_flags(ServeOptions& options);

// Brings a command line of `serve` into the form that the flags know: `--max_model_len` becomes
// `--max-model-len`, `-tp` `--tensor-parallel-size`, `--config FILE` the file's settings, before
// the others so that those win. Errors: the file cannot be read.
Result<std::vector<std::string>> normalize_serve_args(const std::vector<std::string>& args);

}  // namespace lk
