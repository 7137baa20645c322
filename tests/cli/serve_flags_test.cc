#include "cli/serve_flags.h"

#include <gtest/gtest.h>

#include <fstream>

#include "cli/config_file.h"
#include "cli/flags.h"

namespace lk {
namespace {

ParsedFlags parse(std::vector<const char*> args) {
  args.insert(args.begin(), {"lorikeet", "serve"});
  return parse_flags(static_cast<int>(args.size()), args.data());
}

ServeOptions parsed(std::vector<const char*> args) {
  const ParsedFlags flags = parse(std::move(args));
  if (const auto* usage = std::get_if<UsageText>(&flags)) ADD_FAILURE() << usage->text;
  return std::get<ServeOptions>(flags);
}

std::string refused(std::vector<const char*> args) {
  const ParsedFlags flags = parse(std::move(args));
  const auto* usage = std::get_if<UsageText>(&flags);
  EXPECT_NE(usage, nullptr);
  if (usage == nullptr) return {};
  EXPECT_EQ(usage->exit_code, kExitUsage);
  return usage->text;
}

TEST(ServeFlags, NeedOnlyAModel) {
  const ServeOptions options = parsed({"models/x"});
  EXPECT_EQ(options.model.model, "models/x");
  EXPECT_EQ(options.host, "127.0.0.1");
  EXPECT_EQ(options.port, 8000);
  EXPECT_TRUE(options.prefix_caching);
  EXPECT_FALSE(options.allow_runtime_lora);
  EXPECT_EQ(parsed({"--model", "m"}).model.model, "m");
  EXPECT_NE(refused({}).find("MODEL"), std::string::npos);
}

TEST(ServeFlags, StartAsTypedForVllm) {
  const ServeOptions options = parsed({"openai/gpt-oss-20b",
                                       "--enable-lora",
                                       "--max_loras",
                                       "4",
                                       "-tp",
                                       "1",
                                       "--data-parallel-size=1",
                                       "-O3",
                                       "--compilation-config",
                                       "{\"level\": 3}",
                                       "--gpu-memory-utilization",
                                       "0.9",
                                       "--dtype",
                                       "bfloat16",
                                       "--trust-remote-code",
                                       "--served-model-name",
                                       "a",
                                       "b",
                                       "--lora-modules",
                                       "sql=/a/sql",
                                       R"({"name": "math", "path": "/a/math"})",
                                       "--no-enable-prefix-caching",
                                       "--max-lora-rank",
                                       "64"});
  EXPECT_EQ(options.max_loras, 4);
  EXPECT_EQ(options.served_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(options.prefix_caching);
  EXPECT_EQ(options.model.adapter_options.max_rank, 64);
  EXPECT_GE(options.notes.size(), 7u);
  const auto lora = parse_lora_modules(options.lora_modules);
  ASSERT_TRUE(lora) << lora.error().message;
  ASSERT_EQ(lora->size(), 2u);
  EXPECT_EQ((*lora)[1].name, "math");
  EXPECT_EQ((*lora)[1].path, "/a/math");
}

TEST(ServeFlags, RefuseWhatCannotBeHonoured) {
  EXPECT_NE(refused({"m", "--tensor-parallel-size", "2"}).find("only 1"), std::string::npos);
  EXPECT_NE(refused({"m", "-pp", "2"}).find("--pipeline-parallel-size 2"), std::string::npos);
  EXPECT_NE(refused({"m", "--dtype", "float16"}).find("auto or bfloat16"), std::string::npos);
  EXPECT_NE(refused({"m", "--ssl-keyfile", "k.pem", "--ssl-certfile", "c.pem"}).find("nginx"),
            std::string::npos);
  EXPECT_NE(refused({"m", "--speculative-config", "{}"}).find("speculative"), std::string::npos);
  EXPECT_NE(refused({"m", "--enable-sleep-mode"}).find("--enable-sleep-mode"), std::string::npos);
  EXPECT_NE(refused({"m", "--kv-cache-dtype", "fp8"}).find("--kv-cache-dtype fp8"),
            std::string::npos);
  EXPECT_NE(refused({"m", "--no-such-flag"}).find("no-such-flag"), std::string::npos);
  EXPECT_NE(refused({"m", "--port", "70000"}), "");
  EXPECT_NE(refused({"m", "--max-loras", "4", "--max-cpu-loras", "2"}).find("--max-cpu-loras"),
            std::string::npos);
  EXPECT_FALSE(parse_lora_modules({"sql"}));
  EXPECT_FALSE(parse_lora_modules({"a=x", "a=y"}));
  EXPECT_FALSE(parse_lora_modules({R"({"name": "a"})"}));
}

TEST(ServeFlags, SayWhatEachMeansHere) {
  const ServeOptions options = parsed({"m",
                                       "--dtype",
                                       "auto",
                                       "--kv-cache-dtype",
                                       "auto",
                                       "--enforce-eager",
                                       "--block-size",
                                       "16",
                                       "--swap-space",
                                       "4",
                                       "--uvicorn-log-level",
                                       "warning",
                                       "--disable-log-requests",
                                       "--enable-auto-tool-choice",
                                       "--trust-remote-code",
                                       "--tokenizer",
                                       "t",
                                       "--download-dir",
                                       "/cache",
                                       "--override-generation-config",
                                       R"({"temperature": 0})"});
  EXPECT_EQ(options.tokenizer, "t");
  EXPECT_EQ(options.download_dir, "/cache");
  EXPECT_EQ(options.override_generation_config, R"({"temperature": 0})");
  EXPECT_EQ(options.notes.size(), 9u);
  for (const std::string& note : options.notes)
    EXPECT_NE(note.find(": "), std::string::npos) << note;
}

TEST(ServeFlags, ReadSizes) {
  EXPECT_EQ(parsed({"m", "--kv-cache-memory", "4GiB"}).kv_cache_memory, uint64_t{4} << 30);
  EXPECT_EQ(parsed({"m", "--adapter-memory", "1000000"}).adapter_memory, 1'000'000u);
}

TEST(ConfigFile, GivesFlags) {
  const auto args = parse_config(
      "model: m\nport: 9000\nlora_modules: [a=x, {name: b, path: y}]\n"
      "enable-prefix-caching: false\nallow-runtime-lora: true\nlog-requests: false\n"
      "seed: null\n",
      "f.yaml");
  ASSERT_TRUE(args) << args.error().message;
  EXPECT_EQ(*args,
            (std::vector<std::string>{"--model", "m", "--port", "9000", "--lora-modules", "a=x",
                                      "--lora-modules", R"({"name":"b","path":"y"})",
                                      "--no-enable-prefix-caching", "--allow-runtime-lora"}));
  EXPECT_TRUE(parse_config("", "f.yaml")->empty());
  for (const char* bad : {"- a\n- b\n", "a: [1\n", "just words", "a: &x [*x]\n"}) {
    const auto refused = parse_config(bad, "f.yaml");
    if (refused) continue;
    EXPECT_NE(refused.error().message.find("f.yaml"), std::string::npos) << bad;
  }
  EXPECT_FALSE(parse_config("- a\n- b\n", "f.yaml"));
  EXPECT_FALSE(parse_config("a: [1\n", "f.yaml"));
}

TEST(ConfigFile, LosesAgainstTheCommandLine) {
  const std::string path = testing::TempDir() + "/lorikeet_serve.yaml";
  std::ofstream(path) << "model: from-file\nport: 9000\nmax_num_seqs: 7\n";
  const ServeOptions options = parsed({"--config", path.c_str(), "--port", "9001"});
  EXPECT_EQ(options.model.model, "from-file");
  EXPECT_EQ(options.port, 9001);
  EXPECT_EQ(options.max_num_seqs, 7);
  EXPECT_EQ(parsed({"typed", "--config", path.c_str()}).model.model, "typed");
  EXPECT_NE(refused({"m", "--config", "/no/such/file"}).find("/no/such/file"), std::string::npos);
}

}  // namespace
}  // namespace lk
