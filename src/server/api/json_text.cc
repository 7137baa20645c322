#include "server/api/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "server/api/sampling_fields.h"
#include "text/utf8_repair.h"

namespace lk {
namespace {

constexpr float kLowestLogprob = -9999;

// Bytes that stand for themselves in a JSON string; others are looked at one by one.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (int c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\' && c != 0x7F;
  return plain;
}();

void append_control(std::string& out, unsigned char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", c);
  }
}

}  // namespace

void append_escaped(std::string& out, std::string_view text) {
  size_t begin = 0;  // of what is not appended yet
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (kPlain[c]) {
      ++i;
      continue;
    }
    if (c >= 0x80) {
      const Utf8Step step = next_utf8(text, i);
      if (!step.valid) {
        out.append(text, begin, i - begin);
        out += kReplacement;
        begin = i + step.length;
      }
      i += step.length;
      continue;
    }
    out.append(text, begin, i - begin);
    append_control(out, c);
    begin = ++i;
  }
  out.append(text, begin, text.size() - begin);
}

void append_string(std::string& out, std::string_view text) {
  out += '"';
  append_escaped(out, text);
  out += '"';
}

void append_integer(std::string& out, int64_t value) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, static_cast<size_t>(end - digits));
}

void append_logprob(std::string& out, float logprob) {
  if (std::isnan(logprob)) {
    out += "null";
    return;
  }
  char digits[32];
  // + 0 makes -0 a 0.
  const float value = std::clamp(logprob, kLowestLogprob, -kLowestLogprob) + 0.0f;
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, static_cast<size_t>(end - digits));
}

std::string random_id(std::string_view prefix) {
  return fmt::format("{}{:016x}{:016x}", prefix, random_seed(), random_seed());
}

}  // namespace lk
