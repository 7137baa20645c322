#include "text/parsers/python_literal.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "text/parsers/tool_types.h"

namespace lk {
namespace {

TEST(PythonLiteral, BecomesJson) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "{}"},
      {"[ ]", "[]"},
      {"{'a': True, \"b\": None, 'c': [1, -2.5e3, False, 'x'],}",
       R"({"a": true, "b": null, "c": [1, -2.5e3, false, "x"]})"},
      {R"('it\'s "so"')", R"("it's \"so\"")"},
      {R"("\x41\u00e9\U0001F600\\d\q")", "\"A\xc3\xa9\xf0\x9f\x98\x80\\\\d\\\\q\""},
      {"{'a': {'b': [[{}]]}}", R"({"a": {"b": [[{}]]}})"},
      {R"({"mixed": true, 'with': None})", R"({"mixed": true, "with": null})"},
  };
  for (const auto& [python, json] : cases) {
    const auto got = python_literal_to_json(python);
    ASSERT_TRUE(got) << python;
    EXPECT_EQ(OrderedJson::parse(*got), OrderedJson::parse(json)) << *got;
  }
}

TEST(PythonLiteral, NothingElseDoes) {
  for (const char* text :
       {"",           "{",           "{'a'}",         "{'a': }", "{'a': 1",    "{1: 2}",
        "{'a': 1} x", "['a' 'b']",   "[,]",           "[1,,]",   "'open",      R"('\')",
        R"('\xg0')",  R"('\ud800')", R"('\N{DASH}')", "f(x)",    "{'a': nan}", "{'a': open('b')}",
        "[1, 2)",     "'a\nb'"})
    EXPECT_FALSE(python_literal_to_json(text)) << text;
  EXPECT_FALSE(python_literal_to_json(std::string(100'000, '[')));
}

TEST(ToolTypes, ObjectsMayBeWrittenAsPythonDoes) {
  const auto tools = OrderedJson::parse(R"([{"type": "function", "function": {"name": "f",
      "parameters": {"properties": {"o": {"type": "object"}, "l": {"type": "array"},
                                    "s": {"type": "string"}, "os": {"type": ["object", "string"]}}}}}])");
  const ToolTypes types(&tools);
  EXPECT_EQ(types.to_json("f", "o", "{'a': True}"), R"({"a": true})");
  EXPECT_EQ(types.to_json("f", "o", R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(types.to_json("f", "l", "['a', None]"), R"(["a", null])");
  // Not declared, or a string as well: as it is written.
  EXPECT_EQ(types.to_json("f", "o", "['a']"), R"("['a']")");
  EXPECT_EQ(types.to_json("f", "s", "{'a': True}"), R"("{'a': True}")");
  EXPECT_EQ(types.to_json("f", "os", "{'a': True}"), R"("{'a': True}")");
  EXPECT_EQ(types.to_json("f", "o", "{'a': f(1)}"), R"("{'a': f(1)}")");
}

}  // namespace
}  // namespace lk
