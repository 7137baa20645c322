#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lk::jinja {
namespace {

// Cased letters whose other case is more than one code point (Unicode SpecialCasing, unconditional,
// Latin).
struct SpecialCase {
  int32_t cp;
  std::string_view upper;
  std::string_view title;
};
constexpr SpecialCase kSpecialCases[] = {
    {0xdf, "SS", "Ss"},     {0x149, "\u02bcN", "\u02bcN"}, {0x1f0, "J\u030c", "J\u030c"},
    {0xfb00, "FF", "Ff"},   {0xfb01, "FI", "Fi"},          {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"}, {0xfb04, "FFL", "Ffl"},        {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
};

const SpecialCase* special_case(int32_t cp) {
  if (cp < 0xdf) return nullptr;
  for (const SpecialCase& row : kSpecialCases) {
    if (row.cp == cp) return &row;
  }
  return nullptr;
}

utf8proc_category_t category(int32_t cp) {
  return cp < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(cp);
}

enum class Case { kUpper, kLower, kTitle };

void append_case(std::string* out, std::string_view raw, int32_t cp, Case to) {
  if (cp < 0) {
    *out += raw;
    return;
  }
  if (cp < 0x80) {
    char c = static_cast<char>(cp);
    if (to == Case::kLower) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    } else if (c >= 'a' && c <= 'z') {
      c = static_cast<char>(c - 32);
    }
    *out += c;
    return;
  }
  if (to == Case::kLower) {
    if (cp == 0x130) {
      *out += "i\u0307";
    } else {
      append_utf8(out, utf8proc_tolower(cp));
    }
  } else if (const SpecialCase* row = special_case(cp)) {
    *out += to == Case::kUpper ? row->upper : row->title;
  } else {
    append_utf8(out, to == Case::kUpper ? utf8proc_toupper(cp) : utf8proc_totitle(cp));
  }
}

// A capital sigma is a final one after a letter and before none.
bool final_sigma(std::string_view text, size_t begin, size_t end) {
  size_t bytes = 0;
  bool letter_before = false;
  for (size_t i = begin; i-- > 0;) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) continue;
    letter_before = is_cased(code_point_at(text, i, &bytes));
    break;
  }
  if (!letter_before) return false;
  return end >= text.size() || !is_cased(code_point_at(text, end, &bytes));
}

template <typename Choose>
std::string map_case(std::string_view text, Choose choose) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 0;
    const int32_t cp = code_point_at(text, i, &bytes);
    const Case to = choose(cp);
    if (cp == 0x3a3 && to == Case::kLower) {
      out += final_sigma(text, i, i + bytes) ? "\u03c2" : "\u03c3";
    } else {
      append_case(&out, text.substr(i, bytes), cp, to);
    }
    i += bytes;
  }
  return out;
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

int32_t code_point_at(std::string_view text, size_t at, size_t* bytes) {
  const auto first = static_cast<unsigned char>(text[at]);
  *bytes = 1;
  if (first < 0x80) return first;
  int32_t cp = -1;
  const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
  const auto left = static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size() - at, 4));
  const utf8proc_ssize_t used = utf8proc_iterate(data, left, &cp);
  if (used <= 0) return -1;
  *bytes = static_cast<size_t>(used);
  return cp;
}

size_t code_point_bytes(std::string_view text, size_t at) {
  size_t bytes = 0;
  code_point_at(text, at, &bytes);
  return bytes;
}

size_t code_point_count(std::string_view text) {
  if (is_ascii(text)) return text.size();
  size_t count = 0;
  for (size_t i = 0; i < text.size(); i += code_point_bytes(text, i)) ++count;
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  if (is_ascii(text)) return std::min(index, text.size());
  size_t i = 0;
  for (; index > 0 && i < text.size(); --index) i += code_point_bytes(text, i);
  return i;
}

std::vector<std::string_view> code_points(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = code_point_bytes(text, i);
    out.push_back(text.substr(i, bytes));
    i += bytes;
  }
  return out;
}

void append_utf8(std::string* out, int32_t code_point) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t bytes = utf8proc_encode_char(code_point, buffer);
  out->append(reinterpret_cast<const char*>(buffer), static_cast<size_t>(bytes));
}

bool is_space(int32_t cp) {
  return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
         cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
         cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

namespace {

template <typename Drop>
std::string_view strip_if(std::string_view text, bool left, bool right, const Drop& drop) {
  while (left && !text.empty()) {
    const size_t bytes = code_point_bytes(text, 0);
    if (!drop(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    // Back over at most three continuation bytes to a start whose code point ends here.
    size_t start = text.size() - 1;
    for (size_t back = 1; back <= 4 && back <= text.size(); ++back) {
      const size_t at = text.size() - back;
      if ((static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) continue;
      if (at + code_point_bytes(text, at) == text.size()) start = at;
      break;
    }
    if (!drop(text.substr(start))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

}  // namespace

std::string_view strip_space(std::string_view text, bool left, bool right) {
  return strip_if(text, left, right, [](std::string_view c) {
    size_t bytes = 0;
    return is_space(code_point_at(c, 0, &bytes));
  });
}

std::string_view strip_set(std::string_view text, std::string_view set, bool left, bool right) {
  if (is_ascii(set)) {
    return strip_if(text, left, right, [&](std::string_view c) {
      return c.size() == 1 && set.find(c[0]) != set.npos;
    });
  }
  const std::vector<std::string_view> wanted = code_points(set);
  return strip_if(text, left, right, [&](std::string_view c) {
    return std::find(wanted.begin(), wanted.end(), c) != wanted.end();
  });
}

std::string to_upper(std::string_view text) {
  return map_case(text, [](int32_t) { return Case::kUpper; });
}

std::string to_lower(std::string_view text) {
  return map_case(text, [](int32_t) { return Case::kLower; });
}

std::string to_capitalized(std::string_view text) {
  return map_case(text, [first = true](int32_t) mutable {
    return std::exchange(first, false) ? Case::kTitle : Case::kLower;
  });
}

std::string to_title(std::string_view text) {
  return map_case(text, [in_word = false](int32_t cp) mutable {
    const Case to = in_word ? Case::kLower : Case::kTitle;
    in_word = is_cased(cp);
    return to;
  });
}

std::string to_swapped_case(std::string_view text) {
  return map_case(text, [](int32_t cp) { return is_upper(cp) ? Case::kLower : Case::kUpper; });
}

bool is_upper(int32_t cp) {
  if (cp < 0x80) return cp >= 'A' && cp <= 'Z';
  return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216f) ||
         (cp >= 0x24b6 && cp <= 0x24cf);
}

bool is_lower(int32_t cp) {
  if (cp < 0x80) return cp >= 'a' && cp <= 'z';
  return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba ||
         (cp >= 0x2170 && cp <= 0x217f) || (cp >= 0x24d0 && cp <= 0x24e9);
}

bool is_cased(int32_t cp) {
  return is_upper(cp) || is_lower(cp) || category(cp) == UTF8PROC_CATEGORY_LT;
}

bool is_alpha(int32_t cp) {
  if (cp < 0x80) return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z');
  const auto c = category(cp);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(int32_t cp) {
  if (cp < 0x80) return cp >= '0' && cp <= '9';
  return category(cp) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(int32_t cp) {
  return is_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
         (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
         (cp >= 0x2460 && cp <= 0x2468);
}

bool is_numeric(int32_t cp) {
  if (is_digit(cp)) return true;
  const auto c = category(cp);
  return c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_printable(int32_t cp) {
  if (cp == ' ') return true;
  switch (category(cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_identifier(std::string_view text) {
  if (text.empty()) return false;
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 0;
    const int32_t cp = code_point_at(text, i, &bytes);
    const auto c = category(cp);
    const bool start = cp == '_' || is_alpha(cp) || c == UTF8PROC_CATEGORY_NL;
    const bool more = start || is_decimal(cp) || c == UTF8PROC_CATEGORY_MN ||
                      c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_PC;
    if (!(i == 0 ? start : more)) return false;
    i += bytes;
  }
  return true;
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return text.npos;
  if (wanted.size() < 2) return text.find(wanted, from);
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? text.npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    size_t bytes = 0;
    const int32_t cp = code_point_at(text, i, &bytes);
    const bool ends = (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                      cp == 0x2028 || cp == 0x2029;
    if (!ends) {
      i += bytes;
      continue;
    }
    const size_t line_end = i;
    i += bytes;
    if (cp == '\r' && i < text.size() && text[i] == '\n') ++i;
    out.push_back(text.substr(begin, (keep_ends ? i : line_end) - begin));
    begin = i;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

}  // namespace lk::jinja
