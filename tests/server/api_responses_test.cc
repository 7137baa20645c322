// /v1/responses: input items in, output items and events out.
#include <fmt/format.h>

#include "tests/server/api_fixture.h"

namespace lk {
namespace {

class ApiResponses : public ApiTest {
 public:
  ApiResponses() { served_ = served_model(Dialect::kGptOss); }

  std::string prompt_text() const { return served_.tokenizer->decode(requests_[0].prompt, false); }
};

constexpr const char* kScript =
    "<|channel|>analysis<|message|>think "
    "hard<|end|><|start|>assistant<|channel|>final<|message|>the "
    "answer";
constexpr const char* kCallScript =
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": "
    "\"Bern\"}<|call|>";

TEST_F(ApiResponses, BodyHasWhatTheClientsTypesDemand) {
  cached_tokens_ = 3;
  auto answer = make(make_response_answer,
                     R"({"input": "hi", "instructions": "be brief", "reasoning": {"effort": "low"},
                         "temperature": 0.5, "metadata": {"a": "b"}})");
  EXPECT_NE(prompt_text().find("be brief"), std::string::npos);
  EXPECT_NE(prompt_text().find("Reasoning: low"), std::string::npos);
  const OrderedJson body = whole(*answer, {kScript});
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("resp_"));
  EXPECT_EQ(body["object"], "response");
  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["model"], "base");
  EXPECT_EQ(body["temperature"], 0.5);
  EXPECT_EQ(body["instructions"], "be brief");
  EXPECT_EQ(body["metadata"]["a"], "b");
  EXPECT_EQ(body["store"], false);
  for (const char* field : {"created_at", "error", "incomplete_details", "parallel_tool_calls",
                            "tool_choice", "tools", "top_p", "system_fingerprint", "text"}) {
    EXPECT_TRUE(body.contains(field)) << field;
  }
  ASSERT_EQ(body["output"].size(), 2u);
  EXPECT_EQ(body["output"][0]["type"], "reasoning");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "think hard");
  EXPECT_EQ(body["output"][1]["type"], "message");
  EXPECT_EQ(body["output"][1]["role"], "assistant");
  EXPECT_EQ(body["output"][1]["content"][0]["type"], "output_text");
  EXPECT_EQ(body["output"][1]["content"][0]["text"], "the answer");
  EXPECT_EQ(body["usage"]["input_tokens"], requests_[0].prompt.size());
  EXPECT_EQ(body["usage"]["input_tokens_details"]["cached_tokens"], 3);
  EXPECT_EQ(body["usage"]["output_tokens"], encode(kScript).size() + 1);
  EXPECT_GE(body["usage"]["output_tokens_details"]["reasoning_tokens"],
            encode("think hard").size());
}

TEST_F(ApiResponses, WhatIsTooLongForTheContextIsIncomplete) {
  for (const char* asked : {"131072", "500"}) {
    auto answer = make(make_response_answer,
                       fmt::format(R"({{"input": "hi", "max_output_tokens": {}}})", asked));
    EXPECT_EQ(requests_[0].max_tokens, kContext - static_cast<int>(requests_[0].prompt.size()));
  }
  auto answer = make(make_response_answer, R"({"input": "hi", "max_output_tokens": 4})");
  const OrderedJson body = whole(*answer, {kScript});
  EXPECT_EQ(body["status"], "incomplete");
  EXPECT_EQ(body["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(body["output"].back()["status"], "incomplete");
  const ApiError error =
      refuse(make_response_answer, R"({"input": ")" + std::string(20000, '\'') + "\"}");
  EXPECT_EQ(error.code, "context_length_exceeded");
}

TEST_F(ApiResponses, EventsComeInOrder) {
  auto answer = make(make_response_answer, R"({"input": "hi", "stream": true})");
  const auto events = streamed(*answer, {kScript}, /*done=*/false);
  std::vector<std::string> types;
  std::string text, reasoning;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["sequence_number"], i);
    const std::string type = events[i]["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "response.output_text.delta") text += events[i]["delta"].get<std::string>();
    if (type == "response.reasoning_text.delta") reasoning += events[i]["delta"].get<std::string>();
  }
  EXPECT_EQ(types, (std::vector<std::string>{
                       "response.created", "response.in_progress", "response.output_item.added",
                       "response.content_part.added", "response.reasoning_text.delta",
                       "response.reasoning_text.done", "response.content_part.done",
                       "response.output_item.done", "response.output_item.added",
                       "response.content_part.added", "response.output_text.delta",
                       "response.output_text.done", "response.content_part.done",
                       "response.output_item.done", "response.completed"}));
  EXPECT_EQ(text, "the answer");
  EXPECT_EQ(reasoning, "think hard");
  const OrderedJson& response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "the answer");
  EXPECT_EQ(events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(events[0]["response"]["id"], response["id"]);
  EXPECT_GT(response["usage"]["output_tokens"], 0);
}

TEST_F(ApiResponses, LogprobsOfTheMessageAlone) {
  const std::string ask =
      R"({"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2)";
  auto answer = make(make_response_answer, ask + "}");
  EXPECT_EQ(requests_[0].logprobs, 2);
  const OrderedJson body = whole(*answer, {kScript});
  EXPECT_EQ(body["top_logprobs"], 2);
  const auto check = [&](const OrderedJson& entries, size_t count) {
    ASSERT_EQ(entries.size(), count);
    for (const OrderedJson& entry : entries) {
      EXPECT_LE(entry["logprob"], 0);
      EXPECT_EQ(entry["bytes"].size(), entry["token"].get<std::string>().size());
      EXPECT_EQ(entry["top_logprobs"].size(), 2u);
    }
  };
  const auto text_of = [](const OrderedJson& entries) {
    std::string text;
    for (const OrderedJson& entry : entries) text += entry["token"];
    return text;
  };
  const OrderedJson& whole_text = body["output"][1]["content"][0]["logprobs"];
  check(whole_text, encode("the answer").size());
  EXPECT_EQ(text_of(whole_text), "the answer");

  answer = make(make_response_answer, ask + R"(, "stream": true})");
  OrderedJson deltas = OrderedJson::array(), done;
  for (const OrderedJson& event : streamed(*answer, {kScript}, false)) {
    if (event["type"] == "response.output_text.done") done = event["logprobs"];
    if (event["type"] != "response.output_text.delta") continue;
    EXPECT_EQ(text_of(event["logprobs"]), event["delta"]);
    for (const OrderedJson& entry : event["logprobs"]) deltas.push_back(entry);
  }
  EXPECT_EQ(deltas, whole_text);
  EXPECT_EQ(done, whole_text);

  answer = make(make_response_answer, R"({"input": "hi", "top_logprobs": 2})");
  EXPECT_EQ(requests_[0].logprobs, -1);
  EXPECT_EQ(refuse(make_response_answer, R"({"input": "a", "include": "x"})").param, "include");
  EXPECT_EQ(refuse(make_response_answer, R"({"input": "a", "include": [1]})").param, "include[0]");
  EXPECT_EQ(refuse(make_response_answer, R"({"input": "a", "top_logprobs": 21})").param,
            "top_logprobs");
}

TEST_F(ApiResponses, CallsAreItems) {
  const char* tools = R"([{"type": "function", "name": "get_weather", "description": "d",
                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}])";
  auto answer =
      make(make_response_answer,
           fmt::format(R"({{"input": "hi", "tools": {}, "stream": true, "tool_choice": "auto"}})",
                       tools));
  EXPECT_NE(prompt_text().find("get_weather"), std::string::npos);
  const auto events = streamed(*answer, {kCallScript}, false);
  std::string arguments;
  for (const OrderedJson& event : events) {
    if (event["type"] == "response.function_call_arguments.delta")
      arguments += event["delta"].get<std::string>();
  }
  const OrderedJson& item = events.back()["response"]["output"][0];
  EXPECT_EQ(item["type"], "function_call");
  EXPECT_EQ(item["name"], "get_weather");
  EXPECT_EQ(item["arguments"], arguments);
  EXPECT_EQ(json(arguments)["city"], "Bern");
  EXPECT_TRUE(item["call_id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(
      refuse(make_response_answer, R"({"input": "x", "tools": [{"type": "web_search"}]})").param,
      "tools[0].type");
}

TEST_F(ApiResponses, InputItems) {
  make(make_response_answer, R"({"instructions": "rule one", "input": [
      {"role": "developer", "content": "rule two"},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "look it up"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a moment"}]},
      {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"city\": \"Bern\"}"},
      {"type": "function_call_output", "call_id": "c1", "output": "sunny"}]})");
  const std::string text = prompt_text();
  size_t at = 0;
  for (const char* piece : {"rule one\n\nrule two", "hi", "a moment", "look it up",
                            "functions.get_weather", "Bern", "sunny"}) {
    at = text.find(piece, at);
    ASSERT_NE(at, std::string::npos) << piece << "\n" << text;
  }
  for (const auto& [input, param] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "input"},
           {"5", "input"},
           {"[5]", "input[0]"},
           {R"([{"type": "item_reference", "id": "x"}])", "input[0].type"},
           {R"([{"role": "user"}])", "input[0].content"},
           {R"([{"role": "user", "content": [{"type": "input_image"}]}])",
            "input[0].content[0].type"},
           {R"([{"type": "function_call", "call_id": "x"}])", "input[0].name"},
           {R"([{"type": "function_call_output", "call_id": "x", "output": {}}])",
            "input[0].output"}}) {
    EXPECT_EQ(refuse(make_response_answer, R"({"input": )" + input + "}").param, param);
  }
  EXPECT_EQ(refuse(make_response_answer, "{}").param, "input");
}

TEST_F(ApiResponses, FailuresAreEvents) {
  auto answer = make(make_response_answer, R"({"input": "hi", "stream": true})");
  std::string out;
  answer->fail({.status = 500, .message = "the engine ended"}, out);
  EXPECT_NE(out.find("event: response.failed"), std::string::npos);
  EXPECT_NE(out.find("the engine ended"), std::string::npos);
  EXPECT_NE(out.find("event: response.created"), std::string::npos);
}

}  // namespace
}  // namespace lk
