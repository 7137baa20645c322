#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lk {

double log_sum_exp(const float* logits, int count) {
  float max = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < count; ++i) max = std::max(max, logits[i]);
  if (!std::isfinite(max)) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += std::exp(double{logits[i]} - max);
  return max + std::log(sum);
}

std::vector<TopLogprob> top_logprobs(const float* logits, int count, int k, double log_sum) {
  // A heap whose front is the worst of the best k so far.
  std::vector<TopLogprob> best;
  if (k <= 0) return best;
  const auto better = [](const TopLogprob& a, const TopLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.id < b.id;
  };
  for (int32_t id = 0; id < count; ++id) {
    const float logit = logits[id];
    if (!(logit > -std::numeric_limits<float>::infinity())) continue;
    if (best.size() == static_cast<size_t>(k)) {
      if (logit <= best.front().logprob) continue;
      std::pop_heap(best.begin(), best.end(), better);
      best.pop_back();
    }
    best.push_back({id, logit});
    std::push_heap(best.begin(), best.end(), better);
  }
  std::sort_heap(best.begin(), best.end(), better);
  for (TopLogprob& entry : best) entry.logprob = static_cast<float>(entry.logprob - log_sum);
  return best;
}

}  // namespace lk
