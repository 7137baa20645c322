// One request's answer as it grows, and how it is printed. Plain values.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"

namespace lk {

struct RunAnswer {
  std::string id = "null";  // as JSON
  std::string adapter = "base";
  std::vector<int32_t> prompt_ids, output_ids;
  std::string text;
  std::vector<float> token_logprobs, prompt_logprobs;
  std::vector<std::vector<TopLogprob>> top_logprobs;
  bool wants_logprobs = false, wants_top = false, wants_prompt_logprobs = false;
  FinishReason finish = FinishReason::kNone;
  std::string error;  // not empty: there is no answer

  void add(TokenEvent&& event);
  bool failed() const { return !error.empty(); }
  // One line of JSON with its newline. Logprobs are finite numbers: -infinity is -9999, what is not
  // a number is null.
  std::string json() const;
};

}  // namespace lk
