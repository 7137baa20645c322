#include "text/output_parser.h"

#include <gtest/gtest.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/mmap_file.h"
#include "tests/text/parser_harness.h"
#include "tests/text/tokenizer_golden.h"

namespace lk {
namespace {

using Calls = std::vector<std::pair<std::string, std::string>>;

const OrderedJson& tools() {
  static const OrderedJson specs = OrderedJson::parse(R"([{"type":"function","function":{
    "name":"book","parameters":{"type":"object","properties":{
      "city":{"type":"string"},"nights":{"type":"integer"},"price":{"type":"number"},
      "pets":{"type":"boolean"},"guest":{"type":"object"},"tags":{"type":"array"},
      "note":{"type":["string","null"]},"room":{"anyOf":[{"type":"integer"},{"type":"string"}]},
      "floor":{"enum":[1,2]}}}}}])");
  return specs;
}

ParsedOutput think(std::string reasoning, std::string prompt_tail, std::string_view output) {
  return parse_output({.reasoning = std::move(reasoning), .prompt_tail = std::move(prompt_tail)},
                      output);
}

ParsedOutput hermes(std::string_view output) { return parse_output({.tools = "hermes"}, output); }

ParsedOutput xml(std::string_view output) {
  return parse_output({.tools = "qwen3_coder", .tool_specs = &tools()}, output);
}

TEST(OutputParser, Names) {
  EXPECT_EQ(reasoning_parser_names(),
            (std::vector<std::string>{"openai_gptoss", "qwen3", "deepseek_r1", "nemotron_v3"}));
  EXPECT_EQ(tool_parser_names(),
            (std::vector<std::string>{"openai", "hermes", "qwen3_coder", "qwen3_xml"}));
  auto error_of = [](OutputParserOptions options) {
    auto parser = make_output_parser(options, *marker_tokenizer());
    EXPECT_FALSE(parser);
    return parser ? Error{} : parser.error();
  };
  EXPECT_EQ(error_of({.reasoning = "qwen4"}).kind, ErrorKind::kInvalid);
  EXPECT_EQ(error_of({.reasoning = "qwen4"}).message,
            "there is no reasoning parser \"qwen4\" (known: openai_gptoss, qwen3, deepseek_r1, "
            "nemotron_v3)");
  EXPECT_EQ(error_of({.tools = "x"}).message,
            "there is no tool call parser \"x\" (known: openai, hermes, qwen3_coder, qwen3_xml)");
  EXPECT_EQ(error_of({.reasoning = "qwen3", .tools = "openai"}).kind, ErrorKind::kInvalid);
  EXPECT_EQ(error_of({.reasoning = "openai_gptoss", .tools = "hermes"}).kind, ErrorKind::kInvalid);
  for (const std::string& reasoning : reasoning_parser_names()) {
    EXPECT_TRUE(make_output_parser({.reasoning = reasoning}, *marker_tokenizer()));
  }
}

TEST(OutputParser, DetectedByTemplate) {
  auto choice = [](const std::string& name) {
    auto source = read_file(std::string(LK_SOURCE_DIR) + "/" + name);
    EXPECT_TRUE(source) << name;
    const ParserChoice found = detect_output_parsers(*source);
    return found.reasoning + " " + found.tools;
  };
  EXPECT_EQ(choice("tests/data/chat-templates/gpt-oss.jinja"), "openai_gptoss openai");
  EXPECT_EQ(choice("models/tiny-gpt-oss-mxfp4/chat_template.jinja"), "openai_gptoss openai");
  EXPECT_EQ(choice("tests/data/chat-templates/qwen3.5.jinja"), "qwen3 qwen3_coder");
  EXPECT_EQ(choice("tests/data/chat-templates/nemotron-3-nano.jinja"), "nemotron_v3 qwen3_coder");
  EXPECT_EQ(choice("tests/data/chat-templates/mixtral.jinja"), " ");
  const ParserChoice qwen3 = detect_output_parsers(
      "<tool_call>\\n{\"name\": <function-name>, \"arguments\": <args>}</tool_call>"
      "{{- '<think>\\n\\n</think>\\n\\n' }}");
  EXPECT_EQ(qwen3.reasoning + " " + qwen3.tools, "qwen3 hermes");
}

TEST(OutputParser, WithoutFormatsAllIsContent) {
  const char* const text = " <think>a</think>\n<tool_call>{}</tool_call> ";
  EXPECT_EQ(parse_output({}, text), (ParsedOutput{"", text, {}}));
}

TEST(ThinkParser, OpenedByThePrompt) {
  const char* const open = "<|im_start|>assistant\n<think>\n";
  for (const char* name : {"qwen3", "deepseek_r1", "nemotron_v3"}) {
    EXPECT_EQ(think(name, open, "Hm.\n\nYes.\n</think>\n\nIt is 4.\n"),
              (ParsedOutput{"Hm.\n\nYes.", "It is 4.\n", {}}));
    // Never closed: what streamed as reasoning stays reasoning.
    EXPECT_EQ(think(name, open, "Hm.\nso"), (ParsedOutput{"Hm.\nso", "", {}}));
    // Opened twice.
    EXPECT_EQ(think(name, open, "<think>\nHm</think>4"), (ParsedOutput{"Hm", "4", {}}));
    EXPECT_EQ(think(name, std::string(open) + "Let me see", " it</think>4"),
              (ParsedOutput{" it", "4", {}}));
  }
}

TEST(ThinkParser, ClosedByThePrompt) {
  for (const char* tail : {"<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think></think>"}) {
    for (const char* name : {"qwen3", "deepseek_r1", "nemotron_v3"}) {
      EXPECT_EQ(think(name, tail, "\n4 < 5"), (ParsedOutput{"", "\n4 < 5", {}}));
    }
  }
}

TEST(ThinkParser, OpenedByTheModelOrNot) {
  const char* const tail = "<|im_start|>user\n<think> what?<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(think("qwen3", tail, "\n<think>\nHm\n</think>\n\n4"), (ParsedOutput{"Hm", "4", {}}));
  EXPECT_EQ(think("qwen3", tail, "4</think>5<think>"), (ParsedOutput{"", "4</think>5<think>", {}}));
  EXPECT_EQ(think("qwen3", tail, "  "), (ParsedOutput{"", "  ", {}}));
  EXPECT_EQ(think("deepseek_r1", tail, "Hm</think>4"), (ParsedOutput{"Hm", "4", {}}));
  EXPECT_EQ(think("deepseek_r1", "", "<think>Hm"), (ParsedOutput{"Hm", "", {}}));
}

TEST(ThinkParser, TextThatLooksLikeATag) {
  const char* const open = "<think>\n";
  EXPECT_EQ(think("qwen3", open, "a </thin b</think>c <th"),
            (ParsedOutput{"a </thin b", "c <th", {}}));
  EXPECT_EQ(think("qwen3", open, "a <think> <tool_call> b</thi"),
            (ParsedOutput{"a <think> <tool_call> b</thi", "", {}}));
  EXPECT_EQ(think("qwen3", open, "<<</think></think>"), (ParsedOutput{"<<", "</think>", {}}));
}

// Tags that are special tokens, and ones that are ordinary added tokens.
TEST(ThinkParser, Tokens) {
  for (const char* path : {"models/tiny-gpt-oss-mxfp4/tokenizer.json",
                           "tests/data/tokenizers/qwen3/tokenizer.json.xz"}) {
    const auto tokenizer = shared_tokenizer(path);
    const OutputParserOptions options{.reasoning = "qwen3", .tools = "hermes"};
    const auto ids = *tokenizer->encode(
        "<think>\nIs it 4?\n</think>\n\nYes \xF0\x9F\x98\x80.\n<tool_call>\n{\"name\": \"f\", "
        "\"arguments\": {\"a\": \"\xC3\xA9\"}}\n</tool_call><|im_end|>");
    EXPECT_EQ(
        parse_tokens(options, ids, tokenizer),
        (ParsedOutput{"Is it 4?", "Yes \xF0\x9F\x98\x80.", {{"f", "{\"a\": \"\xC3\xA9\"}"}}}));
  }
}

TEST(ThinkParser, ACallEndsReasoning) {
  OutputParserOptions options{.reasoning = "qwen3", .tools = "hermes", .prompt_tail = "<think>\n"};
  EXPECT_EQ(parse_output(options, "Look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}"),
            (ParsedOutput{"Look.", "", {{"f", "{}"}}}));
  EXPECT_EQ(parse_output(options, "A <tool_call> tag.\n<tool_call>\n</think>ok"),
            (ParsedOutput{"A <tool_call> tag.\n<tool_call>", "ok", {}}));
  options.tools = "qwen3_coder";
  EXPECT_EQ(parse_output(options, "Look.\n<tool_call>\n<function=f>\n</function>\n</tool_call>"),
            (ParsedOutput{"Look.", "", {{"f", "{}"}}}));
  EXPECT_EQ(parse_output(options, "Look.\n<tool_call>{}\n</think>ok"),
            (ParsedOutput{"Look.\n<tool_call>{}", "ok", {}}));
}

TEST(HermesParser, Calls) {
  EXPECT_EQ(hermes("I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": "
                   "\"}\\\"\"}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
                   "{}}\n</tool_call>"),
            (ParsedOutput{"", "I look.", {{"f", R"({"a": [1, {"b": "}\""}]})"}, {"g", "{}"}}}));
  // Members in another order, other members, other kinds of arguments.
  EXPECT_EQ(hermes(R"(<tool_call>{"id": 7, "arguments": {"a":1}, "name": "f\u0041"}</tool_call>)"),
            (ParsedOutput{"", "", {{"fA", "{\"a\":1}"}}}));
  EXPECT_EQ(hermes(R"(<tool_call>{"name":"f","parameters":"{\"a\": 1}"}</tool_call>)").calls,
            (Calls{{"f", "{\"a\": 1}"}}));
  EXPECT_EQ(hermes(R"(<tool_call>{"name":"f"}</tool_call>)").calls, (Calls{{"f", "{}"}}));
  EXPECT_EQ(hermes(R"(<tool_call>{"name":"f","arguments":null}</tool_call>)").calls,
            (Calls{{"f", "{}"}}));
  EXPECT_EQ(hermes(R"(<tool_call>{"name":"f","arguments":{}} {"name":"g"}</tool_call>)").calls,
            (Calls{{"f", "{}"}, {"g", "{}"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\"}</tool_call>\n\nDone. "),
            (ParsedOutput{"", "Done. ", {{"f", "{}"}}}));
}

TEST(HermesParser, TagsInStrings) {
  EXPECT_EQ(
      hermes(R"(<tool_call>{"name":"f","arguments":{"a":"x</tool_call>y<tool_call>"}}</tool_call>)")
          .calls,
      (Calls{{"f", R"({"a":"x</tool_call>y<tool_call>"})"}}));
}

TEST(HermesParser, WhatIsNoCallIsContent) {
  for (const char* text :
       {"The <tool_call> tag.", "<tool_call>\n[1]\n</tool_call>",
        "<tool_call>{\"a\": 1}</tool_call>",
        "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
        "<tool_call>{name: f}</tool_call>", "<tool_call>{\"name\": \"f\"</tool_call>",
        "<tool_call>\n{\"na", "a <tool_", " \n", "</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>", "<tool_call></tool_call>",
        "<tool_call>{\"name\": }</tool_call>", "<function=f></function>"}) {
    EXPECT_EQ(hermes(text), (ParsedOutput{"", text, {}}));
    // A call behind it is found all the same.
    EXPECT_EQ(hermes(text + std::string("\n<tool_call>{\"name\":\"g\"}</tool_call>")).calls,
              (Calls{{"g", "{}"}}))
        << text;
  }
}

TEST(HermesParser, ArgumentsThatAreNoJson) {
  EXPECT_EQ(hermes(R"(<tool_call>{"name":"f","arguments":{'a': 1, b}}</tool_call>)").calls,
            (Calls{{"f", "{'a': 1, b}"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b}}\n</tool_call>\n"
                   "<tool_call>{\"name\":\"g\"}</tool_call>")
                .calls,
            (Calls{{"f", "{\"a\": \"b}}\n"}, {"g", "{}"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b}}</tool_call>"
                   "<tool_call>{\"name\":\"g\"}</tool_call>")
                .calls,
            (Calls{{"f", "{\"a\": \"b}}"}, {"g", "{}"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{}}}</tool_call>ok"),
            (ParsedOutput{"", "}ok", {{"f", "{}"}}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{} and so on}</tool_call>"),
            (ParsedOutput{"", "and so on}", {{"f", "{}"}}}));
}

TEST(HermesParser, CutAtALimit) {
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"b").calls,
            (Calls{{"f", "{\"a\": \"b"}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\", ").calls, (Calls{{"f", ""}}));
  EXPECT_EQ(hermes("<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_"),
            (ParsedOutput{"", "", {{"f", "{}"}}}));
}

TEST(QwenXmlParser, TypesOfTheTools) {
  const auto call = [](const std::string& parameter, const std::string& value) {
    const ParsedOutput parsed = xml("<tool_call>\n<function=book>\n<parameter=" + parameter +
                                    ">\n" + value + "\n</parameter>\n</function>\n</tool_call>");
    EXPECT_EQ(parsed.content, "");
    EXPECT_EQ(parsed.calls.size(), 1u);
    return parsed.calls.empty() ? "" : parsed.calls[0].second;
  };
  EXPECT_EQ(call("city", "Paris"), R"({"city": "Paris"})");
  EXPECT_EQ(call("city", " 5 "), R"({"city": " 5 "})");
  EXPECT_EQ(call("city", "null"), R"({"city": "null"})");
  EXPECT_EQ(call("city", "\na\n\n\"b\"\\\t"), R"({"city": "\na\n\n\"b\"\\\t"})");
  EXPECT_EQ(call("city", "<b>1 < 2</b> <function=x>\n<parameter"),
            "{\"city\": \"<b>1 < 2</b> <function=x>\\n<parameter\"}");
  EXPECT_EQ(call("nights", "5"), R"({"nights": 5})");
  EXPECT_EQ(call("nights", "12345678901234567890123"), R"({"nights": 12345678901234567890123})");
  EXPECT_EQ(call("nights", "five"), R"({"nights": "five"})");
  EXPECT_EQ(call("nights", "null"), R"({"nights": null})");
  EXPECT_EQ(call("price", "1e3"), R"({"price": 1e3})");
  EXPECT_EQ(call("price", "NaN"), R"({"price": "NaN"})");
  EXPECT_EQ(call("pets", "true"), R"({"pets": true})");
  EXPECT_EQ(call("pets", "False"), R"({"pets": false})");
  EXPECT_EQ(call("guest", "{\"a\": [1,\n 2]}"), "{\"guest\": {\"a\": [1,\n 2]}}");
  EXPECT_EQ(call("guest", "{'a': 1}"), R"({"guest": {"a": 1}})");
  EXPECT_EQ(call("tags", "[1, \"a\"]"), R"({"tags": [1, "a"]})");
  EXPECT_EQ(call("note", "null"), R"({"note": null})");
  EXPECT_EQ(call("note", "nil"), R"({"note": "nil"})");
  EXPECT_EQ(call("room", "12"), R"({"room": 12})");
  EXPECT_EQ(call("room", "12b"), R"({"room": "12b"})");
  EXPECT_EQ(call("floor", "2"), R"({"floor": 2})");
  EXPECT_EQ(call("unknown", "2"), R"({"unknown": "2"})");
}

TEST(QwenXmlParser, Calls) {
  EXPECT_EQ(
      xml("I book.\n\n<tool_call>\n<function=book>\n<parameter=city>\nRome\n</parameter>\n"
          "<parameter=nights>\n2\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
          "<function=f>\n</function>\n</tool_call>"),
      (ParsedOutput{"", "I book.", {{"book", R"({"city": "Rome", "nights": 2})"}, {"f", "{}"}}}));
  // Without its tags around, if the tool is offered.
  EXPECT_EQ(xml("<function=book>\n<parameter=city>Rome</parameter>\n</function>\n</tool_call>"),
            (ParsedOutput{"", "", {{"book", R"({"city": "Rome"})"}}}));
  EXPECT_EQ(xml("<function=f>x</function>"), (ParsedOutput{"", "<function=f>x</function>", {}}));
  // Two functions in one.
  EXPECT_EQ(xml("<tool_call><function=f></function><function=g></function></tool_call>ok"),
            (ParsedOutput{"", "ok", {{"f", "{}"}, {"g", "{}"}}}));
  // JSON instead of parameters.
  EXPECT_EQ(xml("<tool_call><function=f>\n{\"a\": 1}\n</function></tool_call>").calls,
            (Calls{{"f", "\n{\"a\": 1}\n"}}));
}

TEST(QwenXmlParser, MissingTags) {
  const Calls wanted{{"book", R"({"city": "Rome", "nights": 2})"}};
  for (const char* text :
       {"<tool_call>\n<function=book>\n<parameter=city>\nRome\n<parameter=nights>\n2\n</function>\n"
        "</tool_call>",
        "<tool_call><function=book><parameter=city>Rome</parameter><parameter=nights>2</function>"
        "</tool_call>",
        "<tool_call><function=book><parameter=city>Rome</parameter><parameter=nights>2</tool_call>",
        "<function=book><parameter=city>Rome</parameter><parameter=nights>2<|im_end|>",
        "<function=book><parameter=city>Rome</parameter><parameter=nights>2</"
        "parameter><|im_end|>"}) {
    EXPECT_EQ(xml(text), (ParsedOutput{"", "", wanted})) << text;
    EXPECT_EQ(
        xml(text + std::string("<tool_call><function=f></function></tool_call>")).calls.size(),
        std::string_view(text).ends_with("<|im_end|>") &&
                !std::string_view(text).ends_with("</parameter><|im_end|>")
            ? 1u
            : 2u)
        << text;
  }
}

TEST(QwenXmlParser, WhatIsNoCallIsContent) {
  for (const char* text :
       {"The <tool_call> tag.", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "<tool_call>",
        "<tool_call><function=f", "<tool_call><function=>x", "<tool_call>\n<function=a\nb>",
        "</function> </parameter> <parameter=x>", "a <tool_ca", "\n"}) {
    EXPECT_EQ(xml(text), (ParsedOutput{"", text, {}}));
    EXPECT_EQ(xml(text + std::string("\n<tool_call><function=g></function></tool_call>")).calls,
              (Calls{{"g", "{}"}}))
        << text;
  }
  // Stray text in a call.
  EXPECT_EQ(xml("<tool_call><function=f>so <parameter=a>1</parameter></function></tool_call>"),
            (ParsedOutput{"", "so ", {{"f", R"({"a": "1"})"}}}));
}

TEST(QwenXmlParser, CutAtALimit) {
  const std::string begin = "<tool_call>\n<function=book>\n";
  EXPECT_EQ(xml(begin + "<parameter=city>\nRo").calls, (Calls{{"book", R"({"city": "Ro)"}}));
  EXPECT_EQ(xml(begin + "<parameter=city>\nRome\n</param").calls,
            (Calls{{"book", R"({"city": "Rome)"}}));
  EXPECT_EQ(xml(begin + "<parameter=city>\nRome\n</parameter>\n<para"),
            (ParsedOutput{"", "", {{"book", R"({"city": "Rome")"}}}));
  EXPECT_EQ(xml(begin + "<parameter=ci"), (ParsedOutput{"", "", {{"book", ""}}}));
}

// Two calls in one stream.
TEST(BugCases, T02_CallsHaveIndexesOfTheirOwn) {
  const auto tokenizer = marker_tokenizer();
  const struct {
    const char* parser;
    std::string output;
  } cases[] = {
      {"hermes", "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>"},
      {"qwen3_coder",
       "<tool_call><function=f></function></tool_call><tool_call><function=g></function></"
       "tool_call>"}};
  for (const auto& c : cases) {
    auto parser = make_output_parser({.tools = c.parser}, *tokenizer);
    std::vector<ToolCallDelta> calls;
    for (const char byte : c.output) {
      for (ToolCallDelta& call : (*parser)->push(-1, {&byte, 1}).tool_calls) {
        calls.push_back(std::move(call));
      }
    }
    ASSERT_EQ(calls.size(), 4u);
    EXPECT_EQ(calls[0].name + calls[1].name + calls[2].name + calls[3].name, "fg");
    for (int i = 0; i < 4; ++i) EXPECT_EQ(calls[i].index, i / 2);
  }
}

// The opener cut at each byte, and a call that comes in one piece.
TEST(BugCases, T03_StreamedIsWholeWhereverItIsCut) {
  const struct {
    OutputParserOptions options;
    std::string output;
  } cases[] = {
      {{.reasoning = "qwen3", .tools = "hermes", .prompt_tail = "<think>\n"},
       "a\n</think>\n\nb\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"},
      {{.reasoning = "qwen3", .tools = "qwen3_coder", .tool_specs = &tools()},
       "<think>\na\n</think>\n\nb\n<tool_call>\n<function=book>\n<parameter=nights>\n1\n"
       "</parameter>\n</function>\n</tool_call>"},
      {{.reasoning = "openai_gptoss", .tools = "openai"},
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>"}};
  std::mt19937 random(3);
  for (const auto& c : cases) {
    EXPECT_EQ(parse_output(c.options, c.output).calls.size(), 1u);
    for (size_t length = 0; length <= c.output.size(); ++length) {
      const std::string cut = c.output.substr(0, length);
      const ParsedOutput whole = parse_output(c.options, cut);
      for (int i = 0; i < 4; ++i) ASSERT_EQ(parse_output(c.options, cut, &random), whole) << cut;
    }
  }
}

// A stop string that never matches only delays text: the fields are the same.
TEST(BugCases, Q04_TextThatIsHeldBackChangesNothing) {
  const std::string output =
      "<|channel|>analysis<|message|>Let me think about it.<|end|>"
      "<|start|>assistant<|channel|>final<|message|>The end.<|return|>";
  const OutputParserOptions options{.reasoning = "openai_gptoss", .tools = "openai"};
  const ParsedOutput wanted{"Let me think about it.", "The end.", {}};
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(parse_output(options, output, &random), wanted);
}

}  // namespace
}  // namespace lk
