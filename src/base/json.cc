#include "base/json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/mmap_file.h"

namespace lk {
namespace {

constexpr int kMaxDepth = 200;

// NaN and the infinities are no JSON; before parsing each is replaced by a string that no file
// contains (a raw U+0001 cannot occur inside a JSON string, but its escape can be parsed), and put
// back afterwards.
constexpr std::string_view kNan = R"("\u0001lk-nan")", kInf = R"("\u0001lk-inf")",
                           kNegInf = R"("\u0001lk-ninf")";

struct Prepared {
  std::string text;
  bool replaced = false;
};

Result<Prepared> prepare(std::string_view text, std::string_view what) {
  Prepared out;
  out.text.reserve(text.size());
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out.text += c;
      if (c == '\\' && i + 1 < text.size()) {
        out.text += text[++i];
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    auto take = [&](std::string_view word, std::string_view replacement) {
      if (text.substr(i, word.size()) != word) return false;
      out.text += replacement;
      out.replaced = true;
      i += word.size() - 1;
      return true;
    };
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') {
      if (++depth > kMaxDepth)
        return invalid("{} is nested deeper than {} levels", what, kMaxDepth);
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == 'N' || c == 'I' || c == '-') {
      if (take("NaN", kNan) || take("Infinity", kInf) || take("-Infinity", kNegInf)) continue;
    }
    out.text += c;
  }
  return out;
}

template <typename J>
void restore(J& value) {
  if (value.is_string()) {
    const auto& s = value.template get_ref<const std::string&>();
    if (s.size() < 7 || s[0] != '\x01') return;
    if (s == "\x01lk-nan")
      value = std::numeric_limits<double>::quiet_NaN();
    else if (s == "\x01lk-inf")
      value = std::numeric_limits<double>::infinity();
    else if (s == "\x01lk-ninf")
      value = -std::numeric_limits<double>::infinity();
  } else if (value.is_structured()) {
    for (auto& child : value) restore(child);
  }
}

template <typename J>
Result<J> parse(std::string_view text, std::string_view what) {
  LK_ASSIGN_OR_RETURN(Prepared prepared, prepare(text, what));
  try {
    J value = J::parse(prepared.text);
    if (prepared.replaced) restore(value);
    return value;
  } catch (const nlohmann::json::exception& e) {
    std::string_view reason = e.what();
    if (const size_t end = reason.find("] "); end != std::string_view::npos)
      reason.remove_prefix(end + 2);
    return invalid("{} is not valid JSON: {}", what, reason);
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  return parse<Json>(text, what);
}
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what) {
  return parse<OrderedJson>(text, what);
}

Result<Json> read_json_file(const std::string& path) {
  LK_ASSIGN_OR_RETURN(std::string text, read_file(path));
  return parse_json(text, path);
}

Result<OrderedJson> read_ordered_json_file(const std::string& path) {
  LK_ASSIGN_OR_RETURN(std::string text, read_file(path));
  return parse_ordered_json(text, path);
}

}  // namespace lk
