// The program: parses the command line, runs the command. Returns the exit code.
#pragma once

namespace lk {

int run_app(int argc, const char* const* argv);

}  // namespace lk
