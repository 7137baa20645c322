// Ids and folders through resolve_model() and resolve_adapter(), against a hub on the loopback.
#include "hub/resolve.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>

#include "hub/cache.h"
#include "tests/hub/test_hub.h"

namespace lk {
namespace {
namespace fs = std::filesystem;

class Resolve : public ::testing::Test {
 protected:
  Result<std::string> model(const std::string& id, const std::string& revision = "") {
    options.settings = hub.settings(folder.path());
    options.settings->offline = offline;
    if (!token.empty()) options.settings->token = token;
    return resolve_model(id, revision, options);
  }
  std::string error(const std::string& id, const std::string& revision = "") {
    const auto result = model(id, revision);
    return result ? "no error" : result.error().message;
  }
  std::string snapshot(const std::string& file = "") const {
    return folder.path() + "/models--org--name/snapshots/" + kTestCommit +
           (file.empty() ? "" : "/" + file);
  }
  void expect_whole_model() {
    for (const char* name :
         {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors.index.json",
          "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
      EXPECT_TRUE(read_all(snapshot(name)) == hub.file(name).content) << name;
  }

  TestHub hub;
  TemporaryFolder folder;
  ResolveOptions options;
  bool offline = false;
  std::string token;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST_F(Resolve, DownloadsWhatIsNeededInTheLayoutOfTheCache) {
  hub.add_model();
  const auto found = model("org/name");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, snapshot());
  expect_whole_model();
  const std::string repo = folder.path() + "/models--org--name";
  EXPECT_EQ(read_all(repo + "/refs/main"), kTestCommit);
  EXPECT_FALSE(fs::exists(snapshot("pytorch_model.bin")));
  EXPECT_FALSE(fs::exists(snapshot("original")));
  EXPECT_FALSE(fs::exists(snapshot("README.md")));
  EXPECT_EQ(fs::read_symlink(snapshot("config.json")),
            "../../blobs/" + hub.file("config.json").etag);
  EXPECT_TRUE(fs::exists(repo + "/.no_exist/" + kTestCommit + "/chat_template.jinja"));
  size_t blobs = 0;
  for (const auto& entry : fs::directory_iterator(repo + "/blobs")) {
    ++blobs;
    EXPECT_EQ(entry.path().extension(), "");
  }
  EXPECT_EQ(blobs, 6u);
}

TEST_F(Resolve, AsksTheHubNothingOnceAllIsThere) {
  hub.add_model();
  ASSERT_TRUE(model("org/name"));
  const size_t before = hub.hub().requests().size();
  ASSERT_TRUE(model("org/name"));
  ASSERT_TRUE(model("org/name", kTestCommit));
  ASSERT_TRUE(model("org/name", std::string(kTestCommit).substr(0, 8)));
  EXPECT_EQ(hub.hub().requests().size(), before);
  options.refresh = true;
  ASSERT_TRUE(model("org/name"));
  EXPECT_EQ(hub.hub().requests().size(), before + 1);  // the listing, no file
}

TEST_F(Resolve, SendsTheTokenToTheHubAlone) {
  hub.add_model();
  hub.require_token("hf_secret");
  ASSERT_TRUE(model("org/name"));
  ASSERT_GT(hub.store().requests().size(), 0u);
  for (const auto& request : hub.store().requests())
    EXPECT_FALSE(request.headers.contains("authorization"));
  for (const auto& request : hub.hub().requests())
    EXPECT_EQ(request.headers.at("authorization"), "Bearer hf_secret");
}

TEST_F(Resolve, SaysWhatARefusalMeans) {
  hub.add_model();
  hub.require_token("right");
  token = "wrong";
  std::string text = error("org/name");
  EXPECT_TRUE(has(text, "(401)") && has(text, "HF_TOKEN may not read it")) << text;
  EXPECT_FALSE(has(text, "wrong")) << "the token is printed";
  hub.require_token("");
  token.clear();
  hub.bend([](const ServedRequest& request, ServedReply& reply) {
    if (!request.target.starts_with("/org")) return;
    reply.status = 403;
    reply.headers = {{"X-Error-Code", "GatedRepo"}};
  });
  text = error("org/name");
  EXPECT_TRUE(has(text, "gated") && has(text, "HF_TOKEN") &&
              has(text, hub.hub().url() + "/org/name"))
      << text;
  EXPECT_FALSE(fs::exists(snapshot("config.json")));
  hub.bend(nullptr);
  text = error("org/name", "nosuchbranch");
  EXPECT_TRUE(has(text, "no revision 'nosuchbranch'")) << text;
  text = error("org/other");
  EXPECT_TRUE(has(text, "there is no folder 'org/other'") && has(text, "404")) << text;
}

TEST_F(Resolve, OfflineUsesTheCacheAndNothingElse) {
  hub.add_model();
  offline = true;
  const std::string text = error("org/name");
  EXPECT_TRUE(has(text, "HF_HUB_OFFLINE") && has(text, folder.path())) << text;
  EXPECT_EQ(hub.hub().requests().size(), 0u);
  offline = false;
  ASSERT_TRUE(model("org/name"));
  offline = true;
  ASSERT_TRUE(model("org/name"));
  fs::remove(snapshot("model-00002-of-00002.safetensors"));
  EXPECT_TRUE(has(error("org/name"), "without model-00002-of-00002.safetensors"));
}

TEST_F(Resolve, FallsBackToTheCacheWhenTheHubIsAway) {
  hub.add_model();
  ASSERT_TRUE(model("org/name"));
  std::vector<std::string> warnings;
  options.warn = [&](const std::string& text) { warnings.push_back(text); };
  hub.bend([](const ServedRequest&, ServedReply& reply) { reply.status = 503; });
  options.refresh = true;
  ASSERT_TRUE(model("org/name"));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_TRUE(has(warnings[0], "503") && has(warnings[0], snapshot())) << warnings[0];
}

TEST_F(Resolve, TakesASnapshotThatOtherToolsFetched) {
  // No .no_exist marks and an older ref: what huggingface_hub's snapshot_download leaves.
  hub.add_model();
  ASSERT_TRUE(model("org/name"));
  fs::remove_all(folder.path() + "/models--org--name/.no_exist");
  fs::remove_all(folder.path() + "/.locks");
  const size_t before = hub.count("GET", "/resolve/");
  ASSERT_TRUE(model("org/name"));
  EXPECT_EQ(hub.count("GET", "/resolve/"), before);  // asked once whether there is more
  const size_t asked = hub.hub().requests().size();
  ASSERT_TRUE(model("org/name"));
  EXPECT_EQ(hub.hub().requests().size(), asked);
}

TEST_F(Resolve, KeepsBranchesApart) {
  hub.add_model();
  ASSERT_TRUE(model("org/name", "refs/pr/1"));
  EXPECT_EQ(read_all(folder.path() + "/models--org--name/refs/refs/pr/1"), kTestCommit);
  offline = true;
  ASSERT_TRUE(model("org/name", "refs/pr/1"));
  EXPECT_FALSE(model("org/name"));
  EXPECT_TRUE(has(error("org/name", "../main"), "no name of a revision"));
}

TEST_F(Resolve, FollowsABranchThatMoved) {
  hub.add_model();
  ASSERT_TRUE(model("org/name"));
  hub.commit = std::string(40, 'c');
  hub.add("config.json", R"({"model_type": "newer"})");
  EXPECT_EQ(model("org/name").value(), snapshot());
  options.refresh = true;
  const size_t weights = hub.store().requests().size();
  const std::string newer = model("org/name").value();
  EXPECT_TRUE(has(newer, hub.commit));
  EXPECT_EQ(read_all(newer + "/config.json"), R"({"model_type": "newer"})");
  EXPECT_EQ(hub.store().requests().size(), weights);  // the blobs were there
}

TEST_F(Resolve, WorksWithoutSizesInTheListing) {
  hub.add_model();
  hub.blobs_in_listing = false;
  const auto found = model("org/name");
  ASSERT_TRUE(found) << found.error().message;
  expect_whole_model();
}

TEST_F(Resolve, RefusesNamesThatLeadElsewhere) {
  for (const std::string name :
       {"../config.json", "/etc/passwd", "a/../../b", "a\\..\\b", "a//b"}) {
    TestHub bad;
    bad.add_model();
    bad.add(name, "x");
    options.settings = bad.settings(folder.path());
    const auto result = resolve_model("org/name", "", options);
    ASSERT_FALSE(result);
    EXPECT_TRUE(has(result.error().message, "could lie elsewhere")) << result.error().message;
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST_F(Resolve, RefusesAnIndexThatLeadsElsewhere) {
  hub.add_model();
  hub.add("model.safetensors.index.json", R"({"weight_map": {"a": "../../x.safetensors"}})");
  EXPECT_TRUE(has(error("org/name"), "no safetensors file beside it"));
  TestHub other;
  TemporaryFolder fresh;
  other.add_model();
  other.add("model.safetensors.index.json", R"({"weight_map": {"a": "absent.safetensors"}})");
  options.settings = other.settings(fresh.path());
  const auto result = resolve_model("org/name", "", options);
  ASSERT_FALSE(result);
  EXPECT_TRUE(has(result.error().message, "absent.safetensors")) << result.error().message;
}

TEST_F(Resolve, RefusesAnswersThatAreNone) {
  hub.add_model();
  for (const std::string body :
       {"", "<html>", "[]", "{}", R"({"sha": "main", "siblings": []})",
        R"({"sha": 7, "siblings": []})",
        R"({"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": 7})",
        R"({"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [7]})",
        R"({"sha": "0123456789abcdef0123456789abcdef01234567", "siblings": [{"rfilename": 7}]})",
        R"({"sha": "0123456789abcdef0123456789abcdef01234567",
            "siblings": [{"rfilename": "config.json", "size": "big"}]})",
        R"({"sha": "0123456789abcdef0123456789abcdef01234567",
            "siblings": [{"rfilename": "config.json", "size": -1}]})"}) {
    hub.bend([&](const ServedRequest&, ServedReply& reply) { reply.body = body; });
    EXPECT_TRUE(has(error("org/name"), "org/name")) << body;
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST_F(Resolve, BoundsAnEndlessAnswer) {
  hub.add_model();
  options.settings = hub.settings(folder.path());
  hub.bend(
      [](const ServedRequest&, ServedReply& reply) { reply.body = std::string(40 << 20, ' '); });
  options.settings->attempts = 1;
  const auto result = resolve_model("org/name", "", options);
  ASSERT_FALSE(result);
  EXPECT_TRUE(has(result.error().message, "32 MiB")) << result.error().message;
}

TEST_F(Resolve, RefusesARepositoryWithoutSafetensors) {
  hub.add("config.json", "{}");
  hub.add("pytorch_model.bin", "pickle", true);
  const auto result = model("org/name");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
  EXPECT_TRUE(has(result.error().message, "pytorch_model.bin")) << result.error().message;
  EXPECT_EQ(hub.count("GET", "pytorch_model.bin"), 0u);
}

TEST_F(Resolve, FetchesAnAdapter) {
  hub.add("adapter_config.json", R"({"r": 8})");
  hub.add("adapter_model.safetensors", noise(5000, 3), true);
  hub.add("adapter_model.bin", "pickle", true);
  hub.add("optimizer.pt", "pickle", true);
  options.settings = hub.settings(folder.path());
  const auto found = resolve_adapter("org/name", "", options);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(read_all(*found + "/adapter_config.json"), R"({"r": 8})");
  EXPECT_EQ(read_all(*found + "/adapter_model.safetensors"), noise(5000, 3));
  EXPECT_EQ(hub.count("GET", ".bin") + hub.count("GET", ".pt"), 0u);
  EXPECT_TRUE(has(error("org/name"), "is an adapter, not a model"));
}

TEST_F(Resolve, ReadsARevisionBehindTheId) {
  hub.add_model();
  ASSERT_TRUE(model("org/name@refs/pr/1"));
  EXPECT_EQ(read_all(folder.path() + "/models--org--name/refs/refs/pr/1"), kTestCommit);
  EXPECT_EQ(model("org/name@" + std::string(kTestCommit)).value(), snapshot());
  EXPECT_TRUE(has(error("org/name@../x"), "'../x' is no name of a revision"));
  EXPECT_TRUE(has(error("org/name@"), "there is no model folder"));
  EXPECT_TRUE(has(error("org/name@v1", "v2"), "there is no model folder"));
}

TEST_F(Resolve, FetchesATokenizerAlone) {
  hub.add_model();
  options.settings = hub.settings(folder.path());
  const auto found = resolve_tokenizer("org/name", "", options);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(read_all(*found + "/tokenizer.json"), hub.file("tokenizer.json").content);
  EXPECT_EQ(hub.count("GET", ".safetensors"), 0u);
  // It is no model for that.
  offline = true;
  EXPECT_TRUE(has(error("org/name"), "config.json"));
}

TEST_F(Resolve, AFullDiskIsASentenceAndLeavesNothingHalf) {
  const std::string disk = folder.path() + "/disk";
  fs::create_directory(disk);
  if (mount("none", disk.c_str(), "tmpfs", 0, "size=65536") != 0)
    GTEST_SKIP() << "no file system can be mounted here";
  hub.add_model();
  hub.add("model-00001-of-00002.safetensors", noise(2'000, 8), true);
  hub.add("model-00002-of-00002.safetensors", noise(100'000, 9), true);
  options.settings = hub.settings(disk);
  const auto foreseen = resolve_model("org/name", "", options);
  hub.blobs_in_listing = false;  // nobody knows the sizes before
  const auto full = resolve_model("org/name", "", options);
  // What the disk had no room for is gone; small files that came beside it may wait to be resumed.
  uintmax_t largest_partial = 0;
  for (const auto& entry : fs::recursive_directory_iterator(disk)) {
    if (entry.path().extension() == ".incomplete")
      largest_partial = std::max(largest_partial, entry.file_size());
  }
  // A model that lacks a file is none, whoever asks.
  options.settings->offline = true;
  const auto after = resolve_model("org/name", "", options);
  umount(disk.c_str());
  ASSERT_FALSE(foreseen);
  EXPECT_EQ(foreseen.error().kind, ErrorKind::kResource);
  EXPECT_TRUE(has(foreseen.error().message, "more on the disk of")) << foreseen.error().message;
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().kind, ErrorKind::kResource);
  EXPECT_TRUE(has(full.error().message, "No space left on device")) << full.error().message;
  EXPECT_EQ(full.error().message.find('\n'), std::string::npos);
  EXPECT_LT(largest_partial, 10'000u);
  EXPECT_FALSE(after);
}

TEST_F(Resolve, AFolderWinsAndIsNeverAskedForOnTheHub) {
  hub.add_model();
  for (const char* name : {"org/name", "with space", "a=b", "\xc3\xa9t\xc3\xa9"}) {
    const std::string path = folder.path() + "/here/" + name;
    fs::create_directories(path);
    EXPECT_EQ(model(path).value(), path);
  }
  const fs::path before = fs::current_path();
  fs::current_path(folder.path() + "/here");
  EXPECT_EQ(model("org/name").value(), "org/name");
  EXPECT_TRUE(has(error("org/name", "main"), "is for hub ids"));
  fs::current_path(before);
  for (const char* bad : {"/no/such/folder", "./org/name", "../x", "~/x", "org/name/", "a b/c", "",
                          "http://127.0.0.1/x", "a/b/c"})
    EXPECT_TRUE(has(error(bad), "there is no model folder")) << error(bad);
  EXPECT_TRUE(has(error(std::string("a\0b", 3)), "there is no model folder"));
  EXPECT_EQ(hub.hub().requests().size(), 0u);
}

}  // namespace
}  // namespace lk
