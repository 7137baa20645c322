#include "engine/nucleus.h"

#include <algorithm>
#include <cmath>

#include "engine/row_exp.h"
#include "engine/row_scan.h"

namespace lk {
namespace {

constexpr int kBins = 2048;

// Rises as the logit falls. Without a branch, as the logits are in no order.
int bin_of(float logit, const NucleusParams& params) {
  constexpr float kLast = kBins - 1;
  const float x = (params.max - logit) * params.scale * (kBins / params.reach);
  return static_cast<int>(x < kLast ? x : kLast);
}

// All that counts is above it: the largest logit at least, however large the scale.
float lowest_logit(const NucleusParams& params) {
  const double lowest = params.max - (double{params.reach} + 1e-3) / params.scale;
  return std::min(static_cast<float>(lowest), std::nextafter(params.max, -INFINITY));
}

// All of the bin is above it: one more bin makes up for what bin_of rounds, and the last one holds
// whatever lies beyond.
float lowest_logit(const NucleusParams& params, int bin) {
  if (bin == kBins - 1) return lowest_logit(params);
  const double lowest = params.max - (bin + 2) * (double{params.reach} / kBins) / params.scale;
  return std::max(lowest_logit(params), std::nextafter(static_cast<float>(lowest), -INFINITY));
}

// Calls `each(block, size)` for the blocks of the row that hold a logit above `bound`.
template <typename Each>
void visit_blocks(const float* row, int count, float bound, Each&& each) {
  for (int id = first_above(row, 0, count, bound); id < count;) {
    const int block = id / kSumBlock * kSumBlock;
    const int size = std::min(kSumBlock, count - block);
    each(block, size);
    id = first_above(row, block + size, count, bound);
  }
}

// The mass that counts: 0 for what is left out.
uint64_t kept_mass(float weight, float min_weight) {
  return weight < min_weight ? 0 : mass_of(weight);
}

// Weights of tokens as exp_weights gives them where they stand in a row of `count`: the last ids
// may be weighed in another way.
void weigh(std::span<const TopLogit> best, int count, const NucleusParams& params, float* weights) {
  float logits[kSumBlock];
  std::fill_n(logits, kSumBlock, params.max);
  for (size_t i = 0; i < best.size(); ++i) logits[i] = best[i].logit;
  exp_weights(logits, kSumBlock, params.max, params.scale, weights);
  for (size_t i = 0; i < best.size(); ++i) {
    if (best[i].id >= count / kSumBlock * kSumBlock)
      exp_weights(&best[i].logit, 1, params.max, params.scale, weights + i);
  }
}

}  // namespace

uint64_t top_mass_of(float top_p, double sum) {
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(top_p * sum * 0x1p44)));
}

int32_t Nucleus::draw(const float* row, int count, const NucleusParams& params) {
  const float bound = lowest_logit(params);
  bins_.assign(kBins, 0);
  visit_blocks(row, count, bound, [&](int block, int size) {
    float weights[kSumBlock];
    exp_weights(row + block, size, params.max, params.scale, weights);
    for (int i = 0; i < size; ++i) {
      const float logit = row[block + i];
      const uint64_t mass = kept_mass(weights[i], params.min_weight);
      bins_[bin_of(logit, params)] += logit > bound ? mass : 0;
    }
  });
  uint64_t all = 0;
  int cut = 0;
  while (cut < kBins && (params.top_mass == 0 || all + bins_[cut] < params.top_mass))
    all += bins_[cut++];
  if (cut < kBins) {
    gather(row, count, params, cut);
    const Found last = select(params.top_mass - all - 1);
    all += last.before + last.token.mass;
  }
  auto target = std::min(all - 1, static_cast<uint64_t>(params.u * static_cast<double>(all)));
  int bin = 0;
  while (bins_[bin] <= target) target -= bins_[bin++];
  if (bin != cut) gather(row, count, params, bin);
  return select(target).token.id;
}

std::optional<size_t> Nucleus::draw_from(std::span<const TopLogit> best, int count, double sum,
                                         float top_p, const NucleusParams& params) {
  const bool bounded = top_p < 1;
  const uint64_t least = bounded ? top_mass_of(top_p, sum * (1 - kRowSumError)) : 0;
  const uint64_t most = bounded ? top_mass_of(top_p, sum * (1 + kRowSumError)) : 0;
  tokens_.clear();
  uint64_t all = 0;
  bool closed = false;  // nothing behind `tokens_` is kept
  for (size_t first = 0; first < best.size() && !closed; first += kSumBlock) {
    const auto block = best.subspan(first, std::min<size_t>(kSumBlock, best.size() - first));
    float weights[kSumBlock];
    weigh(block, count, params, weights);
    for (size_t i = 0; i < block.size() && !closed; ++i) {
      if (block[i].id < 0) {
        closed = true;
        break;
      }
      const uint64_t mass = kept_mass(weights[i], params.min_weight);
      tokens_.push_back({block[i].logit, block[i].id, mass});
      all += mass;
      if (bounded && all >= least) {
        if (all < most) return std::nullopt;
        closed = true;
      }
      // Weights fall with the logits, but for what they are rounded by.
      closed = closed || weights[i] <= 0 || weights[i] < params.min_weight * (1 - 1e-5f);
    }
  }
  if (!closed && tokens_.size() < static_cast<size_t>(count)) return std::nullopt;
  auto target = std::min(all - 1, static_cast<uint64_t>(params.u * static_cast<double>(all)));
  size_t chosen = 0;
  while (tokens_[chosen].mass <= target) target -= tokens_[chosen++].mass;
  return chosen;
}

// The tokens of one bin.
void Nucleus::gather(const float* row, int count, const NucleusParams& params, int bin) {
  const float bound = lowest_logit(params, bin);
  tokens_.clear();
  visit_blocks(row, count, bound, [&](int block, int size) {
    float weights[kSumBlock];
    bool weighed = false;
    for (int i = 0; i < size; ++i) {
      const float logit = row[block + i];
      if (!(logit > bound) || bin_of(logit, params) != bin) continue;
      if (!weighed) exp_weights(row + block, size, params.max, params.scale, weights);
      weighed = true;
      const uint64_t mass = kept_mass(weights[i], params.min_weight);
      if (mass > 0) tokens_.push_back({logit, block + i, mass});
    }
  });
}

// The first of the gathered tokens in their order with which their mass exceeds `target`, which is
// less than the mass of all.
Nucleus::Found Nucleus::select(uint64_t target) {
  const auto before = [](const Token& a, const Token& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  uint64_t skipped = 0;
  auto begin = tokens_.begin(), end = tokens_.end();
  while (end - begin > 1) {
    const Token pivot = begin[(end - begin) / 2];
    const auto middle =
        std::partition(begin, end, [&](const Token& token) { return before(token, pivot); });
    uint64_t mass = 0;
    for (auto at = begin; at != middle; ++at) mass += at->mass;
    if (target < skipped + mass) {
      end = middle;
      continue;
    }
    // What is left begins with the pivot, wherever it stands.
    skipped += mass;
    begin = middle;
    if (target < skipped + pivot.mass) return {pivot, skipped};
    skipped += pivot.mass;
    std::iter_swap(
        begin, std::find_if(begin, end, [&](const Token& token) { return token.id == pivot.id; }));
    ++begin;
  }
  return {*begin, skipped};
}

}  // namespace lk
