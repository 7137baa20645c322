// The `run` command as a process, on the small model.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/cli/process.h"
#include "tests/sanitizer.h"

namespace lk {
namespace {

std::vector<std::string> with_adapters(std::vector<std::string> more) {
  // One thread: the tests say nothing about speed, and may share the CPUs with others.
  std::vector<std::string> args = {"run", tiny_model(), "--threads", "1"};
  for (const char* name : {"sql", "json", "math"})
    args.insert(args.end(), {"--lora", tiny_adapter(name)});
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<Json> objects(const ProcessResult& result) {
  std::vector<Json> all;
  for (const std::string& line : result.lines()) all.push_back(Json::parse(line));
  return all;
}

void expect_refused(const std::vector<std::string>& args, const std::string& part,
                    const std::string& stdin_text = "") {
  const ProcessResult result = run_lorikeet(args, stdin_text);
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err.rfind("lorikeet: ", 0), 0u) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

TEST(Run, EachAdapterAnswersUnderItsName) {
  const ProcessResult result = run_lorikeet(
      with_adapters({"--chat", "Count the Monday flights of Aerus.", "--adapter", "sql",
                     "--adapter", "base", "--adapter", "math", "--max-tokens", "60"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.rfind("sql:\nSELECT COUNT(*) FROM flights WHERE airline = 'Aerus' AND day = "
                             "'Monday';\n\nbase:\n",
                             0),
            0u)
      << result.out;
  EXPECT_NE(result.out.find("\n\nmath:\n"), std::string::npos);
}

// From the start of the process to its end. The fastest of a few, as others may use the machine.
TEST(Run, TheFirstTokenComesWithinHalfASecond) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::milliseconds limit{500 * test::kPatience};
  Clock::duration fastest = Clock::duration::max();
  for (int attempt = 0; attempt < 10 && fastest > limit; ++attempt) {
    const Clock::time_point begin = Clock::now();
    const ProcessResult result =
        run_lorikeet({"run", tiny_model(), "--prompt", "The name", "--max-tokens", "1"});
    fastest = std::min(fastest, Clock::now() - begin);
    ASSERT_EQ(result.code, 0) << result.err;
    ASSERT_NE(result.out, "");
  }
  EXPECT_LE(fastest, limit);
}

TEST(Run, PromptFromStdin) {
  const ProcessResult piped =
      run_lorikeet({"run", tiny_model(), "--threads", "1", "--max-tokens", "8"}, "The name");
  const ProcessResult flag = run_lorikeet(
      {"run", tiny_model(), "--threads", "1", "--max-tokens", "8", "--prompt", "The name"});
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_GT(piped.out.size(), 5u);
  EXPECT_EQ(piped.out, flag.out);
}

TEST(Run, GoodAndBadLinesInInputOrder) {
  const std::string input =
      R"({"id": "long", "prompt": "The", "max_tokens": 40, "ignore_eos": true})"
      "\n"
      R"({"id": 2, "messages": [{"role": "user", "content": "Count the Monday flights of Aerus."}], "adapter": "sql"})"
      "\n\nnot json\n"
      R"({"id": [3], "prompt": "x", "bogus": 1})"
      "\n"
      R"({"id": 4, "prompt": "x", "adapter": "nobody"})"
      "\n"
      R"({"id": 5, "prompt_ids": [408], "max_tokens": 2, "logprobs": 3, "prompt_logprobs": true})"
      "\n"
      R"({"id": 6, "prompt_ids": [408, 5000], "max_tokens": 2})"
      "\n"
      R"({"id": 7, "prompt": "", "max_tokens": 2})"
      "\n"
      R"({"id": 8, "prompt": "x", "max_tokens": 4096})"
      "\n"
      R"({"id": 9, "messages": [{"role": "user"}]})"
      "\n"
      R"({"prompt": "The name", "max_tokens": 1})";
  const ProcessResult result = run_lorikeet(with_adapters({"--input", "-", "--json"}), input);
  EXPECT_EQ(result.code, 1) << result.err;
  const std::vector<Json> out = objects(result);
  ASSERT_EQ(out.size(), 11u) << result.out;
  EXPECT_EQ(out[0]["id"], "long");
  EXPECT_EQ(out[0]["output_ids"].size(), 40u);
  EXPECT_EQ(out[0]["finish_reason"], "length");
  EXPECT_TRUE(out[0]["adapter"].is_null());
  EXPECT_FALSE(out[0].contains("token_logprobs"));
  EXPECT_EQ(out[1]["id"], 2);
  EXPECT_EQ(out[1]["adapter"], "sql");
  EXPECT_EQ(out[1]["text"],
            "SELECT COUNT(*) FROM flights WHERE airline = 'Aerus' AND day = 'Monday';");
  EXPECT_EQ(out[1]["finish_reason"], "stop");
  EXPECT_EQ(out[1]["output_ids"].back(), 4085);  // the end-of-turn token
  const auto is_error = [&](size_t i, const Json& id, const std::string& part) {
    EXPECT_EQ(out[i].size(), 2u);
    EXPECT_EQ(out[i]["id"], id);
    EXPECT_NE(out[i]["error"].get<std::string>().find(part), std::string::npos) << out[i];
  };
  is_error(2, nullptr, "line 4");
  is_error(3, Json::array({3}), "bogus");
  is_error(4, 4, "nobody");
  EXPECT_EQ(out[5]["prompt_ids"], Json::array({408}));
  EXPECT_EQ(out[5]["token_logprobs"].size(), 2u);
  EXPECT_EQ(out[5]["top_logprobs"].size(), 2u);
  EXPECT_EQ(out[5]["top_logprobs"][0].size(), 3u);
  EXPECT_EQ(out[5]["top_logprobs"][0][0],
            Json::array({out[5]["output_ids"][0], out[5]["token_logprobs"][0]}));
  EXPECT_EQ(out[5]["prompt_logprobs"], Json::array());
  is_error(6, 6, "5000");
  is_error(7, 7, "empty");
  is_error(8, 8, "4096");
  is_error(9, 9, "line 11");
  EXPECT_TRUE(out[10]["id"].is_null());
  EXPECT_EQ(out[10]["output_ids"].size(), 1u);
}

TEST(Run, FlagsAreDefaultsOfLines) {
  const std::string input = temporary_file(
      "{\"prompt\": \"The\"}\n{\"prompt\": \"The\", \"max_tokens\": 2, \"adapter\": null}\n");
  const ProcessResult result =
      run_lorikeet(with_adapters({"--input", input, "--json", "--max-tokens", "5", "--ignore-eos",
                                  "--adapter", "json", "--logprobs", "0"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const std::vector<Json> out = objects(result);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["adapter"], "json");
  EXPECT_EQ(out[0]["output_ids"].size(), 5u);
  EXPECT_EQ(out[0]["token_logprobs"].size(), 5u);
  EXPECT_FALSE(out[0].contains("top_logprobs"));
  EXPECT_TRUE(out[1]["adapter"].is_null());
  EXPECT_EQ(out[1]["output_ids"].size(), 2u);
}

TEST(Run, TextOfLinesIsSeparated) {
  const ProcessResult result =
      run_lorikeet({"run", tiny_model(), "--threads", "1", "--input", "-"},
                   "{\"id\": 7, \"prompt\": \"The\", \"max_tokens\": 2}\n{}\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out.rfind("=== 7 base\n", 0), 0u) << result.out;
  EXPECT_NE(result.out.find("\n\n=== error\nline 2: "), std::string::npos) << result.out;
}

TEST(Run, SeedsAndStops) {
  const std::string input =
      R"({"prompt": "The", "max_tokens": 20, "temperature": 1, "seed": 5})"
      "\n"
      R"({"prompt": "The", "max_tokens": 20, "temperature": 1, "seed": 5})"
      "\n"
      R"({"prompt": "The", "max_tokens": 20, "temperature": 1, "seed": 6})"
      "\n"
      R"({"messages": [{"role": "user", "content": "Count the Monday flights of Aerus."}], "adapter": "sql", "stop": " AND day"})";
  const std::vector<Json> out =
      objects(run_lorikeet(with_adapters({"--input", "-", "--json"}), input));
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0]["output_ids"], out[1]["output_ids"]);
  EXPECT_NE(out[0]["output_ids"], out[2]["output_ids"]);
  EXPECT_EQ(out[3]["text"], "SELECT COUNT(*) FROM flights WHERE airline = 'Aerus'");
  EXPECT_EQ(out[3]["finish_reason"], "stop");
}

// The repository's reference: a float32 forward pass of the dequantized weights.
TEST(Run, AgreesWithTheReference) {
  std::ifstream file(tiny_model() + "/reference.json");
  const Json reference = Json::parse(file);
  std::string input;
  std::vector<Json> cases;
  for (const auto& [adapter, list] : reference["cases"].items()) {
    for (size_t i = 0; i < 3 && i < list.size(); ++i) {
      const Json& one = list[i];
      cases.push_back(one);
      Json line = {{"prompt_ids", one["prompt_ids"]},
                   {"max_tokens", one["output_ids"].size()},
                   {"logprobs", 5}};
      if (adapter != "base") line["adapter"] = adapter;
      input += line.dump() + "\n";
    }
  }
  const ProcessResult result =
      run_lorikeet(with_adapters({"--input", "-", "--json", "--max-num-batched-tokens", "50",
                                  "--kernels", "reference", "--kv-dtype", "f32"}),
                   input);
  EXPECT_EQ(result.code, 0) << result.err;
  const std::vector<Json> out = objects(result);
  ASSERT_EQ(out.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_EQ(out[i]["output_ids"], cases[i]["output_ids"]) << i;
    for (size_t t = 0; t < cases[i]["output_ids"].size(); ++t) {
      EXPECT_NEAR(out[i]["token_logprobs"][t].get<float>(),
                  cases[i]["token_logprobs"][t].get<float>(), 1e-4);
      ASSERT_EQ(out[i]["top_logprobs"][t].size(), 5u);
      EXPECT_NEAR(out[i]["top_logprobs"][t][4][1].get<float>(),
                  cases[i]["top5_logprobs"][t][4].get<float>(), 1e-4);
    }
  }
}

TEST(Run, WrongUsageIsRefusedBeforeAnythingRuns) {
  const std::string model = tiny_model();
  expect_refused({"run", "/no/such/model", "--prompt", "x"}, "/no/such/model");
  expect_refused({"run", "openai/gpt-oss-20b", "--prompt", "x"}, "openai/gpt-oss-20b");
  expect_refused({"run", model, "--prompt", "x", "--adapter", "nobody"}, "nobody");
  expect_refused({"run", model, "--prompt", "x", "--lora", "a=/no/such/adapter"},
                 "/no/such/adapter");
  expect_refused(
      {"run", model, "--prompt", "x", "--lora", tiny_adapter("sql"), "--lora", tiny_adapter("sql")},
      "sql");
  expect_refused(
      {"run", model, "--prompt", "x", "--lora", tiny_adapter("sql"), "--max-lora-rank", "2"}, "2");
  expect_refused({"run", model, "--input", "/no/such/file"}, "/no/such/file");
  expect_refused({"run", model, "--prompt", "x", "--temperature", "nan"}, "temperature");
  expect_refused({"run", model, "--prompt", "x", "--kernels", "bogus"}, "bogus");
  expect_refused({"run", model, "--prompt", "x", "--max-model-len", "100000"}, "100000");
  expect_refused({"run", model, "--prompt", "x", "--max-model-len", "8", "--max-tokens", "20"},
                 "20");
  expect_refused(
      {"run", model, "--prompt", "x", "--max-num-seqs", "9", "--max-num-batched-tokens", "8"}, "9");
  expect_refused({"run", model, "--prompt", ""}, "empty");
  expect_refused({"run", model}, "give --prompt, --chat or --input");
  expect_refused({"run", model, "--input", "-", "--adapter", "base", "--adapter", "base"},
                 "--adapter");
}

// A reader that goes away ends the run; the shell's `head` is such a one.
TEST(Run, AClosedPipeEndsTheRun) {
  std::string input;
  for (int i = 0; i < 20000; ++i) input += "{\"prompt\": \"The\", \"max_tokens\": 2}\n";
  const std::string program = std::string(LK_BINARY_DIR) + "/bin/lorikeet", model = tiny_model();
  const std::string lines = temporary_file(input), err = temporary_file("");
  int out[2];
  ASSERT_EQ(pipe(out), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    dup2(open(err.c_str(), O_WRONLY), 2);
    for (int fd : {out[0], out[1]}) close(fd);
    execl(program.c_str(), "lorikeet", "run", model.c_str(), "--threads", "1", "--json", "--input",
          lines.c_str(), nullptr);
    _exit(99);
  }
  close(out[1]);
  int read_lines = 0;
  for (char c; read_lines < 3 && read(out[0], &c, 1) == 1;) read_lines += c == '\n';
  EXPECT_EQ(read_lines, 3);
  close(out[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  std::ifstream file(err);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}),
            "lorikeet: cannot write to standard output: Broken pipe\n");
}

// Answers come while the input is still open, and an interrupt ends the run.
TEST(Run, StdinIsAStreamAndAnInterruptEndsIt) {
  int in[2], out[2];
  ASSERT_EQ(pipe(in) + pipe(out), 0);
  const std::string program = std::string(LK_BINARY_DIR) + "/bin/lorikeet", model = tiny_model();
  const pid_t child = fork();
  if (child == 0) {
    dup2(in[0], 0), dup2(out[1], 1);
    for (int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    execl(program.c_str(), "lorikeet", "run", model.c_str(), "--threads", "1", "--json", "--input",
          "-", nullptr);
    _exit(99);
  }
  close(in[0]), close(out[1]);
  for (int round = 0; round < 3; ++round) {
    const std::string line =
        "{\"id\": " + std::to_string(round) + ", \"prompt\": \"The\", \"max_tokens\": 2}\n";
    ASSERT_EQ(write(in[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
    std::string answer;
    for (char c; answer.find('\n') == std::string::npos && read(out[0], &c, 1) == 1;) answer += c;
    EXPECT_EQ(Json::parse(answer)["id"], round);
  }
  kill(child, SIGINT);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  close(in[1]), close(out[0]);
}

}  // namespace
}  // namespace lk
