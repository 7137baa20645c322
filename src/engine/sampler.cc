#include "engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "engine/logprobs.h"
#include "engine/row_scan.h"

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
constexpr float kReach = 87;

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

Draw draw_of(const SamplingParams& params, int vocab) {
  if (params.temperature == 0 || params.top_k == 1) return Draw::kLargest;
  if (params.top_k > 0 && params.top_k < vocab) return Draw::kTopK;
  return params.top_p >= 1 && params.min_p <= 0 ? Draw::kAll : Draw::kNucleus;
}

float inverse_temperature(const SamplingParams& params) {
  return std::min(1.0f / params.temperature, kMostScale);
}

int32_t Sampler::choose(const float* logits, const SamplingParams& params, uint64_t position) {
  const Largest best = largest(logits, vocab_);
  if (best.id < 0 || !std::isfinite(best.logit)) return -1;
  const Draw draw = draw_of(params, vocab_);
  if (draw == Draw::kLargest) return best.id;
  const float scale = inverse_temperature(params);
  const double u = uniform_at(params.seed, position);
  if (draw == Draw::kAll) return draw_from_all(logits, best.logit, scale, u);
  if (draw == Draw::kNucleus) return draw_nucleus(logits, best.logit, scale, u, params);
  top_logits(logits, vocab_, params.top_k, candidates_);
  return candidates_[draw_sorted(best.logit, scale, u, params)].id;
}

std::optional<TopLogit> Sampler::choose_from(std::span<const TopLogit> best, double sum,
                                             const SamplingParams& params, uint64_t position) {
  const float scale = inverse_temperature(params);
  const double u = uniform_at(params.seed, position);
  if (draw_of(params, vocab_) == Draw::kNucleus) {
    const NucleusParams nucleus{
        .max = best[0].logit, .scale = scale, .min_weight = params.min_p, .u = u};
    const auto chosen = nucleus_.draw_from(best, vocab_, sum, params.top_p, nucleus);
    return chosen ? std::optional(best[*chosen]) : std::nullopt;
  }
  candidates_.clear();
  for (const TopLogit& entry : best.first(params.top_k)) {
    if (entry.id < 0) break;
    candidates_.push_back({entry.id, entry.logit});
  }
  return best[draw_sorted(best[0].logit, scale, u, params)];
}

int32_t Sampler::draw_from_all(const float* logits, float max, float scale, double u) {
  exp_sums(logits, vocab_, max, scale, false, sums_);
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

int32_t Sampler::draw_nucleus(const float* logits, float max, float scale, double u,
                              const SamplingParams& params) {
  NucleusParams nucleus{.max = max, .scale = scale, .min_weight = params.min_p, .u = u};
  if (params.min_p > 0) nucleus.reach = std::min(kReach, -std::log(params.min_p) * 1.0001f + 1e-4f);
  if (params.top_p < 1) {
    exp_sums(logits, vocab_, max, scale, true, sums_);
    for (size_t level = kLevels.size(); level-- > 0;) {
      if (sums_.within[level] * (1 - 1e-4) >= params.top_p * sums_.total)
        nucleus.reach = std::min(nucleus.reach, kLevels[level] * 1.0001f);
    }
    nucleus.top_mass = top_mass_of(params.top_p, sums_.total);
  }
  return nucleus_.draw(logits, vocab_, nucleus);
}

// Index into the `candidates_`, which are sorted.
size_t Sampler::draw_sorted(float max, float scale, double u, const SamplingParams& params) {
  double total = 0;
  for (const TopLogprob& c : candidates_) total += weight(c.logprob, max, scale);
  double kept_mass = 0;
  size_t kept = 0;
  for (; kept < candidates_.size(); ++kept) {
    const double w = weight(candidates_[kept].logprob, max, scale);
    // The largest weight is exp(0) = 1.
    if (kept > 0 &&
        (w < params.min_p || w <= 0 || (params.top_p < 1 && kept_mass >= params.top_p * total)))
      break;
    kept_mass += w;
  }
  double left = u * kept_mass;
  for (size_t i = 0; i < kept; ++i) {
    if ((left -= weight(candidates_[i].logprob, max, scale)) < 0) return i;
  }
  return kept - 1;
}

}  // namespace lk
