#include "kernels/reference/choose.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lk::reference {
namespace {

// Of the ids that count below `limit`, best first.
std::vector<TopLogit> sorted(const float* row, int limit) {
  std::vector<TopLogit> all;
  for (int32_t id = 0; id < limit; ++id) {
    if (row[id] > -INFINITY) all.push_back({id, row[id]});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const TopLogit& a, const TopLogit& b) { return a.logit > b.logit; });
  return all;
}

double sum_of(const float* row, int count, float largest, float scale) {
  double sum = 0;
  for (int id = 0; id < count; ++id) {
    if (!std::isnan(row[id])) sum += std::exp((double{row[id]} - largest) * scale);
  }
  return sum;
}

// The first id with which the sum of weights exceeds `left`, or the last with a weight.
int32_t draw(const float* row, int count, float largest, float scale, double left) {
  int32_t last = -1;
  for (int32_t id = 0; id < count; ++id) {
    if (std::isnan(row[id])) continue;
    const double weight = std::exp((double{row[id]} - largest) * scale);
    if (weight > 0) last = id;
    if ((left -= weight) < 0) break;
  }
  return last;
}

}  // namespace

void choose(const ChooseArgs& args) {
  for (int r = 0; r < args.rows; ++r) {
    const float* row = args.logits + int64_t{r} * args.vocab;
    const RowChoice& choice = args.choices[r];
    const int limit = std::clamp(choice.limit, 0, args.vocab);
    const std::vector<TopLogit> all = sorted(row, limit);
    for (int i = 0; i < args.top; ++i) {
      args.best[int64_t{r} * args.top + i] =
          i < choice.top && i < static_cast<int>(all.size()) ? all[i] : TopLogit{};
    }
    RowResult& result = args.results[r] = {};
    if (all.empty() || !std::isfinite(all[0].logit)) continue;
    result.largest = all[0].logit;
    result.token = all[0].id;
    if (choice.scale > 0) {
      result.sum = sum_of(row, limit, result.largest, choice.scale);
      result.token = draw(row, limit, result.largest, choice.scale, choice.uniform * result.sum);
    }
    if (choice.model_sum) result.model_sum = sum_of(row, args.vocab, result.largest, 1);
    result.logit = row[result.token];
  }
}

}  // namespace lk::reference
