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

// Read as the nearest number that there is, they would be taken.
TEST(Flags, NumbersOutOfRangeAreToldTheRange) {
  const std::string seeds = "from 0 to 9223372036854775807";
  for (const std::vector<const char*>& command : std::vector<std::vector<const char*>>{
           {"run", "M"}, {"serve", "M"}, {"synth", "P", "F"}, {"synth-lora", "M", "F"}}) {
    for (const char* seed : {"9223372036854775808", "18446744073709551615", "18446744073709551616",
                             "99999999999999999999", "-1", "1.5", "nan", "7x"}) {
      std::vector<const char*> args = command;
      args.insert(args.end(), {"--seed", seed});
      const auto parsed = parse(args);
      ASSERT_TRUE(std::holds_alternative<UsageText>(parsed)) << command[0] << " " << seed;
      EXPECT_NE(std::get<UsageText>(parsed).text.find(seeds), std::string::npos)
          << std::get<UsageText>(parsed).text;
    }
    std::vector<const char*> args = command;
    args.insert(args.end(), {"--seed", "9223372036854775807"});
    EXPECT_FALSE(std::holds_alternative<UsageText>(parse(args))) << command[0];
  }
  struct Row {
    std::vector<const char*> command;
    const char* range;
    std::vector<const char*> bad;
    const char* good;
  };
  for (const Row& row : std::vector<Row>{
           {{"synth", "P", "F", "--router-skew"}, "0 to 10", {"nan", "inf", "-1", "1e300"}, "1.5"},
           {{"synth-lora", "M", "F", "--alpha"},
            "1e-06 to 1e+06",
            {"nan", "inf", "-inf", "0", "-2", "1e300", "1e999"},
            "32"},
           {{"serve", "M", "--request-timeout"}, "0 to 1e+09", {"nan", "inf", "-1"}, "0.5"},
           {{"serve", "M", "--shutdown-timeout"}, "0 to 1e+09", {"nan", "inf", "-1"}, "0"},
           {{"serve", "M", "--adapter-memory"}, "bytes", {"18446744073709551616"}, "2GiB"}}) {
    for (const char* value : row.bad) {
      std::vector<const char*> args = row.command;
      args.push_back(value);
      const auto parsed = parse(args);
      ASSERT_TRUE(std::holds_alternative<UsageText>(parsed)) << args[0] << " " << value;
      EXPECT_NE(std::get<UsageText>(parsed).text.find(row.range), std::string::npos)
          << std::get<UsageText>(parsed).text;
    }
    std::vector<const char*> args = row.command;
    args.push_back(row.good);
    EXPECT_FALSE(std::holds_alternative<UsageText>(parse(args))) << row.command.back();
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
