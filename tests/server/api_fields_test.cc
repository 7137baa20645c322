// What is read of a request, and what is refused by its name.
#include <fmt/format.h>

#include <limits>
#include <random>

#include "server/api/json_text.h"
#include "server/api/sampling_fields.h"
#include "tests/server/api_fixture.h"
#include "text/utf8_repair.h"

namespace lk {
namespace {

using ApiFields = ApiTest;

std::string chat_with(const std::string& field) {
  return fmt::format(R"({{"messages": [{{"role": "user", "content": "hi"}}], {}}})", field);
}
std::string completion_with(const std::string& field) {
  return fmt::format(R"({{"prompt": "hi", {}}})", field);
}
std::string response_with(const std::string& field) {
  return fmt::format(R"({{"input": "hi", {}}})", field);
}

TEST_F(ApiFields, SamplingReachesTheRequest) {
  const std::string all = R"(
      "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
      "presence_penalty": -1, "frequency_penalty": 2, "seed": -3, "logit_bias": {"5": -100, "7": 2.5},
      "stop": ["a", "bc"], "stop_token_ids": [9], "min_tokens": 2, "ignore_eos": true,
      "include_stop_str_in_output": true, "skip_special_tokens": false)";
  const std::pair<MakeAnswer, std::string> makers[] = {
      {make_chat_answer, chat_with(all)},
      {make_completion_answer, completion_with(all)},
      {make_response_answer, response_with(all)}};
  for (const auto& [maker, body] : makers) {
    make(maker, body);
    ASSERT_EQ(requests_.size(), 1u);
    const Request& request = requests_[0];
    EXPECT_EQ(request.sampling.temperature, 0.5f);
    EXPECT_EQ(request.sampling.top_p, 0.25f);
    EXPECT_EQ(request.sampling.top_k, 7);
    EXPECT_EQ(request.sampling.min_p, 0.125f);
    EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
    EXPECT_EQ(request.sampling.presence_penalty, -1);
    EXPECT_EQ(request.sampling.frequency_penalty, 2);
    EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-3));
    EXPECT_EQ(request.logit_bias,
              (std::vector<std::pair<int32_t, float>>{{5, -100.0f}, {7, 2.5f}}));
    EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "bc"}));
    EXPECT_EQ(request.stop_ids, std::vector<int32_t>{9});
    EXPECT_EQ(request.min_tokens, 2);
    EXPECT_TRUE(request.ignore_eos);
    EXPECT_TRUE(request.include_stop);
    EXPECT_FALSE(request.skip_special);
  }
}

TEST_F(ApiFields, DefaultsAreTheModelsAndNullIsAbsent) {
  served_.defaults.sampling.temperature = 0.75f;
  served_.defaults.sampling.top_k = 20;
  make(make_chat_answer, chat_with(R"("temperature": null, "top_k": null, "stop": null, "n": null,
      "seed": null, "stream": null, "tools": null, "response_format": null, "logit_bias": null)"));
  EXPECT_EQ(requests_[0].sampling.temperature, 0.75f);
  EXPECT_EQ(requests_[0].sampling.top_k, 20);
  make(make_chat_answer, chat_with(R"("top_k": -1)"));
  EXPECT_EQ(requests_[0].sampling.top_k, 0);
}

TEST_F(ApiFields, SeedsComeFromTheServerOrDiffer) {
  make(make_chat_answer, chat_with(R"("user": "x")"));
  const uint64_t first = requests_[0].sampling.seed;
  make(make_chat_answer, chat_with(R"("user": "x")"));
  EXPECT_NE(first, requests_[0].sampling.seed);
  served_.seed = 41;
  make(make_completion_answer, completion_with(R"("n": 3)"));
  ASSERT_EQ(requests_.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(requests_[i].sampling.seed, 41 + i);
}

TEST_F(ApiFields, UnknownFieldsAreAccepted) {
  make(make_chat_answer,
       chat_with(R"("user": "u", "metadata": {"a": 1}, "store": true, "service_tier": "auto",
                    "some_future_field": [1, {"x": null}], "suffix": null, "functions": null,
                    "guided_json": null, "use_beam_search": false, "best_of": 1)"));
}

TEST_F(ApiFields, WhatCannotBeHonouredIsRefusedByName) {
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"suffix", R"("tail")"},
           {"structured_outputs", R"({"json": {}})"},
           {"guided_json", R"({"type": "object"})"},
           {"guided_json", "{}"},
           {"guided_regex", R"("a+")"},
           {"guided_choice", R"(["a"])"},
           {"guided_grammar", R"("root ::= 1")"},
           {"response_format", R"({"type": "json_object"})"},
           {"response_format", R"({"type": "json_schema", "json_schema": {}})"},
           {"response_format", R"("json")"},
           {"use_beam_search", "true"},
           {"best_of", "2"},
           {"n", "0"},
           {"n", "129"},
           {"n", "-1"},
           {"stream_options", R"({"include_usage": true})"}}) {
    const std::string text = fmt::format("\"{}\": {}", field, value);
    EXPECT_EQ(refuse(make_chat_answer, chat_with(text)).param, field) << text;
    EXPECT_EQ(refuse(make_completion_answer, completion_with(text)).param, field) << text;
  }
  for (const char* choice :
       {R"("required")", R"({"type": "function", "function": {"name": "f"}})", "5"}) {
    EXPECT_EQ(refuse(make_chat_answer, chat_with(std::string(R"("tool_choice": )") + choice)).param,
              "tool_choice");
    EXPECT_EQ(
        refuse(make_response_answer, response_with(std::string(R"("tool_choice": )") + choice))
            .param,
        "tool_choice");
  }
  EXPECT_EQ(
      refuse(make_response_answer, response_with(R"("previous_response_id": "resp_1")")).param,
      "previous_response_id");
  EXPECT_EQ(refuse(make_response_answer, response_with(R"("background": true)")).param,
            "background");
  EXPECT_EQ(
      refuse(make_response_answer, response_with(R"("text": {"format": {"type": "json_schema"}})"))
          .param,
      "text.format");
}

// Types and ranges of every field, on every endpoint.
TEST(BugCases, V02_WrongTypesAndRangesNameTheField) {
  struct Fixture : Api {
    void TestBody() override {
      const std::vector<std::string> numbers = {
          "temperature",      "top_p", "min_p", "repetition_penalty", "presence_penalty",
          "frequency_penalty"};
      for (const std::string& field : numbers) {
        for (const char* value : {"\"1\"", "true", "[]", "{}", "NaN", "Infinity", "-Infinity",
                                  "1e308", "-1e308", "9223372036854775808"}) {
          check(field, value);
        }
      }
      for (const std::string field :
           {"top_k", "seed", "min_tokens", "n", "max_tokens", "top_logprobs"}) {
        for (const char* value : {"0.01", "\"1\"", "true", "[1]", "{}", "NaN", "Infinity", "1e308",
                                  "9223372036854775808", "-9223372036854775809", "5.0"}) {
          if (field == "top_logprobs") {
            EXPECT_EQ(refuse(make_chat_answer, chat_with("\"logprobs\": true, \"top_logprobs\": " +
                                                         std::string(value)))
                          .param,
                      field);
          } else {
            check(field, value);
          }
        }
      }
      for (const std::string field :
           {"stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"}) {
        for (const char* value : {"1", "\"true\"", "[]", "NaN", "0.5"}) check(field, value);
      }
      for (const char* value : {"5", "true", "[5]", "{}", "\"\"", "[\"\"]", "[null]"})
        check("stop", value);
      for (const char* value : {"5", "\"5\"", "[1.5]", "[\"1\"]", "[-1]", "[1e10]", "[1000000]"})
        check("stop_token_ids", value);
      for (const char* value :
           {"5", "[]", R"({"x": 1})", R"({"-1": 1})", R"({"5": 101})", R"({"5": "1"})",
            R"({"5": NaN})", R"({"1000000": 1})", R"({"99999999999": 1})", R"({"5 ": 1})"}) {
        check("logit_bias", value);
      }
      EXPECT_EQ(refuse(make_completion_answer, completion_with("\"logprobs\": true")).param,
                "logprobs");
      EXPECT_EQ(refuse(make_completion_answer, completion_with("\"logprobs\": 21")).param,
                "logprobs");
      EXPECT_EQ(refuse(make_chat_answer, chat_with("\"logprobs\": 1")).param, "logprobs");
      EXPECT_EQ(refuse(make_chat_answer, chat_with("\"top_logprobs\": 2")).param, "top_logprobs");
      EXPECT_EQ(refuse(make_completion_answer, completion_with("\"echo\": 1")).param, "echo");
      // The next request is fine; -0.0 is 0.
      make(make_chat_answer, chat_with("\"temperature\": -0.0"));
    }

   private:
    void check(const std::string& field, const std::string& value) {
      const std::string text = fmt::format("\"{}\": {}", field, value);
      const ApiError chat = refuse(make_chat_answer, chat_with(text));
      EXPECT_EQ(chat.param, field) << text;
      EXPECT_NE(chat.message.find(field), std::string::npos) << chat.message;
      EXPECT_EQ(refuse(make_completion_answer, completion_with(text)).param, field) << text;
    }
  };
  Fixture().TestBody();
}

TEST_F(ApiFields, BodiesThatAreNoObjects) {
  for (const char* text : {"", "{", "[]", "5", "null", "\"x\"", "{\"a\": \xff}", "{\"a\":1}x"}) {
    const auto body = parse_body(text);
    ASSERT_FALSE(body) << text;
    EXPECT_EQ(body.error().status, 400);
  }
  EXPECT_EQ(*read_model(json("{}"), served_), "base");
  EXPECT_EQ(*read_model(json(R"({"model": "sql"})"), served_), "sql");
  EXPECT_EQ(read_model(json(R"({"model": 5})"), served_).error().param, "model");
}

TEST(JsonText, EscapesAndRepairs) {
  const auto escaped = [](std::string_view text) {
    std::string out;
    append_string(out, text);
    return out;
  };
  EXPECT_EQ(escaped("plain"), "\"plain\"");
  EXPECT_EQ(escaped("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(escaped(std::string_view("\0\x1f\x7f", 3)), R"("\u0000\u001f\u007f")");
  EXPECT_EQ(escaped("h\xC3\xA9 \xF0\x9F\x98\x80"), "\"h\xC3\xA9 \xF0\x9F\x98\x80\"");
  EXPECT_EQ(escaped("\xF0\x9F\x98"), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(escaped("a\xFFz\xC3"), "\"a\xEF\xBF\xBDz\xEF\xBF\xBD\"");
  // Whatever the bytes: what a JSON parser reads back is their repaired text.
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += static_cast<char>(random() % 256);
    const auto parsed = parse_ordered_json(escaped(bytes), "x");
    ASSERT_TRUE(parsed);
    std::string repaired;
    append_repaired(repaired, bytes);
    EXPECT_EQ(parsed->get<std::string>(), repaired);
  }
}

TEST(JsonText, LogprobsAreFinite) {
  const auto text = [](float value) {
    std::string out;
    append_logprob(out, value);
    return out;
  };
  EXPECT_EQ(text(-0.0f), "0");
  EXPECT_EQ(text(-1.5f), "-1.5");
  EXPECT_EQ(text(-std::numeric_limits<float>::infinity()), "-9999");
  EXPECT_EQ(text(std::numeric_limits<float>::quiet_NaN()), "null");
  for (float value : {-0.1f, -1e-7f, -3.40282e5f, -12.345678f})
    EXPECT_EQ(std::stof(text(value)), std::max(value, -9999.0f));
}

}  // namespace
}  // namespace lk
