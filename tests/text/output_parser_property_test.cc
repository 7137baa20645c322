// What holds for any output: pieces do not matter, work is linear, words are not lost.
#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/text/parser_harness.h"

namespace lk {
namespace {

const OrderedJson& tools() {
  static const OrderedJson specs = OrderedJson::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"properties":{
          "x":{"type":"integer"},"y":{"type":["object","string"]}}}}}])");
  return specs;
}

const std::vector<OutputParserOptions>& all_options() {
  static const std::vector<OutputParserOptions> options = [] {
    std::vector<OutputParserOptions> list;
    for (const char* reasoning : {"", "qwen3", "deepseek_r1"}) {
      for (const char* tool : {"", "hermes", "qwen3_coder"}) {
        for (const char* tail : {"", "<think>\n"}) {
          list.push_back(
              {.reasoning = reasoning, .tools = tool, .prompt_tail = tail, .tool_specs = &tools()});
        }
      }
    }
    for (const char* tail :
         {"<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"}) {
      list.push_back({.reasoning = "openai_gptoss",
                      .tools = "openai",
                      .prompt_tail = tail,
                      .tool_specs = &tools()});
    }
    return list;
  }();
  return options;
}

const std::vector<std::string> kFragments = {"<think>",
                                             "</think>",
                                             "<tool_call>",
                                             "</tool_call>",
                                             "<function=",
                                             "<function=f>",
                                             "</function>",
                                             "<parameter=",
                                             "<parameter=x>",
                                             "<parameter=y>",
                                             "</parameter>",
                                             "<|start|>",
                                             "<|channel|>",
                                             "<|message|>",
                                             "<|constrain|>",
                                             "<|end|>",
                                             "<|call|>",
                                             "<|return|>",
                                             "<|im_end|>",
                                             "assistant",
                                             "analysis",
                                             "final",
                                             "commentary",
                                             " to=functions.f",
                                             " to=python",
                                             "json",
                                             "{",
                                             "}",
                                             "[",
                                             "]",
                                             "\"",
                                             "\\",
                                             ":",
                                             ",",
                                             "{\"name\": \"f\", \"arguments\": ",
                                             "\"name\"",
                                             "\"arguments\"",
                                             "\"f\"",
                                             "{}",
                                             "\n",
                                             " ",
                                             "\n\n",
                                             "<",
                                             ">",
                                             "</",
                                             "<tool",
                                             "word",
                                             "12",
                                             "\xC3\xA9",
                                             "null"};

std::string random_output(std::mt19937& random) {
  std::string output;
  for (size_t n = random() % 30; n > 0; --n) output += kFragments[random() % kFragments.size()];
  return output;
}

TEST(OutputParserProperties, PiecesDoNotMatter) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    const std::string output = random_output(random);
    const OutputParserOptions& options = all_options()[random() % all_options().size()];
    const ParsedOutput whole = parse_output(options, output);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(parse_output(options, output, &random), whole)
          << options.reasoning << " " << options.tools << " " << options.prompt_tail << "\n"
          << output;
    }
  }
}

// Words of the text are found again: in reasoning, in content or in a call. Left aside are JSON's
// other members (hermes) and headers (harmony).
TEST(OutputParserProperties, WordsAreNotLost) {
  std::mt19937 random(2);
  for (int round = 0; round < 4000; ++round) {
    const OutputParserOptions& options = all_options()[random() % all_options().size()];
    if (options.tools == "hermes" || options.tools == "openai") continue;
    std::string output;
    int words = 0;
    for (size_t n = random() % 20; n > 0; --n) {
      output += kFragments[random() % kFragments.size()];
      if (random() % 2) output += "w" + std::to_string(words++) + ".";
    }
    const ParsedOutput parsed = parse_output(options, output);
    std::string all = parsed.reasoning + parsed.content;
    for (const auto& [name, arguments] : parsed.calls) all += name + arguments;
    // A parameter's name at the very end has no value yet.
    const size_t last = output.rfind("<parameter=");
    for (int w = 0; w < words; ++w) {
      const std::string word = "w" + std::to_string(w) + ".";
      if (last != std::string::npos && output.find(word) > last) continue;
      ASSERT_NE(all.find(word), std::string::npos)
          << word << " " << options.reasoning << " " << options.tools << "\n"
          << output << "\n"
          << testing::PrintToString(parsed);
    }
  }
}

// Byte by byte, as slow as it can come.
TEST(OutputParserProperties, WorkIsLinear) {
  std::vector<std::string> bombs;
  for (const std::string& fragment : kFragments) bombs.push_back(fragment);
  for (const char* begin :
       {"<tool_call>{\"name\": \"f\", \"arguments\": ", "<tool_call>{\"", "<tool_call> ",
        "<tool_call><function=f>", "<tool_call><function=f><parameter=y>",
        "<tool_call>{\"arguments\": \""}) {
    for (const char* body :
         {"[", "{\"a\":", "\"", " ", "<parameter=y>", "<function=f>", "</function>"}) {
      bombs.push_back(std::string(begin) + "\x01" + body);
    }
  }
  const auto tokenizer = marker_tokenizer();
  constexpr size_t kSize = 100000;
  const std::clock_t start = std::clock();
  for (const char* tool : {"hermes", "qwen3_coder", "openai"}) {
    const bool harmony = std::string_view(tool) == "openai";
    for (const std::string& bomb : bombs) {
      const size_t split = bomb.find('\x01');
      const std::string body = split == std::string::npos ? bomb : bomb.substr(split + 1);
      const auto id = tokenizer->token_to_id(body);
      auto parser = make_output_parser({.reasoning = harmony ? "openai_gptoss" : "deepseek_r1",
                                        .tools = tool,
                                        .tool_specs = &tools()},
                                       *tokenizer);
      ASSERT_TRUE(parser);
      ParsedOutput parsed;
      if (split != std::string::npos) {
        add_delta(parsed, (*parser)->push(-1, "</think>" + bomb.substr(0, split)));
      }
      for (size_t size = 0; size < kSize; size += body.size()) {
        if (id && tokenizer->is_special(*id)) {
          add_delta(parsed, (*parser)->push(*id, ""));
          continue;
        }
        for (const char& byte : body) add_delta(parsed, (*parser)->push(-1, {&byte, 1}));
      }
      add_delta(parsed, (*parser)->finish());
    }
  }
  // 240 outputs of 100 KB: a quadratic step costs minutes.
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 30);
}

}  // namespace
}  // namespace lk
