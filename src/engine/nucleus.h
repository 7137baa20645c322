// A draw among the tokens that top_p and min_p keep, without sorting the row: masses are counted by
// bins of the logit, and only the two bins that decide are looked into. Masses are integers, so
// that their sums do not depend on the order and the token is the one that a full sort would give.
// Used by the engine's thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace lk {

// Mass of a weight of row_exp.h, in [0, 2^44]: what 2^18 tokens weigh fits 63 bits.
inline uint64_t mass_of(float weight) { return static_cast<uint64_t>(weight * 0x1p44f); }

// NucleusParams::top_mass where the weights of all come to `sum`.
uint64_t top_mass_of(float top_p, double sum);

struct NucleusParams {
  float max = 0,
        scale = 0;   // of the weights exp((logit - max) * scale); max: the largest logit, finite
  float reach = 87;  // tokens with (max - logit) * scale above it are left out
  uint64_t top_mass = 0;  // the shortest prefix of at least this mass is kept; 0: all
  float min_weight = 0;   // [0, 1]; tokens below are left out
  double u = 0;           // the draw, in [0, 1)
};

class Nucleus {
 public:
  // By falling logit, then rising id: the tokens within `reach` whose weight is neither 0 nor below
  // `min_weight`; of those the shortest prefix with `top_mass`; of those the first with which the
  // mass exceeds u times that of all of them. NaNs are left out.
  int32_t draw(const float* row, int count, const NucleusParams& params);
  // The same token of a row of `count` of which only the `best` are known, as Sampler::choose_from
  // has it: its index among them. `sum` [+- kRowSumError] and `top_p` stand for top_mass.
  std::optional<size_t> draw_from(std::span<const TopLogit> best, int count, double sum,
                                  float top_p, const NucleusParams& params);

 private:
  struct Token {
    float logit;
    int32_t id;
    uint64_t mass;
  };
  struct Found {
    Token token;
    uint64_t before = 0;  // mass of the tokens before it
  };
  void gather(const float* row, int count, const NucleusParams& params, int bin);
  Found select(uint64_t target);

  std::vector<uint64_t> bins_;
  std::vector<Token> tokens_;  // of one bin, or the best
};

}  // namespace lk
