#include "engine/request.h"

#include <algorithm>
#include <cmath>

namespace lk {
namespace {

// Written so that a NaN fails.
Status check_range(std::string_view field, float value, float low, float high,
                   bool open_low = false) {
  const bool above = open_low ? value > low : value >= low;
  if (above && value <= high) return {};
  return invalid("{} must be in {}{:g}, {:g}], not {:g}", field, open_low ? "(" : "[", low, high,
                 value);
}

Status check_ids(const std::vector<int32_t>& ids, int vocab, std::string_view field) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab)
      return invalid("{} holds {}, outside the vocabulary of {} ids", field, id, vocab);
  }
  return {};
}

Status check_bias(const std::vector<std::pair<int32_t, float>>& bias, int vocab) {
  for (const auto& [id, value] : bias) {
    if (id < 0 || id >= vocab)
      return invalid("logit_bias names {}, outside the vocabulary of {} ids", id, vocab);
    LK_RETURN_IF_ERROR(check_range("a value of logit_bias", value, -kMaxLogitBias, kMaxLogitBias));
  }
  return {};
}

Status check_stops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStops)
    return invalid("stop holds {} strings, at most {} are allowed", stops.size(), kMaxStops);
  for (const std::string& stop : stops) {
    if (stop.empty()) return invalid("a stop string must not be empty");
    if (stop.size() > kMaxStopBytes) {
      return invalid("a stop string has {} bytes, at most {} are allowed", stop.size(),
                     kMaxStopBytes);
    }
  }
  return {};
}

}  // namespace

int resolved_max_tokens(const Request& request, int max_model_len) {
  if (request.max_tokens != -1) return request.max_tokens;
  return static_cast<int>(
      std::max<int64_t>(1, max_model_len - static_cast<int64_t>(request.prompt.size())));
}

Status check_request(const Request& request, const RequestLimits& limits) {
  const auto length = static_cast<int64_t>(request.prompt.size());
  if (length == 0) return invalid("the prompt is empty");
  if (request.max_tokens < -1)
    return invalid("max_tokens must not be negative, it is {}", request.max_tokens);
  const int64_t output = resolved_max_tokens(request, limits.max_model_len);
  if (length + output > limits.max_model_len) {
    return invalid(
        "the prompt of {} tokens and max_tokens {} make {} tokens, the longest context is {}",
        length, output, length + output, limits.max_model_len);
  }
  if (request.min_tokens < 0 || request.min_tokens > output) {
    return invalid("min_tokens must be in [0, {}], what max_tokens allows, not {}", output,
                   request.min_tokens);
  }
  LK_RETURN_IF_ERROR(check_ids(request.prompt, limits.vocab, "the prompt"));
  LK_RETURN_IF_ERROR(check_ids(request.stop_ids, limits.vocab, "stop_token_ids"));
  LK_RETURN_IF_ERROR(check_bias(request.logit_bias, limits.vocab));
  LK_RETURN_IF_ERROR(check_sampling(request.sampling));
  LK_RETURN_IF_ERROR(check_stops(request.stop));
  if (request.logprobs < -1 || request.logprobs > kMaxTopLogprobs)
    return invalid("logprobs must be in [0, {}], not {}", kMaxTopLogprobs, request.logprobs);
  if (request.adapter && limits.adapter_slots == 0)
    return invalid("the engine has no adapter slots");
  return {};
}

Status check_sampling(const SamplingParams& params) {
  LK_RETURN_IF_ERROR(check_range("temperature", params.temperature, 0, 100));
  LK_RETURN_IF_ERROR(check_range("top_p", params.top_p, 0, 1, true));
  LK_RETURN_IF_ERROR(check_range("min_p", params.min_p, 0, 1));
  LK_RETURN_IF_ERROR(check_range("repetition_penalty", params.repetition_penalty, 0, 100, true));
  LK_RETURN_IF_ERROR(check_range("presence_penalty", params.presence_penalty, -100, 100));
  LK_RETURN_IF_ERROR(check_range("frequency_penalty", params.frequency_penalty, -100, 100));
  if (params.top_k < 0) return invalid("top_k must be 0 (all) or more, not {}", params.top_k);
  return {};
}

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "";
}

}  // namespace lk
