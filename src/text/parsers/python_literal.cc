#include "text/parsers/python_literal.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "text/parsers/tool_types.h"
#include "text/parsers/writers.h"

namespace lk {
namespace {

constexpr int kDeepest = 64;

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto add = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xE0 | code >> 12);
    } else {
      add(0xF0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3F));
    }
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

// Reads forward only; each function is false where the text is no literal.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool value(int depth) {
    skip_space();
    if (at_end() || depth > kDeepest) return false;
    switch (text_[at_]) {
      case '{':
        return list(depth, '}', /*keys=*/true);
      case '[':
        return list(depth, ']', /*keys=*/false);
      case '\'':
      case '"':
        return string();
      default:
        return word();
    }
  }
  bool whole() {
    skip_space();
    return at_end();
  }
  std::string take() { return std::move(out_); }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  void skip_space() { at_ = std::min(text_.find_first_not_of(kWhitespace, at_), text_.size()); }
  bool take(char c) {
    skip_space();
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool list(int depth, char end, bool keys) {
    out_ += text_[at_++];
    for (bool first = true; !take(end); first = false) {
      if (!first) {
        if (!take(',')) return false;
        if (take(end)) break;  // a comma at the end
        out_ += ", ";
      }
      if (keys) {
        skip_space();
        if (at_end() || (text_[at_] != '\'' && text_[at_] != '"') || !string() || !take(':'))
          return false;
        out_ += ": ";
      }
      if (!value(depth + 1)) return false;
    }
    out_ += end;
    return true;
  }

  bool string() {
    const char quote = text_[at_++];
    std::string value;
    while (!at_end() && text_[at_] != quote) {
      const char c = text_[at_++];
      if (c == '\n') return false;
      if (c != '\\') {
        value += c;
      } else if (!escape(value)) {
        return false;
      }
    }
    if (at_end()) return false;
    ++at_;
    out_ += json_string(value);
    return true;
  }

  bool escape(std::string& value) {
    if (at_end()) return false;
    const char c = text_[at_++];
    constexpr std::string_view kNames = "\\'\"abfnrtv", kBytes = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t found = kNames.find(c); found != std::string_view::npos) {
      value += kBytes[found];
      return true;
    }
    constexpr std::array<std::pair<char, int>, 3> kCodes = {{{'x', 2}, {'u', 4}, {'U', 8}}};
    for (const auto& [name, digits] : kCodes) {
      if (c == name) return code(digits, value);
    }
    // Python keeps what it does not know as it stands; octal numbers and names are rare enough.
    if (c == 'N' || c == '\n' || (c >= '0' && c <= '7')) return false;
    value.append("\\") += c;
    return true;
  }

  bool code(int digits, std::string& value) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const int digit = at_end() ? -1 : hex_digit(text_[at_++]);
      if (digit < 0) return false;
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    append_utf8(value, code);
    return true;
  }

  bool word() {
    const size_t end = std::min(text_.find_first_of(" \t\r\n,:]}", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kWords = {
        {{"True", "true"}, {"False", "false"}, {"None", "null"}}};
    for (const auto& [python, json] : kWords) {
      if (word == python) {
        out_ += json;
        return true;
      }
    }
    if (!Json::accept(word)) return false;
    out_ += word;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::optional<std::string> python_literal_to_json(std::string_view text) {
  Reader reader(text);
  if (!reader.value(0) || !reader.whole()) return std::nullopt;
  return reader.take();
}

}  // namespace lk
