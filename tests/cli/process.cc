#include "tests/cli/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace lk {
namespace {

// One folder for this process, removed at its end.
const std::filesystem::path& folder() {
  static const struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("lorikeet_cli_test." + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } instance;
  return instance.path;
}

std::string quote(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string read_all(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

std::vector<std::string> ProcessResult::lines() const {
  std::vector<std::string> all;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) all.push_back(line);
  return all;
}

std::string temporary_file(const std::string& text) {
  static int count = 0;
  const auto path = folder() / ("file" + std::to_string(count++));
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

std::string temporary_model() {
  static int count = 0;
  const auto copy = folder() / ("model" + std::to_string(count++));
  std::filesystem::create_directories(copy);
  for (const auto& entry : std::filesystem::directory_iterator(tiny_model())) {
    if (entry.is_regular_file()) std::filesystem::copy(entry.path(), copy);
  }
  return copy.string();
}

ProcessResult run_lorikeet(const std::vector<std::string>& args, const std::string& stdin_text,
                           const std::string& redirections, const std::string& before) {
  setenv("HF_HUB_OFFLINE", "1", 0);  // unless the test says otherwise
  const std::string in = temporary_file(stdin_text), out = temporary_file(""),
                    err = temporary_file("");
  std::string command = before + quote(std::string(LK_BINARY_DIR) + "/bin/lorikeet");
  for (const std::string& arg : args) command += " " + quote(arg);
  command += " <" + quote(in) + " >" + quote(out) + " 2>" + quote(err) + " " + redirections;
  const int status = std::system(command.c_str());
  ProcessResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_all(out);
  result.err = read_all(err);
  return result;
}

std::string tiny_model() { return std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4"; }

std::string tiny_adapter(const std::string& name) {
  return name + "=" + tiny_model() + "/adapters/" + name;
}

}  // namespace lk
