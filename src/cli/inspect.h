// The `inspect` command: what a model is made of, what it takes, what runs it, whether adapters
// fit. Reads headers; packs nothing.
#pragma once

#include "base/json.h"
#include "cli/options.h"

namespace lk {

// Prints the report. Returns the exit code: 1 if an adapter does not fit or the text files cannot
// be used, 2 if the model or an adapter cannot be read.
int inspect_command(const InspectOptions& options);

// The report as --json prints it (README has the fields). Errors: the model or an
// adapter cannot be read, or a flag is wrong.
Result<OrderedJson> inspect_report(const InspectOptions& options);
// The same report for people.
std::string inspect_text(const OrderedJson& report);

}  // namespace lk
