#include "engine/token_output.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "engine/logprobs.h"
#include "kernels/reference/choose.h"

namespace lk {
namespace {

constexpr int kVocab = 16;
constexpr int32_t kEos = 15, kSpecial = 14;

// Id i is the letter 'a' + i, but it comes out with the next id only (as half a character would).
class LateLetters : public TextStream {
 public:
  explicit LateLetters(bool skip_special) : skip_special_(skip_special) {}
  std::string push(int32_t id) override {
    std::string out = held_;
    held_ = std::string(1, static_cast<char>('a' + id));
    return out;
  }
  std::string finish() override { return std::exchange(held_, {}); }
  bool boundary(int32_t id) const override { return skip_special_ && id >= kSpecial; }

 private:
  bool skip_special_;
  std::string held_;
};

class TokenOutputTest : public testing::Test {
 protected:
  std::unique_ptr<Sequence> start(Request request) {
    auto sequence = std::make_unique<Sequence>();
    sequence->tokens = {1};
    sequence->prompt_size = 1;
    sequence->max_length = 100;
    sequence->stop = StopMatcher(request.stop, request.include_stop);
    sequence->text = std::make_unique<LateLetters>(request.skip_special);
    sequence->request = std::move(request);
    return sequence;
  }
  // `favourite` has the largest logit, falling by one with the distance from it.
  static std::vector<float> row(int32_t favourite) {
    std::vector<float> logits(kVocab);
    for (int id = 0; id < kVocab; ++id)
      logits[id] = -std::abs(static_cast<float>(id - favourite)) - (id > favourite ? 0.5f : 0.0f);
    return logits;
  }
  TokenEvent next(Sequence& sequence, int32_t favourite) {
    std::vector<float> logits = row(favourite);
    TokenEvent event;
    output_.next_token(sequence, logits.data(), event);
    return event;
  }

  TokenOutput output_{{nullptr, {12, 3, 13}}, {kEos}, kVocab};
};

TEST_F(TokenOutputTest, MissingIdsAreNeverChosen) {
  const auto sequence = start({});
  EXPECT_EQ(next(*sequence, 3).token, 2);
  EXPECT_EQ(next(*sequence, 12).token, 11);
  EXPECT_EQ(next(*sequence, 13).token, kSpecial);
}

// From what a device tells of a row comes the event that the row gives; ids without a token count
// in log-probabilities alone.
TEST_F(TokenOutputTest, TakesWhatADeviceMadeOfTheRow) {
  TokenOutput output{{nullptr, {14, 15}}, {13}, kVocab};
  for (const SamplingParams& sampling : {SamplingParams{},
                                         {.temperature = 1},
                                         {.temperature = 1, .top_k = 3},
                                         {.temperature = 2, .top_p = 0.7f},
                                         {.temperature = 2, .min_p = 0.1f}}) {
    for (const int logprobs : {-1, 0, 4}) {
      const auto from_row = start({.sampling = sampling, .logprobs = logprobs});
      const auto told = start({.sampling = sampling, .logprobs = logprobs});
      std::vector<float> logits = row(6);
      logits[15] = 3;
      const auto choice = output.row_choice(*told, 12);
      ASSERT_TRUE(choice);
      EXPECT_EQ(choice->limit, 14);
      RowResult result;
      std::vector<TopLogit> best(12);
      reference::choose({.logits = logits.data(),
                         .rows = 1,
                         .vocab = kVocab,
                         .choices = &*choice,
                         .top = 12,
                         .results = &result,
                         .best = best.data()});
      TokenEvent a, b;
      ASSERT_TRUE(output.take_choice(*told, *choice, result, best, b));
      output.next_token(*from_row, logits.data(), a);
      EXPECT_EQ(a.token, b.token);
      EXPECT_NEAR(a.logprob, b.logprob, 1e-6);
      ASSERT_EQ(a.top.size(), b.top.size());
      for (size_t i = 0; i < a.top.size(); ++i) {
        EXPECT_EQ(a.top[i].id, b.top[i].id);
        EXPECT_NEAR(a.top[i].logprob, b.top[i].logprob, 1e-6);
      }
      EXPECT_EQ(told->tokens, from_row->tokens);
      // Their logits may be so large that the device's sum is none.
      result.model_sum = INFINITY;
      EXPECT_EQ(output.take_choice(*told, *choice, result, best, b), logprobs < 0);
    }
  }
}

// Rows that the request changes, or of which a device cannot tell enough, come whole.
TEST_F(TokenOutputTest, SaysWhatADeviceCannotChoose) {
  EXPECT_FALSE(output_.row_choice(*start({}), 12));  // ids without a token among the others
  TokenOutput output{{nullptr, {}}, {kEos}, kVocab};
  EXPECT_TRUE(output.row_choice(*start({}), 0));
  EXPECT_FALSE(output.row_choice(*start({.min_tokens = 2}), 12));
  EXPECT_FALSE(output.row_choice(*start({.logit_bias = {{3, 1.0f}}}), 12));
  EXPECT_FALSE(output.row_choice(*start({.sampling = {.presence_penalty = 1}}), 12));
  EXPECT_FALSE(output.row_choice(*start({.sampling = {.temperature = 1, .top_p = 0.9f}}), 0));
  const auto top_k = start({.sampling = {.temperature = 1, .top_k = 5}});
  EXPECT_FALSE(output.row_choice(*top_k, 4));
  EXPECT_EQ(output.row_choice(*top_k, 5)->top, 5);
  EXPECT_FALSE(output.row_choice(*start({.logprobs = 5}), 4));
}

// What is held back comes out with the special token, before whatever that stands for.
TEST_F(TokenOutputTest, SpecialTokensPartTheText) {
  const auto sequence = start({.stop = {"bc"}});
  EXPECT_EQ(next(*sequence, 0).text, "");
  EXPECT_EQ(next(*sequence, 1).text, "a");
  EXPECT_EQ(next(*sequence, kSpecial).text, "b");
  EXPECT_EQ(next(*sequence, 2).text, "");
  const TokenEvent after = next(*sequence, 1);
  EXPECT_EQ(after.text, "c");
  EXPECT_EQ(after.finish, FinishReason::kNone) << "no stop string spans a special token";
  EXPECT_EQ(next(*sequence, 2).text, "");
  const TokenEvent stopped = next(*sequence, kSpecial);
  EXPECT_EQ(stopped.text, "");
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.stop, "bc");
  EXPECT_EQ(stopped.stop_id, -1);
}

TEST_F(TokenOutputTest, SpecialTokensThatAreShownAreText) {
  const auto sequence = start({.stop = {"boc"}, .skip_special = false});
  std::string text;
  for (int32_t id : {0, 1, 14, 2}) text += next(*sequence, id).text;
  const TokenEvent stopped = next(*sequence, 0);
  EXPECT_EQ(text + stopped.text, "a");
  EXPECT_EQ(stopped.stop, "boc");
}

TEST_F(TokenOutputTest, EndOfTurnAndStopIds) {
  const auto by_eos = start({.stop_ids = {kEos, 4}});
  next(*by_eos, 0);
  const TokenEvent eos = next(*by_eos, kEos);
  EXPECT_EQ(eos.finish, FinishReason::kStop);
  EXPECT_EQ(eos.stop_id, -1);
  EXPECT_EQ(eos.text, "a");

  for (const bool include : {false, true}) {
    const auto by_id = start({.stop_ids = {kEos, 4}, .ignore_eos = true, .include_stop = include});
    next(*by_id, 0);
    const TokenEvent stopped = next(*by_id, 4);
    EXPECT_EQ(stopped.stop_id, 4);
    EXPECT_EQ(stopped.text, include ? "ae" : "a");
    EXPECT_EQ(next(*start({.stop_ids = {kEos}, .ignore_eos = true}), kEos).stop_id, kEos);
  }
}

TEST_F(TokenOutputTest, IncludedStopStringEndsTheText) {
  const auto sequence = start({.stop = {"bc"}, .include_stop = true});
  std::string text;
  for (int32_t id : {0, 1, 2}) text += next(*sequence, id).text;
  const TokenEvent stopped = next(*sequence, 5);
  EXPECT_EQ(text + stopped.text, "abc");
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
}

TEST_F(TokenOutputTest, NothingEndsBeforeMinTokens) {
  const auto sequence = start({.stop = {"a"}, .stop_ids = {14, 14}, .min_tokens = 5});
  EXPECT_EQ(next(*sequence, kEos).token, 11);
  std::string text;
  for (int32_t id : {0, 0, 0}) {
    const TokenEvent event = next(*sequence, id);
    EXPECT_EQ(event.finish, FinishReason::kNone);
    text += event.text;
  }
  EXPECT_EQ(text, "laa");
  const TokenEvent last = next(*sequence, 1);
  EXPECT_EQ(last.finish, FinishReason::kStop);
  EXPECT_EQ(last.stop, "a");
  const auto other = start({.min_tokens = 1});
  next(*other, 0);
  EXPECT_EQ(next(*other, kEos).finish, FinishReason::kStop);
}

TEST_F(TokenOutputTest, BiasMovesTheChoiceAndNotTheLogprobs) {
  std::vector<float> logits = row(5);
  const double log_sum = log_sum_exp(logits.data(), kVocab);
  const auto sequence =
      start({.logit_bias = {{5, -100.0f}, {9, 2.0f}, {9, 2.0f}, {12, 100.0f}}, .logprobs = 2});
  const TokenEvent event = next(*sequence, 5);
  EXPECT_EQ(event.token, 9);
  EXPECT_FLOAT_EQ(event.logprob, static_cast<float>(logits[9] - log_sum));
  EXPECT_EQ(event.top[0].id, 5);
  EXPECT_FLOAT_EQ(event.top[0].logprob, static_cast<float>(logits[5] - log_sum));
}

// Allows the ids of a set, each once.
class OnceMask : public TokenMask {
 public:
  explicit OnceMask(std::set<int32_t> ids) : ids_(std::move(ids)) {}
  void apply(std::span<float> logits) override {
    for (size_t id = 0; id < logits.size(); ++id) {
      if (ids_.count(static_cast<int32_t>(id)) == 0) logits[id] = -INFINITY;
    }
  }
  void accept(int32_t token) override { ids_.erase(token); }

 private:
  std::set<int32_t> ids_;
};

TEST_F(TokenOutputTest, MaskAllowsAndLearns) {
  const auto sequence = start({.min_tokens = 10,
                               .mask = std::make_shared<OnceMask>(std::set<int32_t>{2, 6, kEos}),
                               .logprobs = 0});
  EXPECT_EQ(next(*sequence, 5).token, 6);
  EXPECT_EQ(next(*sequence, 5).token, 2);
  const TokenEvent end = next(*sequence, 5);
  EXPECT_EQ(end.token, kEos) << "the mask leaves nothing else, min_tokens or not";
  EXPECT_EQ(end.finish, FinishReason::kStop);
  EXPECT_EQ(next(*sequence, 5).finish, FinishReason::kError);
}

}  // namespace
}  // namespace lk
