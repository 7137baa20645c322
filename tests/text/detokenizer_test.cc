#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/text/tokenizer_golden.h"
#include "text/utf8_repair.h"

namespace lk {
namespace {

const char* const kTiny = "models/tiny-gpt-oss-mxfp4/tokenizer.json";

bool well_formed(const std::string& text) {
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = next_utf8(text, pos);
    if (!step.valid) return false;
    pos += step.length;
  }
  return true;
}

int32_t byte_id(const Tokenizer& tokenizer, uint8_t byte) {
  for (int32_t id = 0; id < 256; ++id) {
    if (tokenizer.token_bytes(id) == std::string(1, static_cast<char>(byte))) return id;
  }
  ADD_FAILURE() << "no token for byte " << int{byte};
  return 0;
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  const auto tokenizer = shared_tokenizer(kTiny);
  Detokenizer detokenizer(tokenizer);
  const auto push = [&](uint8_t byte) { return detokenizer.push(byte_id(*tokenizer, byte)); };
  EXPECT_EQ(push('a'), "a");
  EXPECT_EQ(push(0xF0), "");
  EXPECT_EQ(push(0x9F), "");
  EXPECT_EQ(push(0x98), "");
  EXPECT_EQ(push(0x80), "\xF0\x9F\x98\x80");
  EXPECT_EQ(push(0xE2), "");
  EXPECT_EQ(push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(push(0xE0), "");
  EXPECT_EQ(push(0x80), "\xEF\xBF\xBD\xEF\xBF\xBD");  // an overlong form can never be completed
  EXPECT_EQ(push(0xC3), "");
  EXPECT_EQ(detokenizer.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.flush(), "");
  EXPECT_EQ(push(0xA9), "\xEF\xBF\xBD");  // the stream began anew
}

TEST(Detokenizer, SpecialTokensDoNotFlush) {
  const auto tokenizer = shared_tokenizer(kTiny);
  const int32_t end = *tokenizer->token_to_id("<|end|>");
  const std::vector<int32_t> ids = {byte_id(*tokenizer, 0xC3), end, byte_id(*tokenizer, 0xA9)};
  for (const bool skip : {true, false}) {
    Detokenizer detokenizer(tokenizer, skip);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.push(id);
    text += detokenizer.flush();
    EXPECT_EQ(text, tokenizer->decode(ids, skip));
    EXPECT_EQ(text, skip ? "\xC3\xA9" : "\xEF\xBF\xBD<|end|>\xEF\xBF\xBD");
  }
}

TEST(Detokenizer, PiecesAreWellFormedAndJoinToTheWhole) {
  const auto tokenizer = shared_tokenizer(kTiny);
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<int32_t> ids(random() % 12);
    for (auto& id : ids) {
      // Mostly single bytes, and of these mostly lead and continuation bytes; sometimes no token at
      // all.
      const uint32_t kind = random() % 10;
      id = static_cast<int32_t>(kind < 7 ? random() % 256 : random() % 4100);
    }
    const bool skip = random() % 2;
    Detokenizer detokenizer(tokenizer, skip);
    std::string text;
    for (const int32_t id : ids) {
      const std::string piece = detokenizer.push(id);
      ASSERT_TRUE(well_formed(piece));
      text += piece;
    }
    text += detokenizer.flush();
    ASSERT_EQ(text, tokenizer->decode(ids, skip)) << round;
  }
}

TEST(Utf8Repair, MaximalSubparts) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\xC3\xA9", "a\xC3\xA9"},
      {"\xF0\x9F\x98", "?"},
      {"\xE2\x82"
       "a",
       "?a"},
      {"\xED\xA0\x80", "???"},
      {"\xC0\xAF", "??"},
      {"\xF4\x90\x80\x80", "????"},
      {"\x80\xBF", "??"},
      {"\xF1\x80\xC3", "??"},
      {std::string("\0x", 2), std::string("\0x", 2)},
  };
  for (const auto& [in, want] : cases) {
    std::string out, expected;
    append_repaired(out, in);
    for (const char c : want) expected += c == '?' ? std::string(kReplacement) : std::string(1, c);
    EXPECT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace lk
