// A step on a device that chooses tokens: what comes back of each row, on memory of its own.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/reference/choose.h"
#include "tests/model/batch_arrays.h"
#include "tests/model/harness.h"
#include "tests/model/passing_kernels.h"
#include "tests/model/separate_device.h"

namespace lk::test {
namespace {

class Choosing : public PassingKernels {
 public:
  Choosing(std::unique_ptr<Kernels> inner, SeparateDevice& device)
      : PassingKernels(std::move(inner)), device_(device) {}
  Device& device() const override { return device_; }
  bool chooses() const override { return true; }
  int most_top(int) const override { return 16; }
  void choose(const ChooseArgs& args) override { reference::choose(args); }

 private:
  SeparateDevice& device_;
};

// Four sequences of `length` tokens; every token wants its logits.
struct Prompts : BatchArrays {
  static constexpr int kSequences = 4;
  std::vector<int32_t> table;
  std::vector<int64_t> slots;

  Prompts(int first, int length, size_t groups) {
    query_start.push_back(0);
    for (int s = 0; s < kSequences; ++s) {
      for (int p = first; p < first + length; ++p) {
        rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(40 + 7 * s + p);
        positions.push_back(p);
        adapter.push_back(-1);
        sequence.push_back(s);
        slots.push_back(s * kKvBlockTokens + p);
      }
      query_start.push_back(static_cast<int32_t>(ids.size()));
      context.push_back(first + length);
      states.push_back(s);
      table.push_back(s);
    }
    kv.assign(groups, {table.data(), slots.data(), 1});
  }
};

// Prompts, then a decode step, which is recorded: rows that want a choice, their logits, and logits
// after all.
TEST(Choosing, GivesOfEachRowWhatIsWanted) {
  SeparateDevice device;
  const auto plain = load_model();
  const auto model = load_model({.wrap = [&](std::unique_ptr<Kernels> inner) {
    return std::make_unique<Choosing>(std::move(inner), device);
  }});
  const KvLayout& layout = model->kv_layout();
  const std::vector<int> blocks(layout.groups.size(), Prompts::kSequences);
  KvCache cache(layout, blocks, 0, device), plain_cache(layout, blocks);
  const auto vocab = static_cast<size_t>(model->info().vocab);
  EXPECT_EQ(model->most_top(), 16);
  for (const auto& [first, length] : {std::pair{0, 5}, {5, 1}}) {
    const Prompts step(first, length, layout.groups.size());
    const size_t rows = step.rows.size();
    std::vector<float> expected(rows * vocab);
    plain->forward(step.batch(), plain_cache, expected.data());

    std::vector<RowChoice> choices(rows);
    std::vector<uint8_t> chosen(rows);
    for (size_t r = 0; r < rows; ++r) {
      chosen[r] = r % 3 != 1;
      choices[r] = {.uniform = 0.3,
                    .scale = r % 2 ? 1.0f : 0.0f,
                    .limit = static_cast<int32_t>(vocab) - 3,
                    .top = r % 4 ? static_cast<int32_t>(r % 4 * 2) : 0,
                    .model_sum = r % 3 == 0};
    }
    for (const int top : {6, 0}) {
      if (top == 0) {
        for (RowChoice& choice : choices) choice.top = 0;
      }
      std::vector<RowResult> results(rows), expected_results(rows);
      std::vector<TopLogit> best(rows * top), expected_best(rows * top);
      std::vector<float> logits(rows * vocab, -7.0f);
      model->forward_and_choose(step.batch(), cache,
                                {.choices = choices,
                                 .chosen = chosen,
                                 .top = top,
                                 .logits = logits.data(),
                                 .results = results.data(),
                                 .best = best.data()});
      reference::choose({.logits = expected.data(),
                         .rows = static_cast<int>(rows),
                         .vocab = static_cast<int>(vocab),
                         .choices = choices.data(),
                         .top = top,
                         .results = expected_results.data(),
                         .best = expected_best.data()});
      for (size_t r = 0; r < rows; ++r) {
        SCOPED_TRACE(r);
        const auto begin = logits.begin() + static_cast<ptrdiff_t>(r * vocab);
        const auto row = expected.begin() + static_cast<ptrdiff_t>(r * vocab);
        EXPECT_EQ(results[r].token, expected_results[r].token);
        EXPECT_EQ(results[r].logit, expected_results[r].logit);
        EXPECT_EQ(results[r].sum, expected_results[r].sum);
        EXPECT_EQ(results[r].model_sum, expected_results[r].model_sum);
        for (size_t i = r * top; i < (r + 1) * top; ++i) {
          EXPECT_EQ(best[i].id, expected_best[i].id);
          EXPECT_EQ(best[i].logit, expected_best[i].logit);
        }
        if (chosen[r]) {
          EXPECT_EQ(std::count(begin, begin + static_cast<ptrdiff_t>(vocab), -7.0f),
                    static_cast<ptrdiff_t>(vocab));
          model->read_row(static_cast<int>(r), &*begin);
        }
        EXPECT_TRUE(std::equal(row, row + static_cast<ptrdiff_t>(vocab), begin));
      }
    }
  }
  EXPECT_EQ(device.recorded.size(), 1u);
}

}  // namespace
}  // namespace lk::test
