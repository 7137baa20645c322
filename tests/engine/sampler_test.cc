#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "engine/logprobs.h"
#include "engine/row_scan.h"
#include "kernels/reference/choose.h"

namespace lk {
namespace {

constexpr float kInf = INFINITY;

std::map<int, double> frequencies(const std::vector<float>& logits, SamplingParams params,
                                  int draws) {
  Sampler sampler(static_cast<int>(logits.size()));
  std::map<int, double> counts;
  for (int i = 0; i < draws; ++i) {
    params.seed = i / 100;
    counts[sampler.choose(logits.data(), params, i % 100)] += 1.0 / draws;
  }
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestOfEquals) {
  const std::vector<float> logits = {1, 3, NAN, 3, 2};
  EXPECT_EQ(Sampler(5).choose(logits.data(), {}, 0), 1);
  EXPECT_EQ(Sampler(5).choose(logits.data(), {.temperature = 2, .top_k = 1}, 0), 1);
}

TEST(Sampler, FollowsTheDistribution) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), -kInf, std::log(0.15f),
                                     std::log(0.05f)};
  for (const bool filtered : {false, true}) {
    // min_p so small that it excludes nothing takes the sorted path.
    auto got = frequencies(logits, {.temperature = 1, .min_p = filtered ? 1e-6f : 0.0f}, 40000);
    EXPECT_NEAR(got[0], 0.5, 0.01);
    EXPECT_NEAR(got[1], 0.3, 0.01);
    EXPECT_NEAR(got[3], 0.15, 0.01);
    EXPECT_NEAR(got[4], 0.05, 0.01);
    EXPECT_EQ(got.count(2), 0u);
  }
  auto flat = frequencies(logits, {.temperature = 2}, 40000);
  const double total = std::sqrt(0.5) + std::sqrt(0.3) + std::sqrt(0.15) + std::sqrt(0.05);
  EXPECT_NEAR(flat[0], std::sqrt(0.5) / total, 0.01);
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  const std::vector<float> logits = {std::log(0.05f), std::log(0.5f), std::log(0.3f),
                                     std::log(0.15f)};
  const auto kept = [&](const SamplingParams& params) {
    std::set<int> ids;
    for (const auto& [id, share] : frequencies(logits, params, 5000)) ids.insert(id);
    return ids;
  };
  using Ids = std::set<int>;
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.49f}), (Ids{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.6f}), (Ids{1, 2}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.9f}), (Ids{1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.2f}), (Ids{1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.7f}), (Ids{1}));
  // top_p counts mass of what top_k left: 0.5 / 0.8 = 0.625.
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2, .top_p = 0.62f}), (Ids{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2, .top_p = 0.64f}), (Ids{1, 2}));
  EXPECT_EQ(kept({.temperature = 1e-30f}), (Ids{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 1e-9f}), (Ids{1}));
}

// The sorted prefix grows in pieces; a full sort is the specification.
TEST(Sampler, LargeVocabulariesMatchAFullSort) {
  std::mt19937 rng(4);
  const int vocab = 3000;
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = static_cast<float>(rng() % 40) * 0.1f;  // many ties
  std::vector<int> order(vocab);
  for (int i = 0; i < vocab; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  double total = 0;
  for (int id : order) total += std::exp(double{logits[id]});
  Sampler sampler(vocab);
  for (float top_p : {0.1f, 0.5f, 0.9f, 0.999f}) {
    size_t kept = 0;
    double mass = 0;
    while (mass < top_p * total) mass += std::exp(double{logits[order[kept++]]});
    for (int i = 0; i < 50; ++i) {
      const double u = uniform_at(9, i) * mass;
      double sum = 0;
      size_t at = 0;
      while (at + 1 < kept && (sum += std::exp(double{logits[order[at]]})) <= u) ++at;
      EXPECT_EQ(sampler.choose(logits.data(), {.temperature = 1, .top_p = top_p, .seed = 9}, i),
                order[at]);
    }
  }
}

// Rows of all shapes, told by their largest logits and a sum that is as wrong as it may be.
TEST(Sampler, ChoosesTheSameFromTheLargestLogits) {
  std::mt19937 rng(21);
  std::map<int, int> decided, asked;  // by how many are told
  for (int i = 0; i < 4000; ++i) {
    const int vocab = i % 3 == 0 ? 1000 : i % 3 == 1 ? 1024 : 40;
    std::vector<float> logits(vocab);
    std::normal_distribution<float> spread(0, i % 5 == 0 ? 0.5f : 3.0f);
    for (float& logit : logits) logit = spread(rng);
    if (i % 4 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // ties
    }
    for (int j = 0; j < vocab / 10; ++j) logits[rng() % vocab] = j % 2 ? NAN : -kInf;
    SamplingParams params{.temperature = i % 7 == 0 ? 0.2f : 1.0f,
                          .top_k = i % 6 == 0 ? 17 : 0,
                          .top_p = i % 2 ? 1.0f : 0.9f,
                          .min_p = i % 2 || i % 5 == 1 ? 0.02f : 0.0f,
                          .seed = static_cast<uint64_t>(i)};
    for (const int told : {20, 128}) {
      const Largest most = largest(logits.data(), vocab);
      const RowChoice choice{.scale = inverse_temperature(params), .limit = vocab, .top = told};
      RowResult result;
      std::vector<TopLogit> best(told);
      reference::choose({.logits = logits.data(),
                         .rows = 1,
                         .vocab = vocab,
                         .choices = &choice,
                         .top = told,
                         .results = &result,
                         .best = best.data()});
      ASSERT_EQ(best[0].id, most.id);
      const double sum = result.sum * (1 + (i % 3 - 1) * 0.5 * kRowSumError);
      Sampler sampler(vocab);
      const auto chosen = sampler.choose_from(best, sum, params, 5);
      ++asked[told];
      if (!chosen) continue;
      ++decided[told];
      EXPECT_EQ(chosen->id, sampler.choose(logits.data(), params, 5)) << i << " of " << told;
      EXPECT_EQ(chosen->logit, logits[chosen->id]);
    }
  }
  EXPECT_LT(decided[20], decided[128]);
  EXPECT_LT(decided[128], asked[128]);
  EXPECT_GT(decided[20], asked[20] / 3);
}

// Where a token's end meets top_p, the error of the sum decides: the row must come.
TEST(Sampler, LeavesToTheRowWhatTheSumCannotDecide) {
  const std::vector<TopLogit> best = {{0, 0.0f}, {1, 0.0f}, {2, 0.0f}, {3, 0.0f}};
  Sampler sampler(1000);
  const SamplingParams half{.temperature = 1, .top_p = 0.5f};
  EXPECT_FALSE(sampler.choose_from(best, 4, half, 0));
  EXPECT_TRUE(sampler.choose_from(best, 4.1, half, 0));
  EXPECT_TRUE(sampler.choose_from(best, 3.9, half, 0));
  EXPECT_FALSE(sampler.choose_from(best, 9, half, 0));  // more than the four
}

TEST(Sampler, DrawsDependOnSeedAndPositionOnly) {
  std::set<double> seen;
  double sum = 0;
  for (int seed = 0; seed < 100; ++seed) {
    for (int position = 0; position < 100; ++position) {
      const double u = uniform_at(seed, position);
      EXPECT_EQ(u, uniform_at(seed, position));
      EXPECT_TRUE(u >= 0 && u < 1);
      seen.insert(u);
      sum += u;
    }
  }
  EXPECT_EQ(seen.size(), 10000u);
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
}

TEST(Sampler, NoFiniteLogitIsReported) {
  for (const std::vector<float>& logits :
       {std::vector<float>{NAN, NAN}, {-kInf, -kInf}, {kInf, 0}}) {
    EXPECT_EQ(Sampler(2).choose(logits.data(), {.temperature = 1}, 0), -1);
    EXPECT_EQ(Sampler(2).choose(logits.data(), {}, 0), -1);
  }
}

TEST(Sampler, Penalties) {
  std::vector<float> logits = {2, -2, 2, 1};
  apply_penalties(logits.data(),
                  {.repetition_penalty = 2, .presence_penalty = 0.5f, .frequency_penalty = 0.25f},
                  {{0, 0}, {1, 2}, {2, 1}});
  EXPECT_FLOAT_EQ(logits[0], 1);  // in the prompt only
  EXPECT_FLOAT_EQ(logits[1], -4 - 0.5f - 2 * 0.25f);
  EXPECT_FLOAT_EQ(logits[2], 1 - 0.5f - 0.25f);
  EXPECT_FLOAT_EQ(logits[3], 1);
}

TEST(Logprobs, TopMatchesAFullSort) {
  std::mt19937 rng(8);
  std::vector<float> logits(500);
  for (float& logit : logits) logit = static_cast<float>(rng() % 60) * 0.25f;
  logits[17] = NAN, logits[18] = -kInf;
  std::vector<int> order;
  for (int i = 0; i < 500; ++i) {
    if (i != 17 && i != 18) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  for (int k : {0, 1, 2, 20, 498, 600}) {
    const auto top = top_logprobs(logits.data(), 500, k, 3.0);
    ASSERT_EQ(top.size(), static_cast<size_t>(std::min(k, 498)));
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].id, order[i]);
      EXPECT_FLOAT_EQ(top[i].logprob, logits[order[i]] - 3.0f);
    }
  }
}

TEST(Logprobs, RanksCountWhatComesBefore) {
  const std::vector<float> logits = {1, 3, NAN, 3, -kInf, 2};
  const int ranks[] = {4, 1, 1, 2, 5, 3};
  for (const int id : {0, 1, 3, 4, 5}) EXPECT_EQ(rank_of(logits.data(), 6, id), ranks[id]) << id;
}

TEST(Logprobs, SumIsStable) {
  const std::vector<float> logits = {1000, 1000, -1000};
  EXPECT_NEAR(log_sum_exp(logits.data(), 3), 1000 + std::log(2.0), 1e-9);
}

}  // namespace
}  // namespace lk
