// LK_CHECK: broken invariants of our own. Bad input never reaches one (it gets a Result).
#pragma once

namespace lk {
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace lk

#define LK_CHECK(condition) \
  (static_cast<bool>(condition) ? (void)0 : ::lk::check_failed(#condition, __FILE__, __LINE__))
