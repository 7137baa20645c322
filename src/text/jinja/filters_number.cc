// Filters about numbers and single values.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "text/jinja/filters.h"
#include "text/jinja/objects.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

Value default_value(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("default", args, {"default_value", "boolean"});
  if (!v.is_undefined() && !(a.flag(rt, 1, false) && !truthy(rt, v))) return v;
  return a.has(0) ? a[0] : Value::string("");
}

// Digits with single underscores between them, as int() and float() read them; false if malformed.
bool drop_underscores(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      *out += text[i];
      continue;
    }
    const auto digit = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
    if (i == 0 || i + 1 == text.size() || !digit(text[i - 1]) || !digit(text[i + 1])) return false;
  }
  return true;
}

bool parse_real(std::string_view source, double* out) {
  std::string text;
  if (!drop_underscores(strip_space(source, true, true), &text)) return false;
  const std::string lowered = to_lower(text);
  std::string_view body = lowered;
  const bool negative = !body.empty() && body[0] == '-';
  if (!body.empty() && (body[0] == '-' || body[0] == '+')) body.remove_prefix(1);
  if (body == "inf" || body == "infinity" || body == "nan") {
    *out = body == "nan" ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
    if (negative) *out = -*out;
    return true;
  }
  if (body.empty() || !(is_decimal(body[0]) || body[0] == '.')) return false;
  const auto result = std::from_chars(body.data(), body.data() + body.size(), *out);
  if (result.ptr != body.data() + body.size()) return false;
  if (result.ec == std::errc::result_out_of_range)
    *out = std::strtod(std::string(body).c_str(), nullptr);
  else if (result.ec != std::errc())
    return false;
  if (negative) *out = -*out;
  return true;
}

bool parse_integer(std::string_view source, int64_t base, __int128* out) {
  std::string text;
  if (!drop_underscores(strip_space(source, true, true), &text)) return false;
  std::string_view body = text;
  const bool negative = !body.empty() && body[0] == '-';
  if (!body.empty() && (body[0] == '-' || body[0] == '+')) body.remove_prefix(1);
  if (body.size() > 2 && body[0] == '0') {
    const char mark = static_cast<char>(body[1] | 0x20);
    const int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == 0 || base == marked)) {
      base = marked;
      body.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  if (body.empty()) return false;
  __int128 value = 0;
  for (const char c : body) {
    const int digit = c >= '0' && c <= '9'                               ? c - '0'
                      : std::isalpha(static_cast<unsigned char>(c)) != 0 ? (c | 0x20) - 'a' + 10
                                                                         : 99;
    if (digit >= base) return false;
    value = value * base + digit;
    if (value > std::numeric_limits<uint64_t>::max()) raise_error("integer out of range (64 bits)");
  }
  *out = negative ? -value : value;
  return true;
}

// int(float): towards zero; false for what has no integer.
bool truncate_real(double value, __int128* out) {
  if (!std::isfinite(value)) return false;
  if (std::fabs(value) >= 18446744073709551616.0) raise_error("integer out of range (64 bits)");
  *out = static_cast<__int128>(value);
  return true;
}

Value to_int(Runtime&, const Value& v, const CallArgs& args) {
  const Arguments a("int", args, {"default", "base"});
  const int64_t base = a.integer(1, 10);
  __int128 whole = 0;
  double real = 0;
  if (v.is_undefined())
    raise_error(v.is_missing() ? "value is undefined" : v.undefined_info().message);
  if (v.is_string()) {
    if (base == 0 || (base >= 2 && base <= 36)) {
      if (parse_integer(v.text(), base, &whole)) return Value::wide_integer(whole);
    }
    if (parse_real(v.text(), &real) && truncate_real(real, &whole))
      return Value::wide_integer(whole);
  } else if (v.is_integral()) {
    return Value::wide_integer(v.as_wide());
  } else if (v.is_number() && truncate_real(v.as_real(), &whole)) {
    return Value::wide_integer(whole);
  }
  return a.has(0) ? a[0] : Value::integer(0);
}

Value to_float(Runtime&, const Value& v, const CallArgs& args) {
  const Arguments a("float", args, {"default"});
  double real = 0;
  if (v.is_undefined())
    raise_error(v.is_missing() ? "value is undefined" : v.undefined_info().message);
  if (v.is_number()) return Value::real(v.as_real());
  if (v.is_string() && parse_real(v.text(), &real)) return Value::real(real);
  return a.has(0) ? a[0] : Value::real(0);
}

Value absolute(Runtime&, const Value& v, const CallArgs& args) {
  const Arguments a("abs", args, {});
  if (v.is_undefined()) raise_error(fmt::format("bad operand type for abs(): '{}'", v.type_name()));
  if (!v.is_number()) raise_error(fmt::format("bad operand type for abs(): '{}'", v.type_name()));
  if (v.is_integral()) return Value::wide_integer(v.as_wide() < 0 ? -v.as_wide() : v.as_wide());
  return Value::real(std::fabs(v.as_real()));
}

Value round_number(Runtime&, const Value& v, const CallArgs& args) {
  const Arguments a("round", args, {"precision", "method"});
  static const std::string kCommon = "common";
  const std::string& method = a.text(1, kCommon);
  if (method != "common" && method != "ceil" && method != "floor") {
    raise_error("method must be common, ceil or floor");
  }
  const int64_t precision = a.integer(0, 0);
  if (v.is_undefined()) raise_error(fmt::format("type Undefined doesn't define __round__ method"));
  if (!v.is_number())
    raise_error(fmt::format("type {} doesn't define __round__ method", v.type_name()));
  if (precision > 300 || precision < -300) raise_error("round()'s precision is out of range");
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = v.as_real() * scale;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (v.is_integral() && precision >= 0) return Value::wide_integer(v.as_wide());
  if (v.is_integral()) {
    // Half to even at a power of ten.
    __int128 unit = 1;
    for (int64_t i = 0; i < -precision && unit < (static_cast<__int128>(1) << 70); ++i) unit *= 10;
    const __int128 value = v.as_wide();
    __int128 rest = value % unit;
    if (rest < 0) rest += unit;
    __int128 down = value - rest;
    if (rest * 2 > unit || (rest * 2 == unit && (down / unit) % 2 != 0)) down += unit;
    return Value::wide_integer(down);
  }
  const double value = v.as_real();
  if (!std::isfinite(value)) return v;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return Value::real(std::nearbyint(value / scale) * scale);
  }
  // Through decimal text, which rounds the exact value, half to even.
  return Value::real(
      std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr));
}

Value file_size(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("filesizeformat", args, {"binary"});
  double bytes = 0;
  if (v.is_number()) {
    bytes = v.as_real();
  } else if (!v.is_string() || !parse_real(v.text(), &bytes)) {
    raise_error(fmt::format("could not convert to float: {}", to_repr(rt, v)));
  }
  const bool binary = a.flag(rt, 0, false);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::string("1 Byte");
  if (bytes < base)
    return Value::string(fmt::format("{} Bytes", static_cast<int64_t>(std::max(bytes, -9e18))));
  static constexpr char kPrefixes[] = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  for (; i < 8; ++i) {
    unit *= base;
    if (bytes < unit || i == 7) break;
  }
  const std::string prefix(1, binary && i == 0 ? 'K' : kPrefixes[i]);
  return Value::string(
      fmt::format("{:.1f} {}{}", base * bytes / unit, prefix, binary ? "iB" : "B"));
}

constexpr FilterRow kNumberFilters[] = {
    {"default", &default_value},    {"d", &default_value}, {"int", &to_int},
    {"float", &to_float},           {"abs", &absolute},    {"round", &round_number},
    {"filesizeformat", &file_size},
};

}  // namespace

std::span<const FilterRow> number_filters() { return kNumberFilters; }

}  // namespace lk::jinja
