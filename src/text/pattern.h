// A compiled pattern that finds its matches in valid UTF-8 text, one after the other (PCRE2 with
// its JIT). Owns the compiled code. Movable; matching is const and thread-safe (each thread has its
// own stack).
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/result.h"

struct pcre2_real_code_8;

namespace lk {

class Pattern {
 public:
  enum class Kind { kOniguruma, kLiteral };
  // Errors: kInvalid (syntax), kUnsupported (see oniguruma.h).
  static Result<Pattern> compile(std::string_view pattern, Kind kind);

  struct Span {
    size_t begin = 0, end = 0;
  };
  enum class Outcome { kMatch, kNone, kTooHard };
  // The leftmost match that begins at or after `from` (a character boundary). `text` is taken as a
  // whole: look-around sees what lies before `from`. kTooHard: more steps or memory than any
  // sensible pattern needs.
  Outcome next(std::string_view text, size_t from, Span& match) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
};

}  // namespace lk
