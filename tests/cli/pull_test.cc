// The `pull` command and hub ids on the command line, against a hub on the loopback.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/cli/process.h"
#include "tests/hub/test_hub.h"

namespace lk {
namespace {
namespace fs = std::filesystem;

class Pull : public ::testing::Test {
 protected:
  Pull() {
    for (const auto& entry : fs::directory_iterator(tiny_model())) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file())
        hub.add(name, read_all(entry.path().string()), name.ends_with(".safetensors"));
    }
    const std::string adapter = tiny_adapter("sql").substr(4);
    for (const char* name : {"adapter_config.json", "adapter_model.safetensors"})
      hub.add(name, read_all(adapter + "/" + name), true);
    setenv("HF_HUB_OFFLINE", "0", 1);
    setenv("HF_HOME", folder.path().c_str(), 1);
    setenv("HF_ENDPOINT", hub.hub().url().c_str(), 1);
  }
  ~Pull() override {
    for (const char* name : {"HF_HUB_OFFLINE", "HF_HOME", "HF_ENDPOINT"}) unsetenv(name);
  }

  TestHub hub;
  TemporaryFolder folder;
};

TEST_F(Pull, PrintsTheFolderAndNothingElse) {
  const ProcessResult result = run_lorikeet({"pull", "org/name"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::string snapshot = folder.path() + "/hub/models--org--name/snapshots/" + kTestCommit;
  EXPECT_EQ(result.out, snapshot + "\n");
  EXPECT_TRUE(read_all(snapshot + "/model.safetensors") == hub.file("model.safetensors").content);
  EXPECT_FALSE(fs::exists(snapshot + "/adapter_config.json"));
  EXPECT_EQ(run_lorikeet({"pull", "org/name", "--adapter"}).code, 0);
  EXPECT_TRUE(fs::exists(snapshot + "/adapter_config.json"));
  const ProcessResult missing = run_lorikeet({"pull", "org/other"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.out, "");
  EXPECT_NE(missing.err.find("'org/other'"), std::string::npos) << missing.err;
  EXPECT_EQ(run_lorikeet({"pull", tiny_model()}).code, 2);  // a folder is no id
}

TEST_F(Pull, RunTakesIdsAndThenNeedsNoNetwork) {
  const std::vector<std::string> args = {"run",       "org/name", "--lora",       "sql=org/name",
                                         "--adapter", "sql",      "--max-tokens", "8",
                                         "--prompt",  "Count"};
  const ProcessResult first = run_lorikeet(args);
  ASSERT_EQ(first.code, 0) << first.err;
  setenv("HF_HUB_OFFLINE", "1", 1);
  const ProcessResult second = run_lorikeet(args);
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  const ProcessResult local =
      run_lorikeet({"run", tiny_model(), "--lora", tiny_adapter("sql"), "--adapter", "sql",
                    "--max-tokens", "8", "--prompt", "Count"});
  EXPECT_EQ(local.out, first.out);
  EXPECT_EQ(run_lorikeet({"inspect", "org/name", "--lora", "sql=org/name"}).code, 0);
  EXPECT_EQ(run_lorikeet({"inspect", "org/name", "--revision", "other"}).code, 2);
}

}  // namespace
}  // namespace lk
