// The `run` command: prompts given on the command line, or a file of them. Stateless.
#pragma once

#include "cli/options.h"
#include "cli/output.h"
#include "cli/request_fields.h"
#include "cli/session.h"

namespace lk {

// Loads the model and answers. Returns the exit code.
int run_command(const RunOptions& options);

// One prompt, answered by each of options.adapters in one batch; text is shown as it comes. Errors:
// nothing was run.
Result<int> run_prompt(const RunOptions& options, Session& session, const RequestDefaults& defaults,
                       Output& output);

// Every line of options.input in one continuously refilled batch; answers in the order of the
// lines. Errors: the file cannot be read.
Result<int> run_lines(const RunOptions& options, Session& session, const RequestDefaults& defaults,
                      Output& output);

}  // namespace lk
