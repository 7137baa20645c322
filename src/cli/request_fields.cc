#include "cli/request_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/api/sampling_fields.h"

namespace lk {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

// Numbers beyond float become infinite and are refused by check_sampling.
Status read_float(const JsonFields& fields, std::string_view key, float& value) {
  LK_ASSIGN_OR_RETURN(const double number, fields.number_or(key, value));
  value = static_cast<float>(number);
  return {};
}

// The fields that every endpoint of the server reads too.
Status read_common(const OrderedJson& line, const std::string& what, Request& request) {
  const ApiStatus good = read_sampling_fields(line, request);
  return good ? Status() : invalid("{}: {}", what, good.error().message);
}

Status read_logprobs(const JsonFields& fields, Request& request) {
  if (fields.has("logprobs")) {
    if (fields.json()["logprobs"].is_boolean()) {
      request.logprobs = fields.json()["logprobs"].get<bool>() ? 0 : -1;
    } else {
      LK_ASSIGN_OR_RETURN(const int64_t count, fields.integer("logprobs", 0, kMaxTopLogprobs));
      request.logprobs = static_cast<int>(count);
    }
  }
  LK_ASSIGN_OR_RETURN(request.prompt_logprobs,
                      fields.boolean_or("prompt_logprobs", request.prompt_logprobs));
  return {};
}

Result<std::vector<int32_t>> read_ids(const Json& ids, const std::string& what) {
  std::vector<int32_t> out;
  if (!ids.is_array()) return invalid("{}: prompt_ids must be a list of token ids", what);
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > kMostInt) {
      return invalid("{}: prompt_ids must hold token ids, not {}", what,
                     id.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    out.push_back(id.get<int32_t>());
  }
  return out;
}

// Besides the fields of the server's table.
constexpr std::string_view kKnown[] = {
    "id",      "prompt",     "prompt_ids", "messages",       "tools", "chat_template_kwargs",
    "adapter", "max_tokens", "logprobs",   "prompt_logprobs"};

bool is_known(std::string_view key) {
  const auto common = sampling_fields();
  return std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown) ||
         std::any_of(common.begin(), common.end(),
                     [key](const SamplingField& field) { return field.name == key; });
}

Status read_prompt(const OrderedJson& line, const JsonFields& fields, LineRequest& out) {
  const int given = fields.has("prompt") + fields.has("prompt_ids") + fields.has("messages");
  if (given != 1)
    return invalid("{}: give one of prompt, prompt_ids and messages, not {} of them", fields.what(),
                   given);
  if (!fields.has("messages") && (fields.has("tools") || fields.has("chat_template_kwargs"))) {
    return invalid("{}: tools and chat_template_kwargs go with messages", fields.what());
  }
  if (fields.has("prompt")) {
    LK_ASSIGN_OR_RETURN(out.prompt, fields.string("prompt"));
  } else if (fields.has("prompt_ids")) {
    LK_ASSIGN_OR_RETURN(out.prompt, read_ids(fields.json()["prompt_ids"], fields.what()));
  } else {
    const auto part = [&](const char* key) {
      return std::make_shared<const OrderedJson>(fields.has(key) ? line[key] : OrderedJson());
    };
    LineRequest::Chat chat{part("messages"), part("tools"), part("chat_template_kwargs")};
    if (!chat.messages->is_array() || chat.messages->empty()) {
      return invalid("{}: messages must be a list with at least one message", fields.what());
    }
    if (!chat.tools->is_null() && !chat.tools->is_array())
      return invalid("{}: tools must be a list", fields.what());
    if (!chat.variables->is_null() && !chat.variables->is_object()) {
      return invalid("{}: chat_template_kwargs must be an object", fields.what());
    }
    out.prompt = std::move(chat);
  }
  return {};
}

// NaN and the infinities can be read, but an answer that repeated them would be no JSON.
bool holds_no_number(const OrderedJson& value) {
  if (value.is_number_float()) return !std::isfinite(value.get<double>());
  return value.is_structured() && std::any_of(value.begin(), value.end(), holds_no_number);
}

Result<LineRequest> read_line(const OrderedJson& line, const std::string& what,
                              const RequestDefaults& defaults) {
  if (!line.is_object()) return invalid("{}: not a JSON object", what);
  for (const auto& [key, value] : line.items()) {
    if (!is_known(key)) return invalid("{}: unknown key '{}'", what, key);
  }
  // What may be large is read from the line itself.
  Json plain = Json::object();
  for (const auto& [key, value] : line.items()) {
    const bool large = key == "messages" || key == "tools" || key == "chat_template_kwargs";
    plain[key] = large && !value.is_null() ? Json(true) : Json(value);
  }
  const JsonFields fields(plain, what);
  LineRequest out;
  out.request = defaults.request;
  LK_RETURN_IF_ERROR(read_prompt(line, fields, out));
  LK_ASSIGN_OR_RETURN(
      out.adapter,
      fields.string_or("adapter", plain.contains("adapter") ? "base" : defaults.adapter));
  out.request.sampling.seed = defaults.seed ? *defaults.seed : random_seed();
  LK_RETURN_IF_ERROR(read_common(line, what, out.request));
  LK_RETURN_IF_ERROR(read_logprobs(fields, out.request));
  out.default_max_tokens = !fields.has("max_tokens") && !defaults.max_tokens;
  LK_ASSIGN_OR_RETURN(
      const int64_t max_tokens,
      fields.integer_or("max_tokens", defaults.max_tokens.value_or(0), 0, kMostInt));
  out.request.max_tokens = static_cast<int>(max_tokens);
  return out;
}

template <typename T, typename U>
void override_with(const std::optional<T>& flag, U& value) {
  if (flag) value = static_cast<U>(*flag);
}

}  // namespace

void default_max_tokens(Request& request, int max_model_len) {
  const auto left = max_model_len - static_cast<int64_t>(request.prompt.size());
  request.max_tokens = static_cast<int>(std::clamp<int64_t>(left, 1, kDefaultMaxTokens));
}

Result<SamplingParams> sampling_defaults(const SamplingFlags& flags, const HfConfig& config,
                                         SamplingParams sampling) {
  if (config.generation_config) {
    const JsonFields fields(*config.generation_config, "generation_config.json");
    LK_ASSIGN_OR_RETURN(const bool sample, fields.boolean_or("do_sample", true));
    // A field is checked whether it counts or not.
    SamplingParams sampled = sampling;
    LK_RETURN_IF_ERROR(read_float(fields, "temperature", sampled.temperature));
    LK_RETURN_IF_ERROR(read_float(fields, "top_p", sampled.top_p));
    LK_RETURN_IF_ERROR(read_float(fields, "min_p", sampled.min_p));
    LK_ASSIGN_OR_RETURN(const int64_t top_k, fields.integer_or("top_k", 0, 0, kMostInt));
    sampled.top_k = static_cast<int>(top_k);
    LK_RETURN_IF_ERROR(read_float(fields, "repetition_penalty", sampled.repetition_penalty));
    if (const Status good = check_sampling(sampled); !good)
      return invalid("generation_config.json: {}", good.error().message);
    if (sample) {
      sampling = sampled;
    } else {
      sampling.temperature = 0;
      sampling.repetition_penalty = sampled.repetition_penalty;
    }
  }
  override_with(flags.temperature, sampling.temperature);
  override_with(flags.top_p, sampling.top_p);
  override_with(flags.min_p, sampling.min_p);
  override_with(flags.top_k, sampling.top_k);
  override_with(flags.repetition_penalty, sampling.repetition_penalty);
  override_with(flags.presence_penalty, sampling.presence_penalty);
  override_with(flags.frequency_penalty, sampling.frequency_penalty);
  LK_RETURN_IF_ERROR(check_sampling(sampling));
  return sampling;
}

Result<RequestDefaults> request_defaults(const RunOptions& options, const HfConfig& config) {
  RequestDefaults defaults;
  LK_ASSIGN_OR_RETURN(defaults.request.sampling, sampling_defaults(options.sampling, config, {}));
  if (options.sampling.seed) defaults.seed = static_cast<uint64_t>(*options.sampling.seed);
  defaults.request.stop = options.stop;
  defaults.request.ignore_eos = options.ignore_eos;
  defaults.request.logprobs = options.logprobs.value_or(-1);
  defaults.request.prompt_logprobs = options.prompt_logprobs;
  defaults.max_tokens = options.max_tokens;
  if (!options.adapters.empty()) defaults.adapter = options.adapters.front();
  return defaults;
}

ParsedLine parse_line(std::string_view text, const std::string& what,
                      const RequestDefaults& defaults) {
  ParsedLine parsed;
  auto line = parse_ordered_json(text, what);
  if (!line) {
    parsed.request = tl::unexpected<Error>(line.error());
    return parsed;
  }
  if (line->is_object() && line->contains("id")) {
    if (holds_no_number((*line)["id"])) {
      parsed.request = invalid("{}: id holds NaN or infinity, which JSON cannot repeat", what);
      return parsed;
    }
    parsed.id = (*line)["id"].dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
  parsed.request = read_line(*line, what, defaults);
  return parsed;
}

}  // namespace lk
