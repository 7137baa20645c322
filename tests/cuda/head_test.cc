// The head on the GPU: rows of the step that want logits, in any order, each with its own adapter.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/reference/reference_kernels.h"
#include "tests/cuda/on_device.h"
#include "tests/kernels/op_case.h"

namespace lk::test {
namespace {

TEST(CudaHead, ReadsTheRowsThatWantLogits) {
  Rng rng(31);
  const auto reference = make_reference_kernels(4);
  const auto gpu_kernels = make_cuda_kernels(gpu());
  for (const int64_t hidden : {128, 72, 30}) {
    const int64_t vocab = 301;
    RandomLinear source(rng, kFormatBF16, Stage::kHead, 0, vocab, hidden, RowOrder::kPlain, false);
    const auto adapters = adapters_for(rng, source.spec, {4, 0, 16});
    const Packed plain(*reference, source, adapters);
    const Packed packed(*gpu_kernels, source, adapters);
    const auto weight = rng.floats(hidden);
    for (const auto& [tokens, rows] : {std::pair{37, 18}, {300, 2}, {5, 5}, {900, 700}}) {
      SCOPED_TRACE(testing::Message() << hidden << " channels, " << rows << " of " << tokens);
      auto step = single_tokens(rng, tokens, 3);
      step->logit_rows.clear();
      for (int r = 0; r < rows; ++r) step->logit_rows.push_back(r % 4 == 3 ? 0 : tokens - 1 - r);
      step->finish(1);
      auto residual = rng.floats(tokens * hidden);
      // What nobody asks for may be anything.
      for (int t = 0; t < tokens; ++t) {
        const auto& wanted = step->logit_rows;
        if (std::find(wanted.begin(), wanted.end(), t) == wanted.end())
          std::fill_n(residual.begin() + t * hidden, hidden, std::nanf(""));
      }
      std::vector<float> expected(rows * vocab);
      const Norm norm{weight.data(), 1e-5f};
      reference->head(step->batch, {residual.data(), norm, plain.linear, expected.data()});
      OnDevice kept;
      const Batch batch = kept.put(step->batch);
      float* logits = kept.put(poisoned(rows * vocab));
      gpu_kernels->head(batch, {.residual = kept.put(residual),
                                .norm = {kept.put(weight), norm.eps},
                                .head = kept.put(packed.linear),
                                .logits = logits});
      const auto got = OnDevice::get(logits, rows * vocab);
      EXPECT_LT(distance(got, expected), 8e-3);
    }
  }
}

}  // namespace
}  // namespace lk::test
