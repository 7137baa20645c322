// The byte-level alphabet of GPT-2: one printable character for each byte, so that a vocabulary of
// arbitrary byte strings can be written as JSON text. '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF
// stand for themselves, the other 68 bytes for U+0100 upwards in byte order. Pure functions.
#pragma once

#include <string>
#include <string_view>

namespace lk {

// Appends the bytes that `text` stands for. False (and `bytes` unchanged) if a character is not of
// the alphabet.
bool append_byte_level(std::string& bytes, std::string_view text);

// The inverse: the text that stands for `bytes`.
std::string byte_level_text(std::string_view bytes);

}  // namespace lk
