#include "tests/serve/server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace lk {
namespace {

namespace fs = std::filesystem;

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

auto deadline(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration<double>(seconds * test::kPatience);
}

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

size_t status_bytes(pid_t pid, const std::string& field) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) return std::stoul(line.substr(field.size())) * 1024;
  }
  return 0;
}

struct Folders {
  std::vector<std::string> paths;
  ~Folders() {
    std::error_code ignored;
    for (const std::string& path : paths) fs::remove_all(path, ignored);
  }
};

}  // namespace

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  int port = 0;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
    port = ntohs(address.sin_port);
  }
  close(fd);
  return port;
}

std::string temporary_folder() {
  static Folders folders;
  std::string path = (fs::temp_directory_path() / "lorikeet-serve-XXXXXX").string();
  if (!mkdtemp(path.data())) throw std::runtime_error("no temporary folder: " + path);
  folders.paths.push_back(path);
  return path;
}

ServerProcess::ServerProcess(const std::vector<std::string>& args, double ready_seconds)
    : ServerProcess(std::string(LK_BINARY_DIR) + "/bin/lorikeet",
                    std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4", args,
                    ready_seconds) {}

ServerProcess::ServerProcess(const std::string& binary, const std::string& model,
                             const std::vector<std::string>& args, double ready_seconds)
    : port_(free_port()), log_path_(temporary_folder() + "/log") {
  std::vector<std::string> all = {binary, "serve", model, "--port", std::to_string(port_)};
  all.insert(all.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& arg : all) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(log, 1);
    dup2(log, 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  HttpClient probe(port_, 5);
  const auto end = deadline(ready_seconds);
  while (std::chrono::steady_clock::now() < end && waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (probe.get("/ready").status == 200) {
      ready_ = true;
      return;
    }
    nap(0.02);
  }
}

ServerProcess::~ServerProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ServerProcess::signal(int number) { kill(pid_, number); }

int ServerProcess::wait(double seconds) {
  const auto end = deadline(seconds);
  do {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    nap(0.01);
  } while (std::chrono::steady_clock::now() < end);
  return -1;
}

std::string ServerProcess::log() const { return slurp(log_path_); }

size_t ServerProcess::resident_bytes() const { return status_bytes(pid_, "VmRSS:"); }

size_t ServerProcess::peak_bytes() const { return status_bytes(pid_, "VmHWM:"); }

std::map<std::string, double> ServerProcess::thread_cpu_seconds() const {
  std::map<std::string, double> out;
  std::error_code error;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid_), error)) {
    std::string name = slurp(task.path() / "comm");
    if (!name.empty()) name.pop_back();
    // The first field is nanoseconds on a CPU.
    out[name] += std::strtod(slurp(task.path() / "schedstat").c_str(), nullptr) * 1e-9;
  }
  return out;
}

double ServerProcess::cpu_seconds() const {
  const std::string stat = slurp(fmt::format("/proc/{}/stat", pid_));
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::map<std::string, double> ServerProcess::metrics() const {
  std::map<std::string, double> out;
  std::istringstream text(HttpClient(port_, 10).get("/metrics").body);
  for (std::string line; std::getline(text, line);) {
    const size_t space = line.rfind(' ');
    if (line.empty() || line[0] == '#' || space == std::string::npos) continue;
    out[line.substr(0, space)] = std::strtod(line.c_str() + space + 1, nullptr);
  }
  return out;
}

double ServerProcess::metric(const std::string& name) const {
  double sum = 0;
  for (const auto& [key, value] : metrics()) {
    if (key == name || key.starts_with(name + "{")) sum += value;
  }
  return sum;
}

std::string adapter_path(const std::string& task) {
  return std::string(LK_SOURCE_DIR) + "/models/tiny-gpt-oss-mxfp4/adapters/" + task;
}

bool comes_true(double seconds, const std::function<bool()>& holds) {
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds * test::kPatience);
  do {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

void rotate_adapter(const std::string& from, const std::string& folder, int shift) {
  fs::create_directories(folder);
  const Json config = Json::parse(slurp(from + "/adapter_config.json"));
  std::string file = slurp(from + "/adapter_model.safetensors");
  const size_t rank = config["r"].get<size_t>();
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const Json tensors = Json::parse(file.substr(8, header));
  char* data = file.data() + 8 + header;
  for (const auto& [name, tensor] : tensors.items()) {
    if (name == "__metadata__") continue;
    const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
    const size_t rows = tensor["shape"][0], columns = tensor["shape"][1];
    const size_t element = (end - begin) / (rows * columns);
    const std::string old(data + begin, end - begin);
    const bool is_a = name.find("lora_A") != std::string::npos;
    const size_t experts = (is_a ? rows : columns) / rank;
    // A [experts * rank, in]: row e * rank + j. B [out, rank * experts]: column j * experts + e.
    for (size_t j = 0; j < rank; ++j) {
      const size_t to = (j + static_cast<size_t>(shift)) % rank;
      for (size_t e = 0; e < experts; ++e) {
        if (is_a) {
          const size_t size = columns * element;
          std::memcpy(data + begin + (e * rank + to) * size, old.data() + (e * rank + j) * size,
                      size);
          continue;
        }
        for (size_t row = 0; row < rows; ++row) {
          std::memcpy(data + begin + (row * columns + to * experts + e) * element,
                      old.data() + (row * columns + j * experts + e) * element, element);
        }
      }
    }
  }
  std::ofstream(folder + "/adapter_model.safetensors", std::ios::binary) << file;
  fs::copy_file(from + "/adapter_config.json", folder + "/adapter_config.json",
                fs::copy_options::overwrite_existing);
}

std::vector<TaskRow> task_rows(const std::string& task, int count) {
  const std::string command =
      fmt::format("xz -dc '{}/tests/data/tasks/{}.jsonl.xz'", LK_SOURCE_DIR, task);
  FILE* pipe = popen(command.c_str(), "r");
  std::vector<TaskRow> out;
  char line[1 << 14];
  while (pipe && fgets(line, sizeof line, pipe)) {
    const Json row = Json::parse(line);
    if (static_cast<int>(out.size()) < count) out.push_back({row["q"], row["a"]});
  }
  if (pipe) pclose(pipe);
  return out;
}

OrderedJson chat_body(const std::string& model, const std::string& question, int max_tokens) {
  return {{"model", model},
          {"messages", {{{"role", "user"}, {"content", question}}}},
          {"max_tokens", max_tokens},
          {"temperature", 0}};
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first == std::string::npos
             ? ""
             : text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string chat_text(const HttpAnswer& answer) {
  const OrderedJson json = answer.json();
  if (!json.is_object() || !json.contains("choices")) return "";
  const OrderedJson& content = json["choices"][0]["message"]["content"];
  return content.is_string() ? trimmed(content.get<std::string>()) : "";
}

}  // namespace lk
