// A template and the variables it is rendered with: the template, a line "---", and a JSON object.
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find("\n---\n");
  const std::string_view source = input.substr(0, cut);
  const std::string_view context =
      cut == input.npos ? std::string_view("{}") : input.substr(cut + 5);
  const auto made = lk::jinja::Template::parse(source, "fuzz");
  if (!made) return 0;
  const auto json = lk::parse_ordered_json(context, "context");
  std::vector<lk::jinja::Template::Variable> variables;
  if (json && json->is_object()) {
    for (const auto& [name, value] : json->items()) variables.emplace_back(name, &value);
  }
  lk::jinja::Limits limits;
  limits.steps = 100'000;
  limits.output_bytes = 1 << 20;
  const auto clock = [] {
    std::tm time{};
    time.tm_year = 125;
    time.tm_mday = 1;
    return time;
  };
  const auto text = made->render(variables, clock, limits);
  if (text && text->size() > limits.output_bytes) __builtin_trap();
  return 0;
}
