#include "cli/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lk {
namespace {

// JSON has no infinities.
constexpr float kLowestLogprob = -9999;

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string number(float logprob) {
  if (std::isnan(logprob)) return "null";
  // The shortest text that reads back as the same float; + 0 makes -0 a 0.
  return fmt::format("{}", std::max(logprob, kLowestLogprob) + 0.0f);
}

template <typename T, typename F>
std::string list(const std::vector<T>& values, F&& print) {
  std::string out = "[";
  for (const T& value : values) {
    if (out.size() > 1) out += ", ";
    out += print(value);
  }
  return out + "]";
}

std::string ids(const std::vector<int32_t>& values) {
  return list(values, [](int32_t id) { return std::to_string(id); });
}

}  // namespace

void RunAnswer::add(TokenEvent&& event) {
  if (event.token >= 0) {
    output_ids.push_back(event.token);
    if (wants_logprobs) token_logprobs.push_back(event.logprob);
    if (wants_top) top_logprobs.push_back(std::move(event.top));
  }
  text += event.text;
  prompt_logprobs.insert(prompt_logprobs.end(), event.prompt_logprobs.begin(),
                         event.prompt_logprobs.end());
  finish = event.finish;
  error = std::move(event.error);
}

std::string RunAnswer::json() const {
  if (failed()) return fmt::format("{{\"id\": {}, \"error\": {}}}\n", id, quoted(error));
  std::string out = fmt::format(
      "{{\"id\": {}, \"adapter\": {}, \"prompt_ids\": {}, \"output_ids\": {}, \"text\": {}, "
      "\"finish_reason\": \"{}\"",
      id, adapter == "base" ? "null" : quoted(adapter), ids(prompt_ids), ids(output_ids),
      quoted(text), finish_reason_name(finish));
  if (wants_logprobs) out += ", \"token_logprobs\": " + list(token_logprobs, number);
  if (wants_top) {
    const auto pair = [](const TopLogprob& top) {
      return fmt::format("[{}, {}]", top.id, number(top.logprob));
    };
    out += ", \"top_logprobs\": " +
           list(top_logprobs, [&](const std::vector<TopLogprob>& row) { return list(row, pair); });
  }
  if (wants_prompt_logprobs) out += ", \"prompt_logprobs\": " + list(prompt_logprobs, number);
  return out + "}\n";
}

}  // namespace lk
