#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lk {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "lorikeet: internal error: %s is false at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace lk
