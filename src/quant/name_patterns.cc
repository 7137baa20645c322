#include "quant/name_patterns.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

namespace lk {
namespace {

// Published lists have up to some thousand names, nearly all of them exact.
constexpr size_t kMaxPatterns = 100'000, kMaxWild = 1'000, kMaxPatternBytes = 4096;
// A pattern that backtracks more than this on one name counts as no match.
constexpr uint32_t kMatchLimit = 20'000, kHeapLimitKib = 4096;

// Index after the set that starts at pattern[p] == '['; `hit` says whether `c` is in it. 0 when the
// bracket is never closed, and so stands for itself.
size_t match_set(std::string_view pattern, size_t p, char c, bool& hit) {
  size_t i = p + 1;
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (negated) ++i;
  const size_t first = i;
  hit = false;
  for (; i < pattern.size(); ++i) {
    if (pattern[i] == ']' && i > first) {
      hit ^= negated;
      return i + 1;
    }
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      hit |= pattern[i] <= c && c <= pattern[i + 2];
      i += 2;
    } else {
      hit |= pattern[i] == c;
    }
  }
  return 0;
}

// Calls found(run) for every run of whole components of `path`, or only for those that start it.
template <typename Found>
bool any_run(std::string_view path, bool only_first, Found found) {
  for (size_t begin = 0; begin < path.size();) {
    for (size_t end = begin; end != path.npos;) {
      end = path.find('.', end + 1);
      if (found(path.substr(begin, end == path.npos ? end : end - begin))) return true;
    }
    const size_t dot = path.find('.', begin);
    if (only_first || dot == path.npos) return false;
    begin = dot + 1;
  }
  return false;
}

bool is_regex(std::string_view pattern) {
  return pattern.find_first_of("^$\\()+|{}") != pattern.npos || pattern.find(".*") != pattern.npos;
}

}  // namespace

bool wildcard_covers(std::string_view pattern, std::string_view path) {
  size_t p = 0, t = 0, star = pattern.npos, resume = 0;
  while (true) {
    if (p == pattern.size() && (t == path.size() || path[t] == '.')) return true;
    bool hit = false;
    size_t next = 0;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
      continue;
    }
    if (p < pattern.size() && t < path.size()) {
      if (pattern[p] == '[') next = match_set(pattern, p, path[t], hit);
      if (next == 0) {
        next = p + 1;
        hit = pattern[p] == '?' || pattern[p] == path[t];
      }
    }
    if (hit) {
      p = next;
      ++t;
    } else if (star != pattern.npos && resume < path.size()) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
}

class NamePatterns::Regex {
 public:
  static Result<std::shared_ptr<const Regex>> make(std::string_view pattern,
                                                   std::string_view what) {
    int error = 0;
    PCRE2_SIZE at = 0;
    auto regex = std::make_shared<Regex>();
    regex->code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_ANCHORED | PCRE2_UTF, &error, &at, nullptr);
    if (!regex->code_) {
      PCRE2_UCHAR message[120];
      pcre2_get_error_message(error, message, sizeof(message));
      return invalid("{}: \"re:{}\" is no regular expression: {} at character {}", what,
                     pattern.substr(0, 60), reinterpret_cast<const char*>(message), at);
    }
    return regex;
  }
  Regex() = default;
  Regex(const Regex&) = delete;
  ~Regex() { pcre2_code_free(code_); }

  bool matches(std::string_view path) const {
    const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
        pcre2_match_context_create(nullptr), pcre2_match_context_free);
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
        pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(), 0, 0,
                       data.get(), context.get()) >= 0;
  }

 private:
  pcre2_code* code_ = nullptr;
};

Result<NamePatterns> NamePatterns::make(const std::vector<std::string>& patterns,
                                        PatternStyle style, std::string_view what) {
  if (patterns.size() > kMaxPatterns) {
    return invalid("{} lists {} names, more than the {} allowed", what, patterns.size(),
                   kMaxPatterns);
  }
  NamePatterns list;
  list.style_ = style;
  for (const std::string& pattern : patterns) {
    if (pattern.size() > kMaxPatternBytes) {
      return invalid("{} holds a name of {} bytes, more than the {} allowed", what, pattern.size(),
                     kMaxPatternBytes);
    }
    std::string_view expression;
    bool wild = false;
    switch (style) {
      case PatternStyle::kTransformers:
        if (is_regex(pattern)) expression = pattern;
        wild = pattern.find('*') != pattern.npos;
        break;
      case PatternStyle::kModelOpt:
        wild = pattern.find_first_of("*?[") != pattern.npos;
        break;
      case PatternStyle::kCompressedTensors:
        if (pattern.starts_with("re:")) expression = std::string_view(pattern).substr(3);
        if (pattern == "Linear") {
          list.everything_ = true;
          continue;
        }
        break;
    }
    if (!expression.empty()) {
      LK_ASSIGN_OR_RETURN(auto regex, Regex::make(expression, what));
      list.wild_.push_back({pattern, std::move(regex)});
    } else if (wild) {
      list.wild_.push_back({pattern, nullptr});
    } else {
      list.literals_.insert(pattern);
    }
    if (list.wild_.size() > kMaxWild) {
      return invalid("{} holds more than {} patterns", what, kMaxWild);
    }
  }
  return list;
}

bool NamePatterns::matches(const Wild& wild, std::string_view path) const {
  return wild.regex ? wild.regex->matches(path) : wildcard_covers(wild.pattern, path);
}

Covered NamePatterns::how(std::string_view path) const {
  const auto listed = [&](std::string_view run) { return literals_.count(std::string(run)) > 0; };
  if (!literals_.empty()) {
    if (style_ == PatternStyle::kCompressedTensors
            ? listed(path)
            : any_run(path, style_ == PatternStyle::kModelOpt, listed)) {
      return Covered::kByName;
    }
  }
  if (std::any_of(wild_.begin(), wild_.end(),
                  [&](const Wild& wild) { return matches(wild, path); })) {
    return Covered::kByPattern;
  }
  return everything_ ? Covered::kByClass : Covered::kNot;
}

std::vector<std::string> NamePatterns::unmatched(const std::vector<std::string>& paths) const {
  std::unordered_set<std::string> missing = literals_;
  for (const std::string& path : paths) {
    any_run(path, style_ != PatternStyle::kTransformers, [&](std::string_view run) {
      missing.erase(std::string(run));
      return missing.empty();
    });
  }
  std::vector<std::string> unmatched(missing.begin(), missing.end());
  for (const Wild& wild : wild_) {
    if (std::none_of(paths.begin(), paths.end(),
                     [&](const std::string& path) { return matches(wild, path); })) {
      unmatched.push_back(wild.pattern);
    }
  }
  std::sort(unmatched.begin(), unmatched.end());
  return unmatched;
}

}  // namespace lk
