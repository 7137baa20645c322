#include "engine/request.h"

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

}  // namespace

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
