#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

namespace lk {
namespace {

TEST(Json, PythonNumbers) {
  auto value =
      parse_json(R"({"a": NaN, "b": [Infinity, -Infinity, -1], "c": "NaN \" Infinity"})", "t");
  ASSERT_TRUE(value) << value.error().message;
  EXPECT_TRUE(std::isnan((*value)["a"].get<double>()));
  EXPECT_EQ((*value)["b"][0].get<double>(), INFINITY);
  EXPECT_EQ((*value)["b"][1].get<double>(), -INFINITY);
  EXPECT_EQ((*value)["b"][2].get<int>(), -1);
  EXPECT_EQ((*value)["c"].get<std::string>(), "NaN \" Infinity");
  const std::string text = json_file_text(OrderedJson::parse("{}"));
  EXPECT_EQ(text, "{}\n");
  const std::string written = json_file_text(
      *parse_ordered_json(R"({"b": [Infinity, -Infinity, NaN, -1.5], "a": "Infinity"})", "t"));
  EXPECT_EQ(written,
            "{\n \"b\": [\n  Infinity,\n  -Infinity,\n  NaN,\n  -1.5\n ],\n \"a\": "
            "\"Infinity\"\n}\n");
}

TEST(Json, ErrorsAreSentences) {
  for (const char* text : {"", "{", "{\"a\": Nan}", "[1,]", "{\"a\" 1}", "\xff", "{\"a\": 1} x"}) {
    auto value = parse_json(text, "config.json");
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().message.rfind("config.json is not valid JSON", 0), 0u)
        << value.error().message;
  }
}

std::string fault_of(const std::string& text) {
  const auto value = parse_ordered_json(text, "line 3");
  EXPECT_FALSE(value) << text;
  return value ? "" : value.error().message;
}

TEST(Json, ErrorsSayWhereInWords) {
  EXPECT_EQ(fault_of(" "), "line 3 is not valid JSON: it is empty");
  EXPECT_EQ(fault_of(R"({"a": [1, )"),
            "line 3 is not valid JSON: it ends too early, after 10 bytes");
  EXPECT_EQ(fault_of(R"({"a": "b)"), "line 3 is not valid JSON: it ends too early, after 8 bytes");
  EXPECT_EQ(fault_of(R"({"a": nope})"),
            "line 3 is not valid JSON: 'o' at byte 8 is not expected there");
  // Bytes are counted in the text as it was given.
  EXPECT_EQ(fault_of(R"({"a": NaN, "b": -Infinity, x})"),
            "line 3 is not valid JSON: 'x' at byte 28 is not expected there");
  EXPECT_EQ(fault_of("{\"a\": \"\xff\"}"), "line 3 is not valid JSON: byte 8 is not UTF-8");
  EXPECT_EQ(fault_of(std::string("{\"a\": \"\0\"}", 10)),
            "line 3 is not valid JSON: a string holds an unescaped control character at byte 8");
  EXPECT_EQ(fault_of(std::string("\0\0", 2)),
            "line 3 is not valid JSON: '?' at byte 1 is not expected there");
  EXPECT_EQ(fault_of(R"({"a": 1e999})"),
            "line 3: the number '1e999' before byte 11 is out of range");
  for (const char* text : {R"(["\ud800"])", R"(["\udc00"])", R"(["\ud800\u0041"])",
                           R"({"\ud800": 1})", R"(["\ud800x"])"}) {
    const std::string fault = fault_of(text);
    EXPECT_NE(fault.find("is half of a surrogate pair, which alone is no character"), fault.npos)
        << fault;
  }
  EXPECT_EQ(fault_of(R"(["\ud800"])"),
            "line 3 is not valid JSON: the \\u escape that ends before byte 9 is half of a "
            "surrogate pair, which alone is no character");
  EXPECT_EQ(fault_of(R"(["\u12g4"])"),
            "line 3 is not valid JSON: a string holds a broken escape at byte 7");
  EXPECT_EQ(fault_of(R"(["\q"])"),
            "line 3 is not valid JSON: a string holds a broken escape at byte 4");
  for (const char* text : {"{\"a\": 1} x", "[1 2]", "{1: 2}", "\x01", "[\"\\q\"]", "[01]"})
    EXPECT_EQ(fault_of(text).find("json.exception"), std::string::npos) << fault_of(text);
}

TEST(Json, AKeyTwiceIsRefused) {
  EXPECT_EQ(fault_of(R"({"a": 1, "b": {"a": 2, "c": [], "c": 3}})"),
            "line 3 gives the key 'c' twice");
  EXPECT_FALSE(parse_json(R"([{"a": 1, "a": 1}])", "t"));
  EXPECT_TRUE(parse_json(R"([{"a": 1, "b": {"a": 2}}, {"a": 1}])", "t"));
}

// An ordered object is searched from end to end at every insertion, were it left to itself.
TEST(Json, AnObjectOfManyKeysIsReadInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"key" + std::to_string(i) + "\": 1, ";
  const std::clock_t started = std::clock();  // CPU time: the machine may be busy
  EXPECT_EQ(fault_of(text + "\"key7\": 2}"), "line 3 gives the key 'key7' twice");
  const auto value = parse_ordered_json(text + "\"last\": 2}", "t");
  ASSERT_TRUE(value);
  EXPECT_EQ(value->size(), 200001u);
  EXPECT_LT(std::clock() - started, 20 * CLOCKS_PER_SEC);
}

TEST(Json, DepthIsLimited) {
  EXPECT_TRUE(parse_json(std::string(200, '[') + std::string(200, ']'), "t"));
  EXPECT_FALSE(parse_json(std::string(201, '[') + std::string(201, ']'), "t"));
}

TEST(Json, OrderIsKept) {
  auto value = parse_ordered_json(R"({"z": 1, "a": 2})", "t");
  ASSERT_TRUE(value);
  EXPECT_EQ(value->begin().key(), "z");
}

}  // namespace
}  // namespace lk
