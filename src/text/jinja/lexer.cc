#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <limits>

#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

// \r\n and \r become \n, and one newline at the very end is dropped.
std::string normalize(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) next_tag();
    add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string message) { throw SyntaxError{line_, std::move(message)}; }

  void add(TokenKind kind, std::string text) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
  }

  bool looking_at(std::string_view what, size_t at) const {
    return text_.substr(at, what.size()) == what;
  }

  // Moves to `end`, counting lines.
  void advance(size_t end) {
    for (; at_ < end; ++at_) {
      if (text_[at_] == '\n') ++line_;
    }
    line_starting_ = end > 0 && text_[end - 1] == '\n';
  }

  size_t skip_space(size_t at) const {
    while (at < text_.size()) {
      size_t bytes = 0;
      if (!is_space(code_point_at(text_, at, &bytes))) break;
      at += bytes;
    }
    return at;
  }

  // After the closing bracket that starts at `at`: "-" takes all space, nothing takes a newline,
  // "+" takes none.
  size_t after_close(size_t at, char sign) const {
    const size_t end = at + 2;
    if (sign == '-') return skip_space(end);
    return sign != '+' && end < text_.size() && text_[end] == '\n' ? end + 1 : end;
  }

  // The text before a tag, stripped as the tag's sign and lstrip_blocks ask.
  std::string_view strip_before(std::string_view text, char sign, bool is_output) const {
    if (sign == '-') return strip_space(text, false, true);
    if (sign == '+' || is_output) return text;
    const size_t line_begin = text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1;
    if (line_begin == 0 && !line_starting_) return text;
    if (strip_space(text.substr(line_begin), true, false).empty())
      return text.substr(0, line_begin);
    return text;
  }

  void add_data(std::string_view text) {
    if (!text.empty()) add(TokenKind::kData, std::string(text));
  }

  size_t find_tag() const {
    for (size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#'))
        return i;
    }
    return text_.npos;
  }

  void next_tag() {
    const size_t tag = find_tag();
    if (tag == text_.npos) {
      add_data(text_.substr(at_));
      advance(text_.size());
      return;
    }
    const char kind = text_[tag + 1];
    size_t inside = tag + 2;
    char sign = 0;
    if (inside < text_.size() && (text_[inside] == '-' || text_[inside] == '+'))
      sign = text_[inside++];
    add_data(strip_before(text_.substr(at_, tag - at_), sign, kind == '{'));
    advance(tag);
    if (kind == '#') {
      comment(inside);
    } else if (kind == '{') {
      add(TokenKind::kOutputBegin, {});
      advance(inside);
      expression(TokenKind::kOutputEnd, "}}");
    } else if (!raw(inside)) {
      add(TokenKind::kBlockBegin, {});
      advance(inside);
      expression(TokenKind::kBlockEnd, "%}");
    }
  }

  void comment(size_t inside) {
    const size_t close = text_.find("#}", inside);
    if (close == text_.npos) fail("Missing end of comment tag");
    const char sign = close > inside && (text_[close - 1] == '-' || text_[close - 1] == '+')
                          ? text_[close - 1]
                          : '\0';
    advance(after_close(close, sign));
  }

  // {% raw %} … {% endraw %}, if that is what begins at `inside`.
  bool raw(size_t inside) {
    size_t at = skip_space(inside);
    if (!looking_at("raw", at)) return false;
    at = skip_space(at + 3);
    if (looking_at("-%}", at)) {
      at = skip_space(at + 3);
    } else if (looking_at("%}", at)) {
      at += 2;
    } else {
      return false;
    }
    advance(at);
    for (size_t begin = text_.find("{%", at); begin != text_.npos;
         begin = text_.find("{%", begin + 1)) {
      size_t end = begin + 2;
      char sign = 0;
      if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) sign = text_[end++];
      end = skip_space(end);
      if (!looking_at("endraw", end)) continue;
      end = skip_space(end + 6);
      char close_sign = 0;
      if (end < text_.size() && (text_[end] == '-' || text_[end] == '+')) close_sign = text_[end++];
      if (!looking_at("%}", end)) continue;
      add_data(strip_before(text_.substr(at, begin - at), sign, false));
      advance(after_close(end, close_sign));
      return true;
    }
    fail("Missing end of raw directive");
  }

  // Tokens up to the closing bracket that stands outside all parentheses.
  void expression(TokenKind end_kind, std::string_view close) {
    std::string open;
    while (at_ < text_.size()) {
      if (open.empty()) {
        const char sign =
            text_[at_] == '-' || (text_[at_] == '+' && close == "%}") ? text_[at_] : '\0';
        const size_t bracket = at_ + (sign != 0 ? 1 : 0);
        if (looking_at(close, bracket)) {
          add(end_kind, {});
          // trim_blocks concerns blocks only.
          const char trim = close == "}}" && sign == 0 ? '+' : sign;
          advance(after_close(bracket, trim));
          return;
        }
      }
      const size_t after_space = skip_space(at_);
      if (after_space > at_) {
        advance(after_space);
      } else if (!number() && !name() && !string()) {
        operator_token(&open);
      }
    }
    // The parser says what is missing.
  }

  // Digits with single underscores between them; 0 if there are none.
  template <typename Digit>
  size_t digits(size_t at, const Digit& is_wanted) const {
    size_t end = at;
    while (end < text_.size()) {
      if (is_wanted(text_[end])) {
        ++end;
      } else if (text_[end] == '_' && end > at && end + 1 < text_.size() &&
                 is_wanted(text_[end + 1])) {
        end += 2;
      } else {
        break;
      }
    }
    return end - at;
  }

  bool number() {
    if (!is_digit_char(text_[at_])) return false;
    if (at_ == 0 || text_[at_ - 1] != '.') {
      if (const size_t length = float_length(); length > 0) {
        Token token;
        token.kind = TokenKind::kFloat;
        token.line = line_;
        token.real = std::strtod(without_underscores(length).c_str(), nullptr);
        tokens_.push_back(std::move(token));
        advance(at_ + length);
        return true;
      }
    }
    integer();
    return true;
  }

  size_t float_length() const {
    const size_t whole = digits(at_, is_digit_char);
    size_t at = at_ + whole;
    bool fraction = false;
    if (at < text_.size() && text_[at] == '.') {
      if (const size_t more = digits(at + 1, is_digit_char); more > 0) {
        at += 1 + more;
        fraction = true;
      }
    }
    if (at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
      size_t exponent = at + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (const size_t more = digits(exponent, is_digit_char); more > 0)
        return exponent + more - at_;
    }
    return fraction ? at - at_ : 0;
  }

  std::string without_underscores(size_t length) const {
    std::string out;
    for (const char c : text_.substr(at_, length)) {
      if (c != '_') out += c;
    }
    return out;
  }

  void integer() {
    int base = 10;
    size_t prefix = 0;
    size_t length = 0;
    if (text_[at_] == '0' && at_ + 1 < text_.size()) {
      const char mark = static_cast<char>(text_[at_ + 1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) {
        const auto wanted = [base](char c) {
          return base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0
                            : c >= '0' && c < '0' + base;
        };
        prefix = 2;
        if (at_ + 2 < text_.size() && text_[at_ + 2] == '_') prefix = 3;
        length = digits(at_ + prefix, wanted);
        if (length == 0) base = 10;
      }
    }
    if (base == 10) {
      prefix = 0;
      length = text_[at_] == '0' ? digits(at_, [](char c) { return c == '0'; })
                                 : digits(at_, is_digit_char);
    }
    __int128 value = 0;
    for (const char c : text_.substr(at_ + prefix, length)) {
      if (c == '_') continue;
      const int digit = is_digit_char(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      value = value * base + digit;
      if (value > std::numeric_limits<uint64_t>::max())
        fail("integer literal does not fit 64 bits");
    }
    Token token;
    token.kind = TokenKind::kInteger;
    token.line = line_;
    token.integer = value;
    tokens_.push_back(std::move(token));
    advance(at_ + prefix + length);
  }

  bool name() {
    size_t end = at_;
    while (end < text_.size()) {
      size_t bytes = 0;
      const int32_t cp = code_point_at(text_, end, &bytes);
      if (cp < 0 || !(cp == '_' || is_alnum(cp))) break;
      end += bytes;
    }
    if (end == at_) return false;
    const std::string_view word = text_.substr(at_, end - at_);
    if (!is_identifier(word)) fail(fmt::format("Invalid character in identifier '{}'", word));
    add(TokenKind::kName, std::string(word));
    advance(end);
    return true;
  }

  bool string() {
    const char quote = text_[at_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size())
      fail(fmt::format("unexpected char {} (a string without its end)", quote));
    add(TokenKind::kString, unescape(text_.substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
    return true;
  }

  std::string unescape(std::string_view raw) {
    std::string out;
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\') {
        out += raw[i];
        continue;
      }
      const char c = raw[++i];
      switch (c) {
        case '\n':
          break;
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'a':
          out += '\a';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'v':
          out += '\v';
          break;
        case '\\':
        case '\'':
        case '"':
          out += c;
          break;
        case 'x':
          append_hex(&out, raw, &i, 2);
          break;
        case 'u':
          append_hex(&out, raw, &i, 4);
          break;
        case 'U':
          append_hex(&out, raw, &i, 8);
          break;
        case 'N':
          fail("the escape \\N{…} is not supported");
        default:
          if (c >= '0' && c <= '7') {
            int value = 0;
            size_t used = 0;
            for (;
                 used < 3 && i + used < raw.size() && raw[i + used] >= '0' && raw[i + used] <= '7';
                 ++used) {
              value = value * 8 + (raw[i + used] - '0');
            }
            append_utf8(&out, value);
            i += used - 1;
          } else {
            out += '\\';
            out += c;
          }
      }
    }
    return out;
  }

  void append_hex(std::string* out, std::string_view raw, size_t* i, size_t count) {
    int64_t value = 0;
    for (size_t k = 0; k < count; ++k) {
      const size_t at = *i + 1 + k;
      if (at >= raw.size() || std::isxdigit(static_cast<unsigned char>(raw[at])) == 0) {
        fail(fmt::format("truncated \\{} escape", raw[*i]));
      }
      const char c = raw[at];
      value = value * 16 + (is_digit_char(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
      fail("illegal Unicode character in an escape");
    append_utf8(out, static_cast<int32_t>(value));
    *i += count;
  }

  void operator_token(std::string* open) {
    static constexpr std::string_view kOperators[] = {
        "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const std::string_view op : kOperators) {
      if (!looking_at(op, at_)) continue;
      balance(op[0], open);
      add(TokenKind::kOperator, std::string(op));
      advance(at_ + op.size());
      return;
    }
    fail(fmt::format("unexpected char '{}'", text_.substr(at_, code_point_bytes(text_, at_))));
  }

  void balance(char c, std::string* open) {
    if (c == '(') *open += ')';
    if (c == '[') *open += ']';
    if (c == '{') *open += '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (open->empty()) fail(fmt::format("unexpected '{}'", c));
    if (open->back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, open->back()));
    open->pop_back();
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace lk::jinja
