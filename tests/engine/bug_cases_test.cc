// Public failures of other servers that concern loading, versions and identity, by the number that
// docs/bug-cases.md gives them, on the small model with the store and the engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <future>
#include <map>
#include <random>

#include "base/check.h"
#include "engine/adapter_store.h"
#include "engine/engine.h"
#include "tests/engine/adapter_copies.h"
#include "tests/engine/engine_harness.h"

namespace lk {
namespace {

namespace fs = std::filesystem;
using Adapters = AdapterStore::Adapters;

const std::string kModel = LK_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4";

class BugCases : public testing::Test {
 protected:
  BugCases() : root_(fmt::format("{}lk_bugs_{}", testing::TempDir(), ::getpid())) {
    fs::create_directories(root_);
    ModelOptions options;
    options.threads = 1;
    options.adapter_slots = 3;
    auto loaded = Model::load(kModel, options);
    LK_CHECK(loaded.has_value());
    model_ = std::move(*loaded);
    AdapterStoreOptions store;
    store.niceness = 0;
    store.directory = root_;
    store.max_resident = 4;
    store_ = std::make_unique<AdapterStore>(*model_, store);
    EngineOptions engine;
    engine.max_sequences = 64;
    engine.max_model_len = 512;
    engine.adapter_slots = options.adapter_slots;
    engine.kv_bytes = size_t{256} << 20;
    auto created = Engine::create(*model_, {}, engine);
    LK_CHECK(created.has_value());
    engine_ = std::move(*created);
  }
  ~BugCases() override { fs::remove_all(root_); }

  std::string folder(const std::string& name) const { return root_ + "/" + name; }
  static std::string shipped(const std::string& name) { return kModel + "/adapters/" + name; }

  template <typename Call>
  static Result<Adapters> wait(Call call) {
    std::promise<Result<Adapters>> promise;
    call([&](Result<Adapters> result) { promise.set_value(std::move(result)); });
    return promise.get_future().get();
  }
  Result<Adapters> resolve(const std::string& name) {
    return wait([&](AdapterStore::Done done) { store_->resolve(name, std::move(done)); });
  }
  Adapters load(const std::string& name, const std::string& path, bool replace = false) {
    auto result =
        wait([&](AdapterStore::Done done) { store_->load(name, path, replace, std::move(done)); });
    EXPECT_TRUE(result) << result.error().message;
    return result ? *result : nullptr;
  }

  struct Answer {
    std::vector<int32_t> tokens;
    std::map<int32_t, float> top;  // log-probabilities of the first token, by id
    int cached = 0;
  };
  static Request request(Adapters adapter, int seed = 1, int prompt = 24, int tokens = 12) {
    Request request;
    std::mt19937 random(seed);
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<int>(random() % 4000));
    request.adapter = std::move(adapter);
    request.max_tokens = tokens;
    request.ignore_eos = true;
    request.logprobs = 20;
    return request;
  }
  // Answers to requests that run together, in their order.
  std::vector<Answer> answers(std::vector<Request> requests) {
    std::map<RequestId, size_t> order;
    for (Request& request : requests) {
      const auto id = engine_->submit(std::move(request));
      EXPECT_TRUE(id) << id.error().message;
      if (id) order.emplace(*id, order.size());
    }
    std::vector<Answer> out(order.size());
    while (!engine_->idle()) {
      std::vector<TokenEvent> events;
      engine_->step(events);
      for (const TokenEvent& event : events) {
        Answer& answer = out[order.at(event.request)];
        answer.cached += event.cached_tokens;
        if (event.token < 0) continue;
        if (answer.tokens.empty()) {
          for (const TopLogprob& top : event.top) answer.top[top.id] = top.logprob;
        }
        answer.tokens.push_back(event.token);
      }
    }
    return out;
  }
  Answer answer(Request request) {
    std::vector<Request> one;
    one.push_back(std::move(request));
    return answers(std::move(one))[0];
  }

  std::string root_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<AdapterStore> store_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(BugCases, A04_EveryAdapterChangesTheFirstToken) {
  for (const char* name : {"json", "math", "sql"}) {
    const Adapters adapter = load(name, shipped(name));
    float largest = 0;
    for (int seed = 1; seed <= 5; ++seed) {
      const Answer base = answer(request(nullptr, seed)), adapted = answer(request(adapter, seed));
      for (const auto& [id, logprob] : base.top) {
        const auto other = adapted.top.find(id);
        if (other != adapted.top.end())
          largest = std::max(largest, std::abs(other->second - logprob));
      }
    }
    EXPECT_GT(largest, 0.5f) << name;
  }
  // What was applied can be read back.
  for (const AdapterStatus& status : store_->list()) {
    const Json told = Json::parse(status.description);
    EXPECT_EQ(told["totals"]["modules"], status.name == "json" ? 12 : 36);
    EXPECT_EQ(told["totals"]["max_rank"], status.max_rank);
  }
}

TEST_F(BugCases, E01_TheBaseIsTheSameBetweenAdapters) {
  const Adapters a = load("a", shipped("sql")), b = load("b", shipped("math"));
  const Answer base = answer(request(nullptr)), with_a = answer(request(a));
  EXPECT_NE(with_a.tokens, base.tokens);
  EXPECT_EQ(answer(request(nullptr)).tokens, base.tokens);
  EXPECT_NE(answer(request(b)).tokens, base.tokens);
  EXPECT_EQ(answer(request(nullptr)).tokens, base.tokens);
  for (int size = 16; size >= 1; size /= 2) {
    std::vector<Request> batch;
    for (int i = 0; i < size; ++i) batch.push_back(request(i % 2 ? a : nullptr));
    const auto all = answers(std::move(batch));
    for (int i = 0; i < size; ++i)
      EXPECT_EQ(all[i].tokens, i % 2 ? with_a.tokens : base.tokens) << size << ' ' << i;
  }
}

TEST_F(BugCases, E03_BaseAndAdapterInOneBatch) {
  const Adapters a = load("a", shipped("sql"));
  const Answer base = answer(request(nullptr)), adapted = answer(request(a));
  for (const bool base_first : {true, false}) {
    std::vector<Request> batch;
    batch.push_back(request(base_first ? nullptr : a));
    batch.push_back(request(base_first ? a : nullptr));
    const auto both = answers(std::move(batch));
    EXPECT_EQ(both[base_first ? 0 : 1].tokens, base.tokens);
    EXPECT_EQ(both[base_first ? 1 : 0].tokens, adapted.tokens);
  }
  EXPECT_EQ(answer(request(nullptr)).tokens, base.tokens);
}

TEST_F(BugCases, E04_UnevenCountsOfAdapters) {
  const std::vector<Adapters> adapters = {nullptr, load("a", shipped("sql")),
                                          load("b", shipped("math")), load("c", shipped("json"))};
  std::vector<Answer> alone;
  for (const Adapters& adapter : adapters) alone.push_back(answer(request(adapter)));
  std::vector<size_t> who;
  for (size_t i = 0; i < adapters.size(); ++i) who.insert(who.end(), (size_t{1} << i) + i, i);
  std::shuffle(who.begin(), who.end(), std::mt19937(3));
  std::vector<Request> batch;
  for (const size_t i : who) batch.push_back(request(adapters[i]));
  const auto all = answers(std::move(batch));
  for (size_t i = 0; i < who.size(); ++i) EXPECT_EQ(all[i].tokens, alone[who[i]].tokens) << i;
}

TEST_F(BugCases, F01_OnePromptUnderManyIdentities) {
  const Adapters a = load("a", shipped("sql")), b = load("b", shipped("math"));
  const Adapters kinds[] = {a, b, nullptr};
  std::vector<Answer> cold;
  for (const Adapters& adapter : kinds) {
    cold.push_back(answer(request(adapter, 5, 300)));
    EXPECT_EQ(cold.back().cached, 0);
  }
  EXPECT_NE(cold[0].tokens, cold[1].tokens);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(answer(request(kinds[i], 5, 300)).tokens, cold[i].tokens) << i;
}

TEST_F(BugCases, F02_NewWeightsUnderOneName) {
  const Adapters expected = load("other", shipped("math"));
  const Answer right = answer(request(expected, 5, 300));
  copy_adapter(shipped("sql"), folder("t"), 0);
  const Answer old = answer(request(load("t", folder("t")), 5, 300));
  EXPECT_NE(old.tokens, right.tokens);
  // In place; the content is not that of "other", the function is.
  copy_adapter(shipped("math"), folder("t"), 3);
  const Answer fresh = answer(request(load("t", folder("t"), true), 5, 300));
  EXPECT_EQ(fresh.cached, 0);
  ASSERT_EQ(fresh.top.count(right.tokens[0]), 1u);
  EXPECT_NEAR(fresh.top.at(right.tokens[0]), right.top.at(right.tokens[0]), 0.05f);
  EXPECT_EQ(fresh.tokens[0], right.tokens[0]);
  // By unload and load.
  ASSERT_TRUE(store_->unload("t"));
  copy_adapter(shipped("sql"), folder("t"), 4);
  const Answer again = answer(request(load("t", folder("t")), 5, 300));
  EXPECT_EQ(again.cached, 0);
  EXPECT_EQ(again.tokens[0], old.tokens[0]);
}

TEST_F(BugCases, F06_ShortTurnsOfTwoAdapters) {
  const Adapters a = load("a", shipped("sql")), b = load("b", shipped("math"));
  const Answer alone[] = {answer(request(a, 5, 200)), answer(request(b, 5, 200))};
  for (int round = 0; round < 20; ++round) {
    std::vector<Request> batch;
    for (int i = 0; i < 1 + round % 3; ++i) batch.push_back(request(i % 2 ? b : a, 5, 200));
    const auto all = answers(std::move(batch));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].tokens, alone[i % 2].tokens);
  }
}

TEST_F(BugCases, O04_FoldersDeletedAfterRegistering) {
  for (int i = 1; i <= 6; ++i) {
    copy_adapter(shipped("json"), folder(std::to_string(i)), i);
    load("n" + std::to_string(i), folder(std::to_string(i)));
  }
  fs::remove_all(folder("1"));
  const Answer base = answer(request(nullptr));
  const auto gone = resolve("n1");
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().kind, ErrorKind::kResource);
  for (int round = 0; round < 2; ++round) {
    for (int i = 2; i <= 6; ++i) {
      const auto adapter = resolve("n" + std::to_string(i));
      ASSERT_TRUE(adapter) << adapter.error().message;
      EXPECT_NE(answer(request(*adapter)).tokens, base.tokens);
    }
    EXPECT_EQ(answer(request(nullptr)).tokens, base.tokens);
  }
}

TEST_F(BugCases, W03_NothingOutsideTheDirectory) {
  copy_adapter(shipped("json"), folder("inside"), 1);
  const std::string evil = root_ + "_evil";
  copy_adapter(shipped("json"), evil, 1);
  fs::create_directory_symlink(evil, folder("link"));
  ASSERT_EQ(::mkfifo(folder("fifo").c_str(), 0600), 0);
  for (const std::string& name :
       {"../" + fs::path(evil).filename().string(), evil, std::string("link"),
        std::string("%2e%2e"), std::string("inside\0", 7), std::string("/dev/zero"),
        std::string("/proc/self/environ"), std::string("org/name"), std::string(4096, 'x')}) {
    const auto result = resolve(name);
    ASSERT_FALSE(result) << name;
    EXPECT_EQ(result.error().kind, ErrorKind::kNotFound) << name;
  }
  // Inside, but nothing to open: an open would wait for a writer.
  const auto fifo = resolve("fifo");
  ASSERT_FALSE(fifo);
  EXPECT_EQ(fifo.error().kind, ErrorKind::kInvalid);
  EXPECT_NE(fifo.error().message.find("this is a file"), std::string::npos) << fifo.error().message;
  EXPECT_TRUE(resolve("inside"));
  fs::remove_all(evil);
}

}  // namespace
}  // namespace lk
