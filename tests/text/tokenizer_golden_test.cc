// Every text of the golden file, id for id, against what the Hugging Face library made of it.
#include "tests/text/tokenizer_golden.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "text/detokenizer.h"

namespace lk {
namespace {

std::shared_ptr<const Tokenizer> tokenizer_of(const GoldenSuite& suite) {
  if (suite.patch.empty()) return shared_tokenizer(suite.path);
  Json json = *parse_json(read_data(suite.path), suite.path);
  const Json patch = *parse_json(suite.patch, "patch");
  for (const auto& [key, value] : patch.items()) {
    if (key == "model")
      json[key].update(value);
    else
      json[key] = value;
  }
  auto tokenizer = Tokenizer::parse(json.dump(), suite.name);
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return tokenizer ? *tokenizer : nullptr;
}

std::string as_stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                      const std::vector<int32_t>& ids, bool skip) {
  Detokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.flush();
}

TEST(TokenizerGolden, IdsAndTextsEqualTheLibrarys) {
  ASSERT_GE(golden_suites().size(), 30u);
  size_t texts = 0;
  for (const GoldenSuite& suite : golden_suites()) {
    const auto tokenizer = tokenizer_of(suite);
    ASSERT_TRUE(tokenizer) << suite.name;
    for (size_t i = 0; i < suite.texts.size(); ++i, ++texts) {
      const std::string& text = suite.texts[i];
      const GoldenText& want = suite.results[i];
      EXPECT_EQ(*tokenizer->encode(text), want.ids) << suite.name << " " << i << ": " << text;
      EXPECT_EQ(*tokenizer->encode(text, {.parse_special = false}), want.plain)
          << suite.name << " " << i << ": " << text;
      EXPECT_EQ(tokenizer->decode(want.ids, false), want.whole) << suite.name << " " << i;
      EXPECT_EQ(tokenizer->decode(want.ids, true), want.skipped) << suite.name << " " << i;
      EXPECT_EQ(as_stream(tokenizer, want.ids, false), want.whole) << suite.name << " " << i;
      EXPECT_EQ(as_stream(tokenizer, want.ids, true), want.skipped) << suite.name << " " << i;
    }
    for (const GoldenIds& list : suite.lists) {
      EXPECT_EQ(tokenizer->decode(list.ids, false), list.whole) << suite.name;
      EXPECT_EQ(tokenizer->decode(list.ids, true), list.skipped) << suite.name;
      EXPECT_EQ(as_stream(tokenizer, list.ids, false), list.whole) << suite.name;
      EXPECT_EQ(as_stream(tokenizer, list.ids, true), list.skipped) << suite.name;
    }
  }
  EXPECT_GE(texts, 3u * 5000u);
}

}  // namespace
}  // namespace lk
