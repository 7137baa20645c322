#include "engine/engine_service.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "tests/engine/engine_harness.h"

namespace lk {
namespace {

using namespace std::chrono_literals;

// An engine service over a fake model that collects what it delivers.
class Service {
 public:
  explicit Service(EngineOptions options = {.max_sequences = 6,
                                            .max_step_tokens = 24,
                                            .max_model_len = 300,
                                            .kv_bytes = 4'000,
                                            .adapter_slots = 2})
      : model(options.adapter_slots) {
    model.before_forward = [this](const Batch&) {
      if (before_forward) before_forward();
    };
    auto engine =
        Engine::create(model, {[](bool) { return std::make_unique<LetterStream>(); }, {}}, options);
    if (!engine) ADD_FAILURE() << engine.error().message;
    service = std::make_unique<EngineService>(
        std::move(*engine), [this](std::vector<TokenEvent>&& events) { take(std::move(events)); });
  }

  void take(std::vector<TokenEvent>&& events) {
    std::lock_guard lock(mutex);
    EXPECT_FALSE(events.empty());
    for (const TokenEvent& event : events) {
      Collected& c = results[event.request];
      EXPECT_EQ(c.finishes, 0) << "an event after the last one";
      if (event.token >= 0) c.tokens.push_back(event.token);
      c.finish = event.finish;
      c.error = event.error;
      c.finishes += event.finish != FinishReason::kNone;
    }
    news.notify_all();
  }

  // Waits until `done(results)`.
  template <typename Done>
  ::testing::AssertionResult wait(Done done) {
    std::unique_lock lock(mutex);
    if (news.wait_for(lock, 60s, [&] { return done(results); }))
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "waited for too long";
  }
  ::testing::AssertionResult wait_finished(RequestId id) {
    return wait([id](auto& all) { return all[id].finishes > 0; });
  }
  ::testing::AssertionResult wait_tokens(RequestId id, size_t count) {
    return wait([id, count](auto& all) { return all[id].tokens.size() >= count; });
  }
  size_t tokens_of(RequestId id) {
    std::lock_guard lock(mutex);
    return results[id].tokens.size();
  }
  // Waits for a snapshot that `good` accepts.
  template <typename Good>
  bool eventually(Good good) {
    for (int i = 0; i < 6000; ++i) {
      if (good(service->snapshot())) return true;
      std::this_thread::sleep_for(10ms);
    }
    return false;
  }

  FakeModel model;
  std::function<void()> before_forward;  // set before the first request
  std::mutex mutex;
  std::condition_variable news;
  std::map<RequestId, Collected> results;
  std::unique_ptr<EngineService> service;
};

bool quiet(const EngineSnapshot& snapshot) {
  return snapshot.stats.running + snapshot.stats.waiting + snapshot.stats.paused == 0 &&
         snapshot.stats.free_blocks == snapshot.total_blocks;
}

Request any_request(std::mt19937& rng, int longest) {
  Request request{.ignore_eos = rng() % 2 == 0,
                  .max_tokens = 1 + static_cast<int>(rng() % longest)};
  for (int n = 1 + static_cast<int>(rng() % 60); n > 0; --n)
    request.prompt.push_back(static_cast<int32_t>(rng() % FakeModel::kVocab));
  if (const uint64_t adapter = rng() % 5; adapter > 0)
    request.adapter = FakeModel::adapter(adapter);
  return request;
}

Request long_request() { return {.prompt = {1, 2, 3}, .ignore_eos = true, .max_tokens = 290}; }

// Threads submit, pause, resume and cancel as they like: what is left alone is right and whole.
TEST(EngineService, ManyThreadsSubmitAndCancel) {
  Service service;
  std::mutex mutex;
  std::map<RequestId, Request> requests;
  std::set<RequestId> cancelled;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int i = 0; i < 60; ++i) {
        const Request request = any_request(rng, 40);
        const auto id = service.service->submit(request);
        ASSERT_TRUE(id);
        {
          std::lock_guard lock(mutex);
          requests[*id] = request;
        }
        if (rng() % 3 == 0) service.service->pause(*id);
        if (rng() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng() % 500));
        if (rng() % 5 == 0) {
          service.service->cancel(*id);
          std::lock_guard lock(mutex);
          cancelled.insert(*id);
        }
        service.service->resume(*id);
        EXPECT_TRUE(service.service->snapshot().alive);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(requests.size(), 360u);
  for (const auto& [id, request] : requests) {
    if (cancelled.count(id)) continue;
    ASSERT_TRUE(service.wait_finished(id));
  }
  EXPECT_TRUE(service.eventually(quiet));
  service.service.reset();
  EXPECT_TRUE(service.model.errors.empty()) << service.model.errors.front();
  for (const auto& [id, request] : requests) {
    if (cancelled.count(id)) continue;
    EXPECT_EQ(service.results[id].tokens, EngineHarness::expected(request));
  }
}

// Waiting, in the prompt, while decoding, in the last step: everything comes back, others go on.
TEST(EngineService, CancelAtEveryStage) {
  Service service;
  Request slow = long_request();
  slow.prompt.assign(200, 5);
  slow.max_tokens = 50;
  std::vector<RequestId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(*service.service->submit(slow));
  ASSERT_TRUE(service.wait_tokens(ids[0], 1));
  for (int i : {11, 10, 9, 3, 0}) service.service->cancel(ids[i]);
  for (int i : {1, 2, 4, 5, 6, 7, 8}) {
    ASSERT_TRUE(service.wait_finished(ids[i]));
    EXPECT_EQ(service.results[ids[i]].tokens, EngineHarness::expected(slow));
  }
  const RequestId last = *service.service->submit({.prompt = {1}, .max_tokens = 1});
  service.service->cancel(last);
  service.service->cancel(last);
  service.service->cancel(987654321);
  EXPECT_TRUE(service.eventually(quiet));
}

TEST(EngineService, PausedRequestsWaitAndGoOn) {
  Service service;
  service.before_forward = [] { std::this_thread::sleep_for(1ms); };
  const RequestId paused = *service.service->submit(long_request());
  ASSERT_TRUE(service.wait_tokens(paused, 5));
  service.service->pause(paused);
  ASSERT_TRUE(service.eventually([](const auto& s) { return s.stats.paused == 1; }));
  const size_t before = service.tokens_of(paused);
  EXPECT_EQ(service.service->snapshot().stats.free_blocks,
            service.service->snapshot().total_blocks);
  Request other = long_request();
  other.max_tokens = 40;
  ASSERT_TRUE(service.wait_finished(*service.service->submit(other)));
  EXPECT_EQ(service.tokens_of(paused), before);
  service.service->resume(paused);
  ASSERT_TRUE(service.wait_finished(paused));
  EXPECT_EQ(service.results[paused].tokens, EngineHarness::expected(long_request()));
  const RequestId dropped = *service.service->submit(long_request());
  service.service->pause(dropped);
  service.service->cancel(dropped);
  EXPECT_TRUE(service.eventually(quiet));
}

TEST(EngineService, SubmitsAllOrNone) {
  Service service;
  std::vector<Request> requests(3, {.prompt = {1}, .max_tokens = 2});
  const auto ids = service.service->submit(requests);
  ASSERT_TRUE(ids);
  EXPECT_EQ((*ids)[1], (*ids)[0] + 1);
  EXPECT_EQ((*ids)[2], (*ids)[0] + 2);
  for (RequestId id : *ids) ASSERT_TRUE(service.wait_finished(id));
  requests[2].prompt.clear();
  EXPECT_FALSE(service.service->submit(requests));
  EXPECT_FALSE(service.service->submit(Request{.prompt = {1}, .min_tokens = -3}));
  EXPECT_TRUE(service.eventually(quiet));
  EXPECT_EQ(service.results.size(), 3u);
}

TEST(EngineService, AFailedPassIsSurvived) {
  Service service;
  std::atomic<bool> failing = true;
  service.before_forward = [&] {
    if (failing) throw std::bad_alloc();
  };
  const RequestId failed = *service.service->submit(long_request());
  ASSERT_TRUE(service.wait_finished(failed));
  EXPECT_EQ(service.results[failed].finish, FinishReason::kError);
  failing = false;
  const RequestId good = *service.service->submit(long_request());
  ASSERT_TRUE(service.wait_finished(good));
  EXPECT_EQ(service.results[good].tokens, EngineHarness::expected(long_request()));
  EXPECT_TRUE(service.service->snapshot().alive);
}

// What cannot be survived is told to everybody, once, and to those who come later.
TEST(EngineService, AFaultEndsEverythingWithWords) {
  FakeModel model(1);
  auto engine = Engine::create(model, {}, {.kv_bytes = 1 << 20});
  ASSERT_TRUE(engine);
  std::mutex mutex;
  std::map<RequestId, int> finishes;
  std::atomic<int> delivered = 0;
  EngineService service(std::move(*engine), [&](std::vector<TokenEvent>&& events) {
    std::lock_guard lock(mutex);
    for (const TokenEvent& event : events)
      finishes[event.request] += event.finish != FinishReason::kNone;
    if (++delivered == 3) throw std::runtime_error("the reader broke");
  });
  std::vector<RequestId> ids;
  for (int i = 0; i < 40; ++i) {
    if (const auto id = service.submit(long_request())) ids.push_back(*id);
  }
  for (int i = 0; i < 6000 && service.snapshot().alive; ++i) std::this_thread::sleep_for(10ms);
  const EngineSnapshot snapshot = service.snapshot();
  ASSERT_FALSE(snapshot.alive);
  EXPECT_EQ(snapshot.fault, "the reader broke");
  const auto late = service.submit(long_request());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::kResource);
  for (int i = 0; i < 6000 && delivered < 4; ++i) std::this_thread::sleep_for(10ms);
  std::lock_guard lock(mutex);
  for (RequestId id : ids) EXPECT_EQ(finishes[id], 1);
}

TEST(EngineService, EndsWhileRequestsRun) {
  Service service;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(service.service->submit(long_request()));
  service.service.reset();
  EXPECT_TRUE(service.model.errors.empty());
}

// A snapshot tells a step that hangs from an engine that rests.
TEST(EngineService, SnapshotsShowAStepThatTakesLong) {
  Service service;
  std::atomic<bool> hold = true;
  service.before_forward = [&] {
    while (hold) std::this_thread::sleep_for(1ms);
  };
  EXPECT_FALSE(service.service->snapshot().stepping);
  const RequestId id = *service.service->submit({.prompt = {1}, .max_tokens = 3});
  EXPECT_TRUE(service.eventually([](const auto& s) { return s.stepping; }));
  const auto began = service.service->snapshot().step_began;
  hold = false;
  ASSERT_TRUE(service.wait_finished(id));
  EXPECT_TRUE(service.eventually([](const auto& s) { return !s.stepping; }));
  EXPECT_GE(service.service->snapshot().last_step, began);
}

}  // namespace
}  // namespace lk
