#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
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
}

TEST(Json, ErrorsAreSentences) {
  for (const char* text : {"", "{", "{\"a\": Nan}", "[1,]", "{\"a\" 1}", "\xff", "{\"a\": 1} x"}) {
    auto value = parse_json(text, "config.json");
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().message.rfind("config.json is not valid JSON", 0), 0u)
        << value.error().message;
  }
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
