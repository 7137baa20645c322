// Regular expressions over module names, as an adapter's configuration uses them. The expressions
// come from strangers: matching has limits in steps, memory and total time. Immutable after
// compile; safe to match from many threads.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lk {

// Until when the expressions of one adapter may be matched. Copyable.
class MatchBudget {
 public:
  explicit MatchBudget(std::chrono::milliseconds total = std::chrono::seconds(3))
      : end_(std::chrono::steady_clock::now() + total) {}
  // Errors: kInvalid if the time is over; `pattern` is the expression in use.
  Status check(std::string_view pattern) const;

 private:
  std::chrono::steady_clock::time_point end_;
};

class NamePattern {
 public:
  enum class Mode : uint8_t {
    kSuffix,  // (.*\.)?(PATTERN)$ from the start: PEFT's rank_pattern and alpha_pattern (PEFT >=
              // 0.15)
    kWhole,   // the whole name: PEFT's target_modules and exclude_modules given as one string
  };

  // `what` names the field in the error's sentence. Errors: kInvalid if it is no regular expression
  // or over 4096 bytes.
  static Result<NamePattern> compile(std::string_view pattern, Mode mode, std::string_view what);

  // Errors: kInvalid if the expression needs more steps, memory or time than allowed.
  Result<bool> matches(std::string_view name, const MatchBudget& budget) const;

  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Mode mode_ = Mode::kSuffix;
  bool plain_ = false;  // letters, digits, '_', '-' and '.' only: compared without the engine
  std::shared_ptr<const void> code_;  // compiled expression; null if plain_
};

}  // namespace lk
