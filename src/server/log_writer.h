// Lines of the log, as key=value, on stderr. Written by a thread of its own, so that a slow
// terminal holds up nobody; lines are dropped, and counted, where too many wait. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lk {

class LogWriter {
 public:
  // Takes whole lines, with their line breaks; empty: stderr.
  using Sink = std::function<void(std::string_view)>;

  explicit LogWriter(Sink sink = {});
  ~LogWriter();  // writes what waits

  void write(std::string line);  // without its line break
  void flush();                  // waits until what was written is out

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string line_begin();  // "time=..."
// `key=value` with a space before it; the value is quoted, and escaped like JSON, unless it is
// plain.
void append_field(std::string& line, std::string_view key, std::string_view value);
void append_number(std::string& line, std::string_view key, uint64_t value);
void append_seconds(std::string& line, std::string_view key, double seconds);

}  // namespace lk
