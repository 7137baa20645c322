#include "checkpoint/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/checkpoint/safetensors_writer.h"

namespace lk {
namespace {

TEST(JsonFields, TypedAccess) {
  const Json json = *parse_json(
      R"({"i": 7, "f": 7.0, "h": 7.5, "n": null, "s": "x", "b": true, "l": ["a", "b"], "m": ["a", 1],
          "o": {"x": 1}, "nan": NaN, "inf": -Infinity, "big": 18446744073709551615})",
      "c");
  const JsonFields fields(json, "config.json");
  EXPECT_EQ(*fields.integer("i", 0, 10), 7);
  EXPECT_EQ(*fields.integer("f", 0, 10), 7);
  EXPECT_EQ(*fields.integer_or("n", 3, 0, 10), 3);
  EXPECT_EQ(*fields.number("h"), 7.5);
  EXPECT_EQ(*fields.number_or("none", 2.5), 2.5);
  EXPECT_EQ(*fields.boolean_or("b", false), true);
  EXPECT_EQ(*fields.string("s"), "x");
  EXPECT_EQ(*fields.string_or("none", "y"), "y");
  EXPECT_EQ(*fields.strings("l"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*fields.object("o")->integer("x", 0, 1), 1);
  EXPECT_FALSE(fields.has("n"));
  EXPECT_ERROR(fields.integer("i", 0, 6),
               "config.json: field i is 7, expected an integer from 0 to 6");
  EXPECT_ERROR(fields.integer("none", 0, 6), "config.json: field none is missing");
  EXPECT_ERROR(fields.integer("h", 0, 10), "field h is 7.5");
  EXPECT_ERROR(fields.integer("b", 0, 10), "field b is true");
  EXPECT_ERROR(fields.integer("big", 0, 10), "field big is 18446744073709551615");
  EXPECT_ERROR(fields.integer("nan", 0, 10), "field nan is nan");
  EXPECT_ERROR(fields.integer_or("s", 0, 0, 10), "field s is \"x\"");
  EXPECT_ERROR(fields.number("nan"), "field nan is nan, expected a finite number");
  EXPECT_ERROR(fields.number_or("inf", 0), "field inf is -inf");
  EXPECT_ERROR(fields.number("s"), "expected a finite number");
  EXPECT_ERROR(fields.boolean_or("i", true), "field i is 7, expected true or false");
  EXPECT_ERROR(fields.string("i"), "field i is 7, expected a string");
  EXPECT_ERROR(fields.strings("m"), "a list with other values");
  EXPECT_ERROR(fields.strings("o"), "field o is an object, expected a list of strings");
  EXPECT_ERROR(fields.object("l"), "field l is a list, expected an object");
  EXPECT_ERROR(fields.object("o")->integer("y", 0, 1), "config.json: o: field y is missing");
}

HfConfig config_of(const char* config, const char* generation) {
  HfConfig files;
  files.config = std::make_shared<const Json>(*parse_json(config, "c"));
  if (generation)
    files.generation_config = std::make_shared<const Json>(*parse_json(generation, "g"));
  return files;
}

TEST(HfConfig, NumbersAsTransformersFiveWritesThem) {
  const test::TempFolder folder;
  folder.write("config.json", R"({"model_type": "m", "limit": [0.0, {"__float__": "Infinity"}],
    "low": {"__float__": "-Infinity"}, "none": {"__float__": "NaN"}, "other": {"__float__": "x"}})");
  const auto files = HfConfig::read(folder.path());
  ASSERT_TRUE(files) << files.error().message;
  const Json& json = *files->config;
  EXPECT_EQ(json["limit"][1], std::numeric_limits<double>::infinity());
  EXPECT_EQ(json["low"], -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(json["none"].get<double>()));
  EXPECT_TRUE(json["other"].is_object());
}

TEST(HfConfig, EosTokenIds) {
  EXPECT_EQ(
      *config_of(R"({"eos_token_id": 5})", R"({"eos_token_id": [7, 5, 9, 7]})").eos_token_ids(),
      (std::vector<int32_t>{7, 5, 9}));
  EXPECT_EQ(*config_of(R"({"eos_token_id": [5, 6]})", nullptr).eos_token_ids(),
            (std::vector<int32_t>{5, 6}));
  EXPECT_TRUE(config_of(R"({"eos_token_id": null})", "{}").eos_token_ids()->empty());
  EXPECT_ERROR(config_of(R"({"eos_token_id": "x"})", nullptr).eos_token_ids(),
               "config.json: eos_token_id is \"x\"");
  EXPECT_ERROR(config_of("{}", R"({"eos_token_id": [1, -1]})").eos_token_ids(),
               "generation_config.json: eos_token_id is -1");
  EXPECT_ERROR(config_of(R"({"eos_token_id": 2147483648})", nullptr).eos_token_ids(), "2147483648");
}

}  // namespace
}  // namespace lk
