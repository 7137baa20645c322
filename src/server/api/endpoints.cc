#include "server/api/endpoints.h"

#include <nlohmann/json.hpp>

#include "server/api/fields.h"

namespace lk {

ApiResult<OrderedJson> parse_body(std::string_view body) {
  auto json = parse_ordered_json(body, "the request's body");
  if (!json) return tl::unexpected<ApiError>(api_error(json.error()));
  if (!json->is_object())
    return tl::unexpected<ApiError>(
        ApiError{.message = "the request's body must be a JSON object, not " + found_text(*json)});
  return std::move(*json);
}

ApiResult<std::string> read_model(const OrderedJson& body, const ServedModel& served) {
  LK_API_ASSIGN_OR_RETURN(std::string model, Fields(body).string_or("model", ""));
  if (model.empty() && !served.names.empty()) model = served.names.front();
  return model;
}

ApiError model_not_found(const std::string& model) {
  return {.status = 404,
          .message = "The model `" + model + "` does not exist.",
          .type = "not_found_error",
          .param = "model",
          .code = "model_not_found"};
}

std::span<const GenerationEndpoint> generation_endpoints() {
  static constexpr GenerationEndpoint kEndpoints[] = {
      {"/v1/completions", make_completion_answer},
      {"/v1/chat/completions", make_chat_answer},
      {"/v1/responses", make_response_answer},
  };
  return kEndpoints;
}

}  // namespace lk
