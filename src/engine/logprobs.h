// Log-probabilities of one row of logits. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace lk {

// ln(sum(exp(logits))), with an error of about 1e-6; NaNs are left out. NaN if no logit is finite
// or one is infinite.
double log_sum_exp(const float* logits, int count);

// Falling value, then rising id.
bool better_logprob(const TopLogprob& a, const TopLogprob& b);

// How many tokens come before `id` by falling logit, then rising id, and one.
int32_t rank_of(const float* logits, int count, int32_t id);

// The `k` largest logits, best first; `logprob` holds the logit. -infinity and NaNs are left out.
void top_logits(const float* logits, int count, int k, std::vector<TopLogprob>& best);

// The `k` most likely ids, best first (ties: lower id), with logit - `log_sum`. Logits of -infinity
// and NaNs are left out.
std::vector<TopLogprob> top_logprobs(const float* logits, int count, int k, double log_sum);

}  // namespace lk
