#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/json.h"
#include "tests/text/tokenizer_golden.h"
#include "text/byte_level.h"

namespace lk {
namespace {

const char* const kTiny = "models/tiny-gpt-oss-mxfp4/tokenizer.json";
const char* const kGptOss = "tests/data/tokenizers/gpt-oss/tokenizer.json.xz";

// A whole tokenizer.json with the 256 bytes and the merges "a b" and "ab c".
Json small_json() {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocab[byte_level_text({&byte, 1})] = b;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  return {
      {"version", "1.0"},
      {"added_tokens",
       Json::array(
           {{{"id", 258}, {"content", "<|end|>"}, {"special", true}, {"normalized", false}}})},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array({"a b", "ab c"})}}}};
}

std::string error_of(const Json& json) {
  auto tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
  return tokenizer ? "" : tokenizer.error().message;
}

std::vector<int32_t> encode(const Json& json, std::string_view text, EncodeOptions options = {}) {
  auto tokenizer = Tokenizer::parse(json.dump(), "tokenizer.json");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return tokenizer ? *(*tokenizer)->encode(text, options) : std::vector<int32_t>{-1};
}

TEST(Tokenizer, SmallFile) {
  Json json = small_json();
  EXPECT_EQ(encode(json, "abc ab<|end|>"), (std::vector<int32_t>{257, ' ', 256, 258}));
  EXPECT_EQ(encode(json, "<|end|>", {.parse_special = false}),
            (std::vector<int32_t>{'<', '|', 'e', 'n', 'd', '|', '>'}));
  json["model"]["merges"] = Json::array({{"a", "b"}, {"ab", "c"}});
  EXPECT_EQ(encode(json, "abcab"), (std::vector<int32_t>{257, 256}));
  EXPECT_EQ(encode(json, ""), std::vector<int32_t>{});
  EXPECT_EQ(encode(json, "\xff"), (std::vector<int32_t>{0xEF, 0xBF, 0xBD}));
}

TEST(Tokenizer, NormalizedAddedTokenIsFoundInNormalizedText) {
  Json json = small_json();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] =
      Json::array({{{"id", 258}, {"content", "STOP"}, {"special", true}, {"normalized", true}}});
  EXPECT_EQ(encode(json, "xSToP"), (std::vector<int32_t>{'x', 258}));
  auto tokenizer = *Tokenizer::parse(json.dump(), "t");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{258, 'a'}, false), "STOPa");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{258, 'a'}, true), "a");
}

TEST(Tokenizer, AddedTokensWithTheSameText) {
  Json json = small_json();
  json["normalizer"] = {{"type", "Lowercase"}};
  const auto added = [](int id, const char* text, bool special) {
    return Json{{"id", id}, {"content", text}, {"special", special}, {"normalized", true}};
  };
  json["added_tokens"] = Json::array({added(258, "xy", false), added(258, "xy", false),
                                      added(259, "XY", true), added(260, "xyz", false)});
  EXPECT_EQ(encode(json, std::string_view("xy\0xyz", 6)), (std::vector<int32_t>{259, 0, 260}));
}

TEST(Tokenizer, Lookups) {
  const auto tokenizer = shared_tokenizer(kGptOss);
  EXPECT_EQ(tokenizer->vocab_size(), 200019);
  EXPECT_EQ(tokenizer->token_to_id("<|return|>"), 200002);
  EXPECT_EQ(tokenizer->token_to_id("assistant"), 173781);
  EXPECT_EQ(tokenizer->token_to_id("Ġthe"), 290);
  EXPECT_EQ(tokenizer->token_to_id(" the"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(290), "Ġthe");
  EXPECT_EQ(tokenizer->token_bytes(290), " the");
  EXPECT_EQ(tokenizer->id_to_token(200019), std::nullopt);
  EXPECT_EQ(tokenizer->token_bytes(-1), "");
  EXPECT_EQ(tokenizer->token_bytes(201087), "");
  EXPECT_TRUE(tokenizer->is_special(200008));
  EXPECT_FALSE(tokenizer->is_special(290));
  EXPECT_FALSE(tokenizer->is_special(INT32_MAX));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{290, 200019, -5, 290}), " the the");
}

TEST(Tokenizer, UserTextNeverMakesSpecialTokens) {
  const auto tokenizer = shared_tokenizer(kGptOss);
  for (int32_t id = 199998; id < tokenizer->vocab_size(); ++id) {
    const std::string text = "a" + *tokenizer->id_to_token(id) + "b";
    const auto ids = *tokenizer->encode(text, {.parse_special = false});
    for (const int32_t i : ids) EXPECT_FALSE(tokenizer->is_special(i)) << text;
    EXPECT_EQ(tokenizer->decode(ids, true), text);
  }
}

TEST(Tokenizer, LongWordsTakeLinearTime) {
  const std::clock_t start = std::clock();
  for (const char* path : {kGptOss, kTiny}) {
    const auto tokenizer = shared_tokenizer(path);
    std::string mixed, marks = "x";
    for (int i = 0; i < 250'000; ++i)
      mixed += "abXy"[i * 7 % 4], marks += i % 2 ? "\xCC\x81" : "\xCC\xA3";
    const std::string texts[] = {std::string(1 << 20, 'a'),
                                 std::string(1 << 20, ' '),
                                 std::string(1 << 20, '\n'),
                                 std::string(1 << 20, 'A'),
                                 std::string(1 << 20, ' ') + "x",
                                 std::string(1 << 20, '<'),
                                 mixed,
                                 marks};
    for (const std::string& text : texts) {
      const auto ids = tokenizer->encode(text);
      ASSERT_TRUE(ids) << ids.error().message;
      EXPECT_EQ(tokenizer->decode(*ids), text);
    }
  }
  // CPU time, for a busy machine; quadratic would be hours.
  EXPECT_LT(std::clock() - start, 120 * CLOCKS_PER_SEC);
}

TEST(Tokenizer, LongRunsOfMarksAreSorted) {
  Json json = small_json();
  json["normalizer"] = {{"type", "NFD"}};
  std::string text = "x", want = "x";
  for (int i = 0; i < 100'000; ++i) text += "\xCC\x81\xCC\xA3", want += "\xCC\xA3";
  for (int i = 0; i < 100'000; ++i) want += "\xCC\x81";
  auto tokenizer = *Tokenizer::parse(json.dump(), "t");
  EXPECT_EQ(tokenizer->decode(*tokenizer->encode(text)), want);
}

TEST(Tokenizer, ThreadsShareOne) {
  auto tokenizer = *Tokenizer::parse(read_data(kTiny), kTiny);
  const std::string text = "The quick brown fox, doesn't it? 123 <|end|>\n\n  x";
  const auto want = *shared_tokenizer(kTiny)->encode(text);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) wrong += *tokenizer->encode(text) != want;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Tokenizer, Load) {
  EXPECT_EQ(Tokenizer::load("/nonexistent/tokenizer.json").error().kind, ErrorKind::kNotFound);
  auto tokenizer = Tokenizer::load(std::string(LK_SOURCE_DIR) + "/" + kTiny);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->vocab_size(), 4096);
}

TEST(TokenizerBadFile, EveryTruncationIsRefused) {
  const std::string json = small_json().dump();
  ASSERT_TRUE(Tokenizer::parse(json, "t"));
  for (size_t n = 0; n < json.size(); ++n) {
    const auto tokenizer = Tokenizer::parse(std::string_view(json).substr(0, n), "t");
    ASSERT_FALSE(tokenizer) << n;
    ASSERT_EQ(tokenizer.error().message.rfind("t: ", 0), 0u) << tokenizer.error().message;
  }
  EXPECT_FALSE(Tokenizer::parse(json + " x", "t"));
  EXPECT_TRUE(Tokenizer::parse(json + "\n", "t"));
}

TEST(TokenizerBadFile, OneSentenceNamesTheFault) {
  struct Case {
    const char* patch;  // JSON merge patch (RFC 7386) of small_json()
    const char* sentence;
  };
  const Case cases[] = {
      {"[]", "the whole file is not an object"},
      {R"({"model": null})", R"("model" is missing)"},
      {R"({"model": 5})", "model is not an object"},
      {R"({"model": {"type": "Unigram"}})",
       R"(model type "Unigram" is not supported, expected "BPE")"},
      {R"({"model": {"vocab": null}})", "model.vocab is missing"},
      {R"({"model": {"vocab": []}})", "model.vocab is not an object"},
      {R"({"model": {"vocab": {"xy": "7"}}})",
       "the id of token 'xy' in model.vocab is not a whole number"},
      {R"({"model": {"vocab": {"xy": 1.5}}})",
       "the id of token 'xy' in model.vocab is not a whole number"},
      {R"({"model": {"vocab": {"xy": -1}}})", "token 'xy' has id -1, expected 0 to 4194303"},
      {R"({"model": {"vocab": {"xy": 4194304}}})",
       "token 'xy' has id 4194304, expected 0 to 4194303"},
      {R"({"model": {"vocab": {"xy": 99999999999999999999}}})",
       "the id of token 'xy' in model.vocab is not a whole number"},
      {R"({"model": {"vocab": {"xy": 98}}})", "id 98 is given to both 'b' and 'xy'"},
      {R"({"model": {"vocab": {"A": null}}})",
       "the id of token 'A' in model.vocab is not a whole number"},
      {R"({"model": {"merges": null}})", "model.merges is missing"},
      {R"({"model": {"merges": {}}})", "model.merges is not an array"},
      {R"({"model": {"merges": [1]}})", "a merge in model.merges is not a string or a pair"},
      {R"({"model": {"merges": ["ab"]}})",
       "the merge 'ab' in model.merges is not two texts with one space between"},
      {R"({"model": {"merges": ["a b c"]}})",
       "the merge 'a b c' in model.merges is not two texts with one space between"},
      {R"({"model": {"merges": [["a"]]}})", "a merge in model.merges has not two parts"},
      {R"({"model": {"merges": [["a", "b", "c"]]}})", "a merge in model.merges has not two parts"},
      {R"({"model": {"merges": [["a", 1]]}})", "a part of a merge in model.merges is not a string"},
      {R"({"model": {"merges": ["a b", "xy a"]}})",
       "merge 1 joins 'xy' and 'a', but 'xy' is not in the vocab"},
      {R"({"model": {"merges": ["b a"]}})", "merge 0 makes 'ba', which is not in the vocab"},
      {R"({"model": {"merges": ["中 a"]}})",
       "merge 0 joins '中' and 'a', but '中' is not in the vocab"},
      {R"({"model": {"dropout": 0.1}})", "model.dropout = 0.1 is not supported"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})",
       R"(model.end_of_word_suffix = "</w>" is not supported)"},
      {R"({"model": {"ignore_merges": 1}})", "model.ignore_merges is not true or false"},
      {R"({"model": {"news": 1}})", "the field 'model.news' is not supported"},
      {R"({"news": 1})", "the field 'news' is not supported"},
      {R"({"added_tokens": {}})", "added_tokens is not an array"},
      {R"({"added_tokens": [1]})", "an item of added_tokens is not an object"},
      {R"({"added_tokens": [{"id": 5}]})", "added_tokens[].content is missing or not a string"},
      {R"({"added_tokens": [{"id": 300, "content": ""}]})", "an added token has no text"},
      {R"({"added_tokens": [{"content": "x"}]})",
       "added token 'x' has no id that is a whole number"},
      {R"({"added_tokens": [{"id": 5, "content": "<x>"}]})", "id 5 is given to both 'ą' and '<x>'"},
      {R"({"added_tokens": [{"id": 300, "content": "ab"}]})",
       "added token 'ab' has id 300, but the same text has id 256 already"},
      {R"({"added_tokens": [{"id": 99999999, "content": "<x>"}]})",
       "token '<x>' has id 99999999, expected 0 to 4194303"},
      {R"({"added_tokens": [{"id": 300, "content": "<x>", "special": 1}]})",
       "added_tokens[].special is missing or not true or false"},
      {R"({"normalizer": {"type": "Precompiled"}})",
       "normalizer type 'Precompiled' is not supported"},
      {R"({"normalizer": {"type": "Sequence"}})",
       "normalizer.normalizers is missing or not an array"},
      {R"({"normalizer": "NFC"})", "normalizer is not an object"},
      {R"({"pre_tokenizer": null})",
       "a pre_tokenizer that does not end with ByteLevel is not supported"},
      {R"({"pre_tokenizer": {"type": "Metaspace"}})",
       "pre_tokenizer type 'Metaspace' is not supported"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}]}})",
       "the pattern ( does not compile: missing closing parenthesis"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[[:alpha:]]"}, "behavior": "Isolated"}})",
       "the regular expression [[:alpha:]] uses '[:', which is not supported"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Glob": "*"}, "behavior": "Isolated"}})",
       "pre_tokenizer pattern 'Glob' is not supported"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"String": "x"}, "behavior": "Twice"}})",
       "pre_tokenizer behavior 'Twice' is not supported"},
      {R"({"post_processor": {"type": "BertProcessing"}})",
       "post_processor type 'BertProcessing' is not supported"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}})",
       "post_processor.single has no Sequence A"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {"x": {"ids": [999]}}}})",
       "post_processor.special_tokens: 'x' has the id 999, which has no token"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "99999999999999999999999"}}], "special_tokens": []}})",
       "post_processor.special_tokens has no ids for '99999999999999999999999'"},
      {R"({"decoder": null})", "a file without a decoder is not supported, expected ByteLevel"},
      {R"({"decoder": {"type": "Metaspace"}})", "decoder type 'Metaspace' is not supported"},
  };
  for (const Case& c : cases) {
    Json json = small_json();
    const Json patch = Json::parse(c.patch);
    if (patch.contains("pre_tokenizer")) json.erase("pre_tokenizer");
    if (patch.contains("model") && patch["model"].is_object() && patch["model"].contains("vocab") &&
        patch["model"]["vocab"].is_object() && patch["model"]["vocab"].contains("A")) {
      json["model"]["vocab"]["A"] = nullptr;  // a merge patch cannot set null
    } else {
      json.merge_patch(patch);
    }
    EXPECT_EQ(error_of(json), std::string("tokenizer.json: ") + c.sentence) << c.patch;
  }
}

TEST(TokenizerBadFile, RepeatedKeys) {
  std::string json = small_json().dump();
  const auto with = [&](std::string_view before, std::string_view inserted) {
    std::string text = json;
    return text.insert(text.find(before), inserted);
  };
  const auto message = [&](const std::string& text) {
    const auto tokenizer = Tokenizer::parse(text, "t");
    return tokenizer ? "" : tokenizer.error().message;
  };
  EXPECT_EQ(message(with("\"ab\":256", "\"ab\":300,")), "t: token 'ab' appears twice in the vocab");
  EXPECT_EQ(message(with("\"vocab\"", "\"vocab\":{},")), "t: model.vocab appears twice");
  EXPECT_NE(message(with("\"model\"", "\"model\":{\"vocab\":{},\"merges\":[]},")), "");
}

TEST(TokenizerBadFile, ManyStagesAreRefused) {
  Json json = small_json();
  const Json split = {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Isolated"}};
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json(100'000, split)}};
  EXPECT_EQ(error_of(json),
            "tokenizer.json: a pre_tokenizer of more than 64 parts is not supported");
}

TEST(TokenizerBadFile, MissingByteIsRefused) {
  Json json = small_json();
  json["model"]["vocab"].erase("A");
  EXPECT_EQ(error_of(json), "tokenizer.json: the vocab has no token 'A' for the byte 0x41");
}

TEST(TokenizerBadFile, MergesBeforeVocab) {
  const std::string plain = small_json().dump();  // nlohmann sorts the keys: merges, type, vocab
  ASSERT_LT(plain.find("\"merges\""), plain.find("\"vocab\""));
  OrderedJson json = OrderedJson::parse(plain);
  OrderedJson model;
  for (const char* key : {"vocab", "type", "merges"}) model[key] = json["model"][key];
  json["model"] = model;
  for (const std::string& text : {plain, json.dump()}) {
    EXPECT_EQ(*(*Tokenizer::parse(text, "t"))->encode("abcx"), (std::vector<int32_t>{257, 'x'}));
  }
}

TEST(TokenizerBadFile, AHardPatternIsAnErrorNotAHang) {
  Json json = small_json();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a+)+c"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  auto tokenizer = Tokenizer::parse(json.dump(), "t");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  const auto ids = (*tokenizer)->encode(std::string(200, 'a') + "dc");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().kind, ErrorKind::kResource);
}

}  // namespace
}  // namespace lk
