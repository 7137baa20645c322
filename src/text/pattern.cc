#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include <pcre2.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "text/oniguruma.h"

namespace lk {
namespace {

constexpr size_t kMaxPattern = 64 << 10;
constexpr uint32_t kMatchLimit = 10'000'000;  // PCRE2's default, in steps of one match
constexpr size_t kJitStack = 32 << 10, kJitStackMost = 16 << 20;

struct Deleter {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};

struct MatchState {
  std::unique_ptr<pcre2_match_data, Deleter> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, Deleter> context{pcre2_match_context_create(nullptr)};
  std::unique_ptr<pcre2_jit_stack, Deleter> stack{
      pcre2_jit_stack_create(kJitStack, kJitStackMost, nullptr)};
  MatchState() {
    LK_CHECK(data && context);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

void Pattern::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Result<Pattern> Pattern::compile(std::string_view pattern, Kind kind) {
  if (pattern.size() > kMaxPattern) {
    return invalid("a pattern has {} bytes, more than the {} allowed", pattern.size(), kMaxPattern);
  }
  std::string source(pattern);
  uint32_t options = PCRE2_UTF | PCRE2_LITERAL;
  if (kind == Kind::kOniguruma) {
    LK_ASSIGN_OR_RETURN(source, pcre2_from_oniguruma(pattern));
    options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  }
  std::unique_ptr<pcre2_compile_context, Deleter> context(pcre2_compile_context_create(nullptr));
  LK_CHECK(context);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern compiled;
  compiled.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                     options, &error, &offset, context.get()));
  if (!compiled.code_) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    return invalid("the pattern {} does not compile: {}", pattern,
                   reinterpret_cast<const char*>(message));
  }
  // Without the JIT (a kernel that forbids writable code) the interpreter does the same, slower.
  compiled.jit_ = pcre2_jit_compile(compiled.code_.get(), PCRE2_JIT_COMPLETE) == 0;
  return compiled;
}

Pattern::Outcome Pattern::next(std::string_view text, size_t from, Span& match) const {
  thread_local MatchState state;
  // Backing out of a run of n characters takes n steps, so the limit grows with the text.
  const uint64_t limit = kMatchLimit + uint64_t{4} * text.size();
  pcre2_set_match_limit(state.context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit_) {
    rc = pcre2_jit_match(code_.get(), subject, text.size(), from, 0, state.data.get(),
                         state.context.get());
  }
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                     state.data.get(), state.context.get());
  }
  if (rc == PCRE2_ERROR_NOMATCH) return Outcome::kNone;
  if (rc < 0) return Outcome::kTooHard;
  const PCRE2_SIZE* ovector = pcre2_get_ovector_pointer(state.data.get());
  match = {ovector[0], std::max(ovector[0], ovector[1])};
  return Outcome::kMatch;
}

}  // namespace lk
