#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "base/json.h"
#include "base/mmap_file.h"
#include "tests/text/parser_harness.h"
#include "tests/text/tokenizer_golden.h"
#include "text/chat_template.h"

namespace lk {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

OutputParserOptions harmony(std::string prompt_tail = "<|start|>assistant") {
  return {.reasoning = "openai_gptoss", .tools = "openai", .prompt_tail = std::move(prompt_tail)};
}

ParsedOutput parse(std::string_view output) { return parse_output(harmony(), output); }

TEST(HarmonyParser, Channels) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>Let me see.<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"),
            (ParsedOutput{"Let me see.", "It is 4.", {}}));
  EXPECT_EQ(parse("<|channel|>commentary<|message|>I will look.<|end|>"
                  "<|start|>assistant<|channel|>analysis<|message|>a<|end|>"
                  "<|start|>assistant<|channel|>analysis<|message|>b<|end|>"
                  "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"),
            (ParsedOutput{"a\nb", "I will look.\nDone.", {}}));
  EXPECT_EQ(parse("<|message|>no channel<|end|>"), (ParsedOutput{"", "no channel", {}}));
  EXPECT_EQ(parse("<|channel|>mused<|message|>x<|end|>"), (ParsedOutput{"", "x", {}}));
  // An empty message adds no separator.
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|end|>"
                  "<|start|>assistant<|channel|>analysis<|message|><|end|>"
                  "<|start|>assistant<|channel|>final<|message|><|return|>"),
            (ParsedOutput{"a", "", {}}));
}

TEST(HarmonyParser, ToolCalls) {
  const ParsedOutput wanted{"", "", {{"get_weather", R"({"city":"Paris"})"}}};
  for (const char* header : {
           "<|channel|>commentary to=functions.get_weather <|constrain|>json",
           "<|channel|>commentary to=functions.get_weather<|constrain|>json",
           "<|channel|>commentary to=functions.get_weather json",
           "<|channel|>commentary to=functions.get_weather",
           "<|channel|>commentary functions.get_weather <|constrain|>json",
           "<|channel|>analysis to=functions.get_weather code",
           " to=functions.get_weather<|channel|>commentary <|constrain|>json",
           " to=functions.get_weather<|channel|>commentary json",
           "assistant to=functions.get_weather<|channel|>commentary json",
           "<|end|><|start|>assistant to=functions.get_weather<|channel|>commentary json",
           "<|start|>assistant<|channel|>commentary to=functions.get_weather json",
       }) {
    EXPECT_EQ(parse(std::string(header) + R"(<|message|>{"city":"Paris"}<|call|>)"), wanted)
        << header;
  }
  EXPECT_EQ(parse("<|channel|>commentary to=functions.now json<|message|> <|call|>").calls,
            (Calls{{"now", "{}"}}));
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f json<|message|>not JSON \"<|call|>").calls,
            (Calls{{"f", "not JSON \""}}));
}

TEST(HarmonyParser, ToolsThatAreNoFunctions) {
  const char* const python = "<|channel|>analysis to=python code<|message|>1+1<|call|>";
  const char* const browser =
      "<|channel|>commentary to=browser.search code<|message|>{\"query\":\"x\"}<|call|>";
  EXPECT_EQ(parse(python), (ParsedOutput{"1+1", "", {}}));
  EXPECT_EQ(parse(browser), (ParsedOutput{"", "{\"query\":\"x\"}", {}}));
  // A client that offers a function of that name gets the call.
  const OrderedJson tools = OrderedJson::parse(
      R"([{"type":"function","function":{"name":"python"}},{"type":"function","name":"browser.search"}])");
  OutputParserOptions options = harmony();
  options.tool_specs = &tools;
  EXPECT_EQ(parse_output(options, python).calls, (Calls{{"python", "1+1"}}));
  EXPECT_EQ(parse_output(options, browser).calls, (Calls{{"browser.search", "{\"query\":\"x\"}"}}));
}

TEST(HarmonyParser, OneOfTheTwoAlone) {
  const char* const output =
      "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.f json<|message|>{}<|call|>";
  EXPECT_EQ(parse_output({.reasoning = "openai_gptoss"}, output), (ParsedOutput{"a", "{}", {}}));
  EXPECT_EQ(parse_output({.tools = "openai"}, output), (ParsedOutput{"", "a", {{"f", "{}"}}}));
}

TEST(HarmonyParser, TextWithoutMarkersIsContent) {
  for (const char* text : {"SELECT 1;", " t", "to", "assistant", "assistants help", "to=us all",
                           "\n  {\"a\": 1}\n", " to=functions are", "  "}) {
    EXPECT_EQ(parse(text), (ParsedOutput{"", text, {}}));
    EXPECT_EQ(parse(text + std::string("<|endoftext|>")), (ParsedOutput{"", text, {}}));
  }
  // Markers that are written letter by letter are text.
  const auto tokenizer = marker_tokenizer();
  auto parser = make_output_parser(harmony(), *tokenizer);
  ParsedOutput parsed;
  add_delta(parsed, (*parser)->push(-1, "a <|channel|>final<|message|>b"));
  add_delta(parsed, (*parser)->push(tokenizer->token_to_id("<|end|>").value(), ""));
  add_delta(parsed, (*parser)->finish());
  EXPECT_EQ(parsed, (ParsedOutput{"", "a <|channel|>final<|message|>b", {}}));
  // Between and around messages too, white space aside.
  EXPECT_EQ(parse("Hi.<|channel|>final<|message|>a<|end|>\n<|start|>assistant<|channel|>final"
                  "<|message|>b<|end|>c<|return|>"),
            (ParsedOutput{"", "Hi.\na\nb\nc", {}}));
}

TEST(HarmonyParser, PromptThatOpensTheMessage) {
  const char* const final = "<|start|>assistant<|channel|>final<|message|>";
  EXPECT_EQ(parse_output(harmony(final), "to=x<|return|>"), (ParsedOutput{"", "to=x", {}}));
  EXPECT_EQ(parse_output(harmony("<|start|>assistant<|channel|>analysis<|message|>Hm"), ", so"),
            (ParsedOutput{", so", "", {}}));
  EXPECT_EQ(parse_output(harmony("<|start|>assistant<|channel|>"), "analysis<|message|>a<|end|>"),
            (ParsedOutput{"a", "", {}}));
  EXPECT_EQ(parse_output(harmony("<|start|>user<|message|>analysis?<|end|>"), "x"),
            (ParsedOutput{"", "x", {}}));
}

TEST(HarmonyParser, MalformedHeaders) {
  // Never closed, but a header: nothing to tell.
  for (const char* output :
       {"<|channel|>", "<|channel|>fin", "<|channel|>analysis<|return|>",
        "<|channel|>commentary to=functions.f json", "<|end|><|start|>assis", " to=functions.f"}) {
    EXPECT_EQ(parse(output), ParsedOutput{}) << output;
  }
  // Text where a header should be.
  EXPECT_EQ(parse("<|channel|>The answer is 42.<|return|>"),
            (ParsedOutput{"", "The answer is 42.", {}}));
  EXPECT_EQ(parse("<|start|>SELECT 1;<|end|>"), (ParsedOutput{"", "SELECT 1;", {}}));
  const std::string longest(5000, 'x');
  EXPECT_EQ(parse("<|channel|>final " + longest), (ParsedOutput{"", "final " + longest, {}}));
  // No name: content.
  EXPECT_EQ(parse("<|channel|>commentary to=functions. json<|message|>{}<|call|>"),
            (ParsedOutput{"", "{}", {}}));
  // A message that the next one closes, and markers that mean nothing where they stand.
  EXPECT_EQ(parse("<|channel|>analysis<|message|>a<|message|>b<|constrain|>c<|channel|>final"
                  "<|message|>d<|start|>assistant<|channel|>final<|message|>e"),
            (ParsedOutput{"abc", "d\ne", {}}));
}

TEST(HarmonyParser, CutAtALimit) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>so I"), (ParsedOutput{"so I", "", {}}));
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f json<|message|>{\"a\": \"b").calls,
            (Calls{{"f", "{\"a\": \"b"}}));
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f json<|message|>").calls,
            (Calls{{"f", ""}}));
}

// Special tokens written as text by the tokenizer's settings do not show.
TEST(HarmonyParser, SpecialTokensInTheText) {
  const auto tokenizer = marker_tokenizer();
  auto parser = make_output_parser(harmony(), *tokenizer);
  ASSERT_TRUE(parser);
  ParsedOutput parsed;
  for (const char* token : {"<|channel|>", "final", "<|message|>", "a", "<|end|>"}) {
    const bool special = token[0] == '<';
    const int32_t id = special ? tokenizer->token_to_id(token).value() : -1;
    add_delta(parsed, (*parser)->push(id, token));
  }
  add_delta(parsed, (*parser)->finish());
  EXPECT_EQ(parsed, (ParsedOutput{"", "a", {}}));
}

TEST(HarmonyParser, ArgumentsStream) {
  const auto tokenizer = marker_tokenizer();
  auto parser = make_output_parser(harmony(), *tokenizer);
  auto id = [&](const char* text) { return tokenizer->token_to_id(text).value(); };
  (*parser)->push(id("<|channel|>"), "");
  (*parser)->push(-1, "commentary to=functions.f ");
  (*parser)->push(id("<|constrain|>"), "");
  EXPECT_TRUE((*parser)->push(-1, "json").empty());
  OutputDelta delta = (*parser)->push(id("<|message|>"), "");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].name, "f");
  delta = (*parser)->push(-1, "{\"a");
  ASSERT_EQ(delta.tool_calls.size(), 1u);
  EXPECT_EQ(delta.tool_calls[0].arguments, "{\"a");
}

TEST(HarmonyParser, MissingTokens) {
  const auto tokenizer = shared_tokenizer("tests/data/tokenizers/qwen3/tokenizer.json.xz");
  auto parser = make_output_parser(harmony(), *tokenizer);
  ASSERT_FALSE(parser);
  EXPECT_EQ(parser.error().kind, ErrorKind::kUnsupported);
  EXPECT_NE(parser.error().message.find("<|start|>"), std::string::npos);
}

// The reference implementation's cases (tests/data/harmony).

std::string harmony_case(const std::string& name) {
  auto text = read_file(std::string(LK_SOURCE_DIR) + "/tests/data/harmony/test_" + name + ".txt");
  EXPECT_TRUE(text) << name;
  std::string result = text ? *text : "";
  while (result.ends_with('\n')) result.pop_back();
  return result;
}

TEST(HarmonyCases, TokensOfAnAnswer) {
  std::istringstream numbers(harmony_case("simple_reasoning_response"));
  std::vector<int32_t> ids;
  for (int32_t id; numbers >> id;) ids.push_back(id);
  ASSERT_GT(ids.size(), 20u);
  const auto tokenizer = shared_tokenizer("tests/data/tokenizers/gpt-oss/tokenizer.json.xz");
  EXPECT_EQ(
      parse_tokens(harmony(), ids, tokenizer),
      (ParsedOutput{
          "User asks: \"What is 2 + 2?\" Simple arithmetic. Provide answer.", "2 + 2 = 4.", {}}));
}

// Assistant turns within conversations, as a model would have written them.
TEST(HarmonyCases, AnswersInConversations) {
  const std::string talk = harmony_case("does_not_drop_if_ongoing_analysis");
  const std::string begin = "<|start|>assistant<|channel|>analysis";
  const size_t from = talk.find(begin) + std::string("<|start|>assistant").size();
  const size_t call = talk.find("<|call|>") + std::string("<|call|>").size();
  EXPECT_EQ(
      parse(talk.substr(from, call - from)),
      (ParsedOutput{"User asks: “What is the weather in SF?” We need to use lookup_weather tool.",
                    "",
                    {{"lookup_weather", R"({"location": "San Francisco"})"}}}));
  const std::string dropped = harmony_case("dropping_cot_by_default");
  const size_t final = dropped.find("<|channel|>final");
  EXPECT_EQ(parse(dropped.substr(final, dropped.find("<|end|>", final) - final)),
            (ParsedOutput{"", "2 + 2 equals 4.", {}}));
  // A tool's answer that the model invents is shown.
  EXPECT_EQ(parse("<|end|>" + harmony_case("tool_response_parsing")),
            (ParsedOutput{"", R"({"result": "https://openai.com/"} )", {}}));
}

// What the published template renders is what the reference implementation does, but for white
// space around the instructions, and a date that the template always writes.
std::string comparable(std::string text) {
  text = std::regex_replace(text, std::regex("Current date: [0-9-]*\n"), "");
  return std::regex_replace(text, std::regex("\n+<\\|end\\|>"), "<|end|>");
}

TEST(HarmonyCases, TheTemplateRendersTheSame) {
  auto source = read_file(std::string(LK_SOURCE_DIR) + "/tests/data/chat-templates/gpt-oss.jinja");
  ASSERT_TRUE(source);
  auto chat = ChatTemplate::parse(*std::move(source), "gpt-oss.jinja");
  ASSERT_TRUE(chat);
  auto render = [&](const char* messages, const char* variables = "{}",
                    const char* tools = "null") {
    auto text = chat->render(OrderedJson::parse(messages), OrderedJson::parse(tools),
                             OrderedJson::parse(variables), true);
    EXPECT_TRUE(text) << (text ? "" : text.error().message);
    return comparable(text ? *text : "");
  };
  const char* const capital =
      R"([{"role":"system","content":"Answer the user's questions like a robot."},
          {"role":"user","content":"What is the capital of the largest country in the world?"}])";
  const char* const plain =
      R"([{"role":"user","content":"What is the capital of the largest country in the world?"}])";
  for (const std::string effort : {"low", "medium", "high"}) {
    const std::string variables = R"({"reasoning_effort":")" + effort + "\"}";
    const std::string name = "simple_convo_" + effort + "_effort";
    EXPECT_EQ(render(capital, variables.c_str()), comparable(harmony_case(name)));
    EXPECT_EQ(render(plain, variables.c_str()), comparable(harmony_case(name + "_no_instruction")));
  }
  const char* const sum = R"([{"role":"user","content":"What is 2 + 2?"}])";
  EXPECT_EQ(render(sum), comparable(harmony_case("simple_convo")));
  const std::string no_tools = comparable(harmony_case("no_tools"));
  const std::string system = no_tools.substr(0, no_tools.find("<|end|>"));
  EXPECT_EQ(render(sum).substr(0, system.size()), system);
  const std::string dropped = render(
      R"([{"role":"user","content":"What is 2 + 2?"},
          {"role":"assistant","thinking":"Sum.","content":"2 + 2 equals 4."},
          {"role":"user","content":"What about 9 / 2?"}])");
  EXPECT_EQ(dropped.substr(dropped.find("<|start|>user")), harmony_case("dropping_cot_by_default"));
}

}  // namespace
}  // namespace lk
