#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "engine/logprobs.h"

namespace lk {
namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// Temperatures below 1e-30 are no different from it: all but the largest logit weigh nothing.
constexpr float kMostScale = 1e30f;
// exp(-kReach) is nothing beside 1 for a whole vocabulary.
constexpr double kReach = 87;

// Unnormalised probability.
double weight(float logit, float max, float scale) {
  return std::exp((double{logit} - max) * scale);
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
  const Largest best = largest(logits, vocab_);
  if (best.id < 0 || !std::isfinite(best.logit)) return -1;
  if (params.temperature == 0 || params.top_k == 1) return best.id;
  const float scale = std::min(1.0f / params.temperature, kMostScale);
  const double u = uniform_at(params.seed, position);
  const bool all_ids = params.top_k == 0 || params.top_k >= vocab_;
  if (all_ids && params.top_p >= 1 && params.min_p <= 0)
    return draw_from_all(logits, best.logit, scale, u);
  double total = 0;
  if (all_ids) {
    total = collect(logits, best.logit, scale, params);
  } else {
    top_logits(logits, vocab_, params.top_k, candidates_);
    for (const TopLogprob& c : candidates_) total += weight(c.logprob, best.logit, scale);
  }
  return draw_filtered(best.logit, scale, u, total, params);
}

int32_t Sampler::draw_from_all(const float* logits, float max, float scale, double u) {
  exp_sums(logits, vocab_, max, scale, sums_);
  double left = u * sums_.total;
  size_t block = 0;
  while (block + 1 < sums_.blocks.size() && left >= sums_.blocks[block])
    left -= sums_.blocks[block++];
  // Rounding may leave a rest behind the last block with a weight.
  while (sums_.blocks[block] <= 0) --block;
  const int begin = static_cast<int>(block) * kSumBlock;
  const int count = std::min(kSumBlock, vocab_ - begin);
  float weights[kSumBlock];
  exp_weights(logits + begin, count, max, scale, weights);
  int32_t last = begin;
  for (int i = 0; i < count; ++i) {
    if (weights[i] <= 0) continue;
    last = begin + i;
    if ((left -= weights[i]) < 0) break;
  }
  return last;
}

// Fills `candidates_` with all ids that top_p and min_p may keep, and some more, unsorted; returns
// the weight of the whole row.
double Sampler::collect(const float* logits, float max, float scale, const SamplingParams& params) {
  exp_sums(logits, vocab_, max, scale, sums_);
  double reach = kReach;
  if (params.min_p > 0) reach = std::min(reach, -std::log(double{params.min_p}) * 1.0001 + 1e-4);
  if (params.top_p < 1) {
    for (size_t level = kLevels.size(); level-- > 0;) {
      if (sums_.within[level] * (1 - 1e-4) >= params.top_p * sums_.total)
        reach = std::min(reach, kLevels[level] * 1.0001);
    }
  }
  const auto bound = static_cast<float>(max - (reach + 1e-3) / scale);
  candidates_.clear();
  for (int32_t id = first_above(logits, 0, vocab_, bound); id < vocab_;
       id = first_above(logits, id + 1, vocab_, bound))
    candidates_.push_back({id, logits[id]});
  // Where the scale is so large that the bound is the maximum itself.
  if (candidates_.empty()) candidates_.push_back({largest(logits, vocab_).id, max});
  return sums_.total;
}

int32_t Sampler::draw_filtered(float max, float scale, double u, double total,
                               const SamplingParams& params) {
  // Only as much is sorted as top_p needs: rarely more than a few hundred.
  size_t sorted = params.top_k > 0 && params.top_k < vocab_ ? candidates_.size() : 0;
  const auto sort_more = [&] {
    const size_t end = sorted >= 8192
                           ? candidates_.size()
                           : std::min(candidates_.size(), std::max<size_t>(128, sorted * 4));
    if (end == candidates_.size())
      std::sort(candidates_.begin() + sorted, candidates_.end(), better_logprob);
    else
      std::partial_sort(candidates_.begin() + sorted, candidates_.begin() + end, candidates_.end(),
                        better_logprob);
    sorted = end;
  };
  double kept_mass = 0;
  size_t kept = 0;
  while (kept < candidates_.size()) {
    if (kept == sorted) sort_more();
    const double w = weight(candidates_[kept].logprob, max, scale);
    // The largest weight is exp(0) = 1.
    if (kept > 0 &&
        (w < params.min_p || w <= 0 || (params.top_p < 1 && kept_mass >= params.top_p * total)))
      break;
    kept_mass += w;
    ++kept;
  }
  double left = u * kept_mass;
  for (size_t i = 0; i < kept; ++i) {
    if ((left -= weight(candidates_[i].logprob, max, scale)) < 0) return candidates_[i].id;
  }
  return candidates_[kept - 1].id;
}

}  // namespace lk
