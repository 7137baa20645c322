// UTF-8 read one code point at a time, with ill-formed bytes replaced as Python's errors="replace"
// and Rust's from_utf8_lossy do: one U+FFFD for each maximal subpart (Unicode 15, section 3.9,
// table 3-8). Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lk {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  uint32_t code;    // the code point; U+FFFD if ill-formed
  uint8_t length;   // bytes it takes, or bytes of the maximal ill-formed subpart; at least 1
  bool valid;       // a well-formed sequence
  bool incomplete;  // not valid, but the input ended where more bytes could have made it valid
};

// Reads at `pos` < text.size().
Utf8Step next_utf8(std::string_view text, size_t pos);

void append_utf8(std::string& out, uint32_t code);

// Appends `text` with each ill-formed subpart replaced.
void append_repaired(std::string& out, std::string_view text);

}  // namespace lk
