#include "server/path_policy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/sanitizer.h"

namespace lk {
namespace {

namespace fs = std::filesystem;

class Folders {
 public:
  Folders() {
    base = fs::temp_directory_path() / ("lk_path_policy_" + std::to_string(getpid()));
    fs::remove_all(base);
    add_adapter("root/good");
    add_adapter("root/deep/er");
    add_adapter("root_evil/x");
    add_adapter("outside/secret");
    policy.roots = {(base / "root").string(), "", (base / "missing").string()};
    policy.hub_patterns = {"trusted/*"};
  }
  ~Folders() { fs::remove_all(base); }

  void add_adapter(const std::string& folder) {
    fs::create_directories(base / folder);
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
      std::ofstream(base / folder / name) << "{}";
    }
  }
  int status(const std::string& path) {
    const auto allowed = check_adapter_path(policy, path);
    return allowed ? 200 : allowed.error().status;
  }
  std::string message(const std::string& path) {
    const auto allowed = check_adapter_path(policy, path);
    return allowed ? "" : allowed.error().message;
  }
  std::string at(const std::string& path) const { return (base / path).string(); }

  fs::path base;
  PathPolicy policy;
};

TEST(PathPolicy, AllowsFoldersInARoot) {
  Folders f;
  const auto good = check_adapter_path(f.policy, f.at("root/deep/../good/"));
  ASSERT_TRUE(good);
  EXPECT_EQ(good->folder, fs::canonical(f.at("root/good")).string());
  EXPECT_EQ(f.status(f.at("root/deep/er")), 200);
  EXPECT_EQ(f.status(f.at("root/none")), 404);
}

TEST(PathPolicy, AllowsHubIdsAtAnyRevision) {
  Folders f;
  for (const char* id : {"trusted/a", "trusted/a@v1", "trusted/a@refs/pr/1"}) {
    const auto good = check_adapter_path(f.policy, id);
    ASSERT_TRUE(good) << id;
    EXPECT_EQ(good->hub_id, id);
  }
  for (const char* id : {"other/a@trusted/b", "other/a", "trusted/a/b@v1", "@trusted/a"})
    EXPECT_EQ(f.status(id), 403) << id;
}

TEST(PathPolicy, FollowsLinks) {
  Folders f;
  // As in the hub's cache: the snapshot's files are links to blobs below the same root.
  fs::create_directories(f.base / "root/snapshot");
  fs::create_directories(f.base / "root/blobs");
  std::ofstream(f.base / "root/blobs/1") << "{}";
  fs::create_symlink("../blobs/1", f.base / "root/snapshot/adapter_config.json");
  EXPECT_EQ(f.status(f.at("root/snapshot")), 200);
  fs::create_symlink(f.base / "outside/secret/adapter_config.json",
                     f.base / "root/snapshot/adapter_model.safetensors");
  EXPECT_EQ(f.status(f.at("root/snapshot")), 403);
  fs::create_directory_symlink(f.base / "root", f.base / "way_in");
  EXPECT_EQ(f.status(f.at("way_in/good")), 200);
}

TEST(PathPolicy, AllowsHubIdsByPattern) {
  Folders f;
  const auto id = check_adapter_path(f.policy, "trusted/sql");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->hub_id, "trusted/sql");
  EXPECT_EQ(f.status("others/sql"), 403);
  EXPECT_EQ(f.status("trusted/../sql"), 403);
}

// The answer does not tell what is there either.
TEST(BugCases, W03_NothingOutsideTheRootsIsRead) {
  Folders f;
  fs::create_directory_symlink(f.base / "outside", f.base / "root/link");
  ASSERT_EQ(mkfifo(f.at("root/fifo").c_str(), 0600), 0);
  fs::create_directories(f.base / "root/trap");
  ASSERT_EQ(mkfifo(f.at("root/trap/adapter_config.json").c_str(), 0600), 0);
  const auto start = std::chrono::steady_clock::now();
  const std::string outside = f.message(f.at("outside/secret"));
  EXPECT_EQ(f.status(f.at("outside/secret")), 403);
  for (const std::string& path :
       {f.at("root/../outside/secret"), f.at("root/link/secret"), f.at("root_evil/x"),
        f.at("outside/nothing_here"), f.at("root/link/nothing_here"),
        std::string("../outside/secret"), f.at("root/%2e%2e/../../outside/secret"),
        std::string("/"), std::string("/dev/zero"), std::string("/proc/self/environ"),
        std::string("~/x"), std::string("others/hub-id"),
        f.at("root") + "/../" + std::string(3000, 'a')}) {
    EXPECT_EQ(f.status(path), 403) << path;
    EXPECT_EQ(f.message(path), outside) << path;
  }
  EXPECT_EQ(f.status("https://example.org/x"), 400);
  EXPECT_EQ(f.status("file:///etc"), 400);
  EXPECT_EQ(f.status(""), 400);
  EXPECT_EQ(f.status(f.at("root/good") + std::string("\0/x", 3)), 400);
  EXPECT_EQ(f.status("/" + std::string(4095, 'a')), 400);
  EXPECT_EQ(f.status(f.at("root/fifo")), 400);
  EXPECT_EQ(f.status(f.at("root/trap")), 400);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1) * test::kPatience);
}

TEST(Glob, Matches) {
  EXPECT_TRUE(glob_match("a/*", "a/b"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a?c*e", "abcdde"));
  EXPECT_FALSE(glob_match("a/*", "b/a/"));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("a?", "a"));
  EXPECT_FALSE(glob_match("*a*a*a*a*a*a*a*b", std::string(200, 'a')));
}

}  // namespace
}  // namespace lk
