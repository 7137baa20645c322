#include "engine/engine.h"

#include <cmath>
#include <random>
#include <set>
#include <stdexcept>

#include "engine/logprobs.h"
#include "tests/engine/engine_harness.h"

namespace lk {
namespace {

Request make_request(std::mt19937& rng, int longest_prompt, int longest_output, int adapters) {
  Request request;
  const int length = 1 + static_cast<int>(rng() % longest_prompt);
  for (int i = 0; i < length; ++i)
    request.prompt.push_back(static_cast<int32_t>(rng() % FakeModel::kVocab));
  request.max_tokens = 1 + static_cast<int>(rng() % longest_output);
  request.ignore_eos = rng() % 2 == 0;
  if (const int adapter = static_cast<int>(rng() % (adapters + 1)); adapter > 0)
    request.adapter = FakeModel::adapter(adapter);
  return request;
}

EngineOptions small_options() {
  return {.max_sequences = 6,
          .max_step_tokens = 24,
          .max_model_len = 300,
          .kv_bytes = 2'700,
          .adapter_slots = 2};
}

// Many adapters, two slots, few blocks, short chunks, random cancels: every request that was left
// alone gets exactly the tokens that it gets alone, once, and every block comes back.
TEST(Engine, AnswersDoNotDependOnCompany) {
  uint64_t preemptions = 0;
  for (int seed = 0; seed < 12; ++seed) {
    std::mt19937 rng(seed);
    EngineHarness harness(small_options());
    std::map<RequestId, Request> requests;
    std::vector<RequestId> cancelled;
    for (int i = 0; i < 60; ++i) {
      Request request = make_request(rng, 60, 220, 5);
      request.prompt_logprobs = rng() % 4 == 0;
      requests[harness.submit(request)] = request;
      for (int steps = rng() % 6; steps > 0; --steps) harness.step();
      if (rng() % 4 == 0) {
        const RequestId id = std::next(requests.begin(), rng() % requests.size())->first;
        if (harness.engine->cancel(id)) cancelled.push_back(id);
      }
    }
    harness.run();
    harness.expect_clean();
    preemptions += harness.engine->stats().preemptions;
    EXPECT_LE(harness.model.largest_step, 24);
    EXPECT_LE(harness.model.most_sequences, 6);
    EXPECT_LE(harness.model.most_adapters, 2u);
    for (const auto& [id, request] : requests) {
      if (std::find(cancelled.begin(), cancelled.end(), id) != cancelled.end()) {
        EXPECT_EQ(harness.results[id].finishes, 0);
        continue;
      }
      const Collected& got = harness.results[id];
      EXPECT_EQ(got.finishes, 1);
      EXPECT_EQ(got.tokens, EngineHarness::expected(request))
          << "seed " << seed << " request " << id;
      EXPECT_EQ(got.prompt_logprobs.size(),
                request.prompt_logprobs ? request.prompt.size() - 1 : 0);
      EXPECT_EQ(got.finish, got.tokens.back() == FakeModel::kVocab - 1 && !request.ignore_eos
                                ? FinishReason::kStop
                                : FinishReason::kLength);
    }
  }
  EXPECT_GT(preemptions, 20u) << "the pools are too large to test preemption";
}

TEST(Engine, SampledAnswersDoNotDependOnCompany) {
  std::mt19937 rng(5);
  std::vector<Request> requests;
  for (int i = 0; i < 20; ++i) {
    requests.push_back(make_request(rng, 60, 60, 3));
    requests.back().sampling = {.temperature = 1.5f,
                                .top_k = i % 3 * 5,
                                .top_p = i % 2 ? 0.9f : 1.0f,
                                .min_p = i % 5 ? 0 : 0.05f,
                                .repetition_penalty = i % 4 ? 1.0f : 1.3f,
                                .presence_penalty = i % 7 ? 0 : 0.5f,
                                .seed = static_cast<uint64_t>(i)};
    requests.back().logprobs = i % 4;
  }
  EngineHarness together(small_options());
  for (const Request& request : requests) together.submit(request);
  together.run();
  for (size_t i = 0; i < requests.size(); ++i) {
    EngineHarness alone({.max_sequences = 1, .max_step_tokens = 300, .adapter_slots = 1});
    const RequestId id = alone.submit(requests[i]);
    alone.run();
    EXPECT_EQ(alone.results[id].tokens, together.results[i + 1].tokens);
    EXPECT_EQ(alone.results[id].logprobs, together.results[i + 1].logprobs);
  }
}

// What a request asks for beyond its token decides whether its row comes to the host: at once, or
// because the largest logits did not hold its nucleus.
TEST(Engine, ADeviceThatChoosesGivesTheSameTokens) {
  std::mt19937 rng(6);
  std::vector<Request> requests;
  for (int i = 0; i < 60; ++i) {
    requests.push_back(make_request(rng, 60, 60, 3));
    Request& request = requests.back();
    request.sampling.temperature = i % 3 ? 1.3f : 0.0f;
    request.sampling.top_k = i % 5 ? 0 : 4 + i;
    request.sampling.top_p = i % 2 ? 1.0f : 0.8f;
    request.sampling.min_p = i % 4 ? 0.0f : 0.05f;
    request.sampling.repetition_penalty = i % 7 ? 1.0f : 1.3f;
    request.sampling.seed = static_cast<uint64_t>(i);
    request.prompt_logprobs = i % 4 == 0;
    request.logprobs = i % 6 ? -1 : i % 11;
    request.min_tokens = i % 8 ? 0 : 3;
    if (i % 9 == 0) request.logit_bias = {{3, 0.5f}};
  }
  EngineHarness host(small_options());
  for (const Request& request : requests) host.submit(request);
  host.run();
  int least_chosen = 0;
  for (const int most_best : {0, 8, 64}) {
    SCOPED_TRACE(most_best);
    EngineHarness device(small_options());
    device.model.choosing = true;
    device.model.most_best = most_best;
    for (const Request& request : requests) device.submit(request);
    device.run();
    device.expect_clean();
    for (size_t i = 1; i <= requests.size(); ++i) {
      EXPECT_EQ(host.results[i].tokens, device.results[i].tokens) << i;
      EXPECT_EQ(host.results[i].prompt_logprobs, device.results[i].prompt_logprobs) << i;
      EXPECT_EQ(host.results[i].text, device.results[i].text) << i;
      const auto& expected = host.results[i].logprobs;
      ASSERT_EQ(device.results[i].logprobs.size(), expected.size());
      for (size_t t = 0; t < expected.size(); ++t)
        EXPECT_NEAR(device.results[i].logprobs[t], expected[t], 2e-6) << i << " " << t;
      ASSERT_EQ(device.results[i].top.size(), host.results[i].top.size());
      for (size_t t = 0; t < host.results[i].top.size(); ++t) {
        EXPECT_EQ(device.results[i].top[t].id, host.results[i].top[t].id);
        EXPECT_NEAR(device.results[i].top[t].logprob, host.results[i].top[t].logprob, 2e-6);
      }
    }
    const int all = static_cast<int>(device.engine->stats().output_tokens);
    EXPECT_GT(device.model.chosen, least_chosen + 200);
    EXPECT_LT(device.model.chosen, all - 200);
    least_chosen = device.model.chosen;
    EXPECT_EQ(device.model.read > 0, most_best == 8) << device.model.read;
  }
}

TEST(Engine, RefusesStepsLargerThanTheDeviceTakes) {
  FakeModel model(1);
  model.most_tokens = 100;
  const auto engine = Engine::create(
      model, {},
      {.max_sequences = 4, .max_step_tokens = 101, .kv_bytes = 1 << 20, .adapter_slots = 1});
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().message,
            "max_num_batched_tokens must be at most 100 on this device, not 101");
}

TEST(Engine, CancelAtAnyStepGivesEverythingBack) {
  for (int stop_after = 0; stop_after < 40; ++stop_after) {
    EngineHarness harness(small_options());
    std::mt19937 rng(stop_after);
    std::vector<RequestId> ids;
    for (int i = 0; i < 8; ++i) ids.push_back(harness.submit(make_request(rng, 200, 5, 4)));
    for (int i = 0; i < stop_after && !harness.engine->idle(); ++i) harness.step();
    for (RequestId id : ids) harness.engine->cancel(id);
    harness.expect_clean();
    EXPECT_FALSE(harness.engine->cancel(ids.front()));
  }
}

// A pass that fails ends the requests that it computed; those that waited, and new ones, are
// served.
TEST(Engine, AFailedPassEndsItsOwnRequestsAlone) {
  EngineHarness harness(small_options());
  std::mt19937 rng(7);
  std::map<RequestId, Request> requests;
  std::set<RequestId> failed;
  int passes = 0;
  harness.model.before_forward = [&](const Batch&) {
    if (++passes % 10 == 0) throw std::bad_alloc();
  };
  for (int i = 0; i < 60; ++i) {
    Request request = make_request(rng, 30, 10, 4);
    requests[harness.submit(request)] = request;
    harness.step();
  }
  harness.run();
  harness.expect_clean();
  int good = 0;
  for (const auto& [id, request] : requests) {
    const Collected& got = harness.results[id];
    EXPECT_EQ(got.finishes, 1);
    if (got.finish == FinishReason::kError) {
      EXPECT_NE(got.error.find("bad_alloc"), std::string::npos) << got.error;
      continue;
    }
    ++good;
    EXPECT_EQ(got.tokens, EngineHarness::expected(request));
  }
  EXPECT_GT(good, 20);
  EXPECT_LT(good, 60);
}

class FailingMask : public TokenMask {
 public:
  void apply(std::span<float>) override { throw std::runtime_error("no grammar"); }
  void accept(int32_t) override {}
};

TEST(Engine, AMaskThatFailsEndsItsOwnRequestAlone) {
  EngineHarness harness(small_options());
  const Request plain{.prompt = {1, 2}, .ignore_eos = true, .max_tokens = 5};
  Request masked = plain;
  masked.mask = std::make_shared<FailingMask>();
  const RequestId bad = harness.submit(masked), good = harness.submit(plain);
  harness.run();
  harness.expect_clean();
  EXPECT_EQ(harness.results[bad].finish, FinishReason::kError);
  EXPECT_NE(harness.results[bad].error.find("no grammar"), std::string::npos);
  EXPECT_EQ(harness.results[good].tokens, EngineHarness::expected(plain));
}

// Paused at any time and for any time, requests go on with the same tokens and prompt logprobs.
TEST(Engine, PausedRequestsGoOnWithTheSameBits) {
  for (int seed = 0; seed < 10; ++seed) {
    std::mt19937 rng(seed);
    EngineHarness harness(small_options());
    std::map<RequestId, Request> requests;
    std::set<RequestId> paused, cancelled;
    const auto any = [&] { return std::next(requests.begin(), rng() % requests.size())->first; };
    for (int i = 0; i < 200; ++i) {
      if (i < 50) {
        Request request = make_request(rng, 60, 60, 4);
        request.prompt_logprobs = rng() % 4 == 0;
        requests[harness.submit(request)] = request;
      }
      const RequestId id = any();
      if (rng() % 3 == 0) harness.engine->pause(id), paused.insert(id);
      if (rng() % 3 == 0 && !paused.empty()) {
        harness.engine->resume(*paused.begin());
        paused.erase(paused.begin());
      }
      if (rng() % 20 == 0) harness.engine->cancel(id), cancelled.insert(id);
      harness.step();
      for (RequestId other : paused) {
        if (const auto at = harness.results.find(other); at != harness.results.end()) {
          EXPECT_TRUE(at->second.last_step < harness.engine->stats().steps || at->second.finishes)
              << "a paused request was served";
        }
      }
    }
    harness.run();
    for (RequestId id : paused) harness.engine->resume(id);
    harness.run();
    harness.expect_clean();
    EXPECT_EQ(harness.engine->stats().paused, 0);
    for (const auto& [id, request] : requests) {
      const Collected& got = harness.results[id];
      if (got.finishes == 0 && cancelled.count(id)) continue;
      EXPECT_EQ(got.finishes, 1);
      EXPECT_EQ(got.tokens, EngineHarness::expected(request)) << "seed " << seed;
      EXPECT_EQ(got.prompt_logprobs.size(),
                request.prompt_logprobs ? request.prompt.size() - 1 : 0);
    }
  }
}

TEST(Engine, EventsTellWhen) {
  EngineHarness harness(small_options());
  const Clock::time_point before = Clock::now();
  const RequestId id = harness.submit({.prompt = {1}, .ignore_eos = true, .max_tokens = 3});
  harness.run();
  const RequestTimes& times = harness.results[id].times;
  EXPECT_LE(before, times.arrival);
  EXPECT_LE(times.arrival, times.scheduled);
  EXPECT_LE(times.scheduled, times.first_token);
  EXPECT_LE(times.first_token, Clock::now());
  EXPECT_EQ(harness.engine->stats().step_tokens, 1);
}

TEST(Engine, PromptLogprobsAreThoseOfTheModelWhateverTheChunks) {
  EngineHarness harness(small_options());
  std::mt19937 rng(1);
  Request request = make_request(rng, 1, 1, 0);
  request.prompt.clear();
  for (int i = 0; i < 100; ++i)
    request.prompt.push_back(static_cast<int32_t>(rng() % FakeModel::kVocab));
  request.prompt_logprobs = true;
  request.max_tokens = 0;
  const RequestId id = harness.submit(request);
  for (int i = 0; i < 5; ++i) harness.submit(make_request(rng, 50, 50, 2));
  harness.run();
  const Collected& got = harness.results[id];
  EXPECT_TRUE(got.tokens.empty());
  EXPECT_EQ(got.finish, FinishReason::kLength);
  ASSERT_EQ(got.prompt_logprobs.size(), 99u);
  std::vector<int32_t> seen;
  for (int i = 0; i < 99; ++i) {
    seen.push_back(request.prompt[i]);
    const std::vector<float> row = FakeModel::logits_after(seen, 0);
    EXPECT_FLOAT_EQ(got.prompt_logprobs[i],
                    row[request.prompt[i + 1]] - log_sum_exp(row.data(), FakeModel::kVocab));
  }
}

TEST(Engine, LogprobsAreOfTheModelNotOfTheFilters) {
  EngineHarness harness(small_options());
  Request request{.prompt = {3, 4, 5}, .max_tokens = 1, .logprobs = 5};
  request.sampling = {.temperature = 0.01f, .top_k = 1, .repetition_penalty = 2};
  std::vector<TokenEvent> events;
  ASSERT_TRUE(harness.engine->submit(request));
  harness.engine->step(events);
  ASSERT_EQ(events.size(), 1u);
  const std::vector<float> row = FakeModel::logits_after({3, 4, 5}, 0);
  const double sum = log_sum_exp(row.data(), FakeModel::kVocab);
  EXPECT_FLOAT_EQ(events[0].logprob, row[events[0].token] - sum);
  ASSERT_EQ(events[0].top.size(), 5u);
  EXPECT_EQ(events[0].top[0].id, FakeModel::greedy_after({3, 4, 5}, 0));
  EXPECT_FLOAT_EQ(events[0].top[4].logprob, row[events[0].top[4].id] - sum);
}

TEST(Engine, MissingIdsAreNeverChosen) {
  FakeModel model(1);
  std::vector<int32_t> missing;
  for (int id = 0; id < FakeModel::kVocab; ++id) {
    if (id != 7) missing.push_back(id);
  }
  auto engine = Engine::create(model, {nullptr, missing}, {.kv_bytes = 1 << 20});
  ASSERT_TRUE(engine);
  ASSERT_TRUE((*engine)->submit(
      {.prompt = {1}, .sampling = {.temperature = 5}, .max_tokens = 4, .logprobs = 3}));
  std::vector<TokenEvent> events;
  while (!(*engine)->idle()) (*engine)->step(events);
  ASSERT_EQ(events.size(), 4u);
  for (const TokenEvent& event : events) {
    EXPECT_EQ(event.token, 7);
    EXPECT_EQ(event.top.size(), 1u);
  }
}

TEST(Engine, StopStringEndsTheTextBeforeIt) {
  EngineHarness plain(small_options());
  const Request request{.prompt = {1, 2}, .ignore_eos = true, .max_tokens = 20};
  const RequestId id = plain.submit(request);
  plain.run();
  const std::string text = plain.results[id].text;
  ASSERT_EQ(text.size(), 20u);
  Request stopped = request;
  stopped.stop = {text.substr(7, 4), "0"};
  EngineHarness harness(small_options());
  const RequestId stopped_id = harness.submit(stopped);
  harness.run();
  EXPECT_EQ(harness.results[stopped_id].text, text.substr(0, 7));
  EXPECT_EQ(harness.results[stopped_id].tokens.size(), 11u);
  EXPECT_EQ(harness.results[stopped_id].finish, FinishReason::kStop);
  harness.expect_clean();
}

TEST(Engine, StopIdIsTheLastTokenAndNotInTheText) {
  EngineHarness plain(small_options());
  const Request request{.prompt = {1, 2}, .ignore_eos = true, .max_tokens = 20};
  const RequestId id = plain.submit(request);
  plain.run();
  const std::vector<int32_t> tokens = plain.results[id].tokens;
  Request stopped = request;
  stopped.stop_ids = {tokens[5]};
  EngineHarness harness(small_options());
  const RequestId stopped_id = harness.submit(stopped);
  harness.run();
  const size_t first = std::find(tokens.begin(), tokens.end(), tokens[5]) - tokens.begin();
  EXPECT_EQ(harness.results[stopped_id].tokens.size(), first + 1);
  EXPECT_EQ(harness.results[stopped_id].text.size(), first);
}

TEST(Engine, RefusesBadRequests) {
  EngineHarness harness(small_options());
  const auto refused = [&](Request request, const std::string& part) {
    const auto id = harness.engine->submit(std::move(request));
    ASSERT_FALSE(id);
    EXPECT_NE(id.error().message.find(part), std::string::npos) << id.error().message;
  };
  refused({.prompt = {}}, "empty");
  refused({.prompt = {64}}, "64");
  refused({.prompt = {-1}}, "-1");
  refused({.prompt = {1}, .max_tokens = -2}, "max_tokens");
  refused({.prompt = std::vector<int32_t>(200, 1), .max_tokens = 101}, "300");
  refused({.prompt = std::vector<int32_t>(300, 1)}, "300");
  refused({.prompt = {1}, .sampling = {.temperature = NAN}}, "temperature");
  refused({.prompt = {1}, .sampling = {.temperature = -1}}, "temperature");
  refused({.prompt = {1}, .sampling = {.top_k = -1}}, "top_k");
  refused({.prompt = {1}, .sampling = {.top_p = 0}}, "top_p");
  refused({.prompt = {1}, .sampling = {.repetition_penalty = 0}}, "repetition_penalty");
  refused({.prompt = {1}, .stop = {"x", ""}}, "stop");
  refused({.prompt = {1}, .stop_ids = {99}}, "99");
  refused({.prompt = {1}, .logprobs = 101}, "logprobs");
  refused({.prompt = {1}, .stop = {std::string(4097, 'x')}}, "4097");
  refused({.prompt = {1}, .stop = std::vector<std::string>(129, "x")}, "129");
  refused({.prompt = {1}, .min_tokens = -1}, "min_tokens");
  refused({.prompt = {1}, .min_tokens = 6, .max_tokens = 5}, "min_tokens");
  refused({.prompt = {1}, .min_tokens = 300}, "min_tokens");
  refused({.prompt = {1}, .logit_bias = {{64, 1.0f}}}, "64");
  refused({.prompt = {1}, .logit_bias = {{-1, 1.0f}}}, "-1");
  refused({.prompt = {1}, .logit_bias = {{1, NAN}}}, "logit_bias");
  refused({.prompt = {1}, .logit_bias = {{1, 100.5f}}}, "logit_bias");
  EXPECT_TRUE(harness.engine->idle());
  const RequestId id = harness.submit(
      {.prompt = std::vector<int32_t>(200, 1), .ignore_eos = true, .max_tokens = 100});
  harness.run();
  EXPECT_EQ(harness.results[id].tokens.size(), 100u);
  harness.expect_clean();
}

TEST(Engine, LengthsAroundEveryBoundary) {
  for (int length : {1, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 298, 299}) {
    EngineHarness harness(small_options());
    Request request{.prompt = std::vector<int32_t>(length, 9),
                    .ignore_eos = true,
                    .max_tokens = std::min(20, 300 - length)};
    const RequestId id = harness.submit(request);
    harness.run();
    EXPECT_EQ(harness.results[id].tokens, EngineHarness::expected(request)) << length;
    harness.expect_clean();
  }
}

TEST(Engine, RefusesAKvCacheThatHoldsNoSequence) {
  FakeModel model(1);
  const auto engine = Engine::create(model, {}, {.kv_bytes = 4096});
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find("max-model-len"), std::string::npos);
}

}  // namespace
}  // namespace lk
