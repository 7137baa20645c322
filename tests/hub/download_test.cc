// Transfers that go wrong: cut, slow, wrong, killed, shared with another process, no room.
#include "hub/download.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "hub/content_hash.h"
#include "hub/file_lock.h"
#include "tests/hub/test_hub.h"
#include "tests/sanitizer.h"

namespace lk {
namespace {
namespace fs = std::filesystem;

constexpr const char* kShard = "model-00001-of-00002.safetensors";

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Children of a process with threads start threads of their own.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMayFork = false;
#else
constexpr bool kMayFork = true;
#endif

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() { hub.add_model(); }

  HubTarget target() {
    HubTarget target{"org/name", "main", RepoKind::kModel, hub.settings(folder.path())};
    target.settings.read_timeout_s = read_timeout_s;
    target.settings.attempts = attempts;
    return target;
  }
  Result<std::string> download() { return download_snapshot(target(), cache, hooks); }
  std::string error() {
    const auto result = download();
    return result ? "no error" : result.error().message;
  }
  void expect_whole() {
    const SnapshotState state = check_snapshot(cache, kTestCommit, RepoKind::kModel);
    EXPECT_EQ(state.missing, "");
    EXPECT_TRUE(state.complete);
    for (const char* name : {"config.json", "tokenizer.json", kShard})
      EXPECT_TRUE(read_all(cache.snapshot(kTestCommit) + "/" + name) == hub.file(name).content)
          << name;
    for (const auto& entry : fs::directory_iterator(cache.blob("")))
      EXPECT_NE(entry.path().extension(), ".incomplete");
  }
  std::string blob(const std::string& name) { return cache.blob(hub.file(name).etag); }
  // Does `change` to the first `times` answers whose request is `method` on `part`.
  void bend(const std::string& method, const std::string& part, int times,
            std::function<void(ServedReply&)> change) {
    hub.bend([=, left = times](const ServedRequest& request, ServedReply& reply) mutable {
      if (request.method != method || !has(request.target, part) || left == 0) return;
      --left;
      change(reply);
    });
  }

  TestHub hub;
  TemporaryFolder folder;
  HubCache cache{folder.path(), "org/name"};
  DownloadHooks hooks;
  int read_timeout_s = 2, attempts = 5;
};

TEST(ContentHash, IsWhatGitAndLfsSay) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/x";
  write_all(path, "hello\n");
  EXPECT_EQ(hash_file(path, HashKind::kGitBlob, nullptr).value(),
            "ce013625030ba8dba906f756967f9e9ca394464a");
  write_all(path, "abc");
  EXPECT_EQ(hash_file(path, HashKind::kSha256, nullptr).value(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  write_all(path, "");
  EXPECT_EQ(hash_file(path, HashKind::kGitBlob, nullptr).value(),
            "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_FALSE(hash_file(folder.path() + "/none", HashKind::kSha256, nullptr));
}

TEST_F(DownloadTest, ResumesACutConnection) {
  bend("GET", std::string("/store/") + kShard, 2, [](ServedReply& reply) { reply.cut_at = 70000; });
  const auto result = download();
  ASSERT_TRUE(result) << result.error().message;
  expect_whole();
  std::vector<std::string> ranges;
  for (const ServedRequest& request : hub.store().requests()) {
    if (has(request.target, kShard))
      ranges.push_back(request.headers.contains("range") ? request.headers.at("range") : "");
  }
  EXPECT_EQ(ranges, (std::vector<std::string>{"", "bytes=70000-", "bytes=140000-"}));
}

TEST_F(DownloadTest, GivesUpOnALineThatIsAlwaysCutAndGoesOnNextTime) {
  bend("GET", std::string("/store/") + kShard, -1, [](ServedReply& reply) { reply.cut_at = 1000; });
  const auto result = download();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kResource);
  EXPECT_TRUE(has(result.error().message, kShard)) << result.error().message;
  EXPECT_FALSE(cache.has_file(kTestCommit, "config.json"));
  EXPECT_EQ(fs::file_size(blob(kShard) + ".incomplete"), 5000u);
  hub.bend(nullptr);
  ASSERT_TRUE(download());
  expect_whole();
}

TEST_F(DownloadTest, AServerWithoutRangesStartsAgain) {
  hub.bend([cut = 1](const ServedRequest& request, ServedReply& reply) mutable {
    if (!has(request.target, kShard) || request.method != "GET") return;
    if (reply.status == 206) {
      reply.status = 200;
      reply.body = noise(300000, 1);
      reply.headers.clear();
    } else if (has(request.target, "/store/") && cut-- > 0) {
      reply.cut_at = 70000;
    }
  });
  ASSERT_TRUE(download());
  expect_whole();
}

TEST_F(DownloadTest, TakesChunkedAnswersAndSlowOnes) {
  bend("GET", "", -1, [](ServedReply& reply) {
    reply.chunked = true;
    reply.drip_ms = reply.body.size() > 10000 ? 10 : 0;
    reply.drip_bytes = 20000;
  });
  ASSERT_TRUE(download());
  expect_whole();
}

TEST_F(DownloadTest, ASilentServerIsLeft) {
  read_timeout_s = 1;
  bend("GET", std::string("/store/") + kShard, 1, [](ServedReply& reply) {
    reply.cut_at = 70000;
    reply.hang = true;
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto result = download();
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_LT(seconds_since(begin), 60 * test::kPatience);
  expect_whole();
}

TEST_F(DownloadTest, AWrongHashIsDeletedAndSaid) {
  bend("GET", std::string("/store/") + kShard, -1, [](ServedReply& reply) { reply.body[7] ^= 1; });
  const auto result = download();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kInvalid);
  EXPECT_TRUE(has(result.error().message, hub.file(kShard).etag)) << result.error().message;
  EXPECT_FALSE(fs::exists(blob(kShard)));
  EXPECT_FALSE(fs::exists(blob(kShard) + ".incomplete"));
  EXPECT_FALSE(check_snapshot(cache, kTestCommit, RepoKind::kModel).missing.empty());
  hub.add("generation_config.json", R"({"eos_token_id": 1})");
  bend("GET", "/resolve/", -1, [](ServedReply& reply) {
    if (!reply.body.empty()) reply.body[0] ^= 1;  // a file that is not in LFS: git's hash
  });
  EXPECT_TRUE(has(error(), "hash"));
}

TEST_F(DownloadTest, SpoiltBytesFromBeforeAreFetchedAgain) {
  write_all(blob(kShard) + ".incomplete", noise(1000, 99));
  ASSERT_TRUE(download());
  expect_whole();
  TestHub other;
  TemporaryFolder fresh;
  other.add_model();
  const HubCache second(fresh.path(), "org/name");
  write_all(second.blob(other.file(kShard).etag) + ".incomplete", noise(400000, 99));  // too long
  const HubTarget target{"org/name", "main", RepoKind::kModel, other.settings(fresh.path())};
  ASSERT_TRUE(download_snapshot(target, second, hooks));
  EXPECT_TRUE(read_all(second.blob(other.file(kShard).etag)) == other.file(kShard).content);
}

TEST_F(DownloadTest, AWrongSizeIsRefused) {
  bend("GET", std::string("/store/") + kShard, -1,
       [](ServedReply& reply) { reply.body += "more"; });
  EXPECT_TRUE(has(error(), "longer than the 300000 bytes"));
  EXPECT_FALSE(fs::exists(blob(kShard)));
  bend("HEAD", kShard, -1, [](ServedReply& reply) {
    for (auto& [name, value] : reply.headers) {
      if (name == "X-Linked-Size") value = "299999";
    }
  });
  EXPECT_TRUE(has(error(), "299999"));
  attempts = 2;
  bend("GET", std::string("/store/") + kShard, -1, [](ServedReply& reply) {
    if (reply.status == 200) reply.body.resize(1000);
  });
  hub.blobs_in_listing = false;
  ASSERT_TRUE(download());  // an answer that is too short is one that was cut
  expect_whole();
}

TEST_F(DownloadTest, RetriesWhatPassesAndHonoursRetryAfter) {
  bend("GET", "/api/", 2, [](ServedReply& reply) { reply.status = 500; });
  ASSERT_TRUE(download());
  EXPECT_EQ(hub.count("GET", "/api/"), 3u);
  const auto begin = std::chrono::steady_clock::now();
  bend("GET", "/api/", 1, [](ServedReply& reply) {
    reply.status = 429;
    reply.headers = {{"Retry-After", "1"}};
  });
  ASSERT_TRUE(download());
  EXPECT_GE(seconds_since(begin), 1);
  bend("GET", "/api/", -1, [](ServedReply& reply) {
    reply.status = 429;
    reply.headers = {{"Retry-After", "86400"}};
  });
  const std::string text = error();
  EXPECT_TRUE(has(text, "429") && has(text, "HF_TOKEN")) << text;
  const size_t before = hub.count("GET", "/api/");
  bend("GET", "/api/", -1, [](ServedReply& reply) { reply.status = 503; });
  EXPECT_TRUE(has(error(), "503"));
  EXPECT_EQ(hub.count("GET", "/api/"), before + 5);
}

TEST_F(DownloadTest, RefusesRedirectsWithoutEndAndToOtherSchemes) {
  attempts = 1;
  hub.bend([&](const ServedRequest& request, ServedReply& reply) {
    reply.status = 302;
    reply.headers = {{"Location", request.target}};
  });
  EXPECT_TRUE(has(error(), "redirects"));
  bend("GET", "/api/", -1, [](ServedReply& reply) {
    reply.status = 302;
    reply.headers = {{"Location", "file:///etc/passwd"}};
  });
  const std::string text = error();
  EXPECT_FALSE(has(text, "root:") || has(text, "JSON")) << text;
  EXPECT_TRUE(has(text, "rotocol")) << text;
}

TEST_F(DownloadTest, FollowsARenamedRepository) {
  hub.bend([](const ServedRequest& request, ServedReply& reply) {
    const size_t old = request.target.find("org/old");
    if (old == std::string::npos) return;
    reply.status = 307;
    reply.headers = {{"Location", std::string(request.target).replace(old, 7, "org/name")}};
  });
  HubTarget renamed = target();
  renamed.id = "org/old";
  const HubCache old_cache(folder.path(), "org/old");
  const auto result = download_snapshot(renamed, old_cache, hooks);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(check_snapshot(old_cache, *result, RepoKind::kModel).missing, "");
}

TEST_F(DownloadTest, RefusesEtagsThatAreNoFileNames) {
  for (const char* etag : {"\"../../x\"", "\"\"", "\"a/b\"", "\".hidden\""}) {
    bend("HEAD", "config.json", -1, [&](ServedReply& reply) { reply.headers = {{"ETag", etag}}; });
    EXPECT_TRUE(has(error(), "names no ETag")) << etag;
  }
  bend("HEAD", "config.json", -1, [&](ServedReply& reply) {
    reply.headers = {{"X-Repo-Commit", "../../x"}, {"ETag", "\"abc\""}};
  });
  EXPECT_TRUE(has(error(), "answered with commit"));
}

TEST_F(DownloadTest, ShowsProgressAndStopsWhenAsked) {
  bend("GET", "/store/model", -1, [](ServedReply& reply) {
    reply.drip_ms = 20;
    reply.drip_bytes = 2000;
  });
  uint64_t most = 0, last_total = 0;
  hooks.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, most);
    most = done;
    last_total = total;
  };
  hooks.cancelled = [&] { return most > 20000; };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(has(error(), "interrupted"));
  EXPECT_LT(seconds_since(begin), 20 * test::kPatience);
  EXPECT_GT(last_total, 500000u);
  EXPECT_FALSE(cache.has_file(kTestCommit, "config.json"));
  hub.bend(nullptr);
  hooks.cancelled = nullptr;
  most = 0;
  ASSERT_TRUE(download());
  expect_whole();
  EXPECT_EQ(most, last_total);
}

TEST_F(DownloadTest, AKilledProcessIsGoneOnFrom) {
  if (!kMayFork) GTEST_SKIP() << "the thread sanitizer knows no threads after a fork";
  bend("GET", "/store/model", -1, [](ServedReply& reply) {
    reply.cut_at = 60000;
    reply.hang = true;
  });
  read_timeout_s = 60;
  const HubTarget asked = target();
  const pid_t child = fork();
  if (child == 0) {
    (void)download_snapshot(asked, cache, {});
    _exit(0);
  }
  std::error_code error;
  while (fs::file_size(blob(kShard) + ".incomplete", error) != 60000 || error) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the download ended by itself";
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(check_snapshot(cache, kTestCommit, RepoKind::kModel).missing, "config.json");
  hub.bend(nullptr);
  ASSERT_TRUE(download());
  expect_whole();
  const auto resumed = [&](const ServedRequest& request) {
    return has(request.target, kShard) && request.headers.contains("range") &&
           request.headers.at("range") == "bytes=60000-";
  };
  const auto requests = hub.store().requests();
  EXPECT_EQ(std::count_if(requests.begin(), requests.end(), resumed), 1);
}

TEST_F(DownloadTest, TwoProcessesShareOneDownload) {
  if (!kMayFork) GTEST_SKIP() << "the thread sanitizer knows no threads after a fork";
  bend("GET", "/store/model", -1, [](ServedReply& reply) {
    reply.drip_ms = 5;
    reply.drip_bytes = 5000;
  });
  const HubTarget asked = target();
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    children.push_back(fork());
    if (children.back() == 0) _exit(download_snapshot(asked, cache, {}) ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  expect_whole();
  EXPECT_EQ(hub.count("GET", "/store/"), 3u);  // two shards and the tokenizer, each once
}

TEST_F(DownloadTest, NoRoomIsSaidAndLeavesNothingWhole) {
  if (!kMayFork) GTEST_SKIP() << "the thread sanitizer knows no threads after a fork";
  const HubTarget asked = target();
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);  // write() fails instead
    const rlimit limit = {100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto result = download_snapshot(asked, cache, {});
    _exit(!result && result.error().kind == ErrorKind::kResource &&
                  has(result.error().message, "cannot be written")
              ? 0
              : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(fs::exists(blob(kShard)));
  EXPECT_FALSE(cache.has_file(kTestCommit, "config.json"));
  ASSERT_TRUE(download());
  expect_whole();
}

TEST_F(DownloadTest, AsksForRoomBeforeItBegins) {
  bend("GET", "/api/", -1, [](ServedReply& reply) {
    const size_t at = reply.body.rfind("\"size\":300000");
    if (at != std::string::npos) reply.body.replace(at, 13, "\"size\":9000000000000000");
  });
  const std::string text = error();
  EXPECT_TRUE(has(text, "GB more on the disk")) << text;
  EXPECT_EQ(hub.count("GET", kShard), 0u);
}

TEST_F(DownloadTest, AFileInPlaceOfTheCacheIsSaid) {
  const std::string path = folder.path() + "/file";
  write_all(path, "x");
  const HubCache blocked(path, "org/name");
  const auto result = download_snapshot(target(), blocked, hooks);
  ASSERT_FALSE(result);
  EXPECT_TRUE(has(result.error().message, "cannot be written")) << result.error().message;
}

TEST(FileLockTest, ExcludesOthersUntilItIsReleased) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/x.lock";
  FileLock first = FileLock::try_acquire(path).value();
  EXPECT_TRUE(first.held());
  EXPECT_FALSE(FileLock::try_acquire(path).value().held());
  fs::remove(path);  // as some versions of filelock do on release
  EXPECT_TRUE(FileLock::try_acquire(path).value().held());
  first.release();
  EXPECT_TRUE(FileLock::try_acquire(path).value().held());
  EXPECT_FALSE(FileLock::try_acquire(folder.path() + "/no/x.lock"));
}

}  // namespace
}  // namespace lk
