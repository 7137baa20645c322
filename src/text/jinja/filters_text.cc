// Filters whose result is text.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/objects.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

// soft_str: text stays what it is, Markup included; anything else is printed.
Value soft_string(Runtime& rt, const Value& value) {
  return value.is_string() ? value : Value::string(to_str(rt, value));
}

Value call_method(Runtime& rt, const Value& text, std::string_view name, const CallArgs& args) {
  return find_string_method(name)(rt, soft_string(rt, text), args);
}

Value string(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("string", args, {});
  return soft_string(rt, v);
}
Value upper(Runtime& rt, const Value& v, const CallArgs& args) {
  return call_method(rt, v, "upper", args);
}
Value lower(Runtime& rt, const Value& v, const CallArgs& args) {
  return call_method(rt, v, "lower", args);
}
Value capitalize(Runtime& rt, const Value& v, const CallArgs& args) {
  return call_method(rt, v, "capitalize", args);
}
Value trim(Runtime& rt, const Value& v, const CallArgs& args) {
  return call_method(rt, v, "strip", args);
}

Value center(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("center", args, {"width"});
  CallArgs width;
  width.positional.push_back(a.has(0) ? a[0] : Value::integer(80));
  return call_method(rt, v, "center", width);
}

// Words begin after white space and - ( { [ <, unlike str.title.
Value title(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("title", args, {});
  const Value source = soft_string(rt, v);
  const std::string_view text = source.text();
  rt.charge(static_cast<int64_t>(text.size()) + 1);
  std::string out;
  size_t word = 0;
  const auto flush = [&](size_t end) {
    if (end == word) return;
    const size_t first = code_point_bytes(text, word);
    out += to_upper(text.substr(word, first)) +
           to_lower(text.substr(word + first, end - word - first));
  };
  for (size_t i = 0, bytes = 0; i < text.size(); i += bytes) {
    const int32_t cp = code_point_at(text, i, &bytes);
    if (!is_space(cp) && cp != '-' && cp != '(' && cp != '{' && cp != '[' && cp != '<') continue;
    flush(i);
    out += text.substr(i, bytes);
    word = i + bytes;
  }
  flush(text.size());
  return Value::string(std::move(out));
}

Value replace(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("replace", args, {"old", "new", "count"}, 2);
  const int64_t limit = a.is_given(2) ? a.integer(2, -1) : -1;
  return Value::string(replace_text(rt, to_str(rt, v), to_str(rt, a[0]), to_str(rt, a[1]), limit));
}

Value format(Runtime& rt, const Value& v, const CallArgs& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    raise_error("can't handle positional and keyword arguments at the same time");
  }
  if (args.named.empty()) return modulo(rt, soft_string(rt, v), Value::tuple(args.positional));
  Dict named;
  for (const auto& [name, value] : args.named) named.set(Value::string(name), value);
  return modulo(rt, soft_string(rt, v), Value::dict(std::move(named)));
}

Value escape(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("escape", args, {});
  return Value::string(escape_html(rt, v), true);
}

Value force_escape(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("forceescape", args, {});
  return Value::string(escape_html(rt, Value::string(to_str(rt, v))), true);
}

Value safe(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("safe", args, {});
  return Value::string(to_str(rt, v), true);
}

Value indent(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("indent", args, {"width", "first", "blank"});
  std::string space;
  if (a.has(0) && a[0].is_string()) {
    space = a[0].text();
  } else {
    const int64_t width = std::max<int64_t>(0, a.integer(0, 4));
    rt.check_string(static_cast<size_t>(width));
    space.assign(static_cast<size_t>(width), ' ');
  }
  const bool blank = a.flag(rt, 2, false);
  if (!v.is_string()) {
    if (v.is_undefined())
      raise_error(v.is_missing() ? "value is undefined" : v.undefined_info().message);
    raise_error(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", v.type_name()));
  }
  const std::string text = v.text() + "\n";
  rt.charge(static_cast<int64_t>(text.size()));
  std::string out = a.flag(rt, 1, false) ? space : "";
  bool first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!first) {
      out += '\n';
      if (blank || !line.empty()) {
        rt.charge_bytes(space.size());
        out += space;
      }
    }
    first = false;
    out += line;
    rt.check_string(out.size());
  }
  return Value::string(std::move(out), v.is_safe());
}

Value truncate(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("truncate", args, {"length", "killwords", "end", "leeway"});
  static const std::string kDots = "...";
  const std::string& end = a.text(2, kDots);
  const int64_t length = a.integer(0, 255);
  const int64_t leeway = a.is_given(3) ? a.integer(3, 5) : 5;
  const auto end_length = static_cast<int64_t>(code_point_count(end));
  if (length < end_length)
    raise_error(fmt::format("expected length >= {}, got {}", end_length, length));
  if (leeway < 0) raise_error(fmt::format("expected leeway >= 0, got {}", leeway));
  if (length_of(rt, v) <= length || length_of(rt, v) - length <= leeway) return v;
  if (!v.is_string()) raise_error("truncate needs text");
  std::string out =
      v.text().substr(0, byte_offset(v.text(), static_cast<size_t>(length - end_length)));
  if (!a.flag(rt, 1, false)) {
    if (const size_t space = out.rfind(' '); space != out.npos) out.resize(space);
  }
  return Value::string(out + end);
}

Value wordcount(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("wordcount", args, {});
  const std::string text = to_str(rt, v);
  rt.charge(static_cast<int64_t>(text.size()) + 1);
  int64_t count = 0;
  bool in_word = false;
  for (size_t i = 0, bytes = 0; i < text.size(); i += bytes) {
    const int32_t cp = code_point_at(text, i, &bytes);
    const bool word = cp == '_' || is_alnum(cp);
    if (word && !in_word) ++count;
    in_word = word;
  }
  return Value::integer(count);
}

void append_quoted(std::string_view text, bool for_query, std::string* out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = (byte < 0x80 && is_alnum(byte)) || c == '_' || c == '.' || c == '-' ||
                       c == '~' || (c == '/' && !for_query);
    if (plain) {
      *out += c;
    } else if (c == ' ' && for_query) {
      *out += '+';
    } else {
      *out += fmt::format("%{:02X}", byte);
    }
  }
}

Value urlencode(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("urlencode", args, {});
  std::string out;
  if (v.is_string() || !is_iterable(v)) {
    append_quoted(to_str(rt, v), false, &out);
    return Value::string(std::move(out));
  }
  const std::vector<Value> pairs =
      v.is_dict() ? list_of(rt, find_dict_method("items")(rt, v, CallArgs{})) : list_of(rt, v);
  for (const Value& pair : pairs) {
    const std::vector<Value> items = list_of(rt, pair);
    if (items.size() != 2) raise_error("urlencode needs pairs");
    if (!out.empty()) out += '&';
    append_quoted(to_str(rt, items[0]), true, &out);
    out += '=';
    append_quoted(to_str(rt, items[1]), true, &out);
    rt.check_string(out.size());
  }
  return Value::string(std::move(out));
}

Value to_json(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = a.flag(rt, 0, false);
  if (a.is_given(1)) {
    style.indented = true;
    style.item_separator = ",";
    if (a[1].is_string()) {
      style.indent = a[1].text();
    } else {
      const int64_t width = std::max<int64_t>(0, index_of(a[1]));
      rt.check_string(static_cast<size_t>(width));
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (a.is_given(2)) {
    const std::vector<Value> pair = list_of(rt, a[2]);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      raise_error("tojson() argument 'separators' must be two strings");
    }
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
  }
  style.sort_keys = a.flag(rt, 3, false);
  return Value::string(to_json_text(rt, v, style));
}

constexpr FilterRow kTextFilters[] = {
    {"string", &string},
    {"upper", &upper},
    {"lower", &lower},
    {"capitalize", &capitalize},
    {"trim", &trim},
    {"center", &center},
    {"title", &title},
    {"replace", &replace},
    {"format", &format},
    {"escape", &escape},
    {"e", &escape},
    {"forceescape", &force_escape},
    {"safe", &safe},
    {"indent", &indent},
    {"truncate", &truncate},
    {"wordcount", &wordcount},
    {"urlencode", &urlencode},
    {"tojson", &to_json},
};

}  // namespace

std::span<const FilterRow> text_filters() { return kTextFilters; }

}  // namespace lk::jinja
