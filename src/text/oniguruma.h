// Regular expressions of tokenizer.json are written for Oniguruma (Ruby syntax, UTF-8); this
// rewrites one for PCRE2 where the two differ. Pure function.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace lk {

// The result is to be compiled with PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE (Ruby's ^ and $ are of
// lines). Errors: kUnsupported for a construct that means something else in PCRE2 and has no simple
// equivalent. Differences taken care of: \s and \S (PCRE2 counts U+180E as space), \w, \d, \h
// (hexadecimal digit in Ruby), \v, \uHHHH, (?m: (dot matches newline in Ruby), script names (PCRE2
// means script extensions).
Result<std::string> pcre2_from_oniguruma(std::string_view pattern);

}  // namespace lk
