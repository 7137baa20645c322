// Parses the command line. Stateless.
#pragma once

#include <string>
#include <variant>

#include "cli/options.h"

namespace lk {

// Text to print, and the exit code: help and version (0), or a sentence about wrong usage (2).
struct UsageText {
  std::string text;
  int exit_code = 0;
};

// The subcommand that was asked for.
using ParsedFlags = std::variant<RunOptions, ServeOptions, InspectOptions, SynthCommandOptions,
                                 SynthLoraOptions, QuantizeCommandOptions, PullOptions, UsageText>;

ParsedFlags parse_flags(int argc, const char* const* argv);

}  // namespace lk
