#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lk {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// Unnormalised probability; 0 for a NaN.
double weight(float logit, float max, double inverse_temperature) {
  return std::isnan(logit) ? 0.0 : std::exp((double{logit} - max) * inverse_temperature);
}

}  // namespace

double uniform_at(uint64_t seed, uint64_t position) {
  const uint64_t bits = mix(mix(seed + kGolden) + (position + 1) * kGolden);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

void apply_penalties(float* logits, const SamplingParams& params, const TokenCounts& counts) {
  for (const auto& [id, count] : counts) {
    float& logit = logits[id];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    if (count > 0)
      logit -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  }
}

int32_t Sampler::choose(const float* logits, const SamplingParams& params, uint64_t position) {
  int32_t best = -1;
  float max = -std::numeric_limits<float>::infinity();
  for (int32_t id = 0; id < vocab_; ++id) {
    if (logits[id] > max) max = logits[id], best = id;
  }
  if (best < 0 || !std::isfinite(max)) return -1;
  if (params.temperature == 0 || params.top_k == 1) return best;
  const double inverse_temperature = 1.0 / params.temperature;
  const double u = uniform_at(params.seed, position);
  const bool all =
      (params.top_k == 0 || params.top_k >= vocab_) && params.top_p >= 1 && params.min_p <= 0;
  return all ? draw_from_all(logits, max, inverse_temperature, u)
             : draw_filtered(logits, max, inverse_temperature, u, params);
}

int32_t Sampler::draw_from_all(const float* logits, float max, double inverse_temperature,
                               double u) const {
  double total = 0;
  for (int32_t id = 0; id < vocab_; ++id) total += weight(logits[id], max, inverse_temperature);
  double left = u * total;
  int32_t last = 0;
  for (int32_t id = 0; id < vocab_; ++id) {
    const double w = weight(logits[id], max, inverse_temperature);
    if (w <= 0) continue;
    last = id;
    if ((left -= w) < 0) return id;
  }
  return last;  // rounding left a rest
}

int32_t Sampler::draw_filtered(const float* logits, float max, double inverse_temperature, double u,
                               const SamplingParams& params) {
  order_.clear();
  double total = 0;
  for (int32_t id = 0; id < vocab_; ++id) {
    if (std::isnan(logits[id])) continue;
    order_.push_back(id);
    if (params.top_k == 0) total += weight(logits[id], max, inverse_temperature);
  }
  const auto before = [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  const size_t candidates = params.top_k == 0
                                ? order_.size()
                                : std::min(order_.size(), static_cast<size_t>(params.top_k));
  // Only as much is sorted as top_p needs: rarely more than a few hundred of 200 thousand.
  size_t sorted = 0;
  const auto sort_to = [&](size_t end) {
    std::partial_sort(order_.begin() + sorted, order_.begin() + end, order_.end(), before);
    sorted = end;
  };
  if (params.top_k > 0) {
    sort_to(candidates);
    for (size_t i = 0; i < candidates; ++i)
      total += weight(logits[order_[i]], max, inverse_temperature);
  }
  double kept_mass = 0;
  size_t kept = 0;
  while (kept < candidates) {
    if (kept == sorted) sort_to(std::min(candidates, std::max<size_t>(128, sorted * 4)));
    const double w = weight(logits[order_[kept]], max, inverse_temperature);
    // The largest weight is exp(0) = 1.
    if (kept > 0 &&
        (w < params.min_p || w <= 0 || (params.top_p < 1 && kept_mass >= params.top_p * total)))
      break;
    kept_mass += w;
    ++kept;
  }
  double left = u * kept_mass;
  for (size_t i = 0; i < kept; ++i) {
    if ((left -= weight(logits[order_[i]], max, inverse_temperature)) < 0) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace lk
