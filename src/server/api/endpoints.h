// The endpoints of the API, without sockets: from a request's JSON to an answer or a body. The
// routes call these. Stateless; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/adapter_store.h"
#include "server/api/answer.h"
#include "server/api/api_error.h"
#include "server/api/served_model.h"

namespace lk {

// The JSON object that a POST carries. Errors: 400.
ApiResult<OrderedJson> parse_body(std::string_view body);
// The field "model": absent, null or empty means the base (its first name). Errors: 400 if it is
// not a string.
ApiResult<std::string> read_model(const OrderedJson& body, const ServedModel& served);
// 404, code "model_not_found", param "model".
ApiError model_not_found(const std::string& model);

// Endpoints that run the engine; all are POST.
struct GenerationEndpoint {
  std::string_view path;  // "/v1/completions"
  MakeAnswer make;
};
std::span<const GenerationEndpoint> generation_endpoints();

ApiResult<std::unique_ptr<Answer>> make_completion_answer(const OrderedJson& body,
                                                          const ServedModel& served,
                                                          const std::string& model,
                                                          std::shared_ptr<const EngineAdapter> who);
ApiResult<std::unique_ptr<Answer>> make_chat_answer(const OrderedJson& body,
                                                    const ServedModel& served,
                                                    const std::string& model,
                                                    std::shared_ptr<const EngineAdapter> who);
ApiResult<std::unique_ptr<Answer>> make_response_answer(const OrderedJson& body,
                                                        const ServedModel& served,
                                                        const std::string& model,
                                                        std::shared_ptr<const EngineAdapter> who);

// GET /v1/models and /v1/models/{name}: the base under each of its names, then the adapters with
// `root` = path and `parent` = the base's first name. Errors: 404.
std::string models_body(const ServedModel& served, const std::vector<AdapterStatus>& adapters);
ApiResult<std::string> model_body(const ServedModel& served,
                                  const std::vector<AdapterStatus>& adapters,
                                  const std::string& name);

// POST /tokenize ({"prompt"} or {"messages"}) and /detokenize ({"tokens"}). Errors: 400 naming the
// field.
ApiResult<std::string> tokenize_body(const OrderedJson& body, const ServedModel& served);
ApiResult<std::string> detokenize_body(const OrderedJson& body, const ServedModel& served);

}  // namespace lk
