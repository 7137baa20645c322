// Promise 5: a sequence's logits have the same bits alone, in any batch of others and with any
// chunking.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/model/harness.h"

namespace lk::test {
namespace {

class Batches : public testing::TestWithParam<std::string> {};

TEST_P(Batches, CompanyAndChunkingDoNotShow) {
  const bool slow = GetParam() == "reference";
  const auto model = load_model({.kernels = GetParam(), .kv_type = KvType::kBF16});
  bind_all(*model);
  std::mt19937_64 random(21);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const int vocab = model->info().vocab;
  for (int trial = 0; trial < (slow ? 2 : 6); ++trial) {
    std::vector<Sequence> sequences(pick(2, slow ? 4 : 12));
    for (Sequence& s : sequences) {
      s.slot = pick(-1, 2);
      // Lengths about the block, the window (128) and beyond.
      const int lengths[] = {1, pick(2, 40), pick(15, 17), pick(127, 129), pick(130, 200)};
      s.tokens.resize(lengths[pick(0, 4)]);
      for (int32_t& token : s.tokens) token = pick(0, vocab - 1);
    }
    const uint64_t seed = random();
    const auto together = run(*model, sequences, {.seed = seed, .steps = pick(1, 12)});
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto alone = run(*model, {sequences[i]}, {.seed = seed + i, .steps = 1});
      ASSERT_TRUE(same_bits(alone[0].logits, together[i].logits))
          << "trial " << trial << ", sequence " << i << " of " << sequences.size() << ", length "
          << sequences[i].tokens.size() << ", slot " << sequences[i].slot;
    }
  }
}

// One token a step, as decoding does, against the whole prompt at once.
TEST_P(Batches, DecodingEqualsPrefill) {
  const auto model = load_model({.kernels = GetParam(), .kv_type = KvType::kBF16});
  bind_all(*model);
  std::vector<Sequence> sequences(4);
  std::mt19937_64 random(22);
  for (int i = 0; i < 4; ++i) {
    sequences[i].slot = i - 1;
    sequences[i].tokens.resize(GetParam() == "reference" ? 20 : 150);
    for (int32_t& token : sequences[i].tokens) token = static_cast<int32_t>(random() % 4096);
  }
  const auto prefill = run(*model, sequences);
  const auto decode = run(*model, sequences, {.seed = 3, .one_token_steps = true});
  for (size_t i = 0; i < sequences.size(); ++i) {
    EXPECT_TRUE(same_bits(prefill[i].logits, decode[i].logits)) << i;
  }
}

// In a model of one sliding layer, the first token's value reaches exactly the queries that see it.
TEST_P(Batches, TheWindowIsExact) {
  const auto one_layer = [](DecoderSpec& spec) { spec.layers.resize(1); };
  const auto model =
      load_model({.kernels = GetParam(), .kv_type = KvType::kBF16, .edit = one_layer});
  const int window = model->kv_layout().groups.at(0).window;
  ASSERT_EQ(window, 128);
  const int vocab = model->info().vocab;
  std::vector<Sequence> sequences(2);
  for (Sequence& s : sequences) {
    s.tokens.resize(window + 20);
    for (size_t i = 0; i < s.tokens.size(); ++i) s.tokens[i] = static_cast<int32_t>(97 * i % 4000);
  }
  sequences[1].tokens[0] = 1234;
  const auto runs = run(*model, sequences, {.seed = 8, .steps = 4});
  const auto same_at = [&](int position) {
    return std::equal(&runs[0].logits[position * vocab], &runs[0].logits[(position + 1) * vocab],
                      &runs[1].logits[position * vocab]);
  };
  EXPECT_FALSE(same_at(window - 2));
  EXPECT_FALSE(same_at(window - 1));
  for (int p = window; p < window + 20; ++p) EXPECT_TRUE(same_at(p)) << p;
}

INSTANTIATE_TEST_SUITE_P(Rows, Batches, testing::ValuesIn(every_row()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lk::test
