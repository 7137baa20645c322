#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/row_exp.h"
#include "engine/row_scan.h"

namespace lk {

bool better_logprob(const TopLogprob& a, const TopLogprob& b) {
  return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
}

double log_sum_exp(const float* logits, int count) {
  const Largest best = largest(logits, count);
  if (best.id < 0 || !std::isfinite(best.logit)) return std::numeric_limits<double>::quiet_NaN();
  thread_local ExpSums sums;
  exp_sums(logits, count, best.logit, 1, false, sums);
  return best.logit + std::log(sums.total);
}

int32_t rank_of(const float* logits, int count, int32_t id) {
  const float own = logits[id];
  int32_t before = 0;
  for (int32_t i = 0; i < count; ++i) before += logits[i] > own;
  for (int32_t i = 0; i < id; ++i) before += logits[i] == own;
  return before + 1;
}

void top_logits(const float* logits, int count, int k, std::vector<TopLogprob>& best) {
  best.clear();
  if (k <= 0) return;
  // A heap whose front is the worst of the best k so far; what comes later must be above it.
  float bound = -std::numeric_limits<float>::infinity();
  for (int32_t id = first_above(logits, 0, count, bound); id < count;
       id = first_above(logits, id + 1, count, bound)) {
    if (best.size() == static_cast<size_t>(k)) {
      std::pop_heap(best.begin(), best.end(), better_logprob);
      best.pop_back();
    }
    best.push_back({id, logits[id]});
    std::push_heap(best.begin(), best.end(), better_logprob);
    if (best.size() == static_cast<size_t>(k)) bound = best.front().logprob;
  }
  std::sort_heap(best.begin(), best.end(), better_logprob);
}

std::vector<TopLogprob> top_logprobs(const float* logits, int count, int k, double log_sum) {
  std::vector<TopLogprob> best;
  top_logits(logits, count, k, best);
  for (TopLogprob& entry : best) entry.logprob = static_cast<float>(entry.logprob - log_sum);
  return best;
}

}  // namespace lk
