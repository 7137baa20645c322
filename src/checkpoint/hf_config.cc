#include "checkpoint/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace lk {
namespace {

// A value as an error's sentence quotes it.
std::string found(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Python writes 4096.0 where it computed with floats.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (!(std::fabs(number) < 9e15) || number != std::floor(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

// Transformers 5 writes {"__float__": "Infinity"} where JSON has no number for it.
void restore_floats(Json& json) {
  if (json.is_object() && json.size() == 1 && json.contains("__float__")) {
    const Json& name = json["__float__"];
    const double infinity = std::numeric_limits<double>::infinity();
    if (name == "Infinity") {
      json = infinity;
    } else if (name == "-Infinity") {
      json = -infinity;
    } else if (name == "NaN") {
      json = std::numeric_limits<double>::quiet_NaN();
    }
    return;
  }
  if (!json.is_structured()) return;
  for (Json& member : json) restore_floats(member);
}

Result<std::shared_ptr<const Json>> read_object(const std::string& path) {
  LK_ASSIGN_OR_RETURN(Json json, read_json_file(path));
  if (!json.is_object()) return invalid("{} holds {}, expected an object", path, found(json));
  restore_floats(json);
  return std::make_shared<const Json>(std::move(json));
}

Result<std::shared_ptr<const Json>> read_optional_object(const std::string& path) {
  auto json = read_object(path);
  if (!json && json.error().kind == ErrorKind::kNotFound) return std::shared_ptr<const Json>();
  return json;
}

Status append_ids(const Json& object, std::string_view what, std::vector<int32_t>& ids) {
  const auto field = object.find("eos_token_id");
  if (field == object.end() || field->is_null()) return {};
  auto append = [&](const Json& value) -> Status {
    const auto id = as_integer(value);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return invalid("{}: eos_token_id is {}, expected a token id or a list of them", what,
                     found(value));
    }
    const auto token = static_cast<int32_t>(*id);
    if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    return {};
  };
  if (!field->is_array()) return append(*field);
  constexpr size_t kMaxIds = 1000;
  if (field->size() > kMaxIds) {
    return invalid("{}: eos_token_id lists {} ids, more than the {} allowed", what, field->size(),
                   kMaxIds);
  }
  for (const Json& value : *field) LK_RETURN_IF_ERROR(append(value));
  return {};
}

}  // namespace

JsonFields::JsonFields(const Json& object, std::string what)
    : object_(&object), what_(std::move(what)) {}

bool JsonFields::has(std::string_view key) const {
  const auto field = object_->find(key);
  return field != object_->end() && !field->is_null();
}

Result<int64_t> JsonFields::integer(std::string_view key, int64_t min, int64_t max) const {
  if (!has(key)) {
    return invalid("{}: field {} is missing, expected an integer from {} to {}", what_, key, min,
                   max);
  }
  const Json& value = *object_->find(key);
  const auto number = as_integer(value);
  if (!number || *number < min || *number > max) {
    return invalid("{}: field {} is {}, expected an integer from {} to {}", what_, key,
                   found(value), min, max);
  }
  return *number;
}

Result<int64_t> JsonFields::integer_or(std::string_view key, int64_t fallback, int64_t min,
                                       int64_t max) const {
  if (!has(key)) return fallback;
  return integer(key, min, max);
}

Result<double> JsonFields::number(std::string_view key) const {
  if (!has(key)) return invalid("{}: field {} is missing, expected a number", what_, key);
  const Json& value = *object_->find(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    return invalid("{}: field {} is {}, expected a finite number", what_, key, found(value));
  }
  return value.get<double>();
}

Result<double> JsonFields::number_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return number(key);
}

Result<bool> JsonFields::boolean_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const Json& value = *object_->find(key);
  if (!value.is_boolean()) {
    return invalid("{}: field {} is {}, expected true or false", what_, key, found(value));
  }
  return value.get<bool>();
}

Result<std::string> JsonFields::string(std::string_view key) const {
  if (!has(key)) return invalid("{}: field {} is missing, expected a string", what_, key);
  const Json& value = *object_->find(key);
  if (!value.is_string()) {
    return invalid("{}: field {} is {}, expected a string", what_, key, found(value));
  }
  return value.get<std::string>();
}

Result<std::string> JsonFields::string_or(std::string_view key, std::string fallback) const {
  if (!has(key)) return fallback;
  return string(key);
}

Result<std::vector<std::string>> JsonFields::strings(std::string_view key) const {
  if (!has(key)) return invalid("{}: field {} is missing, expected a list of strings", what_, key);
  const Json& value = *object_->find(key);
  std::vector<std::string> strings;
  bool good = value.is_array();
  for (size_t i = 0; good && i < value.size(); ++i) {
    good = value[i].is_string();
    if (good) strings.push_back(value[i].get<std::string>());
  }
  if (!good) {
    return invalid("{}: field {} is {}, expected a list of strings", what_, key,
                   value.is_array() ? "a list with other values" : found(value));
  }
  return strings;
}

Result<JsonFields> JsonFields::object(std::string_view key) const {
  if (!has(key)) return invalid("{}: field {} is missing, expected an object", what_, key);
  const Json& value = *object_->find(key);
  if (!value.is_object()) {
    return invalid("{}: field {} is {}, expected an object", what_, key, found(value));
  }
  return JsonFields(value, fmt::format("{}: {}", what_, key));
}

Result<HfConfig> HfConfig::read(const std::string& folder) {
  HfConfig files;
  const std::string path = folder + "/config.json";
  LK_ASSIGN_OR_RETURN(files.config, read_object(path));
  LK_RETURN_IF_ERROR(JsonFields(*files.config, path).string("model_type"));
  LK_ASSIGN_OR_RETURN(files.generation_config,
                      read_optional_object(folder + "/generation_config.json"));
  LK_ASSIGN_OR_RETURN(files.hf_quant_config,
                      read_optional_object(folder + "/hf_quant_config.json"));
  return files;
}

std::string HfConfig::model_type() const {
  return fields().string_or("model_type", "").value_or("");
}

Result<std::vector<int32_t>> HfConfig::eos_token_ids() const {
  std::vector<int32_t> ids;
  if (generation_config) {
    LK_RETURN_IF_ERROR(append_ids(*generation_config, "generation_config.json", ids));
  }
  LK_RETURN_IF_ERROR(append_ids(*config, "config.json", ids));
  if (const JsonFields root = fields(); root.has("text_config")) {
    LK_ASSIGN_OR_RETURN(const JsonFields text, root.object("text_config"));
    LK_RETURN_IF_ERROR(append_ids(text.json(), text.what(), ids));
  }
  return ids;
}

}  // namespace lk
