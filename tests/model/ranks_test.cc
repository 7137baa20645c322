// Random adapters of other ranks and file types than the shipped ones have, mixed in one batch: the
// fast kernels against the reference.
#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>

#include <filesystem>
#include <random>

#include "tests/model/harness.h"

namespace lk::test {
namespace {

struct RandomAdapter {
  int rank;
  const char* dtype;
};
// Every rank that people train, and those beside the borders of tiles; all in one batch.
constexpr RandomAdapter kAdapters[] = {{1, "F32"},   {2, "F16"},    {3, "F16"},   {4, "BF16"},
                                       {5, "F32"},   {8, "F16"},    {12, "BF16"}, {16, "F16"},
                                       {24, "F32"},  {32, "F16"},   {48, "BF16"}, {64, "F16"},
                                       {100, "F16"}, {128, "BF16"}, {256, "F16"}};
constexpr int kAdapterCount = static_cast<int>(std::size(kAdapters));

class Ranks : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + fmt::format("lorikeet_ranks_{}", getpid());
    std::mt19937_64 random(31);
    for (int slot = -1; slot < kAdapterCount; ++slot) {
      Sequence& s = sequences_.emplace_back();
      s.slot = slot;
      s.tokens.resize(7 + slot % 4);
      for (int32_t& token : s.tokens) token = static_cast<int32_t>(random() % 4096);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void bind_random(Model& model) {
    for (int i = 0; i < kAdapterCount; ++i) {
      const auto& [rank, dtype] = kAdapters[i];
      const std::string path = fmt::format("{}/{}", folder_, rank);
      if (!std::filesystem::exists(path))
        write_random_adapter(path, model.linears(), rank, dtype, 40 + i);
      auto adapter = load_peft_adapter(path, std::to_string(rank), model.linears(), {});
      ASSERT_TRUE(adapter) << adapter.error().message;
      bind(model, i, **adapter);
    }
  }

  std::string folder_;
  std::vector<Sequence> sequences_;
};

TEST_F(Ranks, M05_FastRowsAgreeWithTheReference) {
  const auto reference = load_model();
  const int vocab = reference->info().vocab;
  const auto base = run(*reference, {{sequences_[1].tokens, -1}});
  bind_random(*reference);
  const auto expected = run(*reference, sequences_);
  // The adapters do say something.
  const auto plain = log_softmax(base[0].logits.data(), vocab);
  const auto adapted = log_softmax(expected[1].logits.data(), vocab);
  double difference = 0;
  for (int i = 0; i < vocab; ++i)
    difference = std::max(difference, std::abs(plain[i] - adapted[i]));
  EXPECT_GT(difference, 0.5);

  for (const std::string& row : fast_rows()) {
    const auto model = load_model({.kernels = row, .kv_type = KvType::kBF16});
    bind_random(*model);
    const auto runs = run(*model, sequences_, {.seed = 4, .steps = 3, .forced = &expected});
    for (size_t i = 0; i < sequences_.size(); ++i) {
      double sum = 0, largest = 0;
      for (size_t t = 0; t < sequences_[i].tokens.size(); ++t) {
        const auto want = log_softmax(&expected[i].logits[t * vocab], vocab);
        const auto got = log_softmax(&runs[i].logits[t * vocab], vocab);
        for (int v = 0; v < vocab; ++v) {
          const double d = std::abs(want[v] - got[v]);
          sum += d;
          largest = d <= largest ? largest : d;
        }
      }
      const double mean = sum / static_cast<double>(sequences_[i].tokens.size() * vocab);
      const int slot = sequences_[i].slot;
      fmt::print("{}, rank {}: |dlogprob| mean {:.5f}, largest {:.5f}\n", row,
                 slot < 0 ? 0 : kAdapters[slot].rank, mean, largest);
      EXPECT_LE(mean, 0.02) << row << " " << i;
      EXPECT_LE(largest, 0.25) << row << " " << i;
    }
  }
}

}  // namespace
}  // namespace lk::test
