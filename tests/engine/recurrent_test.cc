// States of recurrent layers: one slot for each running sequence, snapshots for shared prefixes,
// never a stale one. The fake model checks each state that a step starts from.
#include <random>

#include "cache/state_pool.h"
#include "tests/engine/engine_harness.h"

namespace lk {
namespace {

Request request_of(std::vector<int32_t> prompt, int max_tokens,
                   std::shared_ptr<const EngineAdapter> adapter = nullptr) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.adapter = std::move(adapter);
  return request;
}

TEST(StatePool, ForgetsTheSnapshotThatWasUnusedForLongest) {
  StatePool pool(2, 2);
  EXPECT_EQ(pool.slots(), 4);
  const PrefixKey a{1, 1}, b{2, 2}, c{3, 3};
  const int32_t first = pool.save(a);
  EXPECT_GE(first, 2);
  EXPECT_EQ(pool.save(a), -1) << "it is known";
  EXPECT_GE(pool.save(b), 2);
  EXPECT_EQ(pool.find(a), first);
  EXPECT_GE(pool.save(c), 2);
  EXPECT_TRUE(pool.knows(a) && pool.knows(c));
  EXPECT_FALSE(pool.knows(b));
  StatePool none(2, 0);
  EXPECT_EQ(none.save(a), -1);
}

TEST(StatePool, SlotsOfSequencesAreHandedOutOnce) {
  StatePool pool(3, 1);
  std::set<int32_t> taken = {pool.take(), pool.take(), pool.take()};
  EXPECT_EQ(taken, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.free_count(), 0);
  pool.give(1);
  EXPECT_EQ(pool.take(), 1);
}

TEST(Recurrent, TheNextTurnGoesOnFromTheLastOnesPrompt) {
  EngineHarness harness({.max_sequences = 4, .max_step_tokens = 64, .kv_bytes = 1 << 20}, 2048,
                        true);
  std::mt19937 rng(1);
  std::vector<int32_t> turn = random_tokens(rng, 150);
  const RequestId one = harness.submit(request_of(turn, 20));
  harness.run();
  EXPECT_EQ(harness.results[one].cached_tokens, 0);
  turn.insert(turn.end(), harness.results[one].tokens.begin(), harness.results[one].tokens.end());
  const std::vector<int32_t> more = random_tokens(rng, 30);
  turn.insert(turn.end(), more.begin(), more.end());
  const RequestId two = harness.submit(request_of(turn, 20));
  harness.run();
  // The last full block of the first prompt: what decoding led to is never shared.
  EXPECT_EQ(harness.results[two].cached_tokens, 144);
  EXPECT_EQ(harness.results[two].tokens, harness.expected(request_of(turn, 20)));
  harness.expect_clean();
}

TEST(Recurrent, ALongCommonBeginningIsShared) {
  EngineHarness harness({.max_sequences = 4, .max_step_tokens = 300, .kv_bytes = 1 << 20}, 4096,
                        true);
  std::mt19937 rng(2);
  const std::vector<int32_t> system = random_tokens(rng, 1500);
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> prompt = system;
    const std::vector<int32_t> question = random_tokens(rng, 100);
    prompt.insert(prompt.end(), question.begin(), question.end());
    const Request request = request_of(prompt, 5);
    const RequestId id = harness.submit(request);
    harness.run();
    EXPECT_EQ(harness.results[id].tokens, harness.expected(request));
    const int cached = harness.results[id].cached_tokens;
    if (i == 0)
      EXPECT_EQ(cached, 0);
    else
      EXPECT_GE(cached, 900) << "a snapshot about every 512 tokens";
  }
  harness.expect_clean();
}

TEST(Recurrent, WithoutThePrefixCacheNothingIsShared) {
  EngineHarness harness({.kv_bytes = 1 << 20, .prefix_cache = false}, 2048, true);
  EXPECT_EQ(harness.engine->state_snapshots(), 0);
  std::mt19937 rng(3);
  const Request request = request_of(random_tokens(rng, 200), 5);
  for (int i = 0; i < 2; ++i) {
    const RequestId id = harness.submit(request);
    harness.run();
    EXPECT_EQ(harness.results[id].cached_tokens, 0);
    EXPECT_EQ(harness.results[id].tokens, harness.expected(request));
  }
  harness.expect_clean();
}

// Little memory: preemption, cancelling, pausing, shared beginnings and adapters at random.
TEST(Recurrent, AnyScheduleGivesEachItsOwnAnswer) {
  int preemptions = 0, hits = 0;
  for (uint32_t seed = 0; seed < 24; ++seed) {
    std::mt19937 rng(seed);
    EngineOptions options{.max_sequences = 6,
                          .max_step_tokens = 40 + static_cast<int>(rng() % 60),
                          .max_model_len = 400,
                          .kv_bytes = 3'500 + 2'000 * (seed % 4),
                          .adapter_slots = 3};
    EngineHarness harness(options, 2048, true);
    std::vector<std::vector<int32_t>> beginnings;
    for (int i = 0; i < 4; ++i)
      beginnings.push_back(random_tokens(rng, 20 + static_cast<int>(rng() % 200)));
    std::map<RequestId, Request> requests;
    std::set<RequestId> cancelled;
    std::vector<RequestId> paused;
    for (int round = 0; round < 400; ++round) {
      if (rng() % 4 == 0 && requests.size() < 60) {
        std::vector<int32_t> prompt = beginnings[rng() % beginnings.size()];
        const std::vector<int32_t> end = random_tokens(rng, 1 + static_cast<int>(rng() % 60));
        prompt.insert(prompt.end(), end.begin(), end.end());
        const uint64_t identity = rng() % 4;
        Request request = request_of(std::move(prompt), 1 + static_cast<int>(rng() % 120),
                                     identity ? FakeModel::adapter(identity) : nullptr);
        const RequestId id = harness.submit(request);
        requests.emplace(id, std::move(request));
      }
      const std::vector<RequestId> open = harness.engine->requests();
      if (!open.empty() && rng() % 15 == 0) {
        const RequestId id = open[rng() % open.size()];
        if (harness.engine->cancel(id)) cancelled.insert(id);
      }
      if (!open.empty() && rng() % 10 == 0) {
        paused.push_back(open[rng() % open.size()]);
        harness.engine->pause(paused.back());
      }
      if (!paused.empty() && rng() % 5 == 0) {
        harness.engine->resume(paused.back());
        paused.pop_back();
      }
      harness.step();
    }
    for (RequestId id : paused) harness.engine->resume(id);
    harness.run();
    for (const auto& [id, request] : requests) {
      if (cancelled.contains(id)) continue;
      EXPECT_EQ(harness.results[id].tokens, harness.expected(request)) << "seed " << seed;
      hits += harness.results[id].cached_tokens > 0;
    }
    preemptions += static_cast<int>(harness.engine->stats().preemptions);
    harness.expect_clean();
  }
  EXPECT_GT(preemptions, 5);
  EXPECT_GT(hits, 10);
}

}  // namespace
}  // namespace lk
