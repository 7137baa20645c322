#include "adapters/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

namespace lk {
namespace {

constexpr size_t kMaxPatternBytes = 4096;
// A module name of 100 characters needs some hundred steps for any sane expression.
constexpr uint32_t kMatchLimit = 100000;
constexpr uint32_t kHeapLimitKib = 1024;

bool is_plain(std::string_view pattern) {
  return std::all_of(pattern.begin(), pattern.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

// A pattern without operators still has the dot, which stands for any character.
bool same_text(std::string_view pattern, std::string_view text) {
  return std::equal(pattern.begin(), pattern.end(), text.begin(), text.end(),
                    [](char p, char t) { return p == t || (p == '.' && t != '\n'); });
}

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

struct MatchContext {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  MatchContext() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  ~MatchContext() { pcre2_match_context_free(context); }
};

}  // namespace

Status MatchBudget::check(std::string_view pattern) const {
  if (std::chrono::steady_clock::now() > end_) {
    return invalid("the name patterns take too long to match (last: '{}')", pattern);
  }
  return {};
}

Result<NamePattern> NamePattern::compile(std::string_view pattern, Mode mode,
                                         std::string_view what) {
  if (pattern.size() > kMaxPatternBytes) {
    return invalid("{} is a regular expression of {} bytes, more than the {} allowed", what,
                   pattern.size(), kMaxPatternBytes);
  }
  NamePattern result;
  result.text_ = pattern;
  result.mode_ = mode;
  result.plain_ = is_plain(pattern);
  if (result.plain_) return result;

  const std::string wrapped =
      mode == Mode::kSuffix ? fmt::format("(.*\\.)?({})$", pattern) : std::string(pattern);
  uint32_t options = PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (mode == Mode::kWhole) options |= PCRE2_ENDANCHORED;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(wrapped.data()), wrapped.size(),
                                   options, &error, &offset, nullptr);
  if (!code)
    return invalid("{} '{}' is no regular expression: {}", what, pattern, error_text(error));
  result.code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  return result;
}

Result<bool> NamePattern::matches(std::string_view name, const MatchBudget& budget) const {
  if (plain_) {
    if (text_.size() > name.size()) return false;
    const size_t start = name.size() - text_.size();
    if (start > 0 && (mode_ == Mode::kWhole || name[start - 1] != '.')) return false;
    return same_text(text_, name.substr(start));
  }
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  thread_local const MatchContext limits;
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0,
                             data.get(), limits.context);
  LK_RETURN_IF_ERROR(budget.check(text_));
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    return invalid("the regular expression '{}' fails on '{}': {}", text_, name, error_text(rc));
  return true;
}

}  // namespace lk
