// The environment of Hugging Face tools, read as they read it.
#include "hub/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "tests/hub/test_hub.h"

namespace lk {
namespace {

using Variables = std::map<std::string, std::string>;

// Sets variables, all others of the hub's unset; restores them at the end.
class Environment {
 public:
  explicit Environment(const Variables& values) {
    for (const char* name :
         {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME", "HF_TOKEN",
          "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HF_HUB_OFFLINE",
          "TRANSFORMERS_OFFLINE", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT",
          "HF_HUB_DISABLE_IMPLICIT_TOKEN"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      names_.push_back(name);
      unsetenv(name);
    }
    for (const auto& [name, value] : values) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : names_) {
      unsetenv(name.c_str());
      if (before_.contains(name)) setenv(name.c_str(), before_[name].c_str(), 1);
    }
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

HubSettings read(const Variables& values) {
  const Environment environment(values);
  return hub_settings_from_environment().value();
}

TEST(HubSettings, FindTheCacheAsOtherToolsDo) {
  EXPECT_EQ(read({{"HOME", "/h"}}).cache, "/h/.cache/huggingface/hub");
  EXPECT_EQ(read({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache, "/x/huggingface/hub");
  EXPECT_EQ(read({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/hf"}}).cache, "/hf/hub");
  EXPECT_EQ(read({{"HF_HOME", "/hf"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache, "/old");
  EXPECT_EQ(read({{"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/new"}}).cache, "/new");
  EXPECT_EQ(read({{"HOME", "/h"}, {"HF_HOME", "~/hf"}}).cache, "/h/hf/hub");
  EXPECT_EQ(read({{"HOME", "/h"}, {"HF_HOME", "${HOME}/a$b$HOME"}}).cache, "/h/a$b/h/hub");
  EXPECT_EQ(read({{"HOME", "/h"}, {"HF_HOME", ""}}).cache, "/h/.cache/huggingface/hub");
}

TEST(HubSettings, FindTheToken) {
  TemporaryFolder folder;
  EXPECT_EQ(read({{"HF_HOME", folder.path()}}).token, "");
  write_all(folder.path() + "/token", " hf_file\n");
  EXPECT_EQ(read({{"HF_HOME", folder.path()}}).token, "hf_file");
  EXPECT_EQ(read({{"HF_HOME", folder.path()}, {"HF_TOKEN", "hf_env\r\n"}}).token, "hf_env");
  EXPECT_EQ(read({{"HF_HOME", "/none"}, {"HF_TOKEN_PATH", folder.path() + "/token"}}).token,
            "hf_file");
  EXPECT_EQ(read({{"HF_TOKEN", "x"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}).token, "");
  const Environment environment(Variables{{"HF_TOKEN", "a\r\nHost: evil"}});
  const auto result = hub_settings_from_environment();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message.find("evil"), std::string::npos) << "the token is printed";
}

TEST(HubSettings, ReadTheRest) {
  const HubSettings none = read({{"HOME", "/h"}});
  EXPECT_EQ(none.endpoint, "https://huggingface.co");
  EXPECT_FALSE(none.offline);
  EXPECT_EQ(none.read_timeout_s, 10);
  EXPECT_EQ(read({{"HF_ENDPOINT", "https://mirror/x/"}}).endpoint, "https://mirror/x");
  for (const char* yes : {"1", "on", "YES", "True"})
    EXPECT_TRUE(read({{"HF_HUB_OFFLINE", yes}}).offline);
  EXPECT_FALSE(read({{"HF_HUB_OFFLINE", "0"}}).offline);
  EXPECT_TRUE(read({{"TRANSFORMERS_OFFLINE", "1"}}).offline);
  EXPECT_EQ(read({{"HF_HUB_DOWNLOAD_TIMEOUT", "30"}}).read_timeout_s, 30);
  EXPECT_EQ(read({{"HF_HUB_DOWNLOAD_TIMEOUT", "soon"}}).read_timeout_s, 10);
  const Environment environment(Variables{{"HF_ENDPOINT", "file:///etc"}});
  EXPECT_FALSE(hub_settings_from_environment());
}

}  // namespace
}  // namespace lk
