// Runs requests through an engine over a FakeModel and collects what each one got.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/fake_model.h"

namespace lk {

inline std::vector<int32_t> random_tokens(std::mt19937& rng, int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(rng() % (FakeModel::kVocab - 1)));
  return tokens;
}

struct Collected {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, prompt_logprobs;
  std::vector<TopLogprob> top;  // of all tokens
  std::string text;
  int finishes = 0;
  std::string error;
  int cached_tokens = 0;
  RequestTimes times;
  uint64_t first_step = 0, last_step = 0;  // of its events
  FinishReason finish = FinishReason::kNone;
};

// Decodes id i as the character 'a' + i % 26.
class LetterStream : public TextStream {
 public:
  std::string push(int32_t id) override { return std::string(1, static_cast<char>('a' + id % 26)); }
  std::string finish() override { return {}; }
};

class EngineHarness {
 public:
  explicit EngineHarness(const EngineOptions& options, int max_positions = 2048,
                         bool recurrent = false)
      : model(options.adapter_slots, max_positions, recurrent) {
    auto created =
        Engine::create(model, {[](bool) { return std::make_unique<LetterStream>(); }, {}}, options);
    if (!created) ADD_FAILURE() << created.error().message;
    engine = std::move(*created);
    free_at_start = engine->stats().free_blocks;
  }

  RequestId submit(Request request) {
    auto id = engine->submit(std::move(request));
    if (!id) ADD_FAILURE() << id.error().message;
    return id ? *id : 0;
  }

  void step() {
    std::vector<TokenEvent> events;
    engine->step(events);
    const uint64_t step = engine->stats().steps;
    for (const TokenEvent& event : events) {
      Collected& c = results[event.request];
      EXPECT_EQ(c.finishes, 0) << "an event after the last one";
      if (c.first_step == 0) c.first_step = step;
      c.last_step = step;
      if (event.token >= 0) c.tokens.push_back(event.token), c.logprobs.push_back(event.logprob);
      c.top.insert(c.top.end(), event.top.begin(), event.top.end());
      c.prompt_logprobs.insert(c.prompt_logprobs.end(), event.prompt_logprobs.begin(),
                               event.prompt_logprobs.end());
      c.text += event.text;
      c.cached_tokens += event.cached_tokens;
      if (event.finish == FinishReason::kNone) continue;
      ++c.finishes;
      c.finish = event.finish;
      c.error = event.error;
      c.times = event.times;
    }
  }

  void run() {
    while (!engine->idle()) step();
  }

  // No broken contract, and every block is free again.
  void expect_clean() {
    EXPECT_TRUE(model.errors.empty()) << model.errors.front();
    EXPECT_EQ(engine->stats().free_blocks, free_at_start);
    EXPECT_EQ(engine->stats().running + engine->stats().waiting, 0);
  }

  // What greedy decoding must give.
  static std::vector<int32_t> expected(const Request& request, int eos = FakeModel::kVocab - 1) {
    std::vector<int32_t> tokens = request.prompt;
    const uint64_t identity = request.adapter ? request.adapter->identity : 0;
    for (int i = 0; i < request.max_tokens; ++i) {
      tokens.push_back(FakeModel::greedy_after(tokens, identity));
      if (tokens.back() == eos && !request.ignore_eos) break;
    }
    return {tokens.begin() + static_cast<long>(request.prompt.size()), tokens.end()};
  }

  FakeModel model;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Collected> results;
  std::vector<int> free_at_start;
};

}  // namespace lk
