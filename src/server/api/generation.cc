#include "server/api/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/api/fields.h"
#include "server/api/json_text.h"
#include "server/api/sampling_fields.h"

namespace lk {
namespace {

constexpr size_t kMaxChoices = 4096;                   // prompts x n
constexpr size_t kMaxPromptTokens = size_t{16} << 20;  // of all choices together

// Fields that would change the answer. Present and not null (nor false): refused.
constexpr std::string_view kRefused[] = {
    "suffix",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
    "use_beam_search",
    "logits_processors",
    "prompt_embeds",
    "functions",
    "function_call",
    "chat_template",
    "audio",
    "truncate_prompt_tokens",
    "bad_words",
    "allowed_token_ids",
    "response_pattern",
    "kv_transfer_params",
};

bool asks_for_something(const OrderedJson& value) {
  return !(value.is_boolean() && !value.get<bool>()) && !(value.is_structured() && value.empty()) &&
         !(value.is_string() && value.get_ref<const std::string&>().empty());
}

ApiStatus check_response_format(const Fields& fields) {
  const OrderedJson* format = fields.find("response_format");
  if (format == nullptr) return {};
  if (!format->is_object())
    return bad_field("response_format", "response_format must be an object, not {}",
                     found_text(*format));
  LK_API_ASSIGN_OR_RETURN(const std::string type,
                          Fields(*format, "response_format.").string_or("type", ""));
  if (type == "text") return {};
  return bad_field("response_format",
                   "response_format of type {} is not supported, only \"text\" is",
                   found_text(OrderedJson(type)));
}

}  // namespace

ApiResult<GenerationFields> read_generation_fields(const OrderedJson& body) {
  const Fields fields(body);
  for (std::string_view name : kRefused) {
    const OrderedJson* value = fields.find(name);
    // {} is a schema, of any JSON; elsewhere nothing is asked for by what is empty.
    if (value != nullptr &&
        (asks_for_something(*value) || (name == "guided_json" && value->is_object())))
      return bad_field(std::string(name), "{} is not supported", name);
  }
  LK_API_RETURN_IF_ERROR(check_response_format(fields));
  GenerationFields out;
  LK_API_ASSIGN_OR_RETURN(const int64_t n, fields.integer_or("n", 1, 1, kMaxN));
  LK_API_ASSIGN_OR_RETURN(const int64_t best_of, fields.integer_or("best_of", n, 0, kMaxN));
  if (best_of != n)
    return bad_field("best_of", "best_of {} is not supported, it must equal n ({})", best_of, n);
  out.n = static_cast<int>(n);
  LK_API_ASSIGN_OR_RETURN(out.stream, fields.boolean_or("stream", false));
  const OrderedJson* options = fields.find("stream_options");
  if (options == nullptr) return out;
  if (!options->is_object())
    return bad_field("stream_options", "stream_options must be an object, not {}",
                     found_text(*options));
  if (!out.stream)
    return bad_field("stream_options", "stream_options go with \"stream\": true only");
  const Fields inner(*options, "stream_options.");
  LK_API_ASSIGN_OR_RETURN(out.include_usage, inner.boolean_or("include_usage", false));
  LK_API_ASSIGN_OR_RETURN(out.continuous_usage, inner.boolean_or("continuous_usage_stats", false));
  return out;
}

ApiResult<int> read_prompt_logprobs(const OrderedJson& body, const ServedModel& served) {
  const Fields fields(body);
  if (!fields.has("prompt_logprobs")) return -1;
  LK_API_ASSIGN_OR_RETURN(const int64_t top,
                          fields.integer_or("prompt_logprobs", 0, 0, served.max_logprobs));
  LK_API_ASSIGN_OR_RETURN(const bool stream, fields.boolean_or("stream", false));
  if (stream)
    return bad_field("prompt_logprobs", "prompt_logprobs cannot be had with \"stream\": true");
  return static_cast<int>(top);
}

void ask_prompt_logprobs(Request& request, int top) {
  if (top < 0) return;
  request.prompt_logprobs = request.prompt_ranks = true;
  request.prompt_top = top;
}

ApiResult<Request> read_request(const OrderedJson& body, const ServedModel& served,
                                std::shared_ptr<const EngineAdapter> who) {
  Request request = served.defaults;
  request.adapter = std::move(who);
  request.sampling.seed = served.seed ? *served.seed : random_seed();
  LK_API_RETURN_IF_ERROR(read_sampling_fields(body, request));
  for (const auto& [id, bias] : request.logit_bias) {
    if (id >= served.info.vocab)
      return bad_field("logit_bias", "logit_bias: {} is no token id, they end at {}", id,
                       served.info.vocab - 1);
  }
  for (int32_t id : request.stop_ids) {
    if (id >= served.info.vocab)
      return bad_field("stop_token_ids", "stop_token_ids: {} is no token id, they end at {}", id,
                       served.info.vocab - 1);
  }
  return request;
}

ApiResult<int> resolve_max_tokens(size_t prompt, const TokenBudget& budget,
                                  const ServedModel& served) {
  const auto length = static_cast<int64_t>(prompt);
  const int64_t context = served.max_model_len, left = context - length;
  const int64_t least = budget.allow_nothing ? 0 : 1;
  if (budget.asked && *budget.asked < least)
    return bad_field(budget.name, "{} must be at least {}, not {}", budget.name, least,
                     *budget.asked);
  const int64_t wanted = budget.asked.value_or(std::max(left, least));
  if (left >= wanted) return static_cast<int>(wanted);
  if (left >= 1 && (budget.clamp || wanted >= context)) return static_cast<int>(left);
  auto error = bad_field(
      "",
      "This model's maximum context length is {} tokens. However, you requested {} tokens "
      "({} in the prompt, {} in the completion). Please shorten the prompt or the completion.",
      context, length + std::max<int64_t>(1, std::min(wanted, context)), length,
      std::max<int64_t>(1, std::min(wanted, context)));
  error.value().param = left < 1 ? "prompt" : budget.name;
  error.value().code = "context_length_exceeded";
  return error;
}

ApiStatus set_prompt(Request& request, std::vector<int32_t> prompt, const TokenBudget& budget,
                     const ServedModel& served) {
  LK_API_ASSIGN_OR_RETURN(request.max_tokens, resolve_max_tokens(prompt.size(), budget, served));
  if (request.min_tokens > request.max_tokens)
    return bad_field("min_tokens", "min_tokens {} is more than the {} tokens that may be generated",
                     request.min_tokens, request.max_tokens);
  request.prompt = std::move(prompt);
  return {};
}

ApiResult<std::vector<Request>> copy_requests(std::vector<Request> prompts, int n) {
  size_t tokens = 0;
  for (const Request& request : prompts) tokens += request.prompt.size();
  if (prompts.size() * static_cast<size_t>(n) > kMaxChoices)
    return bad_field("prompt", "{} prompts with n {} make more than {} choices", prompts.size(), n,
                     kMaxChoices);
  if (tokens * static_cast<size_t>(n) > kMaxPromptTokens)
    return bad_field("prompt", "{} prompt tokens with n {} make more than {} tokens", tokens, n,
                     kMaxPromptTokens);
  if (n == 1) return prompts;
  std::vector<Request> out;
  out.reserve(prompts.size() * static_cast<size_t>(n));
  for (const Request& request : prompts) {
    for (int i = 0; i < n; ++i) {
      out.push_back(request);
      out.back().sampling.seed += static_cast<uint64_t>(i);
    }
  }
  return out;
}

void append_usage(std::string& out, const Usage& usage) {
  out += R"({"prompt_tokens":)";
  append_integer(out, usage.prompt);
  out += R"(,"completion_tokens":)";
  append_integer(out, usage.completion);
  out += R"(,"total_tokens":)";
  append_integer(out, usage.prompt + usage.completion);
  out += R"(,"prompt_tokens_details":{"cached_tokens":)";
  append_integer(out, usage.cached);
  out += R"(},"completion_tokens_details":{"reasoning_tokens":)";
  append_integer(out, usage.reasoning);
  out += "}}";
}

AnswerHead make_head(std::string_view prefix, const ServedModel& served, const std::string& model,
                     const EngineAdapter* who) {
  return {.id = random_id(prefix),
          .model = model,
          .fingerprint = served.fingerprint(who),
          .created = static_cast<int64_t>(std::time(nullptr))};
}

std::string head_text(const AnswerHead& head, std::string_view object) {
  std::string out = R"({"id":)";
  append_string(out, head.id);
  out += R"(,"object":)";
  append_string(out, object);
  out += R"(,"created":)";
  append_integer(out, head.created);
  out += R"(,"model":)";
  append_string(out, head.model);
  out += R"(,"system_fingerprint":)";
  append_string(out, head.fingerprint);
  return out;
}

void GenerationAnswer::fail(const ApiError& error, std::string& out) {
  out += "data: " + error_body(error) + "\n\n";
  out += kStreamEnd;
}

bool GenerationAnswer::note_finish(const TokenEvent& event) {
  if (event.finish == FinishReason::kNone) return true;
  ++finished_;
  if (event.finish != FinishReason::kError) return true;
  if (!failed_) {
    failed_ = api_error({ErrorKind::kInternal, event.error});
  }
  return false;
}

void append_finish(std::string& out, const TokenEvent& event, std::string_view reason) {
  out += R"(,"finish_reason":)";
  append_string(out, reason.empty() ? finish_reason_name(event.finish) : reason);
  out += R"(,"stop_reason":)";
  if (!event.stop.empty()) {
    append_string(out, event.stop);
  } else if (event.stop_id >= 0) {
    append_integer(out, event.stop_id);
  } else {
    out += "null";
  }
}

}  // namespace lk
