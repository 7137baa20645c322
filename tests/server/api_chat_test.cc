// /v1/chat/completions: conversations in, messages out.
#include <fmt/format.h>

#include "server/api/chat_prompt.h"
#include "tests/server/api_fixture.h"

namespace lk {
namespace {

using ApiChat = ApiTest;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "get_weather", "description": "d",
         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}])";

std::string chat(const std::string& messages, const std::string& more = "") {
  return R"({"messages": )" + messages + more + "}";
}

std::string prompt_text(const ApiTest& api) {
  return api.served_.tokenizer->decode(api.requests_[0].prompt, false);
}

TEST_F(ApiChat, BodyHasEveryField) {
  auto answer = make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])"));
  EXPECT_EQ(prompt_text(*this),
            "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>");
  const OrderedJson body = whole(*answer, {"hello you"});
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "base");
  const OrderedJson& choice = body["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["message"]["content"], "hello you");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_FALSE(choice["message"].contains("reasoning"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], requests_[0].prompt.size());
}

TEST_F(ApiChat, StreamBeginsWithTheRole) {
  auto answer =
      make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])", R"(, "stream": true)"));
  const auto chunks = streamed(*answer, {"hello you"});
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], json(R"({"role": "assistant", "content": ""})"));
  EXPECT_EQ(chunks[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(joined(chunks, "content"), "hello you");
  EXPECT_TRUE(chunks.back()["choices"][0]["delta"].empty());
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "stop");
  for (const OrderedJson& chunk : chunks) EXPECT_EQ(chunk["id"], chunks[0]["id"]);
}

TEST_F(ApiChat, MaxCompletionTokensWins) {
  make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                              R"(, "max_tokens": 5, "max_completion_tokens": 7)"));
  EXPECT_EQ(requests_[0].max_tokens, 7);
  EXPECT_EQ(refuse(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                          R"(, "max_completion_tokens": 0)"))
                .param,
            "max_completion_tokens");
}

TEST(BugCases, S02_S05_ChatLogprobs) {
  for (bool stream : {false, true}) {
    Api api;
    auto answer = api.make(make_chat_answer,
                           chat(R"([{"role": "user", "content": "hi"}])",
                                fmt::format(R"(, "logprobs": true, "stream": {})", stream)));
    EXPECT_EQ(api.requests_[0].logprobs, 0);
    OrderedJson list = OrderedJson::array();
    if (stream) {
      for (const OrderedJson& chunk : api.streamed(*answer, {"hello you"})) {
        const OrderedJson& logprobs = chunk["choices"][0]["logprobs"];
        if (logprobs.is_null()) continue;
        for (const OrderedJson& entry : logprobs["content"]) list.push_back(entry);
      }
    } else {
      list = api.whole(*answer, {"hello you"})["choices"][0]["logprobs"]["content"];
    }
    ASSERT_EQ(list.size(), api.encode("hello you").size() + 1);
    for (const OrderedJson& entry : list) {
      EXPECT_TRUE(entry["token"].is_string());
      EXPECT_LE(entry["logprob"], 0);
      EXPECT_EQ(entry["top_logprobs"], OrderedJson::array());
    }
  }
  Api api;
  auto answer = api.make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                                R"(, "logprobs": true, "top_logprobs": 20)"));
  const OrderedJson body = api.whole(*answer, {"hello"});
  EXPECT_EQ(body["choices"][0]["logprobs"]["content"][0]["top_logprobs"].size(), 20u);
}

TEST_F(ApiChat, UnknownRolesAreRefusedByName) {
  // What would hide the role: no content, and one that another message shows.
  for (const char* content : {"abracadabra", "", "a"}) {
    for (const Dialect dialect : {Dialect::kQwen, Dialect::kGptOss}) {
      served_ = served_model(dialect);
      const ApiError error = refuse(make_chat_answer, fmt::format(R"({{"messages": [
          {{"role": "user", "content": "a"}}, {{"role": "wizard", "content": "{}"}}]}})",
                                                                  content));
      EXPECT_EQ(error.param, "messages[1].role");
      EXPECT_EQ(error.message,
                "messages[1].role must be one of system, developer, user, assistant, tool, "
                "function, not \"wizard\"");
    }
  }
  EXPECT_EQ(refuse(make_chat_answer, R"({"messages": [{"role": "", "content": "a"}]})").param,
            "messages[0].role");
  EXPECT_EQ(
      refuse(make_response_answer, R"({"input": [{"role": "wizard", "content": "a"}]})").param,
      "input[0].role");
  const auto counted =
      tokenize_body(json(R"({"messages": [{"role": "wizard", "content": "a"}]})"), served_);
  ASSERT_FALSE(counted);
  EXPECT_EQ(counted.error().param, "messages[0].role");
}

TEST_F(ApiChat, MessagesThatTheTemplateLeavesOutAreNotSilent) {
  served_ = served_model(Dialect::kGptOss);
  const std::string ask =
      R"({"messages": [{"role": "function", "content": " abracadabra "}, {"role": "user", "content": "a"}]})";
  const ApiError error = refuse(make_chat_answer, ask);
  EXPECT_EQ(error.param, "messages");
  EXPECT_NE(error.message.find("\"function\""), std::string::npos) << error.message;
}

TEST_F(ApiChat, ATemplateThatShowsEveryRoleMayGetAnyRole) {
  served_.chat_template = *ChatTemplate::parse(
      "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}", "t");
  make(make_chat_answer, R"({"messages": [{"role": "wizard", "content": " abracadabra "}]})");
  EXPECT_NE(served_.tokenizer->decode(requests_[0].prompt, false).find("wizard:  abracadabra"),
            std::string::npos);
}

TEST_F(ApiChat, PromptLogprobsStandBesideTheChoices) {
  auto answer = make(make_chat_answer,
                     R"({"messages": [{"role": "user", "content": "one two"}], "n": 2,
                         "prompt_logprobs": 2})");
  const size_t prompt = requests_[0].prompt.size();
  EXPECT_FALSE(requests_[1].prompt_logprobs);
  const OrderedJson body = whole(*answer, {"a", "b"});
  EXPECT_EQ(body["prompt_logprobs"].size(), prompt);
  EXPECT_FALSE(body["choices"][0].contains("prompt_logprobs"));
}

TEST(BugCases, P01_P03_BytesOfAllTokensAreTheText) {
  const std::string text =
      "a\xF0\x9F\x98\x80\xE4\xBD\xA0 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80!";
  for (bool stream : {false, true}) {
    Api api;
    auto answer = api.make(make_chat_answer,
                           chat(R"([{"role": "user", "content": "hi"}])",
                                fmt::format(R"(, "logprobs": true, "stream": {})", stream)));
    OrderedJson list = OrderedJson::array();
    if (stream) {
      const auto chunks = api.streamed(*answer, {text});
      EXPECT_EQ(joined(chunks, "content"), text);
      for (const OrderedJson& chunk : chunks) {
        const OrderedJson& logprobs = chunk["choices"][0]["logprobs"];
        if (logprobs.is_object())
          list.insert(list.end(), logprobs["content"].begin(), logprobs["content"].end());
      }
    } else {
      const OrderedJson body = api.whole(*answer, {text});
      EXPECT_EQ(body["choices"][0]["message"]["content"], text);
      list = body["choices"][0]["logprobs"]["content"];
    }
    std::string bytes;
    for (const OrderedJson& entry : list) {
      if (entry["bytes"].is_null()) continue;
      for (const OrderedJson& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
    }
    EXPECT_EQ(bytes, text);
  }
}

TEST(BugCases, T05_BosIsNeverDoubled) {
  Api api;
  api.served_.chat_template = *ChatTemplate::parse(
      "<|startoftext|>{% for m in messages %}{{ m.content }}{% endfor %}", "t");
  for (int turns = 1; turns <= 10; ++turns) {
    std::string messages = "[", expected = "<|startoftext|>";
    for (int i = 0; i < turns; ++i) {
      messages += std::string(i ? "," : "") + R"({"role": "user", "content": "word "})";
      expected += "word ";
    }
    auto answer = api.make(make_chat_answer, chat(messages + "]"));
    EXPECT_EQ(api.requests_[0].prompt, api.encode(expected));
    EXPECT_EQ(api.whole(*answer, {"x"})["usage"]["prompt_tokens"], api.encode(expected).size());
  }
}

TEST(BugCases, T06_CallsWithoutContent) {
  for (const auto dialect : {ApiTest::Dialect::kGptOss, ApiTest::Dialect::kQwen}) {
    for (const char* content :
         {R"("content": null,)", "", R"("content": [],)", R"("content": "",)"}) {
      Api api;
      api.served_ = ApiTest::served_model(dialect);
      api.make(make_chat_answer, chat(fmt::format(R"([{{"role": "user", "content": "hi"}},
                   {{"role": "assistant", {} "tool_calls": [{{"id": "c1", "type": "function",
                     "function": {{"name": "get_weather", "arguments": "{{\"city\": \"Bern\"}}"}}}}]}},
                   {{"role": "tool", "tool_call_id": "c1", "content": "sunny"}}])",
                                                  content),
                                      std::string(R"(, "tools": )") + kTools));
      const std::string text = prompt_text(api);
      EXPECT_NE(text.find("sunny"), std::string::npos);
      EXPECT_NE(text.find("Bern"), std::string::npos);
      EXPECT_EQ(text.find(R"(\"city\")"), std::string::npos) << "arguments are an object";
    }
  }
}

TEST(BugCases, T07_OddConversations) {
  Api api;
  EXPECT_EQ(api.refuse(make_chat_answer, chat("[]")).param, "messages");
  EXPECT_EQ(api.refuse(make_chat_answer, "{}").param, "messages");
  EXPECT_EQ(api.refuse(make_chat_answer, chat("{}")).param, "messages");
  EXPECT_EQ(api.refuse(make_chat_answer, chat("[5]")).param, "messages[0]");
  EXPECT_EQ(api.refuse(make_chat_answer, chat("[{}]")).param, "messages[0].role");
  EXPECT_EQ(api.refuse(make_chat_answer, chat(R"([{"role": 3, "content": "x"}])")).param,
            "messages[0].role");
  for (const char* role : {"assistant", "system", "developer"})
    api.make(make_chat_answer, chat(fmt::format(R"([{{"role": "{}", "content": "x"}}])", role)));
  api.served_ = ApiTest::served_model(ApiTest::Dialect::kQwen);
  // This template wants a user's message and says so.
  EXPECT_EQ(api.refuse(make_chat_answer, chat(R"([{"role": "system", "content": "x"}])")).param,
            "messages");
}

TEST(BugCases, T08_NoTemplateIsAPlainHint) {
  Api api;
  api.served_.chat_template.reset();
  api.served_.no_template = {ErrorKind::kNotFound, "the folder has no chat template"};
  const ApiError error =
      api.refuse(make_chat_answer, chat(R"([{"role": "user", "content": "x"}])"));
  EXPECT_NE(error.message.find("the folder has no chat template"), std::string::npos);
  EXPECT_NE(error.message.find("--chat-template"), std::string::npos);
}

TEST(BugCases, T09_ContentThatIsNoTextNamesItsPath) {
  Api api;
  const std::string begin = R"([{"role": "user", "content": "hi"}, {"role": )";
  EXPECT_EQ(api.refuse(make_chat_answer, chat(begin + R"("tool", "content": {"a": 1}}])")).param,
            "messages[1].content");
  EXPECT_EQ(api.refuse(make_chat_answer, chat(begin + R"("user", "content": 5}])")).param,
            "messages[1].content");
  EXPECT_EQ(api.refuse(make_chat_answer, chat(begin + R"("user"}])")).param, "messages[1].content");
  EXPECT_EQ(api.refuse(make_chat_answer,
                       chat(begin + R"("user", "content": [{"type": "text", "text": "a"},
                            {"type": "image_url", "image_url": {"url": "x"}}]}])"))
                .param,
            "messages[1].content[1].type");
  EXPECT_EQ(
      api.refuse(make_chat_answer, chat(begin + R"("assistant", "tool_calls": [{}]}])")).param,
      "messages[1].tool_calls[0]");
  EXPECT_EQ(api.refuse(make_chat_answer,
                       chat(begin + R"("assistant", "tool_calls": [{"function": {}}]}])"))
                .param,
            "messages[1].tool_calls[0].function.name");
  api.make(make_chat_answer, chat(R"([{"role": "user", "content": [{"type": "text", "text": "a"},
                                      {"type": "text", "text": "b"}]}])"));
  EXPECT_NE(prompt_text(api).find("a\nb"), std::string::npos);
}

TEST_F(ApiChat, ReasoningAndEffortOfGptOss) {
  served_ = served_model(Dialect::kGptOss);
  const std::string script =
      "<|channel|>analysis<|message|>think "
      "hard<|end|><|start|>assistant<|channel|>final<|message|>the "
      "answer";
  auto answer = make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                            R"(, "reasoning_effort": "high")"));
  EXPECT_NE(prompt_text(*this).find("Reasoning: high"), std::string::npos);
  const OrderedJson body = whole(*answer, {script});
  const OrderedJson& message = body["choices"][0]["message"];
  EXPECT_EQ(message["content"], "the answer");
  EXPECT_EQ(message["reasoning"], "think hard");
  EXPECT_EQ(message["reasoning_content"], "think hard");
  EXPECT_GE(body["usage"]["completion_tokens_details"]["reasoning_tokens"],
            encode("think hard").size());
  answer =
      make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])", R"(, "stream": true)"));
  const auto chunks = streamed(*answer, {script});
  EXPECT_EQ(joined(chunks, "content"), "the answer");
  EXPECT_EQ(joined(chunks, "reasoning"), "think hard");
  EXPECT_EQ(joined(chunks, "reasoning_content"), "think hard");
  answer = make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                       R"(, "stream": true, "include_reasoning": false)"));
  EXPECT_EQ(joined(streamed(*answer, {script}), "reasoning"), "");
}

TEST(BugCases, Q04_AStopStringDoesNotMoveReasoning) {
  const std::string script =
      "<|channel|>analysis<|message|>think "
      "hard<|end|><|start|>assistant<|channel|>final<|message|>the "
      "answer";
  for (const char* stop : {"", R"(, "stop": "hardly ever")", R"(, "stop": ["hard\n", "d<"])"}) {
    Api api;
    api.served_ = ApiTest::served_model(ApiTest::Dialect::kGptOss);
    auto answer = api.make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                                  std::string(R"(, "stream": true)") + stop));
    const auto chunks = api.streamed(*answer, {script});
    EXPECT_EQ(joined(chunks, "content"), "the answer") << stop;
    EXPECT_EQ(joined(chunks, "reasoning"), "think hard") << stop;
  }
}

TEST(BugCases, T01_T02_ToolCallsInStreamsAndWholes) {
  const std::string one = R"(<tool_call>
<function=get_weather>
<parameter=city>
Bern
</parameter>
</function>
</tool_call>)";
  Api api;
  api.served_ = ApiTest::served_model(ApiTest::Dialect::kQwen);
  const std::string more = std::string(R"(, "chat_template_kwargs": {"enable_thinking": false},
                                           "tools": )") +
                           kTools;
  auto answer = api.make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])", more));
  const OrderedJson body = api.whole(*answer, {one + "\n" + one});
  const OrderedJson& choice = body["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u) << body.dump();
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_NE(choice["message"]["tool_calls"][0]["id"], choice["message"]["tool_calls"][1]["id"]);

  answer = api.make(make_chat_answer,
                    chat(R"([{"role": "user", "content": "hi"}])", R"(, "stream": true)" + more));
  std::vector<std::string> ids, names, arguments(2);
  const auto chunks = api.streamed(*answer, {one + "\n" + one});
  for (const OrderedJson& chunk : chunks) {
    for (const OrderedJson& call :
         chunk["choices"][0]["delta"].value("tool_calls", OrderedJson::array())) {
      const auto index = call["index"].get<size_t>();
      ASSERT_LT(index, 2u);
      arguments[index] += call["function"]["arguments"].get<std::string>();
      if (!call.contains("id")) continue;
      EXPECT_EQ(ids.size(), index);
      ids.push_back(call["id"]);
      names.push_back(call["function"]["name"]);
    }
  }
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids[0].starts_with("call_"));
  EXPECT_NE(ids[0], ids[1]);
  for (size_t i = 0; i < 2; ++i) {
    const OrderedJson& call = choice["message"]["tool_calls"][i];
    EXPECT_EQ(names[i], "get_weather");
    EXPECT_EQ(call["function"]["name"], names[i]);
    EXPECT_EQ(call["function"]["arguments"], arguments[i]);
    EXPECT_EQ(api.json(arguments[i])["city"], "Bern");
  }
}

TEST_F(ApiChat, ToolsLeaveThePromptWithChoiceNone) {
  served_ = served_model(Dialect::kQwen);
  const std::string tools = std::string(R"(, "tools": )") + kTools;
  make(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])", tools));
  EXPECT_NE(prompt_text(*this).find("get_weather"), std::string::npos);
  make(make_chat_answer,
       chat(R"([{"role": "user", "content": "hi"}])", tools + R"(, "tool_choice": "none")"));
  EXPECT_EQ(prompt_text(*this).find("get_weather"), std::string::npos);
  for (const char* bad : {"5", "[5]", R"([{"type": "web_search"}])", R"([{"type": "function"}])"}) {
    const auto param = refuse(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                                     std::string(R"(, "tools": )") + bad))
                           .param;
    EXPECT_TRUE(param.starts_with("tools")) << param;
  }
}

TEST_F(ApiChat, ParallelCallsOfGptOssAreAllTold) {
  served_ = served_model(Dialect::kGptOss);
  make(
      make_chat_answer,
      chat(
          R"([{"role": "system", "content": "first rule"}, {"role": "developer", "content": "second rule"},
           {"role": "user", "content": "hi"},
           {"role": "assistant", "content": null, "tool_calls": [
             {"id": "c1", "type": "function", "function": {"name": "fa", "arguments": "{\"x\": 1}"}},
             {"id": "c2", "type": "function", "function": {"name": "fb", "arguments": "{\"x\": 2}"}}]},
           {"role": "tool", "tool_call_id": "c2", "content": "of b"},
           {"role": "tool", "tool_call_id": "c1", "content": "of a"}])"));
  const std::string text = prompt_text(*this);
  EXPECT_NE(text.find("first rule\n\nsecond rule"), std::string::npos) << text;
  const size_t a = text.find("to=functions.fa"), of_a = text.find("of a"),
               b = text.find("to=functions.fb"), of_b = text.find("of b");
  EXPECT_LT(a, of_a);
  EXPECT_LT(of_a, b);
  EXPECT_LT(b, of_b);
  EXPECT_NE(of_b, std::string::npos);
}

TEST_F(ApiChat, ContinuesTheLastMessage) {
  make(make_chat_answer,
       chat(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I am "}])",
            R"(, "continue_final_message": true)"));
  EXPECT_TRUE(prompt_text(*this).ends_with("<|message|>I am")) << prompt_text(*this);
  EXPECT_EQ(refuse(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                          R"(, "continue_final_message": true)"))
                .param,
            "continue_final_message");
}

TEST_F(ApiChat, TemplateVariables) {
  served_.chat_template = *ChatTemplate::parse("{{ a }}{{ reasoning_effort }}", "t");
  make(make_chat_answer,
       chat(R"([{"role": "user", "content": "hi"}])",
            R"(, "chat_template_kwargs": {"a": "xy"}, "reasoning_effort": "low")"));
  EXPECT_EQ(prompt_text(*this), "xylow");
  for (const char* bad : {"5", "[]", R"({"messages": []})"}) {
    EXPECT_EQ(refuse(make_chat_answer, chat(R"([{"role": "user", "content": "hi"}])",
                                            std::string(R"(, "chat_template_kwargs": )") + bad))
                  .param,
              "chat_template_kwargs");
  }
}

}  // namespace
}  // namespace lk
