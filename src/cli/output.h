// Standard output and the terminal. Not thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "base/stderr.h"

namespace lk {

// Writes to stdout without buffering beyond one call. After a write that fails the rest is dropped;
// the failure is told once, in a sentence on stderr.
class Output {
 public:
  void write(std::string_view text);
  bool closed() const { return closed_; }

 private:
  bool closed_ = false;
};

// Opens /dev/null where stdin or stderr is closed, so that no file of ours takes their number. From
// here on a write that cannot be done is an error, no signal. Errors: stdout is closed.
Status check_standard_streams();

// "lorikeet: <message>" on stderr.
void print_error(std::string_view message);
void print_warning(std::string_view message);

// From the call on, the first SIGINT or SIGTERM is remembered; a second one ends the process.
void watch_interrupts();
bool interrupted();

// One line on stderr that is written over again and again; nothing if stderr is no terminal.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool visible() const { return visible_; }
  // True when it is time to show something new (a few times a second).
  bool due();
  void show(const std::string& text);
  void clear();

 private:
  bool visible_;
  bool shown_ = false;
  double last_ = 0;  // seconds
};

// "[#####     ]"; `share` in [0, 1].
std::string progress_bar(double share);
// Monotonic seconds.
double now_seconds();

}  // namespace lk
