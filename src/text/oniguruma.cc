#include "text/oniguruma.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

namespace lk {
namespace {

// White_Space, as the inside of a class.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

// Properties that are neither a general category of one or two letters nor a script.
constexpr std::array<std::string_view, 8> kBinary = {"Any",       "Alphabetic",  "Lowercase",
                                                     "Uppercase", "Emoji",       "Assigned",
                                                     "XID_Start", "XID_Continue"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        LK_RETURN_IF_ERROR(escape());
      } else if (in_class_) {
        LK_RETURN_IF_ERROR(class_character(c));
      } else if (c == '[') {
        open_class();
      } else if (c == '(' && rest().substr(0, 2) == "(?") {
        LK_RETURN_IF_ERROR(group());
      } else if (c == '(' && rest().substr(0, 2) == "(*") {
        return refuse("(*");
      } else if (c == '{') {
        LK_RETURN_IF_ERROR(interval());
      } else {
        take(1);
      }
    }
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return in_.substr(pos_); }
  void take(size_t n) {
    out_ += in_.substr(pos_, n);
    pos_ += std::min(n, in_.size() - pos_);
  }
  void replace(size_t n, std::string_view by) {
    out_ += by;
    pos_ += n;
  }
  // A set that may stand inside a class as it is, and outside with brackets around it.
  void replace_set(size_t n, std::string_view set) {
    if (!in_class_) out_ += '[';
    replace(n, set);
    if (!in_class_) out_ += ']';
  }
  tl::unexpected<Error> refuse(std::string_view construct) const {
    return unsupported("the regular expression {} uses '{}', which is not supported", in_,
                       construct);
  }

  void open_class() {
    in_class_ = true;
    take(1);
    if (rest().substr(0, 1) == "^") take(1);
    if (rest().substr(0, 1) == "]") replace(1, "\\]");  // a first ] is literal
  }

  Status class_character(char c) {
    if (c == '[') return refuse(rest().substr(0, 2) == "[:" ? "[:" : "[ inside a class");
    if (rest().substr(0, 2) == "&&") return refuse("&&");
    if (c == ']') in_class_ = false;
    take(1);
    return {};
  }

  Status group() {
    // Options without a group reach to the end of the enclosing alternatives in Ruby only.
    const size_t flags_end = in_.find_first_not_of("imx-", pos_ + 2);
    const char after = flags_end < in_.size() ? in_[flags_end] : '\0';
    if (after == ':') {
      for (; pos_ < flags_end; ++pos_) out_ += in_[pos_] == 'm' ? 's' : in_[pos_];
      const std::string_view flags = in_.substr(0, flags_end);
      if (flags.substr(flags.rfind('?')).find('x') != flags.npos) return refuse("(?x");
      return {};
    }
    if (after == ')' && flags_end == pos_ + 3 && pos_ == 0 && in_[2] == 'i') {
      take(4);  // "(?i)" in front means the same in both
      return {};
    }
    const char kind = pos_ + 2 < in_.size() ? in_[pos_ + 2] : '\0';
    const char next = pos_ + 3 < in_.size() ? in_[pos_ + 3] : '\0';
    if (kind == '=' || kind == '!' || kind == '>') {
      take(3);
    } else if (kind == '<' && (next == '=' || next == '!')) {
      take(4);
    } else {
      return refuse(in_.substr(pos_, 4));
    }
    return {};
  }

  Status interval() {
    const size_t end = in_.find('}', pos_);
    if (end == in_.npos) return refuse("{");
    const std::string_view body = in_.substr(pos_ + 1, end - pos_ - 1);
    const bool numbers = !body.empty() && std::isdigit(static_cast<unsigned char>(body[0])) &&
                         body.find_first_not_of("0123456789,") == body.npos;
    const char next = end + 1 < in_.size() ? in_[end + 1] : '\0';
    // Ruby: {n}+ repeats again (possessive in PCRE2), {n}? is optional, {,n} starts at 0.
    if (!numbers || next == '+' || (next == '?' && body.find(',') == body.npos)) {
      return refuse(in_.substr(pos_, end - pos_ + 2));
    }
    take(end - pos_ + 1);
    return {};
  }

  Status escape() {
    const char c = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    switch (c) {
      case 's':
        replace_set(2, kSpace);
        return {};
      case 'w':
        replace_set(2, kWord);
        return {};
      case 'd':
        replace(2, "\\p{Nd}");
        return {};
      case 'D':
        replace(2, "\\P{Nd}");
        return {};
      case 'h':
        replace_set(2, "0-9a-fA-F");
        return {};
      case 'v':
        replace(2, "\\x0b");
        return {};
      case 'S':
        if (in_class_)
          replace(2, "\\S\\x{180e}");  // PCRE2's \S leaves only U+180E out
        else
          replace(2, "[^" + std::string(kSpace) + "]");
        return {};
      case 'W':
      case 'H':
        if (in_class_) return refuse(in_.substr(pos_, 2));
        replace(2, "[^" + std::string(c == 'W' ? kWord : std::string_view("0-9a-fA-F")) + "]");
        return {};
      case 'A':
      case 'z':
      case 'Z':
        if (in_class_) return refuse(in_.substr(pos_, 2));
        take(2);
        return {};
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        take(2);
        return {};
      case 'p':
      case 'P':
        return property();
      case 'x':
      case 'u':
        return code_point(c);
      default:
        break;
    }
    if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) ||
        static_cast<signed char>(c) < 0) {
      return refuse(in_.substr(pos_, 2));
    }
    take(2);
    return {};
  }

  Status code_point(char kind) {
    const bool braces = kind == 'x' && pos_ + 2 < in_.size() && in_[pos_ + 2] == '{';
    const size_t begin = pos_ + 2 + (braces ? 1 : 0);
    size_t end = begin;
    const size_t most = braces ? 8 : kind == 'u' ? 4 : 2;
    while (end < in_.size() && end - begin < most &&
           std::isxdigit(static_cast<unsigned char>(in_[end])))
      ++end;
    const bool closed = !braces || (end < in_.size() && in_[end] == '}');
    if (end == begin || !closed || (kind == 'u' && end - begin != 4))
      return refuse(in_.substr(pos_, 2));
    const std::string code(in_.substr(begin, end - begin));
    // \xHH from 0x80 up is a byte of UTF-8 in Ruby.
    if (kind == 'x' && !braces && std::stoul(code, nullptr, 16) >= 0x80)
      return refuse(in_.substr(pos_, 4));
    replace(end - pos_ + (braces ? 1 : 0), "\\x{" + code + "}");
    return {};
  }

  Status property() {
    const size_t end = in_.find('}', pos_);
    if (pos_ + 2 >= in_.size() || in_[pos_ + 2] != '{' || end == in_.npos)
      return refuse(in_.substr(pos_, 2));
    std::string_view name = in_.substr(pos_ + 3, end - pos_ - 3);
    const std::string_view construct = in_.substr(pos_, end - pos_ + 1);
    const bool negated = !name.empty() && name[0] == '^';
    if (negated) name.remove_prefix(1);
    if (name.empty() || name.find_first_not_of(
                            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") != name.npos) {
      return refuse(construct);
    }
    const bool plain =
        name.size() <= 2 || std::find(kBinary.begin(), kBinary.end(), name) != kBinary.end();
    out_ += in_.substr(pos_, 3);
    if (negated) out_ += '^';
    if (!plain) out_ += "sc:";
    replace(end - pos_ + 1, name);
    out_ += '}';
    return {};
  }

  std::string_view in_;
  size_t pos_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

Result<std::string> pcre2_from_oniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace lk
