// Chooses a token from one row of logits. A choice depends on that row, the request's parameters,
// its own tokens and (seed, position) alone, never on the company in the batch. Used by the
// engine's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/nucleus.h"
#include "engine/request.h"
#include "engine/row_exp.h"
#include "kernels/kernels.h"

namespace lk {

// How often each token stands in the output; tokens of the prompt are present with 0.
using TokenCounts = std::unordered_map<int32_t, int>;

// Uniform in [0, 1) with 53 bits; counter-based: a hash of (seed, position).
double uniform_at(uint64_t seed, uint64_t position);

// In place, for every token in `counts` (n = its count in the output):
//   repetition (Keskar et al. 2019, CTRL, eq. 2, as Transformers has it): l = l > 0 ? l / r : l * r
//   frequency and presence (OpenAI): l -= frequency * n + (n > 0 ? presence : 0)
void apply_penalties(float* logits, const SamplingParams& params, const TokenCounts& counts);
bool has_penalties(const SamplingParams& params);
// 1 / temperature, bounded: of temperatures above 0.
float inverse_temperature(const SamplingParams& params);

// What a choice comes to.
enum class Draw : uint8_t {
  kLargest,
  kAll,      // from all ids
  kTopK,     // from the top_k, and what top_p and min_p leave of them
  kNucleus,  // from what top_p and min_p leave of all
};
Draw draw_of(const SamplingParams& params, int vocab);

class Sampler {
 public:
  explicit Sampler(int vocab) : vocab_(vocab) {}

  // The token that follows, after penalties. With p = softmax(logits / temperature), sorted by
  // falling p, then rising id: the top_k first; of those the shortest prefix with at least top_p of
  // their mass (at least one); of those the ones with p >= min_p * p[0]; then one draw with
  // uniform_at(seed, position). NaNs are never chosen. -1 if the largest logit is not finite.
  int32_t choose(const float* logits, const SamplingParams& params, uint64_t position);
  // The same token of a row that is known by its largest logits, in that order, ids of -1 at the
  // end where it has no more; the first is finite. `sum` [+- kRowSumError]: of exp((logit -
  // largest) / temperature) over the row. For kTopK, with at least top_k entries, and kNucleus.
  // Nothing if the nucleus may hold more, or ends where the error of `sum` decides.
  std::optional<TopLogit> choose_from(std::span<const TopLogit> best, double sum,
                                      const SamplingParams& params, uint64_t position);

 private:
  int32_t draw_from_all(const float* logits, float max, float scale, double u);
  int32_t draw_nucleus(const float* logits, float max, float scale, double u,
                       const SamplingParams& params);
  size_t draw_sorted(float max, float scale, double u, const SamplingParams& params);

  int vocab_;
  ExpSums sums_;                        // scratch
  std::vector<TopLogprob> candidates_;  // scratch: ids and logits
  Nucleus nucleus_;
};

}  // namespace lk
