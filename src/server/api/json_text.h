// JSON written straight into a string: what is written once for each token must not cost a tree of
// values. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lk {

// Appends `text` as the inside of a JSON string, without the quotes. Ill-formed UTF-8 becomes
// U+FFFD.
void append_escaped(std::string& out, std::string_view text);
// With the quotes.
void append_string(std::string& out, std::string_view text);
void append_integer(std::string& out, int64_t value);
// The shortest text that reads back as the same float. JSON has no infinities: -infinity is -9999,
// as in vLLM, and what is not a number is null.
void append_logprob(std::string& out, float logprob);

// `prefix` and 32 random hexadecimal digits.
std::string random_id(std::string_view prefix);

}  // namespace lk
