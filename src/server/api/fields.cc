#include "server/api/fields.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace lk {
namespace {

std::optional<int64_t> as_integer(const OrderedJson& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

std::string found_text(const OrderedJson& value) {
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  if (value.is_object()) return "an object";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    return std::isnan(value.get<double>()) ? "NaN"
           : value.get<double>() > 0       ? "Infinity"
                                           : "-Infinity";
  }
  constexpr size_t kMost = 40;
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMost) return "a string";
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

ApiResult<bool> read_boolean(const OrderedJson& value, const std::string& name) {
  if (value.is_boolean()) return value.get<bool>();
  return bad_field(name, "{} must be true or false, not {}", name, found_text(value));
}

ApiResult<int64_t> read_integer(const OrderedJson& value, const std::string& name, int64_t min,
                                int64_t max) {
  const auto number = as_integer(value);
  if (number && *number >= min && *number <= max) return *number;
  return bad_field(name, "{} must be an integer in [{}, {}], not {}", name, min, max,
                   found_text(value));
}

ApiResult<double> read_number(const OrderedJson& value, const std::string& name) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  return bad_field(name, "{} must be a number, not {}", name, found_text(value));
}

ApiResult<std::string> read_string(const OrderedJson& value, const std::string& name) {
  if (value.is_string()) return value.get<std::string>();
  return bad_field(name, "{} must be a string, not {}", name, found_text(value));
}

ApiResult<std::vector<int32_t>> read_ids(const OrderedJson& value, const std::string& name,
                                         int64_t below) {
  if (!value.is_array())
    return bad_field(name, "{} must be a list of token ids, not {}", name, found_text(value));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const OrderedJson& id : value) {
    const auto number = as_integer(id);
    if (!number || *number < 0 || *number >= below) {
      return bad_field(name, "{} must hold token ids in [0, {}], not {}", name, below - 1,
                       found_text(id));
    }
    ids.push_back(static_cast<int32_t>(*number));
  }
  return ids;
}

const OrderedJson* Fields::find(std::string_view key) const {
  const auto at = object_.find(std::string(key));
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

ApiResult<bool> Fields::boolean_or(std::string_view key, bool fallback) const {
  const OrderedJson* value = find(key);
  if (value == nullptr) return fallback;
  return read_boolean(*value, name(key));
}

ApiResult<int64_t> Fields::integer_or(std::string_view key, int64_t fallback, int64_t min,
                                      int64_t max) const {
  const OrderedJson* value = find(key);
  if (value == nullptr) return fallback;
  return read_integer(*value, name(key), min, max);
}

ApiResult<std::string> Fields::string_or(std::string_view key, std::string fallback) const {
  const OrderedJson* value = find(key);
  if (value == nullptr) return fallback;
  return read_string(*value, name(key));
}

}  // namespace lk
