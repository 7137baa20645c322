#include "engine/adapter_store.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "base/check.h"
#include "model/lora.h"
#include "tests/engine/adapter_copies.h"

namespace lk {
namespace {

namespace fs = std::filesystem;
using Adapters = AdapterStore::Adapters;

const std::string kModel = LK_SOURCE_DIR "/models/tiny-gpt-oss-mxfp4";

const Model& tiny_model() {
  static const std::unique_ptr<Model> model = [] {
    ModelOptions options;
    options.threads = 1;
    auto loaded = Model::load(kModel, options);
    LK_CHECK(loaded.has_value());
    return std::move(*loaded);
  }();
  return *model;
}

std::string shipped(const std::string& name) { return kModel + "/adapters/" + name; }

class AdapterStoreTest : public testing::Test {
 protected:
  AdapterStoreTest() {
    static int count = 0;
    root_ = fmt::format("{}lk_store_{}_{}", testing::TempDir(), ::getpid(), count++);
    fs::create_directories(root_);
  }
  ~AdapterStoreTest() override { fs::remove_all(root_); }

  std::string folder(const std::string& name) const { return root_ + "/" + name; }
  // `count` adapters json1, json2, ... in the test's folder.
  void make_copies(int count) {
    for (int i = 1; i <= count; ++i)
      copy_adapter(shipped("json"), folder("json" + std::to_string(i)), i);
  }
  static AdapterStoreOptions plain() {
    AdapterStoreOptions options;
    options.niceness = 0;  // tests share the machine with others
    return options;
  }
  AdapterStoreOptions in_directory(int max_resident = 0) const {
    AdapterStoreOptions options = plain();
    options.directory = root_;
    options.max_resident = max_resident;
    return options;
  }

  std::string root_;
};

Result<Adapters> wait(const std::function<void(AdapterStore::Done)>& call) {
  std::promise<Result<Adapters>> promise;
  call([&](Result<Adapters> result) { promise.set_value(std::move(result)); });
  auto future = promise.get_future();
  if (future.wait_for(std::chrono::seconds(60)) != std::future_status::ready) {
    ADD_FAILURE() << "no answer";
    std::abort();
  }
  return future.get();
}

Result<Adapters> resolve(AdapterStore& store, const std::string& name) {
  return wait([&](AdapterStore::Done done) { store.resolve(name, std::move(done)); });
}

Result<Adapters> load(AdapterStore& store, const std::string& name, const std::string& path,
                      bool replace = false) {
  return wait([&](AdapterStore::Done done) { store.load(name, path, replace, std::move(done)); });
}

AdapterStatus status(const AdapterStore& store, const std::string& name) {
  for (AdapterStatus& status : store.list()) {
    if (status.name == name) return status;
  }
  return {};
}

template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

TEST_F(AdapterStoreTest, LoadsTellsAndForgets) {
  AdapterStore store(tiny_model(), plain());
  const auto sql = load(store, "sql", shipped("sql"));
  ASSERT_TRUE(sql) << sql.error().message;
  EXPECT_EQ((*sql)->name, "sql");
  EXPECT_EQ((*sql)->prepared->identity(), (*sql)->identity);
  const AdapterStatus told = status(store, "sql");
  EXPECT_EQ(told.identity, (*sql)->identity);
  EXPECT_TRUE(told.resident);
  EXPECT_FALSE(told.from_directory);
  EXPECT_EQ(told.in_use, 1);
  EXPECT_EQ(told.max_rank, 8);
  EXPECT_EQ(told.bytes, (*sql)->prepared->bytes());
  EXPECT_EQ(Json::parse(told.description)["totals"]["modules"], 36);
  EXPECT_EQ(store.find("sql")->identity, (*sql)->identity);
  EXPECT_EQ(store.find("json"), nullptr);

  ASSERT_TRUE(store.unload("sql"));
  EXPECT_EQ(store.find("sql"), nullptr);
  EXPECT_EQ(resolve(store, "sql").error().kind, ErrorKind::kNotFound);
  const Status again = store.unload("sql");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message, "there is no adapter 'sql'");
  // Still whole for the one that uses it.
  EXPECT_GT((*sql)->prepared->bytes(), 0u);
  EXPECT_EQ(store.stats().resident_bytes, (*sql)->prepared->bytes());
}

TEST_F(AdapterStoreTest, MemoryIsFreeAfterTheLastUser) {
  AdapterStore store(tiny_model(), plain());
  auto sql = *load(store, "sql", shipped("sql"));
  Adapters other = sql;
  ASSERT_TRUE(store.unload("sql"));
  sql.reset();
  EXPECT_GT(store.stats().resident_bytes, 0u);
  other.reset();
  EXPECT_TRUE(eventually([&] { return store.stats().resident_bytes == 0; }));
  EXPECT_EQ(store.stats().resident, 0);
}

TEST_F(AdapterStoreTest, OneLoadForOnePath) {
  make_copies(1);
  fs::create_directory_symlink(folder("json1"), folder("other_spelling"));
  AdapterStore store(tiny_model(), in_directory());
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      const auto result = resolve(store, i % 2 ? "json1" : "other_spelling");
      right += result && (*result)->name == (i % 2 ? "json1" : "other_spelling");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
  EXPECT_EQ(store.stats().loads, 1u);
  EXPECT_EQ(store.stats().resident, 1);
  EXPECT_EQ(store.stats().known, 2);
  ASSERT_TRUE(load(store, "third", folder("json1")));
  EXPECT_EQ(store.stats().loads, 1u);
}

TEST_F(AdapterStoreTest, ManyThreadsManyAdaptersFewPlaces) {
  constexpr int kAdapters = 12, kThreads = 8, kRounds = 30;
  make_copies(kAdapters);
  AdapterStore store(tiny_model(), in_directory(3));
  std::mutex mutex;
  std::map<std::string, std::set<uint64_t>> identities;
  std::vector<std::thread> threads;
  std::atomic<int> most = 0;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < kRounds; ++round) {
        const std::string name = "json" + std::to_string(1 + random() % kAdapters);
        const auto result = resolve(store, name);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_EQ((*result)->name, name);
        EXPECT_EQ((*result)->prepared->identity(), (*result)->identity);
        int now = store.stats().resident, seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        const std::lock_guard lock(mutex);
        identities[name].insert((*result)->identity);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 3);
  std::set<uint64_t> all;
  for (const auto& [name, seen] : identities) {
    EXPECT_EQ(seen.size(), 1u) << name;
    all.insert(seen.begin(), seen.end());
  }
  EXPECT_EQ(all.size(), identities.size()) << "two adapters of one identity";
  EXPECT_GT(store.stats().evictions, 0u);
  EXPECT_EQ(store.stats().failed_loads, 0u);
  for (const AdapterStatus& told : store.list()) {
    EXPECT_EQ(told.in_use, 0) << told.name;
    EXPECT_TRUE(told.warnings.empty()) << told.warnings.front();
  }
}

TEST_F(AdapterStoreTest, FullMemoryWaitsInOrderOfArrival) {
  make_copies(5);
  // Before the store, which answers what still waits when it ends.
  std::mutex mutex;
  std::vector<std::string> order;
  std::vector<Adapters> held;
  AdapterStore store(tiny_model(), in_directory(2));
  Adapters first = *resolve(store, "json1"), second = *resolve(store, "json2");
  const auto ask = [&](const std::string& name) {
    store.resolve(name, [&, name](Result<Adapters> result) {
      const std::lock_guard lock(mutex);
      order.push_back(name);
      ASSERT_TRUE(result) << result.error().message;
      held.push_back(*result);
    });
  };
  const auto arrived = [&](size_t n) {
    return eventually([&] {
      const std::lock_guard lock(mutex);
      return order.size() >= n;
    });
  };
  ask("json3");
  EXPECT_TRUE(eventually([&] { return store.stats().waiting == 1; }));
  ask("json4");
  EXPECT_TRUE(eventually([&] { return store.stats().waiting == 2; }));
  // Both places are promised: who asks for them again queues behind.
  EXPECT_EQ(store.find("json1"), nullptr);
  ask("json1");
  EXPECT_TRUE(eventually([&] { return store.stats().waiting == 3; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(order.empty());
  }

  first.reset();
  EXPECT_TRUE(arrived(1));
  second.reset();
  EXPECT_TRUE(arrived(2));
  std::vector<Adapters> done;
  {
    const std::lock_guard lock(mutex);
    done.swap(held);
  }
  done.clear();
  ASSERT_TRUE(arrived(3));
  EXPECT_EQ(order, (std::vector<std::string>{"json3", "json4", "json1"}));
  EXPECT_EQ(store.stats().loads, 5u);
}

TEST_F(AdapterStoreTest, NoAdapterStarvesUnderSteadyTraffic) {
  make_copies(4);
  AdapterStore store(tiny_model(), in_directory(2));
  // Overlapping requests keep json1 and json2 in use without a gap.
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      while (!stop) {
        const auto held = resolve(store, t % 2 ? "json1" : "json2");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(resolve(store, "json3"));
    EXPECT_TRUE(resolve(store, "json4"));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(AdapterStoreTest, BytesBoundWhatIsInMemory) {
  make_copies(4);
  AdapterStore sizes(tiny_model(), in_directory());
  const size_t one = (*resolve(sizes, "json1"))->prepared->bytes();
  AdapterStoreOptions options = in_directory();
  options.max_bytes = 2 * one + one / 2;
  AdapterStore store(tiny_model(), options);
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i <= 4; ++i) {
      ASSERT_TRUE(resolve(store, "json" + std::to_string(i)));
      EXPECT_LE(store.stats().resident, 2);
    }
  }
  const auto big = load(store, "math", shipped("math"));
  ASSERT_FALSE(big);
  EXPECT_EQ(big.error().kind, ErrorKind::kResource);
  EXPECT_NE(big.error().message.find(fmt::format("more than the {}", options.max_bytes)),
            std::string::npos)
      << big.error().message;
  EXPECT_EQ(status(store, "math").name, "");
  EXPECT_TRUE(resolve(store, "json1"));
}

TEST_F(AdapterStoreTest, LeastRecentlyUsedLeavesFirst) {
  make_copies(4);
  AdapterStore store(tiny_model(), in_directory(3));
  for (const char* name : {"json1", "json2", "json3", "json1", "json4"})
    ASSERT_TRUE(resolve(store, name));
  EXPECT_TRUE(status(store, "json1").resident);
  EXPECT_FALSE(status(store, "json2").resident);
  EXPECT_EQ(status(store, "json2").bytes, 0u);
  EXPECT_NE(status(store, "json2").identity, 0u);
  EXPECT_TRUE(status(store, "json4").resident);
}

TEST_F(AdapterStoreTest, ReplaceLeavesRunningRequestsAlone) {
  make_copies(2);
  AdapterStore store(tiny_model(), plain());
  const Adapters old = *load(store, "a", folder("json1"));
  const auto taken = load(store, "a", folder("json2"));
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().kind, ErrorKind::kInvalid);
  EXPECT_EQ(taken.error().message, "the name 'a' is taken by an adapter that is loaded");
  EXPECT_EQ(store.find("a")->identity, old->identity);

  const Adapters fresh = *load(store, "a", folder("json2"), true);
  EXPECT_NE(fresh->identity, old->identity);
  EXPECT_EQ(store.find("a")->identity, fresh->identity);
  EXPECT_EQ(old->prepared->identity(), old->identity);
  EXPECT_EQ(status(store, "a").in_use, 2);
  EXPECT_TRUE(status(store, "a").warnings.empty());

  // In place: the same folder with other bytes.
  copy_adapter(shipped("json"), folder("json2"), 7);
  const Adapters newest = *load(store, "a", folder("json2"), true);
  EXPECT_NE(newest->identity, fresh->identity);
  EXPECT_EQ(store.find("a")->identity, newest->identity);
  // A failed replacement changes nothing.
  write_file(folder("json2") + "/adapter_config.json", "{");
  EXPECT_FALSE(load(store, "a", folder("json2"), true));
  EXPECT_FALSE(load(store, "a", folder("nowhere"), true));
  EXPECT_EQ(store.find("a")->identity, newest->identity);
}

TEST_F(AdapterStoreTest, TheLaterOfTwoReplacementsWins) {
  make_copies(2);
  AdapterStoreOptions options = plain();
  options.threads = 2;
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> answers = 0;  // before the store, as its last answers come when it ends
    AdapterStore store(tiny_model(), options);
    // The first is ten times as large.
    store.load("a", shipped("math"), true, [&](const Result<Adapters>& r) { answers += bool(r); });
    store.load("a", folder("json1"), true, [&](const Result<Adapters>& r) { answers += bool(r); });
    EXPECT_TRUE(eventually([&] { return answers == 2; }));
    EXPECT_EQ(status(store, "a").path, folder("json1"));
    EXPECT_TRUE(eventually([&] { return store.stats().resident == 1; }));
  }
}

TEST_F(AdapterStoreTest, EvictedNamesComeBackAndChangedOnesSaySo) {
  make_copies(2);
  AdapterStore store(tiny_model(), in_directory(1));
  const uint64_t first = (*resolve(store, "json1"))->identity;
  ASSERT_TRUE(resolve(store, "json2"));
  EXPECT_EQ((*resolve(store, "json1"))->identity, first);
  EXPECT_TRUE(status(store, "json1").warnings.empty());
  ASSERT_TRUE(resolve(store, "json2"));
  copy_adapter(shipped("json"), folder("json1"), 9);
  const uint64_t second = (*resolve(store, "json1"))->identity;
  EXPECT_NE(second, first);
  ASSERT_EQ(status(store, "json1").warnings.size(), 1u);
  EXPECT_EQ(status(store, "json1").warnings[0],
            fmt::format("its files changed while it was out of memory: {:016x} became {:016x}",
                        first, second));
}

TEST_F(AdapterStoreTest, HostileNamesFindNothingAndLeaveNothing) {
  make_copies(1);
  const std::string outside = folder("") + "../outside_" + std::to_string(::getpid());
  copy_adapter(shipped("json"), outside, 1);
  fs::create_directory_symlink(outside, folder("escape"));
  fs::create_directories(folder("half"));
  fs::create_symlink(outside + "/adapter_config.json", folder("half") + "/adapter_config.json");
  fs::create_symlink(outside + "/adapter_model.safetensors",
                     folder("half") + "/adapter_model.safetensors");
  copy_adapter(shipped("json"), folder(".hidden"), 1);
  fs::create_symlink("loop", folder("loop"));
  AdapterStore store(tiny_model(), in_directory());
  const std::vector<std::string> hostile = {"",
                                            ".",
                                            "..",
                                            "../" + fs::path(root_).filename().string() + "/json1",
                                            "json1/",
                                            "./json1",
                                            "json1/../json1",
                                            folder("json1"),
                                            "escape",
                                            "half",
                                            ".hidden",
                                            "loop",
                                            "%2e%2e",
                                            std::string("json1\0", 6),
                                            std::string("json1\0/../x", 11),
                                            std::string(256, 'a'),
                                            std::string(1 << 20, 'a'),
                                            "\xff\xfe",
                                            "json1\n",
                                            "https://example.org/json1",
                                            "absent"};
  for (const std::string& name : hostile) {
    const auto result = resolve(store, name);
    ASSERT_FALSE(result) << name.substr(0, 100);
    EXPECT_EQ(result.error().kind, ErrorKind::kNotFound) << name.substr(0, 100);
    EXPECT_EQ(result.error().message.substr(0, 21), "there is no adapter '") << "always the same";
    EXPECT_LT(result.error().message.size(), 500u);
  }
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(resolve(store, "absent" + std::to_string(i)));
  EXPECT_EQ(store.stats().known, 0);
  EXPECT_EQ(store.stats().loads, 0u);
  EXPECT_TRUE(store.list().empty());
  EXPECT_TRUE(resolve(store, "json1"));
  fs::remove_all(outside);

  for (const std::string& name : {std::string(), std::string(513, 'a'), std::string("\xff"),
                                  std::string("a\0b", 3), std::string("a\nb")}) {
    EXPECT_EQ(load(store, name, folder("json1")).error().kind, ErrorKind::kInvalid);
  }
  EXPECT_TRUE(load(store, "org/jsön", folder("json1")));
}

TEST_F(AdapterStoreTest, FailedLoadsChangeNothing) {
  make_copies(1);
  AdapterStore store(tiny_model(), in_directory());
  fs::create_directories(folder("broken"));
  write_file(folder("broken") + "/adapter_config.json", "{\"peft_type\": \"LORA\"}");
  const auto missing = resolve(store, "broken");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message,
            "adapter 'broken' was found in --lora-dir, but cannot be loaded: the folder has no "
            "adapter_model.safetensors");
  EXPECT_EQ(missing.error().kind, ErrorKind::kInvalid);
  const std::string good = file_text(folder("json1") + "/adapter_model.safetensors");
  write_file(folder("broken") + "/adapter_model.safetensors", good.substr(0, good.size() / 2));
  const auto cut = resolve(store, "broken");
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().kind, ErrorKind::kInvalid);
  EXPECT_EQ(cut.error().message.find(root_), std::string::npos) << cut.error().message;
  EXPECT_EQ(store.stats().known, 0);
  EXPECT_EQ(store.stats().resident, 0);
  EXPECT_EQ(store.stats().failed_loads, 2u);
  EXPECT_EQ(store.stats().resident_bytes, 0u);
  const auto nowhere = load(store, "x", folder("nowhere"));
  EXPECT_EQ(nowhere.error().kind, ErrorKind::kNotFound);
  EXPECT_EQ(nowhere.error().message, "the folder does not exist");
  EXPECT_TRUE(resolve(store, "json1"));
}

// Every answer is one of the versions that were written whole, or a sentence.
TEST_F(AdapterStoreTest, FilesThatChangeWhileTheyLoad) {
  copy_adapter(shipped("math"), folder("a"), 1);
  copy_adapter(shipped("math"), folder("b"), 2);
  AdapterStore reference(tiny_model(), in_directory());
  const std::set<uint64_t> known = {(*resolve(reference, "a"))->identity,
                                    (*resolve(reference, "b"))->identity};
  const std::string files[] = {file_text(folder("a") + "/adapter_model.safetensors"),
                               file_text(folder("b") + "/adapter_model.safetensors")};
  const std::string path = folder("a") + "/adapter_model.safetensors";
  AdapterStore store(tiny_model(), in_directory());
  // Long enough for some load to be done in, also under a sanitizer.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(load(store, "a", folder("a"), true));
  const auto one_load = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  const auto longest_pause = 40 + 3 * static_cast<uint64_t>(one_load.count());
  std::atomic<bool> stop = false;
  // Odd while the file is half the one and half the other, which nobody can see if the writer
  // pauses.
  std::atomic<int> in_place = 0;
  std::thread writer([&] {
    std::mt19937 random(1);
    while (!stop) {
      const std::string& text = files[random() % 2];
      switch (random() % 3) {
        case 0:  // cut, then whole again
          fs::resize_file(path, random() % text.size());
          std::this_thread::sleep_for(std::chrono::milliseconds(random() % 5));
          write_file(path, text);
          break;
        case 1:  // in place
          ++in_place;
          std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << text;
          ++in_place;
          break;
        case 2:  // by another file
          write_file(path + ".new", text);
          fs::rename(path + ".new", path);
          break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % longest_pause));
    }
  });
  int good = 0;
  for (int i = 0; i < 60; ++i) {
    const int before = in_place;
    const auto result = load(store, "a", folder("a"), true);
    if (result && (before % 2 == 1 || before != in_place)) continue;
    if (result) {
      EXPECT_TRUE(known.count((*result)->identity)) << "a mixture of two files";
      ++good;
    } else {
      EXPECT_FALSE(result.error().message.empty());
    }
  }
  stop = true;
  writer.join();
  EXPECT_GT(good, 0);
  write_file(path, files[0]);
  EXPECT_TRUE(load(store, "a", folder("a"), true));
}

TEST_F(AdapterStoreTest, MemoryReturnsAfterManyCycles) {
  AdapterStore store(tiny_model(), plain());
  const auto in_use = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  // Counted exactly, unlike /proc/self/statm; without the program's own pages, which come and go.
  const auto resident = [] {
    std::ifstream rollup("/proc/self/smaps_rollup");
    size_t kib = 0;
    for (std::string word; rollup >> word && word != "Anonymous:";) {
    }
    rollup >> kib;
    return kib << 10;
  };
  const auto cycles = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(load(store, "m", shipped(i % 2 ? "math" : "sql")));
      ASSERT_TRUE(store.unload("m"));
    }
    EXPECT_TRUE(eventually([&] { return store.stats().resident_bytes == 0; }));
  };
  cycles(20);
  const size_t before = in_use(), resident_before = resident();
  ASSERT_GT(resident_before, 0u);
  cycles(200);
  EXPECT_LE(in_use(), before + before / 50);
  // The allocator keeps some freed memory for each thread; 200 adapters would be 500 MB.
  EXPECT_LE(resident(), resident_before + (size_t{16} << 20));
}

TEST_F(AdapterStoreTest, IdentityIsContentAndConfigurationOnly) {
  make_copies(2);
  copy_adapter(shipped("json"), folder("again"), 1);
  copy_adapter(shipped("json"), folder("alpha"), 1);
  copy_adapter(shipped("json"), folder("pattern"), 1);
  copy_adapter(shipped("json"), folder("told"), 1);
  const auto edit = [&](const std::string& name, const std::string& key, const Json& value) {
    const std::string path = folder(name) + "/adapter_config.json";
    Json config = Json::parse(file_text(path));
    config[key] = value;
    write_file(path, config.dump());
  };
  edit("alpha", "lora_alpha", 8);
  edit("pattern", "alpha_pattern", {{"layers.0.mlp.experts.gate_up_proj", 2}});
  edit("told", "base_model_name_or_path", "another/name");
  AdapterStore store(tiny_model(), in_directory());
  const auto identity = [&](const std::string& name) {
    const auto result = resolve(store, name);
    return result ? (*result)->identity : 0;
  };
  const uint64_t first = identity("json1");
  EXPECT_NE(first, 0u);
  EXPECT_EQ(identity("again"), first);
  EXPECT_EQ(identity("told"), first);
  EXPECT_NE(identity("json2"), first);
  EXPECT_NE(identity("alpha"), first);
  EXPECT_NE(identity("pattern"), first);
  EXPECT_NE(identity("pattern"), identity("alpha"));
  EXPECT_EQ((*load(store, "by another name", folder("json1")))->identity, first);
}

TEST_F(AdapterStoreTest, AdaptersOutliveTheStore) {
  std::vector<Adapters> held;
  std::atomic<int> answers = 0, refused = 0;
  {
    AdapterStore store(tiny_model(), plain());
    held.push_back(*load(store, "sql", shipped("sql")));
    for (const char* name : {"json", "math"}) {
      store.load(name, shipped(name), false, [&](const Result<Adapters>& result) {
        ++answers;
        refused += !result;
      });
    }
  }
  EXPECT_EQ(answers, 2) << "every call is answered before the store is gone";
  EXPECT_EQ(held[0]->prepared->identity(), held[0]->identity);
  held.clear();
}

TEST_F(AdapterStoreTest, ReleaseIsNeverTheOneThatFrees) {
  AdapterStore store(tiny_model(), plain());
  // A slot of the engine holds the weights alone.
  std::shared_ptr<const PreparedAdapter> slot = (*load(store, "m", shipped("math")))->prepared;
  ASSERT_TRUE(store.unload("m"));
  EXPECT_TRUE(eventually([&] { return store.stats().resident == 0; }));
  EXPECT_EQ(store.stats().resident_bytes, slot->bytes());
  slot.reset();
  EXPECT_TRUE(eventually([&] { return store.stats().resident_bytes == 0; }));
}

}  // namespace
}  // namespace lk
