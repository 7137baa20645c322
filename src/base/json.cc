#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/mmap_file.h"

namespace lk {
namespace {

constexpr int kMaxDepth = 200;

// NaN and the infinities are no JSON; before parsing each is replaced by a string that no program
// writes, and the builder puts the number in its place.
constexpr std::string_view kNan = R"("\u0001lk-nan")", kInf = R"("\u0001lk-inf")",
                           kNegInf = R"("\u0001lk-ninf")";

struct Prepared {
  std::string text;
  // Where a number was replaced: the offset in `text` behind it, and the bytes of growth so far.
  std::vector<std::pair<size_t, size_t>> grown;

  size_t offset_in_source(size_t offset) const {
    const auto after = std::upper_bound(grown.begin(), grown.end(), std::pair(offset, SIZE_MAX));
    return after == grown.begin() ? offset : offset - std::prev(after)->second;
  }
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
      i += word.size() - 1;
      out.grown.emplace_back(out.text.size(), out.text.size() - (i + 1));
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

// At most 40 characters of a file's text for a sentence; what is not printable ASCII becomes '?'.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string out(text.substr(0, kMost));
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  return "'" + out + (text.size() > kMost ? "...'" : "'");
}

// Keys of an object that is being read. An ordered object is a plain list, which its own insertion
// searches from end to end: seconds for a hostile line. A set steps in where a list gets long.
class SeenKeys {
 public:
  // False if the key was there.
  bool insert(const std::string& key) {
    constexpr size_t kShort = 16;
    if (list_.size() < kShort) {
      if (std::find(list_.begin(), list_.end(), key) != list_.end()) return false;
      list_.push_back(key);
      return true;
    }
    if (set_.empty()) set_.insert(list_.begin(), list_.end());
    return set_.insert(key).second;
  }

 private:
  std::vector<std::string> list_;
  std::unordered_set<std::string> set_;
};

// Builds the value event by event and keeps the first fault as a sentence.
template <typename J>
class Builder {
 public:
  using number_integer_t = typename J::number_integer_t;
  using number_unsigned_t = typename J::number_unsigned_t;
  using number_float_t = typename J::number_float_t;
  using string_t = typename J::string_t;
  using binary_t = typename J::binary_t;

  Builder(const Prepared& prepared, std::string_view what) : prepared_(prepared), what_(what) {}

  J value;
  std::string error;

  bool null() { return add(nullptr); }
  bool boolean(bool b) { return add(b); }
  bool number_integer(number_integer_t n) { return add(n); }
  bool number_unsigned(number_unsigned_t n) { return add(n); }
  bool number_float(number_float_t n, const string_t&) { return add(n); }
  bool binary(binary_t&) { return false; }  // no JSON text holds one
  bool string(string_t& text) {
    using Limits = std::numeric_limits<double>;
    if (!text.empty() && text[0] == '\x01' && !prepared_.grown.empty()) {
      if (text == "\x01lk-nan") return add(Limits::quiet_NaN());
      if (text == "\x01lk-inf") return add(Limits::infinity());
      if (text == "\x01lk-ninf") return add(-Limits::infinity());
    }
    return add(std::move(text));
  }

  bool start_object(size_t) { return open(J::object()); }
  bool start_array(size_t) { return open(J::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    if (!seen_.back().insert(name)) {
      error = fmt::format("{} gives the key {} twice", what_, shown(name));
      return false;
    }
    auto& object = *open_.back()->template get_ptr<typename J::object_t*>();
    if constexpr (std::is_same_v<J, OrderedJson>) {
      object.emplace_back(std::move(name), J());
      member_ = &object.back().second;
    } else {
      member_ = &object.emplace(std::move(name), J()).first->second;
    }
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& fault) {
    const std::string_view said = fault.what();
    const auto says = [&](std::string_view word) { return said.find(word) != said.npos; };
    const size_t size = prepared_.text.size();
    const size_t byte = prepared_.offset_in_source(std::min(position, size));
    if (prepared_.text.find_first_not_of(" \t\r\n") == std::string::npos) {
      error = fmt::format("{} is not valid JSON: it is empty", what_);
    } else if (says("UTF-8")) {
      error = fmt::format("{} is not valid JSON: byte {} is not UTF-8", what_, byte);
    } else if (says("control character")) {
      error = fmt::format(
          "{} is not valid JSON: a string holds an unescaped control character at "
          "byte {}",
          what_, byte);
    } else if (says("surrogate")) {
      error = fmt::format(
          "{} is not valid JSON: the \\u escape that ends before byte {} is half of a surrogate "
          "pair, which alone is no character",
          what_, byte);
    } else if (says("backslash") || says("hex digits")) {
      error = fmt::format("{} is not valid JSON: a string holds a broken escape at byte {}", what_,
                          byte);
    } else if (says("number overflow")) {
      error = fmt::format("{}: the number {} before byte {} is out of range", what_, shown(token),
                          byte);
    } else if (position == 0 || position > size || says("missing closing quote")) {
      error = fmt::format("{} is not valid JSON: it ends too early, after {} bytes", what_, byte);
    } else {
      error = fmt::format("{} is not valid JSON: {} at byte {} is not expected there", what_,
                          shown(std::string_view(prepared_.text).substr(position - 1, 1)), byte);
    }
    return false;
  }

 private:
  template <typename T>
  J* put(T&& item) {
    if (open_.empty()) {
      value = std::forward<T>(item);
      return &value;
    }
    if (open_.back()->is_object()) {
      *member_ = std::forward<T>(item);
      return member_;
    }
    auto& array = *open_.back()->template get_ptr<typename J::array_t*>();
    array.emplace_back(std::forward<T>(item));
    return &array.back();
  }
  template <typename T>
  bool add(T&& item) {
    put(std::forward<T>(item));
    return true;
  }
  bool open(J&& container) {
    const bool object = container.is_object();
    open_.push_back(put(std::move(container)));
    if (object) seen_.emplace_back();
    return true;
  }
  bool close() {
    if (open_.back()->is_object()) seen_.pop_back();
    open_.pop_back();
    return true;
  }

  const Prepared& prepared_;
  std::string_view what_;
  std::vector<J*> open_;        // the containers that are not closed yet, from the outside in
  std::vector<SeenKeys> seen_;  // of the objects among them
  J* member_ = nullptr;         // the value that the last key stands for
};

template <typename J>
Result<J> parse(std::string_view text, std::string_view what) {
  LK_ASSIGN_OR_RETURN(const Prepared prepared, prepare(text, what));
  Builder<J> builder(prepared, what);
  if (!J::sax_parse(prepared.text, &builder))
    return tl::unexpected<Error>(Error{ErrorKind::kInvalid, std::move(builder.error)});
  return std::move(builder.value);
}

// Puts the marker for each number that JSON has no word for.
void mark_non_finite(OrderedJson& value) {
  if (value.is_structured()) {
    for (OrderedJson& item : value) mark_non_finite(item);
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    value = std::isnan(number) ? "\1lk-nan" : number > 0 ? "\1lk-inf" : "\1lk-ninf";
  }
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

std::string json_file_text(OrderedJson value) {
  mark_non_finite(value);
  std::string text = value.dump(1);
  replace_all(text, kNan, "NaN");
  replace_all(text, kInf, "Infinity");
  replace_all(text, kNegInf, "-Infinity");
  return text + "\n";
}

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
