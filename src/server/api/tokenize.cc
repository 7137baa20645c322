// POST /tokenize and /detokenize.
#include <nlohmann/json.hpp>

#include "server/api/chat_prompt.h"
#include "server/api/endpoints.h"
#include "server/api/fields.h"
#include "server/api/json_text.h"
#include "server/api/token_logprobs.h"

namespace lk {
namespace {

ApiResult<std::vector<int32_t>> encode(const OrderedJson& body, const ServedModel& served) {
  const Fields fields(body);
  if (fields.has("messages")) {
    LK_API_ASSIGN_OR_RETURN(Conversation conversation, read_conversation(body, served));
    LK_API_ASSIGN_OR_RETURN(ChatPrompt prompt,
                            encode_conversation(std::move(conversation), served));
    return std::move(prompt.ids);
  }
  if (!fields.has("prompt")) return bad_field("prompt", "give prompt or messages");
  LK_API_ASSIGN_OR_RETURN(const std::string text, fields.string_or("prompt", ""));
  LK_API_ASSIGN_OR_RETURN(const bool special, fields.boolean_or("add_special_tokens", true));
  auto ids = served.tokenizer->encode(text, {.add_special_tokens = special});
  if (!ids) return bad_field("prompt", "prompt: {}", ids.error().message);
  return std::move(*ids);
}

}  // namespace

ApiResult<std::string> tokenize_body(const OrderedJson& body, const ServedModel& served) {
  LK_API_ASSIGN_OR_RETURN(const bool strings, Fields(body).boolean_or("return_token_strs", false));
  LK_API_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, encode(body, served));
  std::string out = R"({"count":)";
  append_integer(out, static_cast<int64_t>(ids.size()));
  out += R"(,"max_model_len":)";
  append_integer(out, served.max_model_len);
  out += R"(,"tokens":[)";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_integer(out, ids[i]);
  }
  out += R"(],"token_strs":)";
  if (!strings) return out + "null}";
  out += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    append_string(out, token_text(*served.tokenizer, ids[i]));
  }
  return out + "]}";
}

ApiResult<std::string> detokenize_body(const OrderedJson& body, const ServedModel& served) {
  const OrderedJson* tokens = Fields(body).find("tokens");
  if (tokens == nullptr) return bad_field("tokens", "tokens is missing");
  LK_API_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          read_ids(*tokens, "tokens", served.info.vocab));
  std::string out = R"({"prompt":)";
  append_string(out, served.tokenizer->decode(ids, /*skip_special=*/false));
  return out + "}";
}

}  // namespace lk
