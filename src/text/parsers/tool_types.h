// The types that a request's tools declare for their arguments, for formats that write values
// without them. Immutable, owns what it needs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace lk {

class ToolTypes {
 public:
  // The array `tools` of a request, of chat completions ({type, function: {name, parameters}}) or
  // of responses ({type, name, parameters}); may be null. What has another shape is passed over.
  explicit ToolTypes(const OrderedJson* tools);

  bool offers(std::string_view function) const { return functions_.contains(function); }

  // JSON text of a value as the model wrote it. A value whose parameter may be a string only, or is
  // not declared, is a string. Otherwise what is JSON of a declared type is passed on as it is
  // written, "null" is null, Python's True, False, None, dicts and lists become JSON's, and all
  // else is a string.
  std::string to_json(std::string_view function, std::string_view parameter,
                      std::string_view value) const;

 private:
  using Parameters = std::map<std::string, uint8_t, std::less<>>;  // sets of types
  std::map<std::string, Parameters, std::less<>> functions_;
};

// `text` as a JSON string, quotes included.
std::string json_string(std::string_view text);

}  // namespace lk
