#include "text/parsers/tool_types.h"

#include <nlohmann/json.hpp>

#include "text/parsers/python_literal.h"
#include "text/parsers/writers.h"

namespace lk {
namespace {

enum Type : uint8_t {
  kString = 1,
  kInteger = 2,
  kNumber = 4,
  kBoolean = 8,
  kObject = 16,
  kArray = 32,
  kNull = 64,
};

uint8_t type_of_name(const OrderedJson& name) {
  if (name == "string") return kString;
  if (name == "integer") return kInteger;
  if (name == "number") return kNumber;
  if (name == "boolean") return kBoolean;
  if (name == "object") return kObject;
  if (name == "array") return kArray;
  if (name == "null") return kNull;
  return 0;
}

uint8_t type_of_value(const OrderedJson& value) {
  if (value.is_string()) return kString;
  if (value.is_number_integer()) return kInteger;
  if (value.is_number()) return kNumber;
  if (value.is_boolean()) return kBoolean;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  return kNull;
}

uint8_t named_types(const OrderedJson& schema) {
  uint8_t types = 0;
  if (!schema.is_object()) return types;
  if (const auto type = schema.find("type"); type != schema.end()) {
    types |= type_of_name(*type);
    if (type->is_array()) {
      for (const OrderedJson& name : *type) types |= type_of_name(name);
    }
  }
  return types;
}

uint8_t types_of(const OrderedJson& schema) {
  uint8_t types = named_types(schema);
  if (!schema.is_object()) return types;
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto members = schema.find(key);
    if (members == schema.end() || !members->is_array()) continue;
    for (const OrderedJson& member : *members) types |= named_types(member);
  }
  const auto values = schema.find("enum");
  if (types == 0 && values != schema.end() && values->is_array()) {
    for (const OrderedJson& value : *values) types |= type_of_value(value);
  }
  return types;
}

// The type of `text` if it is JSON as RFC 8259 has it, else 0.
uint8_t type_of_text(std::string_view text) {
  if (text.empty() || !Json::accept(text)) return 0;
  switch (text.front()) {
    case '"':
      return kString;
    case '{':
      return kObject;
    case '[':
      return kArray;
    case 't':
    case 'f':
      return kBoolean;
    case 'n':
      return kNull;
    default:
      return text.find_first_of(".eE") == std::string_view::npos ? kInteger : kNumber;
  }
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kWhitespace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhitespace) + 1 - first);
}

}  // namespace

ToolTypes::ToolTypes(const OrderedJson* tools) {
  if (tools == nullptr || !tools->is_array()) return;
  for (const OrderedJson& tool : *tools) {
    if (!tool.is_object()) continue;
    const auto inner = tool.find("function");
    const OrderedJson& function = inner != tool.end() && inner->is_object() ? *inner : tool;
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) continue;
    auto& parameters = functions_[name->get<std::string>()];
    const auto schema = function.find("parameters");
    if (schema == function.end() || !schema->is_object()) continue;
    const auto properties = schema->find("properties");
    if (properties == schema->end() || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) parameters[key] = types_of(property);
  }
}

std::string ToolTypes::to_json(std::string_view function, std::string_view parameter,
                               std::string_view value) const {
  uint8_t types = 0;
  if (const auto found = functions_.find(function); found != functions_.end()) {
    const auto type = found->second.find(parameter);
    if (type != found->second.end()) types = type->second;
  }
  const uint8_t other = types & ~kString;
  if (other == 0) return json_string(value);
  const std::string_view text = trim(value);
  const uint8_t type = type_of_text(text);
  uint8_t wanted = other;
  // Integers are numbers, and 5.0 for an integer is for the caller to judge.
  if (wanted & (kInteger | kNumber)) wanted |= kInteger | kNumber;
  if (!(types & kString)) wanted |= kNull;
  if (type & wanted) return std::string(text);
  if (!(types & kString)) {
    if ((types & kBoolean) && (text == "True" || text == "TRUE")) return "true";
    if ((types & kBoolean) && (text == "False" || text == "FALSE")) return "false";
    if (text == "None") return "null";
    const bool opens = text.starts_with('{') || text.starts_with('[');
    if (opens && (types & (text.starts_with('{') ? kObject : kArray))) {
      if (auto json = python_literal_to_json(text)) return *std::move(json);
    }
  }
  return json_string(value);
}

std::string json_string(std::string_view text) {
  return OrderedJson(text).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace lk
