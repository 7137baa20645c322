// Sharing of KV blocks between requests with the same beginning.
#include "cache/prefix_index.h"
#include "cache/state_pool.h"

#include <deque>
#include <random>
#include <set>

#include "tests/engine/engine_harness.h"

namespace lk {
namespace {

TEST(PrefixIndex, ForgetsTheOldestIdleBlock) {
  std::mt19937 rng(3);
  PrefixIndex index(50);
  std::deque<int32_t> idle;  // oldest first
  std::set<int32_t> used;
  for (int32_t block = 0; block < 50; ++block) {
    index.insert({static_cast<uint64_t>(block), 7}, block);
    used.insert(block);
  }
  index.insert({3, 7}, 5);  // both are taken
  EXPECT_EQ(index.find({3, 7}), 3);
  EXPECT_EQ(index.find({3, 8}), -1);
  for (int i = 0; i < 5000; ++i) {
    if (!used.empty() && rng() % 2) {
      const int32_t block = *std::next(used.begin(), rng() % used.size());
      used.erase(block);
      index.push_idle(block);
      idle.push_back(block);
    } else if (!idle.empty() && rng() % 3) {
      const auto at = idle.begin() + rng() % idle.size();
      index.remove_idle(*at);
      used.insert(*at);
      idle.erase(at);
    } else if (!idle.empty()) {
      EXPECT_EQ(index.take_oldest(), idle.front());
      EXPECT_EQ(index.find({static_cast<uint64_t>(idle.front()), 7}), -1);
      EXPECT_FALSE(index.contains(idle.front()));
      index.insert({static_cast<uint64_t>(idle.front()), 7}, idle.front());
      used.insert(idle.front());
      idle.pop_front();
    }
    ASSERT_EQ(index.idle(), static_cast<int>(idle.size()));
  }
}

TEST(PrefixHasher, KeysStandForAdapterAndAllTokens) {
  const PrefixHasher hasher;
  std::vector<std::pair<uint64_t, uint64_t>> seen;
  const std::vector<int32_t> a(16, 1), b(16, 2);
  for (const PrefixKey& root :
       {hasher.root(false, 0), hasher.root(true, 0), hasher.root(true, 9)}) {
    for (const auto& first : {a, b}) {
      const PrefixKey one = hasher.next(root, first);
      EXPECT_EQ(one, hasher.next(root, first));
      seen.emplace_back(one.low, one.high);
      for (const auto& second : {a, b}) {
        const PrefixKey two = hasher.next(one, second);
        seen.emplace_back(two.low, two.high);
      }
    }
  }
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), seen.size());
  EXPECT_EQ(hasher.root(false, 5), hasher.root(false, 6));
}

KvLayout layout_of(std::vector<int> windows) {
  KvLayout layout;
  layout.kv_heads = layout.head_dim = 1;
  for (size_t g = 0; g < windows.size(); ++g) {
    layout.groups.push_back({windows[g], {static_cast<int>(g)}});
    layout.layer_group.push_back(static_cast<int>(g));
  }
  return layout;
}

// Whatever was evicted, the prefix taken is the longest of which everything visible is known.
TEST(SequenceBlocks, MatchesTheLongestPrefixThatIsWhole) {
  std::mt19937 rng(11);
  const PrefixHasher hasher;
  std::set<int> lengths;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> windows = {static_cast<int>(rng() % 60) + 1, static_cast<int>(rng() % 3) * 40};
    if (rng() % 2) std::swap(windows[0], windows[1]);
    const int blocks = 1 + static_cast<int>(rng() % 12);
    BlockPools pools(layout_of(windows), {20, 20});
    std::vector<PrefixKey> keys;
    for (int i = 0; i < blocks; ++i) {
      const std::vector<int32_t> tokens(16, i);
      keys.push_back(hasher.next(i ? keys.back() : hasher.root(false, 0), tokens));
    }
    std::vector<std::vector<bool>> known(2, std::vector<bool>(blocks));
    for (int g = 0; g < 2; ++g) {
      for (int i = 0; i < blocks; ++i) {
        if (rng() % 6 == 0) continue;
        known[g][i] = true;
        const int32_t block = pools.pool(g).take();
        pools.pool(g).index().insert(keys[i], block);
        if (rng() % 2) pools.pool(g).drop_reference(block);
      }
    }
    const auto whole = [&](int length) {
      for (int g = 0; g < 2; ++g) {
        const int first = windows[g] == 0 ? 0 : std::max(0, length * 16 - windows[g] + 1);
        for (int p = first; p < length * 16; ++p) {
          if (!known[g][p / 16]) return false;
        }
      }
      return true;
    };
    int expected = blocks;
    while (!whole(expected)) --expected;
    lengths.insert(expected);
    const std::vector<int> before = {pools.pool(0).free_count(), pools.pool(1).free_count()};
    SequenceBlocks sequence;
    ASSERT_EQ(sequence.match(pools, StatePool(0, 0), keys), expected);
    for (int g = 0; g < 2 && expected > 0; ++g) {
      const int first = windows[g] == 0 ? 0 : std::max(0, expected * 16 - windows[g] + 1);
      for (int i = 0; i < expected; ++i) {
        EXPECT_EQ(sequence.table(g)[i], i < first / 16 ? -1 : pools.pool(g).index().find(keys[i]));
      }
    }
    if (expected > 0) {
      EXPECT_TRUE(sequence.reserve(pools, expected * 16, 5));
      sequence.clear(pools);
    }
    EXPECT_EQ(pools.pool(0).free_count(), before[0]);
    EXPECT_EQ(pools.pool(1).free_count(), before[1]);
  }
  EXPECT_GT(lengths.size(), 10u);
}

// Conversations that share beginnings, under adapters, in little memory, with pauses and cancels:
// everybody gets what it gets without a cache, and no block is lost.
TEST(PrefixCache, SharedBlocksChangeNoAnswer) {
  uint64_t hits = 0, preemptions = 0, cancelled_ones = 0;
  for (int seed = 0; seed < 16; ++seed) {
    std::mt19937 rng(seed);
    EngineHarness harness({.max_sequences = 6,
                           .max_step_tokens = 24,
                           .max_model_len = 300,
                           .kv_bytes = seed % 2 ? size_t{2'700} : size_t{9'000},
                           .adapter_slots = 2});
    std::vector<std::vector<int32_t>> beginnings = {random_tokens(rng, 48), random_tokens(rng, 90)};
    std::map<RequestId, Request> requests;
    std::set<RequestId> cancelled, paused;
    for (int i = 0; i < 60; ++i) {
      Request request{.ignore_eos = true, .max_tokens = 1 + static_cast<int>(rng() % 180)};
      request.prompt = beginnings[rng() % beginnings.size()];
      request.prompt.resize(1 + rng() % request.prompt.size());
      const std::vector<int32_t> rest = random_tokens(rng, static_cast<int>(rng() % 20));
      request.prompt.insert(request.prompt.end(), rest.begin(), rest.end());
      if (const uint64_t adapter = rng() % 4; adapter > 0)
        request.adapter = FakeModel::adapter(adapter);
      request.prompt_logprobs = rng() % 8 == 0;
      requests[harness.submit(request)] = request;
      // The next turn of a conversation.
      if (rng() % 4 == 0) {
        std::vector<int32_t> turn = request.prompt;
        const std::vector<int32_t> answer = EngineHarness::expected(request);
        turn.insert(turn.end(), answer.begin(), answer.end());
        if (turn.size() < 100) beginnings.push_back(turn);
      }
      const auto any = std::next(requests.begin(), rng() % requests.size())->first;
      if (rng() % 6 == 0 && harness.engine->cancel(any)) cancelled.insert(any);
      if (rng() % 4 == 0) harness.engine->pause(any), paused.insert(any);
      if (rng() % 2 == 0 && !paused.empty()) {
        harness.engine->resume(*paused.begin());
        paused.erase(paused.begin());
      }
      for (int steps = rng() % 8; steps > 0; --steps) harness.step();
    }
    for (RequestId id : paused) harness.engine->resume(id);
    harness.run();
    harness.expect_clean();
    EXPECT_LE(harness.model.largest_step, 24);
    EXPECT_LE(harness.model.most_adapters, 2u);
    const EngineStats stats = harness.engine->stats();
    hits += stats.prefix.hits;
    preemptions += stats.preemptions;
    cancelled_ones += cancelled.size();
    EXPECT_LT(stats.prefix.hits, stats.prefix.queries);
    for (const auto& [id, request] : requests) {
      if (cancelled.count(id)) continue;
      const Collected& got = harness.results[id];
      EXPECT_EQ(got.finishes, 1);
      EXPECT_EQ(got.tokens, EngineHarness::expected(request)) << "seed " << seed << " id " << id;
      EXPECT_EQ(got.prompt_logprobs.size(),
                request.prompt_logprobs ? request.prompt.size() - 1 : 0);
    }
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(preemptions, 20u);
  EXPECT_GT(cancelled_ones, 20u);
}

class PrefixCacheTest : public testing::Test {
 protected:
  // Tokens of the prompt that were taken from the cache.
  int cached(Request request) {
    const RequestId id = harness_.submit(request);
    harness_.run();
    EXPECT_EQ(harness_.results[id].tokens, EngineHarness::expected(request));
    return harness_.results[id].cached_tokens;
  }
  EngineHarness harness_{
      {.max_sequences = 4, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 2}};
  std::mt19937 rng_{5};
};

TEST_F(PrefixCacheTest, TheLastTokenIsAlwaysComputed) {
  const std::vector<int32_t> tokens = random_tokens(rng_, 65);
  const auto first = [&](int count) {
    return Request{.prompt = {tokens.begin(), tokens.begin() + count}, .max_tokens = 1};
  };
  EXPECT_EQ(cached(first(65)), 0);
  EXPECT_EQ(cached(first(65)), 64);
  EXPECT_EQ(cached(first(64)), 48);
  EXPECT_EQ(cached(first(17)), 16);
  EXPECT_EQ(cached(first(16)), 0);
  EXPECT_EQ(harness_.engine->stats().prefix.queries, 65u + 65 + 64 + 17 + 16);
  EXPECT_EQ(harness_.engine->stats().prefix.hits, 64u + 48 + 16);
  harness_.expect_clean();
}

TEST_F(PrefixCacheTest, AnswersAreSharedWithTheNextTurn) {
  Request request{.prompt = random_tokens(rng_, 20), .ignore_eos = true, .max_tokens = 50};
  EXPECT_EQ(cached(request), 0);
  const std::vector<int32_t> answer = EngineHarness::expected(request);
  request.prompt.insert(request.prompt.end(), answer.begin(), answer.end());
  EXPECT_EQ(cached(request), 64) << "69 of 70 tokens were computed: 4 full blocks";
}

TEST_F(PrefixCacheTest, AdaptersAndVersionsDoNotShare) {
  Request request{.prompt = random_tokens(rng_, 40), .max_tokens = 2};
  EXPECT_EQ(cached(request), 0);
  request.adapter = FakeModel::adapter(1, "name");
  EXPECT_EQ(cached(request), 0);
  request.adapter = FakeModel::adapter(2, "name");
  EXPECT_EQ(cached(request), 0) << "the name was loaded anew with other content";
  request.adapter = FakeModel::adapter(1, "other");
  EXPECT_EQ(cached(request), 32) << "the same content under another name";
  request.adapter = nullptr;
  EXPECT_EQ(cached(request), 32);
}

TEST_F(PrefixCacheTest, ScoredRowsAreComputed) {
  Request request{.prompt = random_tokens(rng_, 60), .max_tokens = 2};
  EXPECT_EQ(cached(request), 0);
  request.prompt_logprobs = true;
  EXPECT_EQ(cached(request), 0);
  EXPECT_EQ(harness_.results[2].prompt_logprobs.size(), 59u);
}

TEST_F(PrefixCacheTest, IdleBlocksAreTheFirstToGo) {
  const Request request{.prompt = random_tokens(rng_, 200), .max_tokens = 1};
  EXPECT_EQ(cached(request), 0);
  EXPECT_EQ(cached(request), 192);
  const std::vector<int> blocks = harness_.engine->total_blocks();
  for (int filled = 0; filled <= *std::max_element(blocks.begin(), blocks.end()); filled += 118)
    cached({.prompt = random_tokens(rng_, 1900), .max_tokens = 1});
  EXPECT_EQ(cached(request), 0);
  harness_.expect_clean();
}

TEST(PrefixCache, CanBeTurnedOff) {
  EngineHarness harness({.kv_bytes = 1 << 20, .prefix_cache = false});
  for (int i = 0; i < 3; ++i)
    harness.submit({.prompt = std::vector<int32_t>(50, 1), .max_tokens = 2});
  harness.run();
  for (const auto& [id, result] : harness.results) EXPECT_EQ(result.cached_tokens, 0);
  EXPECT_EQ(harness.engine->stats().prefix.queries, 0u);
}

}  // namespace
}  // namespace lk
