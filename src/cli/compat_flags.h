// Flags that people type from habit with `vllm serve` and that mean nothing, or something fixed,
// here. Stateless.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <vector>

namespace lk {

// Adds them. One that is given puts a line about what it means here into `notes`; one that asks for
// what cannot be done is an error of the parser. `notes` must outlive `app`'s parsing.
void add_compat_flags(CLI::App& app, std::vector<std::string>& notes);

}  // namespace lk
