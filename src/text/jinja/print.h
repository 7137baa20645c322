// Python's str(), repr() and json.dumps() of values, and values made from JSON. Pure functions on a
// rendering's budget.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/json.h"
#include "text/jinja/value.h"

namespace lk::jinja {

class Runtime;

// str(value); an undefined value prints as nothing.
std::string to_str(Runtime& rt, const Value& value);
void append_str(Runtime& rt, const Value& value, std::string* out);
std::string to_repr(Runtime& rt, const Value& value);

std::string int_text(__int128 value);
// The shortest digits that read back as `value`, in Python's layout (1.0, 1e+16, inf).
std::string float_repr(double value);
std::string string_repr(std::string_view text);

struct JsonStyle {
  bool ensure_ascii = false;
  bool indented = false;  // items on lines of their own, behind `indent` per level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string to_json_text(Runtime& rt, const Value& value, const JsonStyle& style);

Value from_json(Runtime& rt, const OrderedJson& json);

}  // namespace lk::jinja
