#include "text/jinja/operators.h"

#include <fmt/format.h>

#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/objects.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"

namespace lk::jinja {
namespace {

void reject_undefined(const Value& a, const Value& b) {
  for (const Value* v : {&a, &b}) {
    if (v->is_undefined())
      raise_error(v->is_missing() ? "value is undefined" : v->undefined_info().message);
  }
}

[[noreturn]] void unsupported_operands(std::string_view op, const Value& a, const Value& b) {
  raise_error(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, a.type_name(),
                          b.type_name()));
}

Value repeat(Runtime& rt, const Value& value, const Value& count) {
  if (count.as_wide() <= 0) {
    if (value.is_string()) return Value::string("", value.is_safe());
    return value.kind() == Kind::kTuple ? Value::tuple({}) : Value::list({});
  }
  const __int128 times = count.as_wide();
  const auto size =
      static_cast<__int128>(value.is_string() ? value.text().size() : value.items().size());
  if (size * times > static_cast<__int128>(rt.limits().output_bytes))
    rt.check_string(rt.limits().output_bytes + 1);
  const auto total = static_cast<size_t>(size * times);
  if (value.is_string()) {
    rt.charge_bytes(total);
    std::string out;
    out.reserve(total);
    for (__int128 i = 0; i < times && size > 0; ++i) out += value.text();
    return Value::string(std::move(out), value.is_safe());
  }
  rt.charge(static_cast<int64_t>(total));
  std::vector<Value> out;
  out.reserve(total);
  for (__int128 i = 0; i < times && size > 0; ++i) {
    out.insert(out.end(), value.items().begin(), value.items().end());
  }
  return value.kind() == Kind::kTuple ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

__int128 floor_quotient(__int128 a, __int128 b) {
  const __int128 quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double floor_remainder(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  return rest;
}

}  // namespace

Value add(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return Value::wide_integer(a.as_wide() + b.as_wide());
  if (a.is_number() && b.is_number()) return Value::real(a.as_real() + b.as_real());
  if (a.is_string() && b.is_string()) {
    const bool safe = a.is_safe() || b.is_safe();
    rt.check_string(a.text().size() + b.text().size());
    rt.charge_bytes(a.text().size() + b.text().size());
    std::string out;
    if (safe) {
      out = escape_html(rt, a) + escape_html(rt, b);
    } else {
      out.reserve(a.text().size() + b.text().size());
      out.append(a.text()).append(b.text());
    }
    return Value::string(std::move(out), safe);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    rt.charge(static_cast<int64_t>(a.items().size() + b.items().size()));
    std::vector<Value> out = a.items();
    out.insert(out.end(), b.items().begin(), b.items().end());
    return a.kind() == Kind::kTuple ? Value::tuple(std::move(out)) : Value::list(std::move(out));
  }
  reject_undefined(a, b);
  if (a.is_string())
    raise_error(fmt::format("can only concatenate str (not \"{}\") to str", b.type_name()));
  if (a.is_sequence()) {
    raise_error(
        fmt::format("can only concatenate {0} (not \"{1}\") to {0}", a.type_name(), b.type_name()));
  }
  unsupported_operands("+", a, b);
}

Value subtract(Runtime&, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return Value::wide_integer(a.as_wide() - b.as_wide());
  if (a.is_number() && b.is_number()) return Value::real(a.as_real() - b.as_real());
  reject_undefined(a, b);
  unsupported_operands("-", a, b);
}

Value multiply(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    __int128 product = 0;
    if (__builtin_mul_overflow(a.as_wide(), b.as_wide(), &product))
      raise_error("integer out of range (64 bits)");
    return Value::wide_integer(product);
  }
  if (a.is_number() && b.is_number()) return Value::real(a.as_real() * b.as_real());
  reject_undefined(a, b);
  if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(rt, a, b);
  if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(rt, b, a);
  if (a.is_string() || a.is_sequence() || b.is_string() || b.is_sequence()) {
    const Value& other = a.is_string() || a.is_sequence() ? b : a;
    raise_error(fmt::format("can't multiply sequence by non-int of type '{}'", other.type_name()));
  }
  unsupported_operands("*", a, b);
}

Value divide(Runtime&, const Value& a, const Value& b) {
  reject_undefined(a, b);
  if (!a.is_number() || !b.is_number()) unsupported_operands("/", a, b);
  if (b.as_real() == 0) {
    raise_error(a.is_integral() && b.is_integral() ? "division by zero" : "float division by zero");
  }
  return Value::real(a.as_real() / b.as_real());
}

Value floor_divide(Runtime&, const Value& a, const Value& b) {
  reject_undefined(a, b);
  if (!a.is_number() || !b.is_number()) unsupported_operands("//", a, b);
  if (a.is_integral() && b.is_integral()) {
    if (b.as_wide() == 0) raise_error("integer division or modulo by zero");
    return Value::wide_integer(floor_quotient(a.as_wide(), b.as_wide()));
  }
  if (b.as_real() == 0) raise_error("float floor division by zero");
  const double x = a.as_real(), y = b.as_real();
  return Value::real(std::round((x - floor_remainder(x, y)) / y));
}

Value modulo(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_string()) return Value::string(format_percent(rt, a, b), a.is_safe());
  reject_undefined(a, b);
  if (!a.is_number() || !b.is_number()) unsupported_operands("%", a, b);
  if (a.is_integral() && b.is_integral()) {
    if (b.as_wide() == 0) raise_error("integer modulo by zero");
    return Value::wide_integer(a.as_wide() -
                               floor_quotient(a.as_wide(), b.as_wide()) * b.as_wide());
  }
  if (b.as_real() == 0) raise_error("float modulo");
  return Value::real(floor_remainder(a.as_real(), b.as_real()));
}

Value power(Runtime&, const Value& a, const Value& b) {
  reject_undefined(a, b);
  if (!a.is_number() || !b.is_number()) unsupported_operands("** or pow()", a, b);
  if (a.is_integral() && b.is_integral() && b.as_wide() >= 0) {
    __int128 base = a.as_wide(), result = 1;
    for (__int128 left = b.as_wide(); left > 0; left >>= 1) {
      if ((left & 1) != 0 && __builtin_mul_overflow(result, base, &result))
        raise_error("integer out of range (64 bits)");
      if (left > 1 && __builtin_mul_overflow(base, base, &base)) {
        raise_error("integer out of range (64 bits)");
      }
    }
    return Value::wide_integer(result);
  }
  if (a.as_real() == 0 && b.as_real() < 0) raise_error("0.0 cannot be raised to a negative power");
  if (a.as_real() < 0 && std::floor(b.as_real()) != b.as_real())
    raise_error("complex numbers are not supported");
  const double result = std::pow(a.as_real(), b.as_real());
  if (std::isinf(result) && !std::isinf(a.as_real()) && !std::isinf(b.as_real())) {
    raise_error("(34, 'Numerical result out of range')");
  }
  return Value::real(result);
}

Value negate(const Value& a) {
  if (a.is_integral()) return Value::wide_integer(-a.as_wide());
  if (a.is_number()) return Value::real(-a.as_real());
  reject_undefined(a, a);
  raise_error(fmt::format("bad operand type for unary -: '{}'", a.type_name()));
}

Value identity(const Value& a) {
  if (a.is_integral()) return Value::wide_integer(a.as_wide());
  if (a.is_number()) return a;
  reject_undefined(a, a);
  raise_error(fmt::format("bad operand type for unary +: '{}'", a.type_name()));
}

std::string escape_html(Runtime& rt, const Value& value) {
  std::string text = to_str(rt, value);
  if (value.is_safe()) return text;
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  rt.check_string(out.size());
  return out;
}

}  // namespace lk::jinja
