#include "cli/flags.h"

#include <gtest/gtest.h>

namespace lk {
namespace {

ParsedFlags parse(std::vector<const char*> args) {
  args.insert(args.begin(), "lorikeet");
  return parse_flags(static_cast<int>(args.size()), args.data());
}

TEST(Flags, RunTakesEverything) {
  const auto parsed = parse({"run",
                             "--lora",
                             "a=/x",
                             "M",
                             "--lora",
                             "b=/y=z",
                             "--adapter",
                             "a",
                             "--adapter",
                             "base",
                             "--chat",
                             "hello",
                             "--max-tokens",
                             "5",
                             "--temperature",
                             "0.5",
                             "--top-p",
                             "0.9",
                             "--top-k",
                             "40",
                             "--min-p",
                             "0.1",
                             "--seed",
                             "7",
                             "--stop",
                             "x",
                             "--stop",
                             "--",
                             "--json",
                             "--logprobs",
                             "3",
                             "--threads",
                             "2",
                             "--kernels",
                             "reference",
                             "--kv-dtype",
                             "f32",
                             "--max-num-seqs",
                             "4",
                             "--max-num-batched-tokens",
                             "64",
                             "--max-model-len",
                             "100",
                             "--lora-expert-orientation",
                             "swapped",
                             "--max-lora-rank",
                             "8"});
  ASSERT_TRUE(std::holds_alternative<RunOptions>(parsed)) << std::get<UsageText>(parsed).text;
  const RunOptions& run = std::get<RunOptions>(parsed);
  EXPECT_EQ(run.model.model, "M");
  EXPECT_EQ(run.model.lora, (std::vector<std::string>{"a=/x", "b=/y=z"}));
  EXPECT_EQ(run.adapters, (std::vector<std::string>{"a", "base"}));
  EXPECT_EQ(run.chat, "hello");
  EXPECT_FALSE(run.prompt || run.input);
  EXPECT_EQ(run.max_tokens, 5);
  EXPECT_EQ(run.sampling.temperature, 0.5);
  EXPECT_EQ(run.sampling.seed, 7);
  EXPECT_EQ(run.stop, (std::vector<std::string>{"x", "--"}));
  EXPECT_EQ(run.model.kv_type, KvType::kF32);
  EXPECT_EQ(run.model.adapter_options.orientation, ExpertOrientation::kSwapped);
  EXPECT_EQ(run.model.adapter_options.max_rank, 8);
  EXPECT_EQ(run.max_num_seqs, 4);
  EXPECT_EQ(run.max_num_batched_tokens, 64);
}

TEST(Flags, WrongUsageIsOneSentence) {
  for (const std::vector<const char*>& args :
       std::vector<std::vector<const char*>>{{},
                                             {"bogus"},
                                             {"run"},
                                             {"run", "M", "--bogus"},
                                             {"run", "M", "--max-tokens", "-1"},
                                             {"run", "M", "--max-tokens", "many"},
                                             {"run", "M", "--max-tokens", "99999999999999999999"},
                                             {"run", "M", "--prompt", "x", "--chat", "y"},
                                             {"run", "M", "--prompt", "x", "--input", "y"},
                                             {"run", "M", "--kv-dtype", "f8"},
                                             {"run", "M", "--seed", "-1"},
                                             {"run", "M", "--lora"},
                                             {"synth", "P", "F", "--seed", "-1"},
                                             {"inspect"}}) {
    const auto parsed = parse(args);
    ASSERT_TRUE(std::holds_alternative<UsageText>(parsed));
    const auto& usage = std::get<UsageText>(parsed);
    EXPECT_EQ(usage.exit_code, kExitUsage);
    EXPECT_EQ(usage.text.rfind("lorikeet: ", 0), 0u) << usage.text;
    EXPECT_EQ(usage.text.find('\n'), usage.text.size() - 1) << usage.text;
  }
}

TEST(Flags, AnUnknownCommandIsToldTheKnownOnes) {
  for (const std::vector<const char*>& args :
       std::vector<std::vector<const char*>>{{"bogus"}, {""}, {"models/x", "--prompt", "y"}, {}}) {
    const std::string text = std::get<UsageText>(parse(args)).text;
    EXPECT_NE(text.find("run, serve, inspect, synth"), std::string::npos) << text;
    if (args.empty()) continue;
    EXPECT_NE(text.find("no command '" + std::string(args[0]) + "'"), std::string::npos) << text;
  }
}

TEST(Flags, HelpOfRunListsTheFieldsOfALine) {
  const std::string text = std::get<UsageText>(parse({"run", "--help"})).text;
  for (const char* field : {"prompt_ids", "messages", "chat_template_kwargs", "stop_token_ids",
                            "prompt_logprobs", "repetition_penalty"})
    EXPECT_NE(text.find(field), std::string::npos) << field;
}

TEST(Flags, HelpAndVersion) {
  for (const std::vector<const char*>& args : std::vector<std::vector<const char*>>{
           {"--help"}, {"run", "--help"}, {"inspect", "-h"}, {"--version"}}) {
    const auto parsed = parse(args);
    ASSERT_TRUE(std::holds_alternative<UsageText>(parsed));
    EXPECT_EQ(std::get<UsageText>(parsed).exit_code, kExitGood);
    EXPECT_FALSE(std::get<UsageText>(parsed).text.empty());
  }
}

TEST(Flags, LoraNames) {
  const auto good = parse_lora_flags({"a=/x/y", "/p/q/", "r"});
  ASSERT_TRUE(good);
  EXPECT_EQ((*good)[0].name, "a");
  EXPECT_EQ((*good)[1].name, "q");
  EXPECT_EQ((*good)[1].path, "/p/q/");
  EXPECT_EQ((*good)[2].name, "r");
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"a=/x", "a=/y"}, {"q", "/p/q"}, {"base=/x"}, {"=/x"}, {"a="}, {""}}) {
    EXPECT_FALSE(parse_lora_flags(bad));
  }
}

}  // namespace
}  // namespace lk
