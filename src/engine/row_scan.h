// Passes over one row of logits, which may have 200 thousand: with AVX2 where the CPU has it, plain
// loops elsewhere. NaNs never count. Pure functions; what they give depends on the row and the
// instruction set alone.
#pragma once

#include <cstdint>

namespace lk {

struct Largest {
  int32_t id = -1;  // the lowest of equals; -1 if no logit is above -infinity
  float logit = 0;
};
Largest largest(const float* row, int count);

// Index of the first logit from `begin` on that is above `bound`; `count` if there is none.
int first_above(const float* row, int begin, int count, float bound);

}  // namespace lk
