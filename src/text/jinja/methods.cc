// Methods of strings, dicts and lists, one table each.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "text/jinja/format.h"
#include "text/jinja/objects.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

// A result of the same kind (plain or Markup) as `self`.
Value like(const Value& self, std::string text) {
  return Value::string(std::move(text), self.is_safe());
}

Value strip(Runtime& rt, const Value& self, const CallArgs& args, bool left, bool right) {
  const Arguments a("strip", args, {"chars"});
  rt.charge_bytes(self.text().size());
  if (!a.is_given(0)) return like(self, std::string(strip_space(self.text(), left, right)));
  return like(self, std::string(strip_set(self.text(), a.text(0, {}), left, right)));
}
Value str_strip(Runtime& rt, const Value& s, const CallArgs& a) {
  return strip(rt, s, a, true, true);
}
Value str_lstrip(Runtime& rt, const Value& s, const CallArgs& a) {
  return strip(rt, s, a, true, false);
}
Value str_rstrip(Runtime& rt, const Value& s, const CallArgs& a) {
  return strip(rt, s, a, false, true);
}

template <std::string (*kMap)(std::string_view)>
Value str_map(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("str method", args, {});
  rt.charge(static_cast<int64_t>(self.text().size()) + 1);
  return like(self, kMap(self.text()));
}

// Searching from the right compares every place in the worst case.
void charge_reverse_find(Runtime& rt, std::string_view text, std::string_view wanted) {
  rt.charge(static_cast<int64_t>(text.size() / 64 * std::min(text.size(), wanted.size())));
}

size_t split_limit(const Arguments& a, size_t i) {
  const int64_t limit = a.integer(i, -1);
  return limit < 0 ? kNoLimit : static_cast<size_t>(limit);
}

std::vector<std::string_view> split_space(std::string_view text, size_t limit) {
  std::vector<std::string_view> out;
  text = strip_space(text, true, false);
  while (!text.empty()) {
    if (out.size() == limit) {
      out.push_back(text);
      break;
    }
    size_t end = 0;
    for (size_t bytes = 0; end < text.size() && !is_space(code_point_at(text, end, &bytes));
         end += bytes) {
    }
    out.push_back(text.substr(0, end));
    text = strip_space(text.substr(end), true, false);
  }
  return out;
}

std::vector<std::string_view> rsplit_space(std::string_view text, size_t limit) {
  std::vector<std::string_view> words = split_space(text, kNoLimit);
  if (words.size() <= limit || words.empty()) return words;
  if (limit == 0) return {strip_space(text, false, true)};
  const std::string_view last_kept = words[words.size() - limit - 1];
  const auto end = static_cast<size_t>(last_kept.data() + last_kept.size() - text.data());
  std::vector<std::string_view> out = {text.substr(0, end)};
  out.insert(out.end(), words.end() - static_cast<std::ptrdiff_t>(limit), words.end());
  return out;
}

Value split(Runtime& rt, const Value& self, const CallArgs& args, bool from_right) {
  const Arguments a(from_right ? "rsplit" : "split", args, {"sep", "maxsplit"});
  const std::string_view text = self.text();
  const size_t limit = split_limit(a, 1);
  rt.charge_bytes(2 * text.size());
  std::vector<std::string_view> parts;
  if (!a.is_given(0)) {
    parts = from_right ? rsplit_space(text, limit) : split_space(text, limit);
  } else {
    const std::string& separator = a.text(0, {});
    if (separator.empty()) raise_error("empty separator");
    if (from_right) charge_reverse_find(rt, text, separator);
    std::string_view rest = text;
    while (parts.size() < limit) {
      const size_t at = from_right ? rest.rfind(separator) : find_text(rest, separator);
      if (at == rest.npos) break;
      const std::string_view after = rest.substr(at + separator.size());
      parts.push_back(from_right ? after : rest.substr(0, at));
      rest = from_right ? rest.substr(0, at) : after;
    }
    parts.push_back(rest);
    if (from_right) std::reverse(parts.begin(), parts.end());
  }
  rt.charge(4 * static_cast<int64_t>(parts.size()));
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const std::string_view part : parts) out.push_back(like(self, std::string(part)));
  return Value::list(std::move(out));
}
Value str_split(Runtime& rt, const Value& s, const CallArgs& a) { return split(rt, s, a, false); }
Value str_rsplit(Runtime& rt, const Value& s, const CallArgs& a) { return split(rt, s, a, true); }

Value partition(Runtime& rt, const Value& self, const CallArgs& args, bool from_right) {
  const Arguments a("partition", args, {"sep"}, 1);
  const std::string& text = self.text();
  const std::string& separator = a.text(0, {});
  if (separator.empty()) raise_error("empty separator");
  rt.charge_bytes(2 * text.size());
  if (from_right) charge_reverse_find(rt, text, separator);
  const size_t at = from_right ? text.rfind(separator) : find_text(text, separator);
  if (at == text.npos) {
    if (from_right) return Value::tuple({like(self, ""), like(self, ""), self});
    return Value::tuple({self, like(self, ""), like(self, "")});
  }
  return Value::tuple({like(self, text.substr(0, at)), like(self, separator),
                       like(self, text.substr(at + separator.size()))});
}
Value str_partition(Runtime& rt, const Value& s, const CallArgs& a) {
  return partition(rt, s, a, false);
}
Value str_rpartition(Runtime& rt, const Value& s, const CallArgs& a) {
  return partition(rt, s, a, true);
}

Value str_splitlines(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("splitlines", args, {"keepends"});
  rt.charge(static_cast<int64_t>(self.text().size()) + 1);
  std::vector<Value> out;
  for (const std::string_view line : split_lines(self.text(), a.flag(rt, 0, false))) {
    out.push_back(like(self, std::string(line)));
  }
  return Value::list(std::move(out));
}

// The part of the text that the optional start and end leave, and where it begins.
std::string_view window(const Value& self, const Arguments& a, size_t first, size_t* begin_bytes) {
  const std::string_view text = self.text();
  *begin_bytes = 0;
  if (!a.is_given(first) && !a.is_given(first + 1)) return text;
  const auto length = static_cast<int64_t>(code_point_count(text));
  const auto bound = [&](size_t i, int64_t fallback) {
    if (!a.is_given(i)) return fallback;
    int64_t value = a.integer(i, 0);
    if (value < 0) value = std::max<int64_t>(0, value + length);
    return value;
  };
  const int64_t begin = bound(first, 0);
  const int64_t end = std::min(bound(first + 1, length), length);
  if (begin > end) {
    *begin_bytes = text.npos;
    return {};
  }
  *begin_bytes = byte_offset(text, static_cast<size_t>(begin));
  return text.substr(*begin_bytes, byte_offset(text, static_cast<size_t>(end)) - *begin_bytes);
}

Value affix(Runtime& rt, const Value& self, const CallArgs& args, bool at_end) {
  const std::string_view name = at_end ? "endswith" : "startswith";
  const Arguments a(name, args, {at_end ? "suffix" : "prefix", "start", "end"}, 1);
  size_t begin = 0;
  const std::string_view text = window(self, a, 1, &begin);
  if (begin == text.npos) return Value::boolean(false);
  if (a.has(1)) rt.charge_bytes(self.text().size());
  const auto matches = [&](const Value& wanted) {
    if (!wanted.is_string()) {
      raise_error(fmt::format("{} first arg must be str or a tuple of str, not {}", name,
                              wanted.type_name()));
    }
    const std::string& affix = wanted.text();
    rt.charge_bytes(affix.size());
    if (affix.size() > text.size()) return false;
    return (at_end ? text.substr(text.size() - affix.size()) : text.substr(0, affix.size())) ==
           affix;
  };
  if (a[0].kind() != Kind::kTuple) return Value::boolean(matches(a[0]));
  return Value::boolean(std::any_of(a[0].items().begin(), a[0].items().end(), matches));
}
Value str_startswith(Runtime& rt, const Value& s, const CallArgs& a) {
  return affix(rt, s, a, false);
}
Value str_endswith(Runtime& rt, const Value& s, const CallArgs& a) { return affix(rt, s, a, true); }

int64_t find_in(Runtime& rt, const Value& self, const CallArgs& args, std::string_view name,
                bool from_right) {
  const Arguments a(name, args, {"sub", "start", "end"}, 1);
  rt.charge_bytes(3 * self.text().size());
  size_t begin = 0;
  const std::string_view text = window(self, a, 1, &begin);
  if (begin == text.npos) return -1;
  const std::string& wanted = a.text(0, {});
  if (from_right) charge_reverse_find(rt, text, wanted);
  const size_t at = from_right ? text.rfind(wanted) : find_text(text, wanted);
  if (at == text.npos) return -1;
  return static_cast<int64_t>(
      code_point_count(std::string_view(self.text()).substr(0, begin + at)));
}
Value str_find(Runtime& rt, const Value& s, const CallArgs& a) {
  return Value::integer(find_in(rt, s, a, "find", false));
}
Value str_rfind(Runtime& rt, const Value& s, const CallArgs& a) {
  return Value::integer(find_in(rt, s, a, "rfind", true));
}
Value found_index(int64_t at) {
  if (at < 0) raise_error("substring not found");
  return Value::integer(at);
}
Value str_index(Runtime& rt, const Value& s, const CallArgs& a) {
  return found_index(find_in(rt, s, a, "index", false));
}
Value str_rindex(Runtime& rt, const Value& s, const CallArgs& a) {
  return found_index(find_in(rt, s, a, "rindex", true));
}

Value str_count(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("count", args, {"sub", "start", "end"}, 1);
  rt.charge_bytes(2 * self.text().size());
  size_t begin = 0;
  const std::string_view text = window(self, a, 1, &begin);
  if (begin == text.npos) return Value::integer(0);
  const std::string& wanted = a.text(0, {});
  if (wanted.empty()) return Value::integer(static_cast<int64_t>(code_point_count(text)) + 1);
  int64_t count = 0;
  for (size_t at = 0; (at = find_text(text, wanted, at)) != text.npos; at += wanted.size()) ++count;
  return Value::integer(count);
}

Value str_replace(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("replace", args, {"old", "new", "count"}, 2);
  const std::string& wanted = a.text(0, {});
  const std::string& plain = a.text(1, {});
  const std::string with = self.is_safe() ? escape_html(rt, a[1]) : plain;
  return like(self, replace_text(rt, self.text(), wanted, with, a.integer(2, -1)));
}

Value str_join(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("join", args, {"iterable"}, 1);
  if (!is_iterable(a[0])) raise_error("can only join an iterable");
  std::string out;
  bool first = true;
  int64_t i = 0;
  for (const Value& item : list_of(rt, a[0])) {
    if (!item.is_string()) {
      raise_error(
          fmt::format("sequence item {}: expected str instance, {} found", i, item.type_name()));
    }
    rt.charge_bytes(item.text().size() + self.text().size());
    if (!std::exchange(first, false)) out += self.text();
    out += self.is_safe() ? escape_html(rt, item) : item.text();
    rt.check_string(out.size());
    ++i;
  }
  return like(self, std::move(out));
}

Value str_format(Runtime& rt, const Value& self, const CallArgs& args) {
  if (self.is_safe()) raise_error("formatting safe text is not supported");
  return Value::string(format_braces(rt, self, args));
}

template <bool (*kIs)(int32_t)>
Value str_all(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("str method", args, {});
  rt.charge(static_cast<int64_t>(self.text().size()) + 1);
  const std::string_view text = self.text();
  for (size_t i = 0, bytes = 0; i < text.size(); i += bytes) {
    if (!kIs(code_point_at(text, i, &bytes))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Value str_isupper(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("isupper", args, {});
  return Value::boolean(text_is_cased(rt, self.text(), true));
}
Value str_islower(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("islower", args, {});
  return Value::boolean(text_is_cased(rt, self.text(), false));
}

Value str_istitle(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("istitle", args, {});
  rt.charge(static_cast<int64_t>(self.text().size()) + 1);
  const std::string_view text = self.text();
  bool any = false, in_word = false;
  for (size_t i = 0, bytes = 0; i < text.size(); i += bytes) {
    const int32_t cp = code_point_at(text, i, &bytes);
    if (is_upper(cp) && in_word) return Value::boolean(false);
    if (is_lower(cp) && !in_word) return Value::boolean(false);
    in_word = is_cased(cp);
    any = any || in_word;
  }
  return Value::boolean(any);
}

bool ascii_only(int32_t cp) { return cp >= 0 && cp < 0x80; }
Value str_isascii(Runtime& rt, const Value& self, const CallArgs& args) {
  return self.text().empty() ? Value::boolean(true) : str_all<ascii_only>(rt, self, args);
}
Value str_isidentifier(Runtime&, const Value& self, const CallArgs& args) {
  const Arguments a("isidentifier", args, {});
  return Value::boolean(is_identifier(self.text()));
}

Value justify(Runtime& rt, const Value& self, const CallArgs& args, char align) {
  const Arguments a("justify", args, {"width", "fillchar"}, 1);
  static const std::string kSpace = " ";
  const std::string& fill = a.text(1, kSpace);
  if (code_point_count(fill) != 1)
    raise_error("The fill character must be exactly one character long");
  const auto length = static_cast<int64_t>(code_point_count(self.text()));
  const int64_t width = a.integer(0, 0);
  if (width <= length) return self;
  const int64_t missing = width - length;
  rt.check_string(self.text().size() +
                  static_cast<size_t>(std::min<int64_t>(missing, int64_t{1} << 40)) * fill.size());
  rt.charge_bytes(static_cast<size_t>(missing) * fill.size());
  // str.center puts the odd one left when the width is odd.
  const int64_t left = align == '<'   ? 0
                       : align == '>' ? missing
                                      : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return like(self, std::move(out));
}
Value str_ljust(Runtime& rt, const Value& s, const CallArgs& a) { return justify(rt, s, a, '<'); }
Value str_rjust(Runtime& rt, const Value& s, const CallArgs& a) { return justify(rt, s, a, '>'); }
Value str_center(Runtime& rt, const Value& s, const CallArgs& a) { return justify(rt, s, a, '^'); }

Value str_zfill(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("zfill", args, {"width"}, 1);
  CallArgs padded;
  padded.positional = {a[0], Value::string("0")};
  const std::string& text = self.text();
  if (text.empty() || (text[0] != '-' && text[0] != '+')) return justify(rt, self, padded, '>');
  padded.positional[0] = Value::integer(a.integer(0, 0) - 1);
  return like(self, text[0] + justify(rt, Value::string(text.substr(1)), padded, '>').text());
}

Value str_expandtabs(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("expandtabs", args, {"tabsize"});
  const int64_t size = std::min<int64_t>(a.integer(0, 8), 4096);
  std::string out;
  int64_t column = 0;
  const std::string_view text = self.text();
  for (size_t i = 0, bytes = 0; i < text.size(); i += bytes) {
    const int32_t cp = code_point_at(text, i, &bytes);
    if (cp == '\t') {
      const int64_t step = size > 0 ? size - column % size : 0;
      out.append(static_cast<size_t>(step), ' ');
      column += step;
    } else {
      out += text.substr(i, bytes);
      column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    rt.charge_bytes(bytes);
    rt.check_string(out.size());
  }
  return like(self, std::move(out));
}

Value str_removeprefix(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("removeprefix", args, {"prefix"}, 1);
  const std::string& prefix = a.text(0, {});
  rt.charge_bytes(self.text().size());
  const bool has = self.text().compare(0, prefix.size(), prefix) == 0;
  return has ? like(self, self.text().substr(prefix.size())) : self;
}

Value str_removesuffix(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("removesuffix", args, {"suffix"}, 1);
  const std::string& suffix = a.text(0, {});
  const std::string& text = self.text();
  rt.charge_bytes(text.size());
  const bool has = suffix.size() <= text.size() &&
                   text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
  return has ? like(self, text.substr(0, text.size() - suffix.size())) : self;
}

Value dict_get(Runtime&, const Value& self, const CallArgs& args) {
  if (!args.named.empty()) raise_error("dict.get() takes no keyword arguments");
  const Arguments a("get", args, {"key", "default"}, 1);
  if (const Value* found = self.dict().find(a[0])) return *found;
  return a.has(1) ? a[1] : Value::none();
}

template <DictView::Part kPart>
Value dict_view(Runtime&, const Value& self, const CallArgs& args) {
  const Arguments a("dict method", args, {});
  return Value::object(std::make_shared<DictView>(self, kPart));
}

// Values never change, so a copy is the value itself.
Value copy(Runtime&, const Value& self, const CallArgs& args) {
  const Arguments a("copy", args, {});
  return self;
}

Value list_count(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("count", args, {"value"}, 1);
  int64_t count = 0;
  for (const Value& item : self.items()) count += equal(rt, item, a[0]) ? 1 : 0;
  return Value::integer(count);
}

Value list_index(Runtime& rt, const Value& self, const CallArgs& args) {
  const Arguments a("index", args, {"value", "start", "stop"}, 1);
  const auto size = static_cast<int64_t>(self.items().size());
  const auto bound = [&](size_t i, int64_t fallback) {
    const int64_t value = a.integer(i, fallback);
    return std::clamp<int64_t>(value < 0 ? value + size : value, 0, size);
  };
  for (int64_t i = bound(1, 0); i < bound(2, size); ++i) {
    if (equal(rt, self.items()[static_cast<size_t>(i)], a[0])) return Value::integer(i);
  }
  raise_error(fmt::format("{} is not in {}", to_repr(rt, a[0]), self.type_name()));
}

// The sandbox is an immutable one.
template <const char* kName>
Value refuse_change(Runtime&, const Value& self, const CallArgs&) {
  raise_error(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", kName, self.type_name()));
}

constexpr char kAppend[] = "append", kClear[] = "clear", kPop[] = "pop", kReverse[] = "reverse",
               kInsert[] = "insert", kSort[] = "sort", kExtend[] = "extend", kRemove[] = "remove",
               kPopitem[] = "popitem", kSetdefault[] = "setdefault", kUpdate[] = "update";

struct MethodRow {
  std::string_view name;
  Method method;
};

constexpr MethodRow kStringMethods[] = {
    {"strip", &str_strip},
    {"lstrip", &str_lstrip},
    {"rstrip", &str_rstrip},
    {"upper", &str_map<to_upper>},
    {"lower", &str_map<to_lower>},
    {"casefold", &str_map<to_lower>},
    {"title", &str_map<to_title>},
    {"capitalize", &str_map<to_capitalized>},
    {"swapcase", &str_map<to_swapped_case>},
    {"split", &str_split},
    {"rsplit", &str_rsplit},
    {"splitlines", &str_splitlines},
    {"partition", &str_partition},
    {"rpartition", &str_rpartition},
    {"startswith", &str_startswith},
    {"endswith", &str_endswith},
    {"find", &str_find},
    {"rfind", &str_rfind},
    {"index", &str_index},
    {"rindex", &str_rindex},
    {"count", &str_count},
    {"replace", &str_replace},
    {"join", &str_join},
    {"format", &str_format},
    {"isalpha", &str_all<is_alpha>},
    {"isalnum", &str_all<is_alnum>},
    {"isdecimal", &str_all<is_decimal>},
    {"isdigit", &str_all<is_digit>},
    {"isnumeric", &str_all<is_numeric>},
    {"isspace", &str_all<is_space>},
    {"isupper", &str_isupper},
    {"islower", &str_islower},
    {"istitle", &str_istitle},
    {"isascii", &str_isascii},
    {"isidentifier", &str_isidentifier},
    {"ljust", &str_ljust},
    {"rjust", &str_rjust},
    {"center", &str_center},
    {"zfill", &str_zfill},
    {"expandtabs", &str_expandtabs},
    {"removeprefix", &str_removeprefix},
    {"removesuffix", &str_removesuffix},
};

constexpr MethodRow kDictMethods[] = {
    {"get", &dict_get},
    {"items", &dict_view<DictView::Part::kItems>},
    {"keys", &dict_view<DictView::Part::kKeys>},
    {"values", &dict_view<DictView::Part::kValues>},
    {"copy", &copy},
    {"clear", &refuse_change<kClear>},
    {"pop", &refuse_change<kPop>},
    {"popitem", &refuse_change<kPopitem>},
    {"setdefault", &refuse_change<kSetdefault>},
    {"update", &refuse_change<kUpdate>},
};

constexpr MethodRow kSequenceMethods[] = {
    {"count", &list_count},
    {"index", &list_index},
    {"copy", &copy},
    {"append", &refuse_change<kAppend>},
    {"clear", &refuse_change<kClear>},
    {"pop", &refuse_change<kPop>},
    {"reverse", &refuse_change<kReverse>},
    {"insert", &refuse_change<kInsert>},
    {"sort", &refuse_change<kSort>},
    {"extend", &refuse_change<kExtend>},
    {"remove", &refuse_change<kRemove>},
};

template <size_t kCount>
Method find_row(const MethodRow (&rows)[kCount], std::string_view name) {
  for (const MethodRow& row : rows) {
    if (row.name == name) return row.method;
  }
  return nullptr;
}

}  // namespace

std::string replace_text(Runtime& rt, std::string_view text, std::string_view wanted,
                         std::string_view with, int64_t limit) {
  rt.charge_bytes(2 * text.size());
  std::string out;
  const auto put = [&](std::string_view part) {
    rt.charge_bytes(part.size());
    rt.check_string(out.size() + part.size());
    out += part;
  };
  size_t at = 0;
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    if (wanted.empty()) {
      // Before each code point, and at the end.
      put(with);
      if (at >= text.size()) return out;
      const size_t bytes = code_point_bytes(text, at);
      put(text.substr(at, bytes));
      at += bytes;
      continue;
    }
    const size_t found = find_text(text, wanted, at);
    if (found == text.npos) break;
    put(text.substr(at, found - at));
    put(with);
    at = found + wanted.size();
  }
  put(text.substr(at));
  return out;
}

bool text_is_cased(Runtime& rt, std::string_view text, bool upper) {
  rt.charge(static_cast<int64_t>(text.size()) + 1);
  bool any = false;
  for (size_t i = 0, bytes = 0; i < text.size(); i += bytes) {
    const int32_t cp = code_point_at(text, i, &bytes);
    if (!is_cased(cp)) continue;
    if (upper ? !is_upper(cp) : !is_lower(cp)) return false;
    any = true;
  }
  return any;
}

Method find_string_method(std::string_view name) { return find_row(kStringMethods, name); }
Method find_dict_method(std::string_view name) { return find_row(kDictMethods, name); }
Method find_sequence_method(std::string_view name) { return find_row(kSequenceMethods, name); }

}  // namespace lk::jinja
