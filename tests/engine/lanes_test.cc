// Fairness between adapters, through the engine.
#include "engine/lanes.h"

#include "tests/engine/engine_harness.h"

namespace lk {
namespace {

Request request_for(uint64_t adapter, int max_tokens) {
  Request request{.prompt = {1, 2, 3}, .ignore_eos = true, .max_tokens = max_tokens};
  if (adapter > 0) request.adapter = FakeModel::adapter(adapter);
  return request;
}

// An adapter that waits for a slot holds up nobody who needs none.
TEST(Lanes, WaitingForASlotHoldsUpNobodyElse) {
  EngineHarness harness(
      {.max_sequences = 8, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 1});
  harness.submit(request_for(1, 200));
  const RequestId blocked = harness.submit(request_for(2, 5));
  std::vector<RequestId> others;
  for (int i = 0; i < 20; ++i) others.push_back(harness.submit(request_for(i % 2, 5)));
  harness.run();
  for (RequestId id : others)
    EXPECT_LT(harness.results[id].last_step, harness.results[blocked].first_step);
  EXPECT_EQ(harness.results[blocked].tokens, EngineHarness::expected(request_for(2, 5)));
  harness.expect_clean();
}

// Steady traffic for the adapters that hold the slots does not starve a third one.
TEST(Lanes, PatienceEndsUnderSteadyTraffic) {
  EngineHarness harness(
      {.max_sequences = 8, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 2});
  RequestId third = 0;
  uint64_t submitted_at = 0;
  for (int step = 0; step < 1000; ++step) {
    if (step % 4 == 0) harness.submit(request_for(1, 20));
    if (step % 4 == 2) harness.submit(request_for(2, 20));
    if (step == 50)
      third = harness.submit(request_for(3, 5)), submitted_at = harness.engine->stats().steps;
    harness.step();
  }
  ASSERT_EQ(harness.results[third].finishes, 1);
  // 256 steps of patience, then at most the rest of the running requests.
  EXPECT_LE(harness.results[third].first_step, submitted_at + 256 + 40);
  harness.run();
  for (const auto& [id, result] : harness.results) EXPECT_EQ(result.finishes, 1);
  harness.expect_clean();
}

// A crowd for one adapter does not make the first request of another wait for all of it.
TEST(Lanes, AFullLaneDoesNotCrowdOutTheOthers) {
  EngineHarness harness(
      {.max_sequences = 4, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 4});
  std::vector<RequestId> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(harness.submit(request_for(1, 10)));
  for (int i = 0; i < 15; ++i) harness.step();
  const RequestId other = harness.submit(request_for(2, 10));
  const RequestId base = harness.submit(request_for(0, 10));
  harness.run();
  EXPECT_LT(harness.results[other].last_step, harness.results[crowd[20]].last_step);
  EXPECT_LT(harness.results[base].last_step, harness.results[crowd[20]].last_step);
  harness.expect_clean();
}

TEST(Lanes, OneSlotServesManyAdaptersInTurn) {
  EngineHarness harness(
      {.max_sequences = 4, .max_step_tokens = 16, .kv_bytes = 1 << 20, .adapter_slots = 1});
  std::map<RequestId, Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request request = request_for(1 + i % 4, 3 + i % 5);
    requests[harness.submit(request)] = request;
  }
  harness.run();
  EXPECT_EQ(harness.model.most_adapters, 1u);
  for (const auto& [id, request] : requests)
    EXPECT_EQ(harness.results[id].tokens, EngineHarness::expected(request));
  harness.expect_clean();
}

// A request that loses its blocks gives up its share of the slot too.
TEST(Lanes, PreemptionReleasesTheSlot) {
  EngineHarness harness({.max_sequences = 4,
                         .max_step_tokens = 300,
                         .max_model_len = 300,
                         .kv_bytes = 3'600,
                         .adapter_slots = 1});
  std::map<RequestId, Request> requests;
  for (uint64_t adapter : {1, 1, 2, 0}) {
    Request request = request_for(adapter, 280);
    requests[harness.submit(request)] = request;
  }
  harness.run();
  EXPECT_GT(harness.engine->stats().preemptions, 0u);
  for (const auto& [id, request] : requests)
    EXPECT_EQ(harness.results[id].tokens, EngineHarness::expected(request));
  harness.expect_clean();
}

TEST(Lanes, TwoNamesOfOneContentShareASlot) {
  EngineHarness harness(
      {.max_sequences = 4, .max_step_tokens = 16, .kv_bytes = 1 << 20, .adapter_slots = 2});
  Request a = request_for(7, 50), b = a, c = request_for(8, 50);
  b.adapter = FakeModel::adapter(7, "alias");
  harness.submit(a), harness.submit(b), harness.submit(c);
  harness.step();
  EXPECT_EQ(harness.engine->stats().running, 3);
  harness.run();
  EXPECT_EQ(harness.results[1].tokens, harness.results[2].tokens);
}

// A slot does not keep an adapter in memory that nobody else holds, and an adapter that comes back
// with the same content takes the slot anew.
TEST(Lanes, IdleSlotsLetGoOfAdapters) {
  EngineHarness harness(
      {.max_sequences = 4, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 2});
  Request request = request_for(1, 3);
  std::shared_ptr<const EngineAdapter> held = request.adapter;
  std::weak_ptr<const EngineAdapter> watched = held;
  harness.submit(request);
  harness.submit(request_for(2, 3));
  request.adapter = nullptr;
  harness.run();
  harness.engine->release_unused_adapters();
  EXPECT_EQ(harness.model.emptied, 1) << "the one that nobody holds";
  held = nullptr;
  EXPECT_TRUE(watched.expired());
  const RequestId again = harness.submit(request_for(1, 3));
  harness.run();
  EXPECT_EQ(harness.results[again].tokens, EngineHarness::expected(request_for(1, 3)));
  harness.submit(request_for(0, 3));
  harness.run();
  EXPECT_EQ(harness.model.emptied, 2);
  harness.expect_clean();
}

// Admitted and ended by one step: no later step comes to forget it.
TEST(Lanes, AnEngineThatGoesIdleHoldsNoAdapter) {
  EngineHarness harness(
      {.max_sequences = 4, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 2});
  Request request = request_for(1, 1);
  const std::weak_ptr<const EngineAdapter> watched = request.adapter;
  harness.submit(std::move(request));
  harness.run();
  EXPECT_TRUE(watched.expired());
}

TEST(Lanes, LoadsAreByAdapter) {
  EngineHarness harness(
      {.max_sequences = 2, .max_step_tokens = 64, .kv_bytes = 1 << 20, .adapter_slots = 1});
  for (uint64_t adapter : {1, 1, 1, 2, 0}) harness.submit(request_for(adapter, 50));
  harness.step();
  const std::vector<AdapterLoad> loads = harness.engine->stats().adapters;
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].name, "a1");
  EXPECT_EQ(loads[0].identity, 1u);
  EXPECT_EQ(loads[0].running, 1);
  EXPECT_EQ(loads[0].waiting, 2);
  EXPECT_EQ(loads[1].running, 0);
  EXPECT_EQ(loads[1].waiting, 1);
}

}  // namespace
}  // namespace lk
