// `lorikeet serve` as a process of its own on a free loopback port, and adapters for it. For tests
// and benchmarks.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/serve/http_client.h"

namespace lk {

class ServerProcess {
 public:
  // Starts BINARY serve MODEL ARGS and waits until it is ready; see `log` if it is not. Time limits
  // are test::kPatience times as long.
  ServerProcess(const std::string& binary, const std::string& model,
                const std::vector<std::string>& args, double ready_seconds);
  // The program that was built, on the small model.
  explicit ServerProcess(const std::vector<std::string>& args, double ready_seconds = 60);
  ~ServerProcess();  // kills it if it still runs
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  bool ready() const { return ready_; }
  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  HttpClient client(double timeout_seconds = 120) const {
    return HttpClient(port_, timeout_seconds);
  }
  void signal(int number);
  // Waits for its end; exit code, 128 + signal, or -1 if it still runs after `seconds`.
  int wait(double seconds);
  std::string log() const;  // what it has written so far

  size_t resident_bytes() const;  // VmRSS
  size_t peak_bytes() const;      // VmHWM
  double cpu_seconds() const;     // user and system
  // CPU seconds of its threads by name; several of one name together.
  std::map<std::string, double> thread_cpu_seconds() const;
  std::map<std::string, double> metrics() const;        // "name{labels}" -> value
  double metric(const std::string& name_prefix) const;  // sum over all labels; 0 if absent

 private:
  int port_ = 0;
  pid_t pid_ = -1;
  bool ready_ = false;
  std::string log_path_;
};

int free_port();
std::string temporary_folder();  // removed at the end of the process

// Of the small model's adapter for a task: "sql", "json", "math".
std::string adapter_path(const std::string& task);

// True once `holds`, asked for `seconds` times test::kPatience.
bool comes_true(double seconds, const std::function<bool()>& holds);

// Copies an adapter of the small model into `folder`, its rank index rotated by `shift`: the same
// function from other bytes, so that the right answer is known while identities differ.
void rotate_adapter(const std::string& from, const std::string& folder, int shift);

struct TaskRow {
  std::string question, answer;
};
std::vector<TaskRow> task_rows(const std::string& task, int count);  // "sql", "json", "math"

OrderedJson chat_body(const std::string& model, const std::string& question, int max_tokens = 80);
// choices[0].message.content of an answer that did not stream, without white space at its ends.
std::string chat_text(const HttpAnswer& answer);
std::string trimmed(const std::string& text);

}  // namespace lk
