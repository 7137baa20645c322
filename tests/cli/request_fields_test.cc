#include "cli/request_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lk {
namespace {

HfConfig config_with(const char* generation) {
  HfConfig config;
  config.config = std::make_shared<const Json>(Json::object());
  if (generation) config.generation_config = std::make_shared<const Json>(Json::parse(generation));
  return config;
}

ParsedLine parse(const std::string& line) { return parse_line(line, "line 9", RequestDefaults{}); }

TEST(RequestDefaults, ComeFromTheModelAndFlagsWin) {
  RunOptions options;
  auto defaults = request_defaults(options, config_with(nullptr));
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->request.sampling.temperature, 0);
  defaults = request_defaults(
      options,
      config_with(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20})"));
  EXPECT_FLOAT_EQ(defaults->request.sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(defaults->request.sampling.top_p, 0.95f);
  EXPECT_EQ(defaults->request.sampling.top_k, 20);
  options.sampling.temperature = 0;
  EXPECT_EQ(request_defaults(options, config_with(R"({"temperature": 0.6})"))
                ->request.sampling.temperature,
            0);
  options.sampling.temperature.reset();
  EXPECT_EQ(request_defaults(options, config_with(R"({"do_sample": false, "temperature": 0.6})"))
                ->request.sampling.temperature,
            0);
  options.sampling.top_p = 2;
  EXPECT_FALSE(request_defaults(options, config_with(nullptr)));
  EXPECT_FALSE(request_defaults({}, config_with(R"({"do_sample": true, "temperature": -1})")));
}

TEST(ParseLine, TakesEveryField) {
  const ParsedLine line = parse(
      R"({"id": {"a": [1, "x"]}, "prompt": "p", "adapter": "sql", "max_tokens": 7, "stop": ["a", "b"], "stop_token_ids": [3],
          "ignore_eos": true, "temperature": 1, "top_p": 0.5, "top_k": 3, "min_p": 0.25, "repetition_penalty": 1.5,
          "presence_penalty": -1, "frequency_penalty": 2, "seed": 11, "logit_bias": {"7": -2}, "min_tokens": 3, "logprobs": 4, "prompt_logprobs": true})");
  ASSERT_TRUE(line.request) << line.request.error().message;
  EXPECT_EQ(line.id, R"({"a":[1,"x"]})");
  const Request& request = line.request->request;
  EXPECT_EQ(std::get<std::string>(line.request->prompt), "p");
  EXPECT_EQ(line.request->adapter, "sql");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_FALSE(line.request->default_max_tokens);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(request.stop_ids, std::vector<int32_t>{3});
  EXPECT_TRUE(request.ignore_eos);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.min_p, 0.25f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.sampling.presence_penalty, -1);
  EXPECT_EQ(request.sampling.frequency_penalty, 2);
  EXPECT_EQ(request.sampling.seed, 11u);
  EXPECT_EQ(request.logprobs, 4);
  EXPECT_TRUE(request.prompt_logprobs);
  EXPECT_EQ(request.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -2.0f}}));
  EXPECT_EQ(request.min_tokens, 3);
}

TEST(ParseLine, PromptForms) {
  const ParsedLine ids = parse(
      R"({"prompt_ids": [1, 2], "adapter": null, "stop": "x", "logprobs": true, "id": null})");
  ASSERT_TRUE(ids.request) << ids.request.error().message;
  EXPECT_EQ(std::get<std::vector<int32_t>>(ids.request->prompt), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ids.request->adapter, "base");
  EXPECT_EQ(ids.request->request.logprobs, 0);
  EXPECT_TRUE(ids.request->default_max_tokens);
  const ParsedLine chat =
      parse(R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"z": 1, "a": 2}],
                                    "chat_template_kwargs": {"reasoning_effort": "low"}})");
  ASSERT_TRUE(chat.request) << chat.request.error().message;
  const auto& parts = std::get<LineRequest::Chat>(chat.request->prompt);
  EXPECT_EQ(parts.messages->size(), 1u);
  EXPECT_EQ(parts.tools->dump(), R"([{"z":1,"a":2}])");  // in the line's own order
  EXPECT_EQ((*parts.variables)["reasoning_effort"], "low");
}

// The line {"id": 42, <fields>} is refused, in words that name the line.
void expect_refused(const std::string& fields) {
  const ParsedLine line = parse(R"({"id": 42, )" + fields + "}");
  EXPECT_EQ(line.id, "42");
  ASSERT_FALSE(line.request) << fields;
  EXPECT_EQ(line.request.error().message.rfind("line 9: ", 0), 0u) << line.request.error().message;
}

TEST(ParseLine, BadPromptsKeepTheirId) {
  for (const char* prompt :
       {R"("prompt": 5)", R"("prompt": "x", "prompt_ids": [1])", R"("max_tokens": 1)",
        R"("prompt_ids": [1, "2"])", R"("prompt_ids": [-1])", R"("prompt_ids": [1e10])",
        R"("prompt_ids": 3)", R"("messages": [])", R"("messages": "x")",
        R"("messages": [{}], "tools": 3)", R"("messages": [{}], "chat_template_kwargs": [])"}) {
    expect_refused(prompt);
  }
}

TEST(ParseLine, BadFieldsKeepTheirId) {
  const std::map<std::string, std::vector<const char*>> bad = {
      {"bogus", {"1"}},
      {"max_tokens", {"-1", "1.5", "1e300"}},
      {"temperature", {"NaN", "Infinity", "1e308", R"("1")"}},
      {"top_k", {"0.01", "true"}},
      {"top_p", {"-1", "0"}},
      {"seed", {"9223372036854775808", "18446744073709551615"}},
      {"stop", {"5", "[5]"}},
      {"stop_token_ids", {R"("5")", "[1.5]"}},
      {"logprobs", {"1000"}},
      {"adapter", {"3"}},
      {"tools", {"[]"}},
  };
  for (const auto& [field, values] : bad) {
    for (const char* value : values)
      expect_refused(fmt::format(R"("prompt": "x", "{}": {})", field, value));
  }
}

TEST(ParseLine, WhatIsNoRequestHasNoId) {
  for (const char* text :
       {"", "{", "5", R"({"id": NaN, "prompt": "x"})",
        R"({"id": [{"a": -Infinity}], "prompt": "x"})", R"({"id": 1, "id": 2, "prompt": "x"})",
        "[]", "null", R"({"id": 1)", "\xff\xfe", "{\"prompt\": \"\xff\"}"}) {
    const ParsedLine line = parse(text);
    EXPECT_EQ(line.id, "null");
    EXPECT_FALSE(line.request);
  }
}

TEST(ParseLine, SeedsDifferWhereNobodyGaveOne) {
  EXPECT_NE(parse(R"({"prompt": "x"})").request->request.sampling.seed,
            parse(R"({"prompt": "x"})").request->request.sampling.seed);
  RequestDefaults defaults;
  defaults.seed = 3;
  EXPECT_EQ(parse_line(R"({"prompt": "x"})", "l", defaults).request->request.sampling.seed, 3u);
}

}  // namespace
}  // namespace lk
