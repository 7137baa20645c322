// Log-probabilities of one row of logits. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace lk {

// ln(sum(exp(logits))), summed in double in index order. NaN if a logit is NaN.
double log_sum_exp(const float* logits, int count);

// The `k` most likely ids, best first (ties: lower id), with logit - `log_sum`. Logits of -infinity
// and NaNs are left out.
std::vector<TopLogprob> top_logprobs(const float* logits, int count, int k, double log_sum);

}  // namespace lk
