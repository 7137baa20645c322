#include "text/jinja/print.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "text/jinja/objects.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

void append_repr(Runtime& rt, const Value& value, std::string* out) {
  rt.charge(1);
  const auto list = [&](char open, char close) {
    *out += open;
    const char* separator = "";
    for (const Value& item : value.items()) {
      *out += std::exchange(separator, ", ");
      append_repr(rt, item, out);
    }
    if (open == '(' && value.items().size() == 1) *out += ',';
    *out += close;
  };
  switch (value.kind()) {
    case Kind::kString:
      rt.charge_bytes(value.text().size());
      if (value.is_safe()) {
        *out += fmt::format("Markup({})", string_repr(value.text()));
      } else {
        *out += string_repr(value.text());
      }
      break;
    case Kind::kList:
      list('[', ']');
      break;
    case Kind::kTuple:
      list('(', ')');
      break;
    case Kind::kDict: {
      *out += '{';
      const char* separator = "";
      for (const auto& [key, item] : value.dict().entries()) {
        *out += std::exchange(separator, ", ");
        append_repr(rt, key, out);
        *out += ": ";
        append_repr(rt, item, out);
      }
      *out += '}';
      break;
    }
    case Kind::kUndefined:
      *out += "Undefined";
      break;
    case Kind::kObject: {
      Runtime::Deeper deeper(rt);
      *out += value.object().repr(rt);
      break;
    }
    default:
      append_str(rt, value, out);
  }
  rt.check_string(out->size());
}

void append_json_string(std::string_view text, bool ensure_ascii, std::string* out) {
  *out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || (c >= 0x80 && !ensure_ascii))) {
      *out += static_cast<char>(c);
      ++i;
      continue;
    }
    size_t bytes = 1;
    const int32_t cp = code_point_at(text, i, &bytes);
    switch (cp) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\b':
        *out += "\\b";
        break;
      default:
        if (cp >= 0 && cp < 0x20) {
          *out += fmt::format("\\u{:04x}", cp);
        } else if (!ensure_ascii || cp < 0x80) {
          *out += text.substr(i, bytes);
        } else if (cp < 0x10000) {
          *out += fmt::format("\\u{:04x}", cp);
        } else {
          *out += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
        }
    }
    i += bytes;
  }
  *out += '"';
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

struct JsonWriter {
  Runtime& rt;
  const JsonStyle& style;
  std::string out;

  void line_break(int level) {
    out += '\n';
    rt.charge_bytes(style.indent.size() * static_cast<size_t>(level));
    for (int i = 0; i < level; ++i) out += style.indent;
  }

  std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return key.text();
      case Kind::kBool:
        return key.as_bool() ? "true" : "false";
      case Kind::kNone:
        return "null";
      case Kind::kInt:
        return int_text(key.as_wide());
      case Kind::kFloat:
        return json_float(key.as_real());
      default:
        raise_error(
            fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    }
  }

  void write_entry(const Value& key, const Value& value, bool first, int level) {
    if (!first) out += style.item_separator;
    if (style.indented) line_break(level);
    append_json_string(key_text(key), style.ensure_ascii, &out);
    out += style.key_separator;
    write(value, level);
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.entries().empty()) {
      out += "{}";
      return;
    }
    out += '{';
    bool first = true;
    if (style.sort_keys) {
      std::vector<const Dict::Entry*> order;
      for (const auto& entry : dict.entries()) order.push_back(&entry);
      std::stable_sort(order.begin(), order.end(),
                       [this](auto* a, auto* b) { return less(rt, a->first, b->first); });
      for (const auto* entry : order) {
        write_entry(entry->first, entry->second, std::exchange(first, false), level + 1);
      }
    } else {
      for (const auto& [key, value] : dict.entries()) {
        write_entry(key, value, std::exchange(first, false), level + 1);
      }
    }
    if (style.indented) line_break(level);
    out += '}';
  }

  void write(const Value& value, int level) {
    rt.charge(1);
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        break;
      case Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
        out += int_text(value.as_wide());
        break;
      case Kind::kFloat:
        out += json_float(value.as_real());
        break;
      case Kind::kString:
        rt.charge_bytes(2 * value.text().size());
        append_json_string(value.text(), style.ensure_ascii, &out);
        break;
      case Kind::kList:
      case Kind::kTuple: {
        if (value.items().empty()) {
          out += "[]";
          break;
        }
        out += '[';
        bool first = true;
        for (const Value& item : value.items()) {
          if (!std::exchange(first, false)) out += style.item_separator;
          if (style.indented) line_break(level + 1);
          write(item, level + 1);
        }
        if (style.indented) line_break(level);
        out += ']';
        break;
      }
      case Kind::kDict:
        write_dict(value.dict(), level);
        break;
      case Kind::kUndefined:
      case Kind::kObject:
        raise_error(fmt::format("Object of type {} is not JSON serializable", value.type_name()));
    }
    rt.check_string(out.size());
  }
};

}  // namespace

std::string int_text(__int128 value) {
  std::string digits;
  const bool negative = value < 0;
  unsigned __int128 rest =
      negative ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  do {
    digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    rest /= 10;
  } while (rest != 0);
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string out = text[0] == '-' ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out.append(1, '.').append(digits, 1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{:0<{}}{}", out, "", -exponent - 1, digits);
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return fmt::format("{}{:0<{}}.0", out, digits, whole);
  return fmt::format("{}{}.{}", out, digits.substr(0, whole), digits.substr(whole));
}

std::string string_repr(std::string_view text) {
  const bool single = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 1;
    const int32_t cp = code_point_at(text, i, &bytes);
    if (cp == quote || cp == '\\') {
      out += '\\';
      out += static_cast<char>(cp);
    } else if (cp == '\n') {
      out += "\\n";
    } else if (cp == '\r') {
      out += "\\r";
    } else if (cp == '\t') {
      out += "\\t";
    } else if (cp >= 0 && is_printable(cp)) {
      out += text.substr(i, bytes);
    } else if (cp < 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    } else if (cp < 0x100) {
      out += fmt::format("\\x{:02x}", cp);
    } else if (cp < 0x10000) {
      out += fmt::format("\\u{:04x}", cp);
    } else {
      out += fmt::format("\\U{:08x}", cp);
    }
    i += bytes;
  }
  return out + quote;
}

void append_str(Runtime& rt, const Value& value, std::string* out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return;
    case Kind::kNone:
      *out += "None";
      return;
    case Kind::kBool:
      *out += value.as_bool() ? "True" : "False";
      return;
    case Kind::kInt:
      *out += int_text(value.as_wide());
      return;
    case Kind::kFloat:
      *out += float_repr(value.as_real());
      return;
    case Kind::kString:
      rt.charge_bytes(value.text().size());
      rt.check_string(out->size() + value.text().size());
      *out += value.text();
      return;
    default:
      append_repr(rt, value, out);
  }
}

std::string to_str(Runtime& rt, const Value& value) {
  std::string out;
  append_str(rt, value, &out);
  return out;
}

std::string to_repr(Runtime& rt, const Value& value) {
  std::string out;
  append_repr(rt, value, &out);
  return out;
}

std::string to_json_text(Runtime& rt, const Value& value, const JsonStyle& style) {
  JsonWriter writer{rt, style, {}};
  writer.write(value, 0);
  return std::move(writer.out);
}

Value from_json(Runtime& rt, const OrderedJson& json) {
  rt.charge(1);
  Runtime::Deeper deeper(rt);
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value::boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value::integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned:
      return Value::wide_integer(json.get<uint64_t>());
    case OrderedJson::value_t::number_float:
      return Value::real(json.get<double>());
    case OrderedJson::value_t::string:
      return Value::string(json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(rt, item));
      return Value::list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      Dict dict;
      dict.reserve(json.size());
      for (const auto& [key, item] : json.items())
        dict.set(Value::string(key), from_json(rt, item));
      return Value::dict(std::move(dict));
    }
    default:
      return Value::none();
  }
}

}  // namespace lk::jinja
