// What a test must allow for when it and the program are built with a sanitizer. Constants.
#pragma once

#include <cstddef>

namespace lk::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Time limits are multiplied by it: sanitized code may take so many times as long.
inline constexpr int kPatience = kSanitized ? 10 : 1;
// A process may grow by as much beyond what it should: a sanitizer keeps what is freed for a while.
inline constexpr size_t kKeptFreed = kSanitized ? size_t{1} << 30 : 0;

}  // namespace lk::test
