// /v1/completions, /v1/models, /tokenize and /detokenize.
#include <fmt/format.h>

#include <limits>
#include <map>

#include "tests/server/api_fixture.h"

namespace lk {
namespace {

using ApiCompletions = ApiTest;

TEST_F(ApiCompletions, BodyHasEveryField) {
  cached_tokens_ = 2;
  auto answer = make(make_completion_answer, R"({"prompt": "select 1", "max_tokens": 20})");
  const size_t prompt = encode("select 1").size();
  EXPECT_EQ(requests_[0].prompt, encode("select 1"));
  EXPECT_EQ(requests_[0].max_tokens, 20);
  EXPECT_EQ(requests_[0].logprobs, -1);
  const OrderedJson body = whole(*answer, {" from t"});
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "base");
  EXPECT_EQ(body["system_fingerprint"], "lorikeet-0000000000001234");
  EXPECT_GT(body["created"], 1700000000);
  const OrderedJson& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], " from t");
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_EQ(body["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(body["usage"]["completion_tokens"], encode(" from t").size() + 1);
  EXPECT_EQ(body["usage"]["total_tokens"], prompt + encode(" from t").size() + 1);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST_F(ApiCompletions, PromptForms) {
  make(make_completion_answer, R"({"prompt": ["a", "b c"], "n": 2, "max_tokens": 1})");
  ASSERT_EQ(requests_.size(), 4u);
  EXPECT_EQ(requests_[0].prompt, encode("a"));
  EXPECT_EQ(requests_[1].prompt, encode("a"));
  EXPECT_EQ(requests_[2].prompt, encode("b c"));
  make(make_completion_answer, R"({"prompt": [5, 6, 7]})");
  ASSERT_EQ(requests_.size(), 1u);
  EXPECT_EQ(requests_[0].prompt, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(requests_[0].max_tokens, kContext - 3);
  make(make_completion_answer, R"({"prompt": [[5], [6, 7]]})");
  ASSERT_EQ(requests_.size(), 2u);
  EXPECT_EQ(requests_[1].prompt, (std::vector<int32_t>{6, 7}));
}

TEST(BugCases, V07_EmptyAndBrokenPrompts) {
  Api api;
  for (const char* prompt : {R"("")", "[]", "[[]]", "[[], [1]]", "null", "5", "{}", "[\"\"]",
                             "[1, \"a\"]", "[1.5]", "[-1]", "[100000000]", "[true]", "[{}]"}) {
    EXPECT_EQ(
        api.refuse(make_completion_answer, std::string(R"({"prompt": )") + prompt + "}").param,
        "prompt")
        << prompt;
  }
  api.make(make_completion_answer, R"({"prompt": "<|startoftext|>"})");
  EXPECT_EQ(api.requests_[0].prompt.size(), 1u);
  api.make(make_chat_answer, R"({"messages": [{"role": "user", "content": ""}]})");
}

TEST_F(ApiCompletions, ChoicesOfABatchComeInOrder) {
  auto answer = make(make_completion_answer, R"({"prompt": ["a", "b"], "n": 2})");
  const OrderedJson body = whole(*answer, {" one", " two", " three", " four"});
  ASSERT_EQ(body["choices"].size(), 4u);
  const char* texts[] = {" one", " two", " three", " four"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], texts[i]);
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], encode("a").size() + encode("b").size());
}

TEST_F(ApiCompletions, LogprobsHaveTheOldShape) {
  auto answer = make(make_completion_answer, R"({"prompt": "a", "logprobs": 2})");
  EXPECT_EQ(requests_[0].logprobs, 2);
  EXPECT_FALSE(requests_[0].prompt_logprobs);
  const OrderedJson body = whole(*answer, {" from t"});
  const OrderedJson& logprobs = body["choices"][0]["logprobs"];
  const size_t count = encode(" from t").size() + 1;
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(logprobs[list].size(), count) << list;
  std::string text;
  for (size_t i = 0; i + 1 < count; ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], text.size());
    text += logprobs["tokens"][i].get<std::string>();
    EXPECT_LE(logprobs["token_logprobs"][i], 0);
    EXPECT_GE(logprobs["top_logprobs"][i].size(), 2u);
    EXPECT_TRUE(logprobs["top_logprobs"][i].contains(logprobs["tokens"][i].get<std::string>()));
  }
  EXPECT_EQ(text, " from t");
}

TEST_F(ApiCompletions, PromptLogprobsAreVllms) {
  auto answer = make(make_completion_answer,
                     R"({"prompt": "select one thing", "prompt_logprobs": 1, "max_tokens": 1})");
  EXPECT_TRUE(requests_[0].prompt_logprobs);
  EXPECT_EQ(requests_[0].prompt_top, 1);
  const std::vector<int32_t> prompt = requests_[0].prompt;
  const OrderedJson choice = whole(*answer, {" from"})["choices"][0];
  EXPECT_TRUE(choice["logprobs"].is_null());
  const OrderedJson& list = choice["prompt_logprobs"];
  ASSERT_EQ(list.size(), prompt.size());
  EXPECT_TRUE(list[0].is_null());
  for (size_t i = 1; i < prompt.size(); ++i) {
    const OrderedJson& own = list[i][std::to_string(prompt[i])];
    EXPECT_EQ(own["logprob"], -0.5);
    EXPECT_EQ(own["rank"], 7);
    EXPECT_EQ(own["decoded_token"], served_.tokenizer->token_bytes(prompt[i]));
    const int32_t one = encode("one")[0];
    if (prompt[i] == one) continue;
    EXPECT_EQ(list[i].size(), 2u);
    EXPECT_EQ(list[i][std::to_string(one)]["rank"], 1);
    EXPECT_EQ(list[i][std::to_string(one)]["logprob"], -0.25);
  }
  answer = make(make_completion_answer, R"({"prompt": "a b", "prompt_logprobs": 0})");
  const OrderedJson own_only = whole(*answer, {""});
  for (const OrderedJson& entry : own_only["choices"][0]["prompt_logprobs"])
    EXPECT_LE(entry.size(), 1u);
  EXPECT_FALSE(
      whole(*make(make_completion_answer, R"({"prompt": "a"})"), {""})["choices"][0].contains(
          "prompt_logprobs"));
  for (const char* bad :
       {R"({"prompt": "a", "prompt_logprobs": -1})", R"({"prompt": "a", "prompt_logprobs": 21})",
        R"({"prompt": "a", "prompt_logprobs": true})",
        R"({"prompt": "a", "prompt_logprobs": 1, "stream": true})"})
    EXPECT_EQ(refuse(make_completion_answer, bad).param, "prompt_logprobs") << bad;
}

TEST(BugCases, S04_EchoWithLogprobsAndTopK1) {
  for (bool stream : {false, true}) {
    Api api;
    auto answer = api.make(
        make_completion_answer,
        fmt::format(R"({{"prompt": "select one thing", "echo": true, "logprobs": 1, "top_k": 1,
                         "max_tokens": 1, "stream": {}}})",
                    stream));
    EXPECT_TRUE(api.requests_[0].prompt_logprobs);
    const size_t prompt = api.requests_[0].prompt.size();
    OrderedJson choice;
    if (stream) {
      const auto chunks = api.streamed(*answer, {" from"});
      EXPECT_EQ(joined(chunks, "text"), "select one thing from");
      choice = chunks[0]["choices"][0];
    } else {
      choice = api.whole(*answer, {" from"})["choices"][0];
      EXPECT_EQ(choice["text"], "select one thing from");
      EXPECT_EQ(choice["finish_reason"], "length");
    }
    ASSERT_EQ(choice["logprobs"]["tokens"].size(), prompt + 1);
    EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
    EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
    EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -0.5);
    // What the model would have said instead, so that a client sees whether the prompt was likely.
    const OrderedJson& top = choice["logprobs"]["top_logprobs"][1];
    EXPECT_EQ(top.size(), 2u);
    EXPECT_EQ(top["one"], -0.25);
    EXPECT_EQ(top[choice["logprobs"]["tokens"][1].get<std::string>()], -0.5);
  }
}

TEST_F(ApiCompletions, EchoWithoutAnswer) {
  auto answer =
      make(make_completion_answer,
           R"({"prompt": "a b", "echo": true, "max_tokens": 0, "logprobs": 0, "stream": true})");
  const auto chunks = streamed(*answer, {"x"});
  EXPECT_EQ(joined(chunks, "text"), "a b");
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
}

// Logprobs are numbers that JSON has, whatever the sampler excluded.
TEST(BugCases, S01_LogprobsAreFiniteNumbers) {
  Api api;
  auto answer = api.make(make_completion_answer, R"({"prompt": "a", "logprobs": 1})");
  std::string out;
  TokenEvent event;
  event.token = 5;
  event.text = "x";
  event.logprob = -std::numeric_limits<float>::infinity();
  event.top = {{7, -std::numeric_limits<float>::infinity()}};
  event.finish = FinishReason::kLength;
  answer->on_event(0, std::move(event), out);
  const OrderedJson body = api.json(*answer->body());
  EXPECT_EQ(body["choices"][0]["logprobs"]["token_logprobs"][0], -9999);
}

TEST(BugCases, R01_UsageOnceAtTheEndIfAskedFor) {
  for (bool asked : {false, true}) {
    for (MakeAnswer maker : {make_completion_answer, make_chat_answer}) {
      Api api;
      auto answer = api.make(
          maker, fmt::format(R"({{"prompt": "a", "messages": [{{"role": "user", "content": "a"}}],
                                 "stream": true{}}})",
                             asked ? R"(, "stream_options": {"include_usage": true})" : ""));
      const auto chunks = api.streamed(*answer, {" one two"});
      int usages = 0;
      for (const OrderedJson& chunk : chunks)
        usages += chunk.value("usage", OrderedJson()).is_object();
      EXPECT_EQ(usages, asked ? 1 : 0);
      EXPECT_EQ(chunks.back()["choices"].empty(), asked);
      if (!asked) continue;
      EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], api.encode(" one two").size() + 1);
    }
  }
}

TEST_F(ApiCompletions, ContinuousUsageCounts) {
  auto answer = make(make_completion_answer,
                     R"({"prompt": "a", "stream": true, "stream_options":
                         {"include_usage": true, "continuous_usage_stats": true}})");
  const auto chunks = streamed(*answer, {" one two three"});
  int64_t last = 0;
  for (const OrderedJson& chunk : chunks) {
    const auto count = chunk["usage"]["completion_tokens"].get<int64_t>();
    EXPECT_GE(count, last);
    last = count;
  }
  EXPECT_GT(last, 2);
}

TEST(BugCases, R03_EachChoiceHasOneFinishReason) {
  for (int n : {1, 3}) {
    for (MakeAnswer maker : {make_completion_answer, make_chat_answer}) {
      Api api;
      auto answer = api.make(
          maker, fmt::format(R"({{"prompt": "a", "messages": [{{"role": "user", "content": "a"}}],
                                 "stream": true, "n": {}}})",
                             n));
      const auto chunks = api.streamed(*answer, std::vector<std::string>(n, " one two"));
      std::map<int, int> reasons;
      for (const OrderedJson& chunk : chunks) {
        const OrderedJson& choice = chunk["choices"][0];
        reasons[choice["index"]] += !choice["finish_reason"].is_null();
      }
      EXPECT_EQ(reasons.size(), static_cast<size_t>(n));
      for (const auto& [index, count] : reasons) EXPECT_EQ(count, 1) << index;
    }
  }
}

TEST(BugCases, R04_TheFinishReasonStandsAlone) {
  Api api;
  auto answer =
      api.make(make_completion_answer, R"({"prompt": "a", "stream": true, "max_tokens": 2})");
  const auto chunks = api.streamed(*answer, {" one two three"});
  for (const OrderedJson& chunk : chunks) {
    const OrderedJson& choice = chunk["choices"][0];
    EXPECT_NE(choice["text"] == "", choice["finish_reason"].is_null());
  }
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "length");
}

TEST(BugCases, Q01_Q02_StopsAcrossTokensInStreamsAndWholes) {
  for (const char* stop : {R"("two th")", R"(["x", "y", "z", "two th"])"}) {
    for (MakeAnswer maker : {make_completion_answer, make_chat_answer}) {
      std::string texts[2];
      for (bool stream : {false, true}) {
        Api api;
        auto answer = api.make(
            maker, fmt::format(R"({{"prompt": "a", "messages": [{{"role": "user", "content": "a"}}],
                                   "stream": {}, "stop": {}}})",
                               stream, stop));
        if (stream) {
          const auto chunks = api.streamed(*answer, {" one two three"});
          texts[1] = joined(chunks, maker == make_chat_answer ? "content" : "text");
          EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "stop");
          EXPECT_EQ(chunks.back()["choices"][0]["stop_reason"], "two th");
        } else {
          const OrderedJson choice = api.whole(*answer, {" one two three"})["choices"][0];
          texts[0] = choice.contains("text") ? choice["text"] : choice["message"]["content"];
          EXPECT_EQ(choice["finish_reason"], "stop");
        }
      }
      EXPECT_EQ(texts[0], " one ");
      EXPECT_EQ(texts[1], " one ");
    }
  }
}

TEST(BugCases, Q05_EmptyStopsAndStopsAtTheBeginning) {
  Api api;
  EXPECT_EQ(api.refuse(make_completion_answer, R"({"prompt": "a", "stop": ""})").param, "stop");
  for (const char* stop : {"null", "[]"}) {
    auto answer =
        api.make(make_completion_answer, fmt::format(R"({{"prompt": "a", "stop": {}}})", stop));
    EXPECT_EQ(api.whole(*answer, {" b c"})["choices"][0]["text"], " b c");
  }
  auto answer = api.make(make_completion_answer, R"({"prompt": "a", "stop": "\n"})");
  const OrderedJson body = api.whole(*answer, {"\nmore"});
  EXPECT_EQ(body["choices"][0]["text"], "");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_GE(body["usage"]["completion_tokens"], 1);
}

TEST(BugCases, V10_TheContextsEndIsAMachineReadableError) {
  Api api;
  for (MakeAnswer maker : {make_completion_answer, make_chat_answer}) {
    const std::string body =
        R"({{"prompt": "one two three", "messages": [{{"role": "user", "content": "a"}}],
            "max_tokens": {}}})";
    const ApiError error = api.refuse(maker, fmt::format(fmt::runtime(body), 511));
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_NE(error.message.find("512"), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("511"), std::string::npos) << error.message;
    EXPECT_EQ(api.refuse(maker, fmt::format(fmt::runtime(body), 0)).param, "max_tokens");
    EXPECT_EQ(api.refuse(maker, fmt::format(fmt::runtime(body), -5)).param, "max_tokens");
    // A whole context or more means: as much as there is.
    for (int64_t asked : {int64_t{512}, int64_t{131072}}) {
      api.make(maker, fmt::format(fmt::runtime(body), asked));
      EXPECT_EQ(api.requests_[0].max_tokens,
                512 - static_cast<int>(api.requests_[0].prompt.size()));
    }
    api.make(maker, fmt::format(fmt::runtime(body), "null"));
    EXPECT_EQ(api.requests_[0].max_tokens, 512 - static_cast<int>(api.requests_[0].prompt.size()));
  }
  std::string ids = "1";
  for (int i = 1; i < 511; ++i) ids += ",1";
  api.make(make_completion_answer, R"({"prompt": [)" + ids + "]}");
  EXPECT_EQ(api.requests_[0].max_tokens, 1);
  const ApiError full = api.refuse(make_completion_answer, R"({"prompt": [)" + ids + ",1]}");
  EXPECT_EQ(full.code, "context_length_exceeded");
  EXPECT_EQ(full.param, "prompt");
}

TEST_F(ApiCompletions, AFailedRequestIsAnError) {
  TokenEvent event;
  event.finish = FinishReason::kError;
  event.error = "no finite logit";
  std::string out;
  auto answer = make(make_completion_answer, R"({"prompt": "a"})");
  answer->on_event(0, TokenEvent(event), out);
  EXPECT_TRUE(answer->complete());
  const auto body = answer->body();
  ASSERT_FALSE(body);
  EXPECT_EQ(body.error().status, 500);
  answer = make(make_completion_answer, R"({"prompt": "a", "stream": true})");
  answer->on_event(0, TokenEvent(event), out);
  EXPECT_NE(out.find(R"({"error":{"message":"no finite logit")"), std::string::npos) << out;
}

TEST(BugCases, N01_N02_AdaptersAreListedAndTold) {
  Api api;
  AdapterStatus adapter;
  adapter.name = "sql";
  adapter.path = "/a/sql";
  adapter.created = 1800000000;
  const OrderedJson list = api.json(models_body(api.served_, {adapter}));
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 3u);
  EXPECT_EQ(list["data"][0]["id"], "base");
  EXPECT_TRUE(list["data"][0]["parent"].is_null());
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(list["data"][1]["id"], "base-alias");
  EXPECT_EQ(list["data"][2]["id"], "sql");
  EXPECT_EQ(list["data"][2]["root"], "/a/sql");
  EXPECT_EQ(list["data"][2]["parent"], "base");
  EXPECT_EQ(list["data"][2]["created"], 1800000000);
  EXPECT_EQ(list["data"][2]["permission"][0]["object"], "model_permission");
  EXPECT_EQ(api.json(*model_body(api.served_, {adapter}, "sql"))["id"], "sql");
  const auto missing = model_body(api.served_, {}, "sql");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().status, 404);
  EXPECT_EQ(missing.error().code, "model_not_found");

  api.model_ = "sql";
  api.who_ = std::make_shared<EngineAdapter>(EngineAdapter{.name = "sql", .identity = 0xabcd});
  for (MakeAnswer maker : {make_completion_answer, make_chat_answer}) {
    const char* text =
        R"({"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": true})";
    auto answer = api.make(maker, text);
    EXPECT_EQ(api.requests_[0].adapter, api.who_);
    for (const OrderedJson& chunk : api.streamed(*answer, {" b"})) {
      EXPECT_EQ(chunk["model"], "sql");
      EXPECT_EQ(chunk["system_fingerprint"], "lorikeet-0000000000001234-000000000000abcd");
    }
  }
}

TEST_F(ApiCompletions, Tokenize) {
  const OrderedJson plain =
      json(*tokenize_body(json(R"({"prompt": "a b", "return_token_strs": true})"), served_));
  EXPECT_EQ(plain["tokens"].get<std::vector<int32_t>>(), encode("a b"));
  EXPECT_EQ(plain["count"], encode("a b").size());
  EXPECT_EQ(plain["max_model_len"], 512);
  EXPECT_EQ(plain["token_strs"][0], "a");
  const OrderedJson chat =
      json(*tokenize_body(json(R"({"messages": [{"role": "user", "content": "a b"}]})"), served_));
  EXPECT_TRUE(chat["token_strs"].is_null());
  const OrderedJson back =
      json(*detokenize_body(json(R"({"tokens": )" + chat["tokens"].dump() + "}"), served_));
  EXPECT_EQ(back["prompt"],
            "<|start|>user<|message|>a b<|end|><|start|>assistant<|channel|>final<|message|>");
  EXPECT_EQ(tokenize_body(json("{}"), served_).error().param, "prompt");
  EXPECT_EQ(detokenize_body(json(R"({"tokens": "x"})"), served_).error().param, "tokens");
  EXPECT_EQ(detokenize_body(json(R"({"tokens": [1e9]})"), served_).error().param, "tokens");
}

}  // namespace
}  // namespace lk
