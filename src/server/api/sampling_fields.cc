#include "server/api/sampling_fields.h"

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "server/api/fields.h"

namespace lk {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStops = 128, kMaxStopBytes = 4096, kMaxStopIds = 4096;
constexpr double kMaxBias = 100;

// Numbers beyond float become infinite and are refused by check_sampling.
template <float SamplingParams::*kMember>
ApiStatus read_float(const OrderedJson& value, const std::string& name, Request& request) {
  LK_API_ASSIGN_OR_RETURN(const double number, read_number(value, name));
  SamplingParams alone;
  alone.*kMember = static_cast<float>(number);
  if (const Status good = check_sampling(alone); !good)
    return bad_field(name, "{}", good.error().message);
  request.sampling.*kMember = alone.*kMember;
  return {};
}

template <bool Request::*kMember>
ApiStatus read_flag(const OrderedJson& value, const std::string& name, Request& request) {
  LK_API_ASSIGN_OR_RETURN(request.*kMember, read_boolean(value, name));
  return {};
}

// vLLM's -1 and 0 both mean all.
ApiStatus read_top_k(const OrderedJson& value, const std::string& name, Request& request) {
  LK_API_ASSIGN_OR_RETURN(const int64_t top_k, read_integer(value, name, -1, kMostInt));
  request.sampling.top_k = static_cast<int>(std::max<int64_t>(0, top_k));
  return {};
}

ApiStatus read_seed(const OrderedJson& value, const std::string& name, Request& request) {
  using Limits = std::numeric_limits<int64_t>;
  LK_API_ASSIGN_OR_RETURN(const int64_t seed,
                          read_integer(value, name, Limits::min(), Limits::max()));
  request.sampling.seed = static_cast<uint64_t>(seed);
  return {};
}

ApiStatus read_min_tokens(const OrderedJson& value, const std::string& name, Request& request) {
  LK_API_ASSIGN_OR_RETURN(const int64_t count, read_integer(value, name, 0, kMostInt));
  request.min_tokens = static_cast<int>(count);
  return {};
}

ApiStatus add_stop(const OrderedJson& value, const std::string& name, Request& request) {
  LK_API_ASSIGN_OR_RETURN(std::string stop, read_string(value, name));
  if (stop.empty() || stop.size() > kMaxStopBytes) {
    return bad_field(name, "{}: a stop string has 1 to {} bytes, not {}", name, kMaxStopBytes,
                     stop.size());
  }
  request.stop.push_back(std::move(stop));
  return {};
}

ApiStatus read_stop(const OrderedJson& value, const std::string& name, Request& request) {
  request.stop.clear();
  if (value.is_string()) return add_stop(value, name, request);
  if (!value.is_array())
    return bad_field(name, "{} must be a string or a list of strings, not {}", name,
                     found_text(value));
  if (value.size() > kMaxStops)
    return bad_field(name, "{} has {} strings, at most {} are allowed", name, value.size(),
                     kMaxStops);
  for (const OrderedJson& stop : value) {
    LK_API_RETURN_IF_ERROR(add_stop(stop, name, request));
  }
  return {};
}

ApiStatus read_stop_ids(const OrderedJson& value, const std::string& name, Request& request) {
  LK_API_ASSIGN_OR_RETURN(request.stop_ids, read_ids(value, name, kMostInt));
  if (request.stop_ids.size() > kMaxStopIds)
    return bad_field(name, "{} has {} ids, at most {} are allowed", name, request.stop_ids.size(),
                     kMaxStopIds);
  return {};
}

// {"1234": -5}: keys are token ids.
ApiStatus read_logit_bias(const OrderedJson& value, const std::string& name, Request& request) {
  if (!value.is_object())
    return bad_field(name, "{} must be an object from token ids to numbers, not {}", name,
                     found_text(value));
  request.logit_bias.clear();
  for (const auto& [key, number] : value.items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0)
      return bad_field(name, "{}: {} is no token id", name, found_text(OrderedJson(key)));
    LK_API_ASSIGN_OR_RETURN(const double bias, read_number(number, name));
    if (bias < -kMaxBias || bias > kMaxBias)
      return bad_field(name, "{} holds {}, outside [-{:g}, {:g}]", name, bias, kMaxBias, kMaxBias);
    request.logit_bias.emplace_back(id, static_cast<float>(bias));
  }
  return {};
}

constexpr SamplingField kFields[] = {
    {"temperature", read_float<&SamplingParams::temperature>},
    {"top_p", read_float<&SamplingParams::top_p>},
    {"top_k", read_top_k},
    {"min_p", read_float<&SamplingParams::min_p>},
    {"repetition_penalty", read_float<&SamplingParams::repetition_penalty>},
    {"presence_penalty", read_float<&SamplingParams::presence_penalty>},
    {"frequency_penalty", read_float<&SamplingParams::frequency_penalty>},
    {"seed", read_seed},
    {"logit_bias", read_logit_bias},
    {"stop", read_stop},
    {"stop_token_ids", read_stop_ids},
    {"min_tokens", read_min_tokens},
    {"ignore_eos", read_flag<&Request::ignore_eos>},
    {"include_stop_str_in_output", read_flag<&Request::include_stop>},
    {"skip_special_tokens", read_flag<&Request::skip_special>},
};

}  // namespace

std::span<const SamplingField> sampling_fields() { return kFields; }

ApiStatus read_sampling_fields(const OrderedJson& object, Request& request) {
  const Fields fields(object);
  for (const SamplingField& field : kFields) {
    const OrderedJson* value = fields.find(field.name);
    if (value == nullptr) continue;
    LK_API_RETURN_IF_ERROR(field.read(*value, std::string(field.name), request));
  }
  return {};
}

uint64_t random_seed() {
  thread_local std::mt19937_64 generator(std::random_device{}());
  return generator();
}

}  // namespace lk
