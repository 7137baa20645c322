#include "text/utf8_repair.h"

namespace lk {

Utf8Step next_utf8(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  const size_t left = text.size() - pos;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {0xFFFD, 1, false, false};
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // Only the second byte has a range that depends on the first (overlong forms, surrogates, >
  // U+10FFFF).
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  uint32_t code = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    const auto subpart = static_cast<uint8_t>(i);
    if (static_cast<size_t>(i) >= left) return {0xFFFD, subpart, false, true};
    const uint8_t next = byte(i);
    if (next < low || next > high) return {0xFFFD, subpart, false, false};
    low = 0x80;
    high = 0xBF;
    code = code << 6 | (next & 0x3Fu);
  }
  return {code, static_cast<uint8_t>(length), true, false};
}

void append_utf8(std::string& out, uint32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

void append_repaired(std::string& out, std::string_view text) {
  size_t copied = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    if (!step.valid) {
      out.append(text, copied, pos - copied);
      out += kReplacement;
      copied = pos + step.length;
    }
    pos += step.length;
  }
  out.append(text, copied);
}

}  // namespace lk
