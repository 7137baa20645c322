// What goes wrong around the program: streams, memory, threads and weights.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/cli/process.h"

namespace lk {
namespace {

// One sentence on stderr that holds `part`.
void expect_sentence(const ProcessResult& result, int code, const std::string& part) {
  EXPECT_EQ(result.code, code) << result.err;
  EXPECT_EQ(result.err.rfind("lorikeet: ", 0), 0u) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

const std::vector<std::string> kAnswer = {"run",      tiny_model(), "--threads",    "1",
                                          "--prompt", "The",        "--max-tokens", "3"};

TEST(Faults, AFullOrClosedStdoutIsToldInASentence) {
  std::vector<std::string> json = kAnswer;
  json.push_back("--json");
  const std::string lines = "{\"prompt\": \"The\", \"max_tokens\": 2}\n";
  for (const auto& args : {kAnswer,
                           json,
                           {"run", tiny_model(), "--threads", "1", "--input", "-"},
                           {"inspect", tiny_model()},
                           {"--help"}}) {
    expect_sentence(run_lorikeet(args, lines, ">/dev/full"), 1,
                    "cannot write to standard output: No space left on device");
    expect_sentence(run_lorikeet(args, lines, ">&-"), 2, "standard output is closed");
  }
}

TEST(Faults, StderrAndStdinMayBeClosedOrFull) {
  const ProcessResult good = run_lorikeet(kAnswer);
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(run_lorikeet(kAnswer, "", "<&- 2>&-").out, good.out);
  EXPECT_EQ(run_lorikeet({"run", "/no/such/model", "--prompt", "x"}, "", "2>/dev/full").code, 2);
  EXPECT_EQ(run_lorikeet({"bogus"}, "", "2>&-").code, 2);
}

TEST(Faults, AnInputThatCannotBeReadIsNoEmptyOne) {
  for (std::vector<std::string> args : {std::vector<std::string>{"run", tiny_model()},
                                        {"run", tiny_model(), "--json", "--input", "-"}}) {
    args.insert(args.end(), {"--threads", "1"});
    const ProcessResult result = run_lorikeet(args, "", "</");
    expect_sentence(result, 2, "Is a directory");
    EXPECT_EQ(result.out, "");
  }
}

TEST(Faults, WhatMayNotBeReadIsNotCalledMissing) {
  namespace fs = std::filesystem;
  const std::string hidden = temporary_model();
  fs::permissions(hidden, fs::perms::none);
  // Root reads everything unless it gives that right up.
  const std::string rights = "-dac_override,-dac_read_search";
  const std::string before =
      geteuid() == 0 ? "setpriv --bounding-set=" + rights + " --inh-caps=" + rights + " " : "";
  const std::vector<std::vector<std::string>> commands = {
      {"run", hidden, "--prompt", "x"},
      {"inspect", hidden},
      {"run", tiny_model(), "--threads", "1", "--prompt", "x", "--lora", "x=" + hidden},
      {"synth", "gpt-oss-20b", hidden, "--layers", "1"},
      {"synth", "gpt-oss-20b", hidden + "/new", "--layers", "1"}};
  for (const auto& args : commands)
    expect_sentence(run_lorikeet(args, "", "", before), 2, "Permission denied");
  fs::permissions(hidden, fs::perms::owner_all);
}

TEST(Faults, AFileThatMayNotGrowIsToldInASentence) {
  const ProcessResult result =
      run_lorikeet({"inspect", tiny_model(), "--json"}, "", "", "ulimit -f 1; ");
  expect_sentence(result, 1, "cannot write to standard output: File too large");
}

// What would be answered by another than who was meant, or without a key that was meant.
TEST(Faults, ServeRefusesNamesAndKeysThatMeanNothing) {
  const auto serve = [](std::vector<std::string> more, const std::string& before = "") {
    std::vector<std::string> args = {"serve", tiny_model(), "--threads", "1", "--port", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return run_lorikeet(args, "", "", before);
  };
  const std::string sql = "sql=" + tiny_adapter("sql");
  expect_sentence(serve({"--served-model-name", "sql", "--lora-modules", sql}), 2,
                  "the base model's name");
  expect_sentence(serve({"--served-model-name", "a", "a"}), 2, "names 'a' twice");
  expect_sentence(serve({"--served-model-name", ""}), 2, "--served-model-name is empty");
  expect_sentence(serve({"--api-key", ""}), 2, "--api-key is empty");
  expect_sentence(serve({}, "LORIKEET_API_KEY= "), 2, "LORIKEET_API_KEY is set but empty");
}

TEST(Faults, AnOverrideOfSamplingIsCheckedWhole) {
  const auto serve = [](const std::string& json) {
    return run_lorikeet({"serve", tiny_model(), "--threads", "1", "--port", "0",
                         "--override-generation-config", json});
  };
  expect_sentence(serve(R"({"temperature": "x"})"), 2, "temperature");
  expect_sentence(serve(R"({"do_sample": false, "top_p": 7})"), 2, "top_p");
  expect_sentence(serve(R"({"beams": 2})"), 2, "'beams' cannot be set");
  expect_sentence(serve("[]"), 2, "must be a JSON object");
}

// A backend by name runs with adapters and without, or says what it lacks before anything is
// loaded.
TEST(Faults, ABackendThatCannotRunIsToldInASentence) {
  const auto with = [](std::vector<std::string> more) {
    std::vector<std::string> args = kAnswer;
    args.insert(args.end(), more.begin(), more.end());
    return run_lorikeet(args);
  };
  for (const std::vector<std::string>& lora :
       {std::vector<std::string>{}, {"--lora", tiny_adapter("sql"), "--adapter", "sql"}}) {
    const auto run_on = [&](const std::string& backend) {
      std::vector<std::string> flags = {"--moe-backend", backend};
      flags.insert(flags.end(), lora.begin(), lora.end());
      return with(flags);
    };
    EXPECT_EQ(run_on("cpu-w4a8").code, 0);
    EXPECT_EQ(run_on("auto").code, 0);
    expect_sentence(run_on("cpu-w8a8"), 2, "cpu-w8a8 does not take mxfp4 weights");
    expect_sentence(run_on("marlin"), 2, "there is no --moe-backend 'marlin'; known are auto, ");
  }
  expect_sentence(with({"--moe-backend", "cpu-w4a8", "--activations", "bf16"}), 2,
                  "rounds activations to int8, and --activations bf16 forbids it");
  expect_sentence(run_lorikeet({"inspect", tiny_model(), "--moe-backend", "cpu-w8a8"}), 2,
                  "does not take mxfp4 weights");
}

// LORIKEET_KERNELS holds in every command, the flag before it; neither is passed over silently.
TEST(Faults, KernelsOfTheEnvironmentAndOfTheFlag) {
  const std::vector<std::vector<std::string>> commands = {
      kAnswer, {"inspect", tiny_model()}, {"serve", tiny_model(), "--port", "0"}};
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(command[0]);
    const auto with = [&](std::vector<std::string> flags, const std::string& environment) {
      flags.insert(flags.begin(), command.begin(), command.end());
      return run_lorikeet(flags, "", "", environment);
    };
    const std::string named = "LORIKEET_KERNELS=avx9000 ";
    expect_sentence(with({}, named), 2, "there are no kernels 'avx9000'; known are ");
    expect_sentence(with({"--kernels", "avx8000"}, named), 2,
                    "there are no kernels 'avx8000'; known are ");
    if (command[0] == "serve") continue;
    EXPECT_EQ(with({"--kernels", "reference"}, named).code, 0);
  }
  const auto chosen = [](std::vector<std::string> flags, const std::string& environment) {
    flags.insert(flags.begin(), {"inspect", tiny_model(), "--json"});
    const ProcessResult result = run_lorikeet(flags, "", "", environment);
    EXPECT_EQ(result.code, 0) << result.err;
    const Json report = Json::parse(result.out);
    for (const Json& row : report["kernels"]) {
      if (row["chosen"]) return row["name"].get<std::string>();
    }
    return std::string();
  };
  const std::string best = chosen({}, "");
  EXPECT_EQ(chosen({}, "LORIKEET_KERNELS=reference "), "reference");
  EXPECT_EQ(chosen({"--kernels", best}, "LORIKEET_KERNELS=reference "), best);
}

#ifndef __SANITIZE_ADDRESS__  // it needs the address space
TEST(Faults, TooLittleMemoryNamesWhatAndHowMuch) {
  const auto limited = [](const std::string& kib, std::vector<std::string> more) {
    std::vector<std::string> args = kAnswer;
    args.insert(args.end(), more.begin(), more.end());
    return run_lorikeet(args, "", "", "ulimit -v " + kib + "; ");
  };
  expect_sentence(limited("80000", {}), 2, "memory ran out: the KV cache takes 2");
  expect_sentence(limited("60000", {}), 2, "emory");
  std::vector<std::string> threads = kAnswer;
  threads[3] = "64";
  expect_sentence(run_lorikeet(threads, "", "", "ulimit -v 90000; "), 2, "of 64: ");
}
#endif

// A copy of the small model with `bits` in every 16-bit element of a tensor.
std::string model_with(const std::string& tensor, uint16_t bits) {
  const std::string model = temporary_model();
  std::fstream file(model + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  uint64_t size = 0;
  file.read(reinterpret_cast<char*>(&size), sizeof size);
  std::string header(size, ' ');
  file.read(header.data(), static_cast<std::streamsize>(size));
  const Json entry = Json::parse(header).at(tensor);
  EXPECT_EQ(entry["dtype"], "BF16");
  const auto begin = entry["data_offsets"][0].get<size_t>(),
             end = entry["data_offsets"][1].get<size_t>();
  file.seekp(static_cast<std::streamoff>(sizeof size + size + begin));
  for (size_t at = begin; at < end; at += sizeof bits)
    file.write(reinterpret_cast<const char*>(&bits), sizeof bits);
  return model;
}

TEST(Faults, WeightsThatOverflowGiveNoAnswer) {
  constexpr uint16_t kLargest = 0x7f7f;  // of bfloat16
  const std::string model = model_with("model.norm.weight", kLargest);
  expect_sentence(run_lorikeet({"run", model, "--threads", "1", "--prompt", "The"}), 1,
                  "no finite logit");
  const ProcessResult line =
      run_lorikeet({"run", model, "--threads", "1", "--input", "-", "--json"},
                   "{\"id\": 1, \"prompt\": \"The\"}");
  EXPECT_EQ(line.code, 1);
  EXPECT_NE(Json::parse(line.out)["error"].get<std::string>().find("no finite logit"),
            std::string::npos);
  // A linear's weights of that size cannot give any, whatever is asked.
  expect_sentence(run_lorikeet({"run", model_with("lm_head.weight", kLargest), "--threads", "1",
                                "--prompt", "The"}),
                  2, "tensor lm_head.weight holds the weight 3.3895314e+38 at index 0");
}

TEST(Faults, TensorsAreNamedAsTheFileSpellsThem) {
  const uint16_t nan = 0x7fc0;
  for (const char* tensor : {"model.norm.weight", "model.layers.1.self_attn.q_proj.weight"}) {
    expect_sentence(
        run_lorikeet({"run", model_with(tensor, nan), "--threads", "1", "--prompt", "The"}), 2,
        std::string("tensor ") + tensor + " holds NaN");
  }
}

}  // namespace
}  // namespace lk
