// What the parsers of all formats share in writing their deltas. Not thread-safe; each object
// belongs to one parser and refers to the delta that its next push() returns.
#pragma once

#include <string>
#include <string_view>

#include "text/output_parser.h"

namespace lk {

inline constexpr std::string_view kWhitespace = " \t\r\n";

// Tool calls, numbered from 0.
class CallWriter {
 public:
  explicit CallWriter(OutputDelta& out) : out_(out) {}

  void begin(std::string name) { out_.tool_calls.push_back({++index_, std::move(name), {}}); }
  // Of the call begun last.
  void arguments(std::string_view piece) {
    if (piece.empty()) return;
    auto& calls = out_.tool_calls;
    if (calls.empty() || calls.back().index != index_ || !calls.back().name.empty()) {
      calls.push_back({index_, {}, {}});
    }
    calls.back().arguments += piece;
  }

 private:
  OutputDelta& out_;
  int index_ = -1;
};

// Content around tool calls: white space between it and a call, or between calls, belongs to the
// format and is left out. Without a call every byte is kept.
class ContentWriter {
 public:
  explicit ContentWriter(OutputDelta& out) : out_(out) {}

  void text(std::string_view piece) {
    const size_t last = piece.find_last_not_of(kWhitespace);
    if (last == std::string_view::npos) {
      held_ += piece;
      return;
    }
    if (after_call_ && !written_) {
      held_.clear();
      const size_t first = piece.find_first_not_of(kWhitespace);
      out_.content += piece.substr(first, last + 1 - first);
    } else {
      out_.content += held_;
      out_.content += piece.substr(0, last + 1);
    }
    held_ = piece.substr(last + 1);
    written_ = true;
    after_call_ = false;
  }
  void before_call() {
    held_.clear();
    after_call_ = true;
  }
  void end() {
    if (!after_call_) out_.content += held_;
    held_.clear();
  }

 private:
  OutputDelta& out_;
  std::string held_;  // white space that may stand before a call
  bool after_call_ = false;
  bool written_ = false;
};

}  // namespace lk
