#include "text/jinja/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/objects.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxPrecision = 500;

struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  int width = 0;
  char group = 0;
  int precision = -1;
  char type = 0;
};

int parse_number(std::string_view text, size_t* at, int limit) {
  int value = 0;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') {
    value = value * 10 + (text[(*at)++] - '0');
    if (value > limit) raise_error("a width or precision in a format is too large");
  }
  return value;
}

std::string pad(Runtime& rt, const Spec& spec, const std::string& sign, const std::string& body,
                char natural) {
  const auto width = static_cast<size_t>(spec.width);
  const size_t length = code_point_count(sign) + code_point_count(body);
  if (length >= width) return sign + body;
  rt.charge_bytes(width);
  std::string fill;
  const auto repeat = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  const size_t missing = width - length;
  switch (spec.align != 0 ? spec.align : natural) {
    case '<':
      return sign + body + repeat(missing);
    case '^':
      return repeat(missing / 2) + sign + body + repeat(missing - missing / 2);
    case '=':
      return sign + repeat(missing) + body;
    default:
      return repeat(missing) + sign + body;
  }
}

std::string group_digits(std::string digits, char separator, size_t every) {
  if (separator == 0) return digits;
  const size_t end = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  for (size_t i = end; i > every;) {
    i -= every;
    digits.insert(i, 1, separator);
  }
  return digits;
}

std::string unsigned_text(unsigned __int128 value, int base, bool upper) {
  const std::string_view digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  const auto radix = static_cast<unsigned __int128>(base);
  std::string out;
  do {
    out += digits[static_cast<size_t>(value % radix)];
    value /= radix;
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string real_text(double value, char type, int precision, bool alternate) {
  const double magnitude = std::fabs(value);
  const bool upper = type == 'F' || type == 'E' || type == 'G';
  if (std::isnan(value)) return upper ? "NAN" : "nan";
  if (std::isinf(value)) return upper ? "INF" : "inf";
  const int digits = precision < 0 ? 6 : precision;
  switch (type) {
    case 'f':
    case 'F':
      return alternate ? fmt::format("{:#.{}f}", magnitude, digits)
                       : fmt::format("{:.{}f}", magnitude, digits);
    case 'e':
      return fmt::format("{:.{}e}", magnitude, digits);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, digits);
    case 'G':
      return fmt::format("{:.{}G}", magnitude, std::max(digits, 1));
    default:
      return alternate ? fmt::format("{:#.{}g}", magnitude, std::max(digits, 1))
                       : fmt::format("{:.{}g}", magnitude, std::max(digits, 1));
  }
}

std::string sign_text(bool negative, char sign) {
  if (negative) return "-";
  return sign == '+' ? "+" : sign == ' ' ? " " : "";
}

std::string format_integer(Runtime& rt, __int128 value, const Spec& spec) {
  const char type = spec.type == 0 ? 'd' : spec.type;
  const int base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  const bool negative = value < 0;
  const auto magnitude =
      negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string sign = sign_text(negative, spec.sign);
  if (spec.alternate && base != 10) sign += std::string("0") + type;
  std::string body =
      group_digits(unsigned_text(magnitude, base, type == 'X'), spec.group, base == 10 ? 3 : 4);
  return pad(rt, spec, sign, body, '>');
}

std::string format_real(Runtime& rt, double value, const Spec& spec) {
  const std::string sign = sign_text(std::signbit(value) && !std::isnan(value), spec.sign);
  std::string body;
  if (spec.type == 0 && spec.precision < 0) {
    body = float_repr(std::fabs(value));
  } else if (spec.type == '%') {
    body = real_text(value * 100, 'f', spec.precision, spec.alternate) + "%";
  } else if (spec.type == 0) {
    body = real_text(value, 'g', spec.precision, spec.alternate);
    if (body.find_first_of(".en") == body.npos) body += ".0";
  } else {
    body = real_text(value, spec.type == 'n' ? 'g' : spec.type, spec.precision, spec.alternate);
  }
  return pad(rt, spec, sign, group_digits(body, spec.group, 3), '>');
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    const size_t first = code_point_bytes(text, 0);
    if (first < text.size() && is_align(text[first])) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      at = first + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[at++];
  if (peek() == '#') {
    spec.alternate = true;
    ++at;
  }
  if (peek() == '0') {
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    ++at;
  }
  spec.width = parse_number(text, &at, kMaxWidth);
  if (peek() == ',' || peek() == '_') spec.group = text[at++];
  if (peek() == '.') {
    const size_t digits = ++at;
    spec.precision = parse_number(text, &at, kMaxWidth);
    if (at == digits) raise_error("Format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) raise_error("Invalid format specifier");
  return spec;
}

[[noreturn]] void unknown_code(char code, const Value& value) {
  raise_error(
      fmt::format("Unknown format code '{}' for object of type '{}'", code, value.type_name()));
}

// One conversion of the % operator.
std::string convert(Runtime& rt, Spec spec, char code, const Value& value) {
  spec.type = code;
  switch (code) {
    case 's':
    case 'r':
    case 'a': {
      std::string body = code == 's' ? to_str(rt, value) : to_repr(rt, value);
      if (spec.precision >= 0) body.resize(byte_offset(body, static_cast<size_t>(spec.precision)));
      spec.fill = " ";
      return pad(rt, spec, "", body, '>');
    }
    case 'c':
      if (value.is_string() && code_point_count(value.text()) == 1)
        return pad(rt, spec, "", value.text(), '>');
      if (value.is_integral() && value.as_wide() >= 0 && value.as_wide() <= 0x10ffff) {
        std::string body;
        append_utf8(&body, static_cast<int32_t>(value.as_wide()));
        return pad(rt, spec, "", body, '>');
      }
      raise_error("%c requires int or char");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      if (code == 'i' || code == 'u') spec.type = 'd';
      if (value.is_integral()) return format_integer(rt, value.as_wide(), spec);
      if (value.is_number() && spec.type == 'd' && std::fabs(value.as_real()) < 9e18) {
        return format_integer(rt, static_cast<int64_t>(value.as_real()), spec);
      }
      raise_error(fmt::format("%{} format: {} is required, not {}", code,
                              spec.type == 'd' ? "a real number" : "an integer",
                              value.type_name()));
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!value.is_number())
        raise_error(fmt::format("must be real number, not {}", value.type_name()));
      if (spec.precision < 0) spec.precision = 6;
      return format_real(rt, value.as_real(), spec);
    default:
      raise_error(fmt::format("unsupported format character '{}'", code));
  }
}

}  // namespace

std::string format_value(Runtime& rt, const Value& value, std::string_view text) {
  if (text.empty()) return to_str(rt, value);
  Spec spec = parse_spec(text);
  if (spec.precision > kMaxPrecision && !value.is_string()) raise_error("precision too big");
  if (value.is_string()) {
    if (spec.type != 0 && spec.type != 's') unknown_code(spec.type, value);
    if (spec.align == '=') raise_error("'=' alignment not allowed in string format specifier");
    std::string body = value.text();
    if (spec.precision >= 0) body.resize(byte_offset(body, static_cast<size_t>(spec.precision)));
    return pad(rt, spec, "", body, '<');
  }
  if (value.is_number()) {
    const bool as_real =
        value.kind() == Kind::kFloat ||
        (spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos);
    if (as_real) {
      if (spec.type != 0 &&
          std::string_view("eEfFgGn%").find(spec.type) == std::string_view::npos) {
        unknown_code(spec.type, value);
      }
      return format_real(rt, value.as_real(), spec);
    }
    if (spec.type == 'n') spec.type = 'd';
    if (spec.type != 0 && std::string_view("bdoxX").find(spec.type) == std::string_view::npos)
      unknown_code(spec.type, value);
    return format_integer(rt, value.as_wide(), spec);
  }
  raise_error(fmt::format("unsupported format string passed to {}.__format__", value.type_name()));
}

std::string format_percent(Runtime& rt, const Value& format, const Value& arguments) {
  const std::string& text = format.text();
  rt.charge_bytes(text.size());
  const bool many = arguments.kind() == Kind::kTuple;
  size_t used = 0;
  bool by_name = false;
  const auto next_argument = [&]() -> const Value& {
    if (!many) {
      if (used++ > 0) raise_error("not enough arguments for format string");
      return arguments;
    }
    if (used >= arguments.items().size()) raise_error("not enough arguments for format string");
    return arguments.items()[used++];
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    ++i;
    const Value* named = nullptr;
    if (i < text.size() && text[i] == '(') {
      const size_t close = text.find(')', i);
      if (close == text.npos) raise_error("incomplete format key");
      if (!arguments.is_dict()) raise_error("format requires a mapping");
      const std::string key = text.substr(i + 1, close - i - 1);
      named = arguments.dict().find(std::string_view(key));
      if (named == nullptr) raise_error(string_repr(key));
      by_name = true;
      i = close + 1;
    }
    Spec spec;
    bool zero = false;
    for (; i < text.size() && std::string_view("-+ #0").find(text[i]) != std::string_view::npos;
         ++i) {
      if (text[i] == '-') spec.align = '<';
      if (text[i] == '+') spec.sign = '+';
      if (text[i] == ' ' && spec.sign != '+') spec.sign = ' ';
      if (text[i] == '#') spec.alternate = true;
      if (text[i] == '0') zero = true;
    }
    const auto number = [&](int limit) {
      if (i < text.size() && text[i] == '*') {
        ++i;
        const int64_t value = index_of(next_argument());
        if (value > limit || value < -limit)
          raise_error("a width or precision in a format is too large");
        return static_cast<int>(value);
      }
      return parse_number(text, &i, limit);
    };
    spec.width = number(kMaxWidth);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (i < text.size() && text[i] == '.') {
      ++i;
      spec.precision = std::max(number(kMaxWidth), 0);
    }
    while (i < text.size() && (text[i] == 'l' || text[i] == 'h' || text[i] == 'L')) ++i;
    if (i >= text.size()) raise_error("incomplete format");
    const char code = text[i];
    if (code == '%') {
      out += '%';
      continue;
    }
    if (spec.precision > kMaxPrecision && code != 's' && code != 'r')
      raise_error("precision too big");
    if (zero && spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    const Value& value = named != nullptr ? *named : next_argument();
    if (format.is_safe() && code == 's' && value.is_string() && !value.is_safe())
      raise_error("formatting safe text is not supported");
    out += convert(rt, spec, code, value);
    rt.check_string(out.size());
  }
  const bool mapping_like = arguments.is_dict() || arguments.kind() == Kind::kList;
  if ((many && used < arguments.items().size()) ||
      (!many && used == 0 && !by_name && !mapping_like)) {
    raise_error("not all arguments converted during string formatting");
  }
  return out;
}

namespace {

class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, const CallArgs& args) : rt_(rt), args_(args) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 2) raise_error("Max string recursion exceeded");
    rt_.charge_bytes(text.size());
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c != '{' && c != '}') {
        out += c;
        continue;
      }
      if (i + 1 < text.size() && text[i + 1] == c) {
        out += c;
        ++i;
        continue;
      }
      if (c == '}') raise_error("Single '}' encountered in format string");
      size_t end = i + 1;
      for (int open = 1; end < text.size(); ++end) {
        if (text[end] == '{') ++open;
        if (text[end] == '}' && --open == 0) break;
      }
      if (end >= text.size()) {
        raise_error(i + 1 >= text.size() ? "Single '{' encountered in format string"
                                         : "expected '}' before end of string");
      }
      out += field(text.substr(i + 1, end - i - 1), depth);
      rt_.check_string(out.size());
      i = end;
    }
    return out;
  }

 private:
  std::string field(std::string_view text, int depth) {
    // The name ends at ! or : outside brackets.
    size_t name_end = 0;
    bool bracket = false;
    for (; name_end < text.size(); ++name_end) {
      if (text[name_end] == '[') bracket = true;
      if (text[name_end] == ']') bracket = false;
      if (!bracket && (text[name_end] == '!' || text[name_end] == ':')) break;
    }
    Value value = lookup(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2) raise_error("end of string while looking for conversion specifier");
      const char conversion = rest[1];
      if (conversion != 's' && conversion != 'r' && conversion != 'a') {
        raise_error(fmt::format("Unknown conversion specifier {}", conversion));
      }
      value = Value::string(conversion == 's' ? to_str(rt_, value) : to_repr(rt_, value));
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') raise_error("expected ':' after conversion specifier");
    }
    if (!rest.empty()) rest.remove_prefix(1);
    return format_value(rt_, value, run(rest, depth + 1));
  }

  Value lookup(std::string_view path) {
    const size_t first_end = std::min(path.find_first_of(".["), path.size());
    const std::string_view first = path.substr(0, first_end);
    Value value;
    const bool numeric = !first.empty() && std::all_of(first.begin(), first.end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
    if (first.empty() || numeric) {
      if (first.empty() == manual_ && (automatic_ || manual_)) {
        raise_error("cannot switch from manual field specification to automatic field numbering");
      }
      (first.empty() ? automatic_ : manual_) = true;
      size_t at = 0;
      const size_t index =
          first.empty() ? next_++ : static_cast<size_t>(parse_number(first, &at, kMaxWidth));
      if (index >= args_.positional.size()) {
        raise_error("tuple index out of range");
      }
      value = args_.positional[index];
    } else {
      const auto found = std::find_if(args_.named.begin(), args_.named.end(),
                                      [&](const auto& entry) { return entry.first == first; });
      if (found == args_.named.end()) raise_error(string_repr(first));
      value = found->second;
    }
    for (size_t i = first_end; i < path.size();) {
      const bool attribute = path[i] == '.';
      const size_t begin = i + 1;
      size_t end = attribute ? path.find_first_of(".[", begin) : path.find(']', begin);
      if (end == path.npos) {
        if (!attribute) raise_error("Missing ']' in format string");
        end = path.size();
      }
      const std::string_view part = path.substr(begin, end - begin);
      if (part.empty()) raise_error("Empty attribute in format string");
      if (attribute) {
        value = get_attribute(rt_, value, part);
      } else {
        const bool index =
            std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
        size_t at = 0;
        value = get_item(rt_, value,
                         index ? Value::integer(parse_number(part, &at, kMaxWidth))
                               : Value::string(std::string(part)));
        ++end;
      }
      i = end;
    }
    return value;
  }

  Runtime& rt_;
  const CallArgs& args_;
  size_t next_ = 0;
  bool automatic_ = false, manual_ = false;
};

}  // namespace

std::string format_braces(Runtime& rt, const Value& text, const CallArgs& args) {
  return BraceFormatter(rt, args).run(text.text(), 1);
}

std::string format_time(Runtime& rt, const std::tm& time, const std::string& format) {
  if (format.size() > 4096) raise_error("a time format is too long");
  std::string expanded;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      expanded += format[i];
      continue;
    }
    const char code = format[++i];
    if (code == 'f') {
      expanded += "000000";  // the clock counts whole seconds
    } else if (code != 'z' && code != 'Z') {
      // A time without zone has neither name nor offset.
      expanded += '%';
      expanded += code;
    }
  }
  if (expanded.empty()) return {};
  // The mark tells an empty result from one that does not fit.
  expanded += '.';
  std::string out(64, '\0');
  while (true) {
    const size_t length = std::strftime(out.data(), out.size(), expanded.c_str(), &time);
    if (length > 0) {
      out.resize(length - 1);
      return out;
    }
    if (out.size() > (1u << 20)) raise_error("a time format is too long");
    rt.charge_bytes(out.size());
    out.resize(out.size() * 2);
  }
}

}  // namespace lk::jinja
