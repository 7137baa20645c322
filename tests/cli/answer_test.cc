#include "cli/answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lk {
namespace {

TEST(Answer, NumbersThatJsonLacksStayValid) {
  RunAnswer answer;
  answer.wants_logprobs = answer.wants_top = answer.wants_prompt_logprobs = true;
  TokenEvent event;
  event.token = 3;
  event.text = "a\"\n\xff";
  event.logprob = -INFINITY;
  event.top = {{3, -0.0f}, {4, NAN}, {5, -1e-9f}};
  event.prompt_logprobs = {-1.5f, NAN, -INFINITY};
  event.finish = FinishReason::kStop;
  answer.add(std::move(event));
  const Json json = Json::parse(answer.json());
  EXPECT_EQ(json["token_logprobs"], Json::parse("[-9999.0]"));
  EXPECT_EQ(json["top_logprobs"][0][0], Json::parse("[3, 0]"));
  EXPECT_TRUE(json["top_logprobs"][0][1][1].is_null());
  EXPECT_FLOAT_EQ(json["top_logprobs"][0][2][1].get<float>(), -1e-9f);
  EXPECT_EQ(json["prompt_logprobs"], Json::parse("[-1.5, null, -9999]"));
  EXPECT_TRUE(json["adapter"].is_null());
  EXPECT_EQ(json["text"], "a\"\n\xEF\xBF\xBD");
  EXPECT_EQ(json["finish_reason"], "stop");
}

TEST(Answer, LogprobsReadBackAsTheSameFloat) {
  RunAnswer answer;
  answer.wants_logprobs = true;
  answer.finish = FinishReason::kLength;
  for (int i = 1; i < 200; ++i)
    answer.token_logprobs.push_back(-std::exp(0.2f * static_cast<float>(i - 100)));
  const Json json = Json::parse(answer.json());
  for (size_t i = 0; i < answer.token_logprobs.size(); ++i) {
    EXPECT_EQ(json["token_logprobs"][i].get<float>(), std::max(answer.token_logprobs[i], -9999.0f));
  }
}

TEST(Answer, AnErrorIsAnObjectWithTheId) {
  RunAnswer answer;
  answer.id = "[1,\"x\"]";
  answer.error = "line 3: \"bad\"";
  const Json json = Json::parse(answer.json());
  EXPECT_EQ(json.size(), 2u);
  EXPECT_EQ(json["id"], Json::parse("[1, \"x\"]"));
  EXPECT_EQ(json["error"], answer.error);
}

}  // namespace
}  // namespace lk
