// The choice of tokens on the GPU against the CPU's sampler: draws by their share of the mass, the
// largest logits one by one; ties, infinities and what is no number among them.
#include <gtest/gtest.h>

#include "engine/logprobs.h"
#include "engine/row_scan.h"
#include "engine/sampler.h"
#include "kernels/cuda/stages.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

cuda::Context& context() {
  static cuda::Context shared(gpu());
  return shared;
}

TEST(CudaSampling, ChoiceOfTokens) {
  Rng rng(56);
  for (const int vocab : {201088, 8192, 300, 1}) {
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
      choices.push_back({uniform_at(9, r), temperature > 0 ? 1 / temperature : 0,
                         r % 5 == 0 ? std::max(1, vocab - 100) : vocab});
    }
    choices[8].limit = 0;
    int32_t* tokens = device.put(std::vector<int32_t>(kRows, 12345678));
    cuda::run_choice(context(), device.put(logits), kRows, vocab, device.put(choices), tokens);
    const auto got = OnDevice::get(tokens, kRows);
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
  for (const int vocab : {201088, 9000, 50}) {
    for (const int k : {1, 20, 128}) {
      constexpr int kRows = 9;
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
      int32_t* ids = device.put(std::vector<int32_t>(kRows * k, 7777777));
      float* values = device.put(poisoned(kRows * k));
      cuda::run_top(context(), device.put(logits), kRows, vocab, k, ids, values);
      const auto got = OnDevice::get(ids, kRows * k);
      const auto got_values = OnDevice::get(values, kRows * k);
      for (int r = 0; r < kRows; ++r) {
        std::vector<TopLogprob> best;
        top_logits(&logits[int64_t{r} * vocab], vocab, k, best);
        for (int i = 0; i < k; ++i) {
          const bool there = i < static_cast<int>(best.size());
          ASSERT_EQ(got[r * k + i], there ? best[i].id : -1) << vocab << " row " << r << " " << i;
          ASSERT_EQ(got_values[r * k + i], there ? best[i].logprob : -INFINITY);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lk::test
