#include "engine/nucleus.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "engine/row_exp.h"
#include "engine/row_scan.h"
#include "engine/sampler.h"

namespace lk {
namespace {

struct Token {
  float logit;
  int32_t id;
  uint64_t mass;
};

// What nucleus.h says, by sorting everything.
int32_t draw_by_sorting(const std::vector<float>& row, const NucleusParams& params) {
  const int count = static_cast<int>(row.size());
  std::vector<Token> tokens;
  for (int block = 0; block < count; block += kSumBlock) {
    const int size = std::min(kSumBlock, count - block);
    float weights[kSumBlock];
    exp_weights(row.data() + block, size, params.max, params.scale, weights);
    for (int i = 0; i < size; ++i) {
      const uint64_t mass = weights[i] < params.min_weight ? 0 : mass_of(weights[i]);
      if (mass > 0) tokens.push_back({row[block + i], block + i, mass});
    }
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  });
  uint64_t all = 0;
  for (size_t i = 0; i < tokens.size() && (params.top_mass == 0 || all < params.top_mass); ++i)
    all += tokens[i].mass;
  const auto target = std::min(all - 1, static_cast<uint64_t>(params.u * static_cast<double>(all)));
  uint64_t sum = 0;
  for (const Token& token : tokens) {
    if ((sum += token.mass) > target) return token.id;
  }
  return -1;
}

std::vector<float> random_row(std::mt19937& rng, int count, int kind) {
  std::vector<float> row(static_cast<size_t>(count));
  std::normal_distribution<float> normal(0, kind == 1 ? 5.0f : 0.5f);
  for (float& logit : row) {
    logit = kind == 0 ? static_cast<float>(rng() % 7) * 0.5f : kind == 3 ? 1.5f : normal(rng);
  }
  row[rng() % row.size()] = NAN;
  row[rng() % row.size()] = -INFINITY;
  row[rng() % row.size()] = 6;
  return row;
}

// Kinds of rows: few distinct values, peaked, flat, all the same but one.
TEST(Nucleus, DrawsWhatAFullSortDraws) {
  std::mt19937 rng(11);
  std::uniform_real_distribution<float> unit(0, 1);
  Nucleus nucleus;
  for (int trial = 0; trial < 4000; ++trial) {
    const int count = trial % 500 == 0 ? 201'088 : 1 + static_cast<int>(rng() % 3000);
    const std::vector<float> row = random_row(rng, count, trial % 4);
    const Largest best = largest(row.data(), count);
    if (best.id < 0) continue;
    NucleusParams params{.max = best.logit, .scale = std::exp(6 * unit(rng) - 2), .u = unit(rng)};
    if (trial % 3 == 0) params.min_weight = unit(rng) * unit(rng);
    if (trial % 5 > 0) {
      ExpSums sums;
      exp_sums(row.data(), count, params.max, params.scale, false, sums);
      params.top_mass = static_cast<uint64_t>(std::ceil(unit(rng) * sums.total * 0x1p44));
    }
    if (trial % 11 == 0) params.u = 1 - 0x1p-53;
    ASSERT_EQ(nucleus.draw(row.data(), count, params), draw_by_sorting(row, params))
        << trial << " of " << count;
  }
}

TEST(Nucleus, EqualsOfTheLargestShareAtAnyScale) {
  const std::vector<float> row = {3, 1, 3, 3, 2};
  Nucleus nucleus;
  for (const float scale : {1e3f, 1e30f}) {
    EXPECT_EQ(nucleus.draw(row.data(), 5, {.max = 3, .scale = scale, .u = 0.1}), 0);
    EXPECT_EQ(nucleus.draw(row.data(), 5, {.max = 3, .scale = scale, .u = 0.5}), 2);
    EXPECT_EQ(nucleus.draw(row.data(), 5, {.max = 3, .scale = scale, .u = 0.9}), 3);
  }
}

// A flat row of gpt-oss' vocabulary, the worst that top_p can get: sorting it took 4.9 ms.
TEST(Nucleus, FlatRowsOfLargeVocabulariesAreNotSorted) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> row(201'088);
  for (float& logit : row) logit = normal(rng);
  Sampler sampler(static_cast<int>(row.size()));
  double best = 1e9, sorting = 1e9;
  for (uint64_t i = 0; i < 15; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    EXPECT_GE(sampler.choose(row.data(), {.temperature = 1, .top_p = 0.95f, .seed = 1}, i), 0);
    best = std::min(best, seconds());
    std::vector<float> sorted = row;
    std::sort(sorted.begin(), sorted.end());
    sorting = std::min(sorting, seconds() - best);
  }
  fmt::print("top_p 0.95 of {} tokens: {:.2f} ms, sorting the logits alone {:.2f} ms\n", row.size(),
             best * 1e3, sorting * 1e3);
  EXPECT_LT(best, sorting / 2);
}

}  // namespace
}  // namespace lk
