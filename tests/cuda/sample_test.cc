// The choice of tokens on the GPU against the CPU's sampler: draws by their share of the mass, the
// largest logits one by one; ties, infinities and what is no number among them.
#include <gtest/gtest.h>

#include "engine/logprobs.h"
#include "engine/row_scan.h"
#include "engine/sampler.h"
#include "kernels/cuda/stages.h"
#include "kernels/reference/choose.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

cuda::Context& context() {
  static cuda::Context shared(gpu());
  return shared;
}

// So many that published vocabularies get all, and wider ones what shared memory holds.
TEST(CudaSampling, MostTopFitsTheVocabulary) {
  EXPECT_EQ(cuda::most_top(151'936), cuda::kMostTop);
  EXPECT_GT(cuda::most_top(1 << 20), 0);
  EXPECT_LT(cuda::most_top(1 << 20), cuda::kMostTop);
}

TEST(CudaSampling, ChoiceOfTokens) {
  Rng rng(56);
  for (const int vocab : cases({201088, 8192, 300, 1}, {8192, 300, 1})) {
    constexpr int kRows = 40;
    OnDevice device;
    auto logits = rng.floats(int64_t{kRows} * vocab, 3);
    std::vector<RowChoice> choices;
    for (int r = 0; r < kRows; ++r) {
      float* row = &logits[int64_t{r} * vocab];
      for (int i = 0; i < vocab / 20; ++i)
        row[rng.below(vocab)] = i % 2 ? std::nanf("") : -INFINITY;
      if (r == 3) std::fill_n(row, vocab, std::nanf(""));
      if (r == 4) row[vocab / 2] = INFINITY;
      if (r == 5) std::fill_n(row, vocab, -INFINITY);
      if (r == 6) std::fill_n(row, vocab, 1.0f);
      const float temperature = r % 4 == 0 ? 0 : r % 4 == 1 ? 1.0f : r % 4 == 2 ? 0.3f : 2.0f;
      choices.push_back({.uniform = uniform_at(9, r),
                         .scale = temperature > 0 ? 1 / temperature : 0,
                         .limit = r % 5 == 0 ? std::max(1, vocab - 100) : vocab,
                         .model_sum = r % 3 == 0});
    }
    choices[8].limit = 0;
    RowResult* results =
        device.put(std::vector<RowResult>(kRows, {12345678, 1e9f, 1e9f, -1e9, -1e9}));
    cuda::run_choice(context(), device.put(logits), kRows, vocab, device.put(choices), results);
    const auto told = OnDevice::get(results, kRows);
    std::vector<RowResult> expected(kRows);
    reference::choose({.logits = logits.data(),
                       .rows = kRows,
                       .vocab = vocab,
                       .choices = choices.data(),
                       .top = 0,
                       .results = expected.data(),
                       .best = nullptr});
    std::vector<int32_t> got;
    for (int r = 0; r < kRows; ++r) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << " row " << r);
      got.push_back(told[r].token);
      if (expected[r].token < 0 || told[r].token < 0) continue;
      EXPECT_EQ(told[r].logit, logits[int64_t{r} * vocab + told[r].token]);
      EXPECT_EQ(told[r].largest, expected[r].largest);
      // The other half of what is allowed is the CPU sampler's.
      if (choices[r].scale > 0) {
        EXPECT_NEAR(told[r].sum / expected[r].sum, 1, kRowSumError / 2);
      }
      if (choices[r].model_sum) {
        EXPECT_NEAR(told[r].model_sum / expected[r].model_sum, 1, kRowSumError / 2);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      SCOPED_TRACE(testing::Message() << "vocabulary " << vocab << " row " << r);
      const float* row = &logits[int64_t{r} * vocab];
      const int count = choices[r].limit;
      const Largest best = largest(row, count);
      if (best.id < 0 || !std::isfinite(best.logit) || choices[r].scale == 0) {
        EXPECT_EQ(got[r], best.id < 0 || !std::isfinite(best.logit) ? -1 : best.id);
        continue;
      }
      // The draw lies inside of its token's share, up to rounding.
      ASSERT_TRUE(got[r] >= 0 && got[r] < count);
      double below = 0, total = 0, own = 0;
      for (int i = 0; i < count; ++i) {
        if (std::isnan(row[i])) continue;
        const double w = std::exp((double{row[i]} - best.logit) * choices[r].scale);
        if (i < got[r]) below += w;
        if (i == got[r]) own = w;
        total += w;
      }
      EXPECT_GT(own, 0);
      EXPECT_GE(choices[r].uniform, below / total - 1e-6);
      EXPECT_LE(choices[r].uniform, (below + own) / total + 1e-6);
    }
  }
}

TEST(CudaSampling, LargestLogits) {
  Rng rng(57);
  for (const int vocab : cases({201088, 9000, 50}, {9000, 50})) {
    for (const int k : {1, 20, 128, cuda::kMostTop}) {
      constexpr int kRows = 11;
      OnDevice device;
      auto logits = rng.floats(int64_t{kRows} * vocab, 3);
      for (int64_t i = 0; i < vocab; ++i) {
        logits[i] = std::round(logits[i]);  // ties
        logits[vocab + i] = i % 3 ? std::nanf("") : logits[vocab + i];
        logits[2 * vocab + i] = i < 7 ? 1.0f : -INFINITY;  // too few
        logits[3 * vocab + i] = i % 2 ? 0.0f : -0.0f;
        logits[4 * vocab + i] = -std::abs(logits[4 * vocab + i]);
      }
      logits[5 * vocab + 5] = INFINITY;
      std::vector<RowChoice> choices(kRows, {.limit = vocab, .top = k});
      choices[6].limit = vocab - 13;
      choices[7].limit = 0;
      choices[8].top = 0;
      choices[9].top = (k + 1) / 2;
      TopLogit* best = device.put(std::vector<TopLogit>(kRows * k, {7777777, 1e9f}));
      cuda::run_top(context(), device.put(logits), kRows, vocab, k, device.put(choices), best);
      const auto got = OnDevice::get(best, kRows * k);
      std::vector<RowResult> results(kRows);
      std::vector<TopLogit> expected(kRows * k);
      reference::choose({.logits = logits.data(),
                         .rows = kRows,
                         .vocab = vocab,
                         .choices = choices.data(),
                         .top = k,
                         .results = results.data(),
                         .best = expected.data()});
      for (int r = 0; r < kRows; ++r) {
        const int told = choices[r].top == 0 ? k : choices[r].top;
        for (int i = r * k; i < r * k + told; ++i) {
          ASSERT_EQ(got[i].id, expected[i].id) << vocab << " row " << r << " " << i - r * k;
          if (got[i].id >= 0) {
            ASSERT_EQ(got[i].logit, expected[i].logit);
          }
        }
      }
    }
  }
}

// What the host makes of it is what it would have made of the row.
TEST(CudaSampling, TheSamplerChoosesTheSameFromWhatIsTold) {
  Rng rng(58);
  constexpr int kRows = 64, kTop = cuda::kMostTop;
  int decided = 0, all = 0;
  for (const int vocab : cases({201088, 131072, 5003}, {5003})) {
    all += kRows;
    OnDevice device;
    auto logits = rng.floats(int64_t{kRows} * vocab, 3);
    std::vector<SamplingParams> params;
    std::vector<RowChoice> choices;
    for (int r = 0; r < kRows; ++r) {
      // Some ids far above the others, as models have them.
      for (int i = 0; i < 60; ++i)
        logits[int64_t{r} * vocab + rng.below(vocab)] = 12 + static_cast<float>(i % 16) / 2;
      params.push_back({.temperature = r % 3 ? 1.0f : 0.7f,
                        .top_k = r % 4 ? 0 : 40,
                        .top_p = r % 4 == 1 ? 1.0f : 0.95f,
                        .min_p = r % 4 == 1 ? 0.02f : 0.0f,
                        .seed = static_cast<uint64_t>(r)});
      choices.push_back({.scale = inverse_temperature(params[r]), .limit = vocab, .top = kTop});
    }
    const float* rows = device.put(logits);
    const RowChoice* wanted = device.put(choices);
    RowResult* results = device.put(std::vector<RowResult>(kRows));
    TopLogit* best = device.put(std::vector<TopLogit>(kRows * kTop));
    cuda::run_choice(context(), rows, kRows, vocab, wanted, results);
    cuda::run_top(context(), rows, kRows, vocab, kTop, wanted, best);
    const auto told = OnDevice::get(results, kRows);
    const auto largest_logits = OnDevice::get(best, kRows * kTop);
    Sampler sampler(vocab);
    for (int r = 0; r < kRows; ++r) {
      const auto chosen = sampler.choose_from(std::span(largest_logits).subspan(r * kTop, kTop),
                                              told[r].sum, params[r], 3);
      if (!chosen) continue;
      ++decided;
      EXPECT_EQ(chosen->id, sampler.choose(&logits[int64_t{r} * vocab], params[r], 3)) << r;
    }
  }
  EXPECT_GT(decided, all * 3 / 4);
}

}  // namespace
}  // namespace lk::test
