// Command lines of the benchmarks: what is taken, and that the rest ends with a sentence and 2.
#include "bench/arguments.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace lk::bench {
namespace {

struct Given {
  int steps = 24, threads = 0;
  std::string kernels, activations = "bf16";
  std::vector<std::string> words, rest;
};

Given parsed(std::vector<const char*> args) {
  Given given;
  Arguments arguments("some_bench", "MODEL [--steps N] ADAPTER...");
  arguments.number("--steps", given.steps, 4, 1000);
  arguments.number("--threads", given.threads, 0, 64);
  arguments.text("--kernels", given.kernels);
  arguments.choice("--activations", given.activations, {"bf16", "8bit"});
  args.insert(args.begin(), "some_bench");
  given.words = arguments.parse(static_cast<int>(args.size()), args.data(), 1, 3, &given.rest);
  return given;
}

TEST(BenchArguments, FlagsAndWordsInAnyOrder) {
  const Given given = parsed({"M", "--steps", "4", "a", "--kernels", "avx2", "--activations",
                              "8bit", "-", "--", "--port", "1"});
  EXPECT_EQ(given.steps, 4);
  EXPECT_EQ(given.threads, 0);
  EXPECT_EQ(given.kernels, "avx2");
  EXPECT_EQ(given.activations, "8bit");
  EXPECT_EQ(given.words, (std::vector<std::string>{"M", "a", "-"}));
  EXPECT_EQ(given.rest, (std::vector<std::string>{"--port", "1"}));
}

TEST(BenchArgumentsDeathTest, WhatIsWrongIsToldAndEndsWithTwo) {
  const auto expect = [](const std::vector<const char*>& args, const char* sentence) {
    EXPECT_EXIT(parsed(args), testing::ExitedWithCode(2), sentence) << sentence;
  };
  for (const char* bad : {"-1", "3", "1001", "99999999999999999999", "4x", "x", "", " 4", "4.5"}) {
    const std::string sentence =
        std::string("some_bench: --steps is ") + bad + ", expected a whole number from 4 to 1000\n";
    expect({"M", "--steps", bad}, sentence.c_str());
  }
  expect({"M", "--steps"}, "--steps wants a value; usage: some_bench MODEL");
  expect({"M", "--stepz", "5"}, "there is no flag --stepz; usage");
  expect({"M", "--activations", "4bit"}, "--activations is 4bit, expected bf16 or 8bit");
  expect({}, "0 words of 1 given; usage");
  expect({"M", "a", "b", "c"}, "there is no place for c; usage");
}

// A number that is read in another way is one that nobody checks.
TEST(BenchArguments, EveryBenchReadsItsNumbersSo) {
  int benches = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(LK_SOURCE_DIR) + "/bench")) {
    if (!entry.path().string().ends_with("_bench.cc")) continue;
    ++benches;
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    for (const char* unchecked : {"atoi", "atol", "strtol", "stoi", "argv["})
      EXPECT_EQ(text.find(unchecked), text.npos) << entry.path() << ": " << unchecked;
  }
  EXPECT_GE(benches, 8);
}

}  // namespace
}  // namespace lk::bench
