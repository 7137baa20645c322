// Runs the program as a process. For tests only.
#pragma once

#include <string>
#include <vector>

namespace lk {

struct ProcessResult {
  int code = -1;  // exit code; 128 + signal if it was killed
  std::string out, err;
  std::vector<std::string> lines() const;  // of out
};

// `stdin_text` is what it reads from stdin. `redirections` are the shell's, and win over the files
// that out and err come from; `before` is shell text in front of the command.
ProcessResult run_lorikeet(const std::vector<std::string>& args, const std::string& stdin_text = "",
                           const std::string& redirections = "", const std::string& before = "");

// The small model of the repository, and one of its adapters.
std::string tiny_model();
std::string tiny_adapter(const std::string& name);

// A file with `text`, removed at the end of the process.
std::string temporary_file(const std::string& text);
// A copy of the small model's files, without its adapters, removed at the end of the process.
std::string temporary_model();

}  // namespace lk
